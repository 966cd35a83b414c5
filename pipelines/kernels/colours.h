// The operations of gpuloader/recipe/program.py that process each pixel by itself.
//
// An image is flat, RGB pixel by pixel; `target` is never `source`. The results are truncated, so the arithmetic is
// exactly torch's: single precision, in the same order, with the same fused additions.

#pragma once

#include "vectors.h"

// The same numbers as in gpuloader/recipe/program.py.
enum op {
  IDENTITY,
  WARP,
  BRIGHTNESS,
  CONTRAST,
  SATURATION,
  HUE,
  SHARPNESS,
  POSTERIZE,
  SOLARIZE,
  SOLARIZE_ADD,
  INVERT,
  AUTOCONTRAST,
  EQUALIZE,
  GRAYSCALE,
  BLUR,
  PERMUTE,
  MIX_BEGIN,
  MIX_ADD,
  MIX_END
};

// The gray value; a whole number.
static inline float gray(uint8_t red, uint8_t green, uint8_t blue) {
  return (float)(int32_t)fused(fused((float)red * 0.2989f, green, 0.587f), blue, 0.114f);
}

// The level of factor value + (1 - factor) other.
static inline uint8_t blend(float value, float other, float factor) {
  return level(fused(value * factor, other, 1 - factor));
}

static float find_mean_gray(const uint8_t *source, int64_t pixels) {
  int64_t total = 0;
  for (int64_t pixel = 0; pixel < pixels; pixel++, source += CHANNELS)
    total += (int32_t)gray(source[0], source[1], source[2]);
  return (float)total / (float)pixels;
}

// Counts the 256 levels of each channel.
static void count_levels(const uint8_t *source, int64_t pixels, int64_t counts[CHANNELS][256]) {
  memset(counts, 0, CHANNELS * 256 * sizeof(int64_t));
  for (int64_t pixel = 0; pixel < pixels; pixel++, source += CHANNELS)
    for (int channel = 0; channel < CHANNELS; channel++) counts[channel][source[channel]]++;
}

static void stretch(uint8_t *table, const int64_t *counts) {
  int least = 0, greatest = 255;
  while (counts[least] == 0 && least < 255) least++;
  while (counts[greatest] == 0 && greatest > least) greatest--;
  if (least == greatest) least = 0, greatest = 255;
  float scale = (float)(greatest - least) * (float)(1 / 255.0);
  for (int x = 0; x < 256; x++) table[x] = level((float)(x - least) / scale);
}

// The same as PIL's `ImageOps.equalize`.
static void equalize(uint8_t *table, const int64_t *counts) {
  int greatest = 255;
  while (counts[greatest] == 0 && greatest > 0) greatest--;
  int64_t pixels = 0, below = 0;
  for (int x = 0; x < 256; x++) pixels += counts[x];
  int64_t step = (pixels - counts[greatest]) / 255;
  for (int x = 0; x < 256; x++) {
    int64_t now = step ? (below + step / 2) / step : x;
    table[x] = (uint8_t)(now < 255 ? now : 255);
    below += counts[x];
  }
}

// The new value of a level; `mean` is for CONTRAST.
static uint8_t change_level(enum op op, int x, float factor, float mean) {
  switch (op) {
    case BRIGHTNESS: return level((float)x * factor);
    case CONTRAST: return blend((float)x, mean, factor);
    case POSTERIZE: return (uint8_t)(x & (0xFF00 >> (level(factor) < 8 ? level(factor) : 8)));
    case SOLARIZE: return (uint8_t)((float)x >= factor ? 255 - x : x);
    case SOLARIZE_ADD: return x < 128 ? level((float)x + factor) : (uint8_t)x;
    default: return (uint8_t)(255 - x); // INVERT
  }
}

// The operations that look up levels in a table; for some of them, the table depends on the whole image.
static void apply_table(const uint8_t *restrict source, uint8_t *restrict target, int64_t pixels, enum op op,
                        float factor) {
  uint8_t tables[CHANNELS][256];
  if (op == AUTOCONTRAST || op == EQUALIZE) {
    int64_t counts[CHANNELS][256];
    count_levels(source, pixels, counts);
    for (int channel = 0; channel < CHANNELS; channel++)
      (op == EQUALIZE ? equalize : stretch)(tables[channel], counts[channel]);
  } else {
    float mean = op == CONTRAST ? find_mean_gray(source, pixels) : 0;
    for (int x = 0; x < 256; x++) tables[0][x] = tables[1][x] = tables[2][x] = change_level(op, x, factor, mean);
  }
  for (int64_t pixel = 0; pixel < pixels; pixel++, source += CHANNELS, target += CHANNELS)
    for (int channel = 0; channel < CHANNELS; channel++) target[channel] = tables[channel][source[channel]];
}

static void make_gray(const uint8_t *restrict source, uint8_t *restrict target, int64_t pixels) {
  for (int64_t pixel = 0; pixel < pixels; pixel++, source += CHANNELS, target += CHANNELS)
    target[0] = target[1] = target[2] = (uint8_t)gray(source[0], source[1], source[2]);
}

static void permute(const uint8_t *restrict source, uint8_t *restrict target, int64_t pixels, const float *order) {
  int from[CHANNELS];
  for (int channel = 0; channel < CHANNELS; channel++) from[channel] = level(order[channel]) % CHANNELS;
  for (int64_t pixel = 0; pixel < pixels; pixel++, source += CHANNELS, target += CHANNELS)
    for (int channel = 0; channel < CHANNELS; channel++) target[channel] = source[from[channel]];
}

static void saturate(const uint8_t *restrict source, uint8_t *restrict target, int64_t pixels, float factor) {
  for (int64_t pixel = 0; pixel < pixels; pixel++, source += CHANNELS, target += CHANNELS) {
    float of_gray = gray(source[0], source[1], source[2]);
    target[0] = blend(source[0], of_gray, factor);
    target[1] = blend(source[1], of_gray, factor);
    target[2] = blend(source[2], of_gray, factor);
  }
}

// The same steps as torchvision's `_rgb_to_hsv` and `_hsv_to_rgb`.
static void turn_hue(const uint8_t *restrict source, uint8_t *restrict target, int64_t pixels, float turn) {
  const float per_level = (float)(1 / 255.0), levels = (float)(256 - 1e-3), sixth = (float)(1 / 6.0);
  for (int64_t pixel = 0; pixel < pixels; pixel++, source += CHANNELS, target += CHANNELS) {
    float red = source[0] * per_level, green = source[1] * per_level, blue = source[2] * per_level;
    float value = red > green ? red : green, low = red < green ? red : green;
    value = value > blue ? value : blue;
    low = low < blue ? low : blue;
    float divisor = value > low ? value - low : 1, chroma = (value - low) / (value > low ? value : 1);
    float r = (value - red) / divisor, g = (value - green) / divisor, b = (value - blue) / divisor;
    float sixths = value == red ? b - g : value == green ? (r + 2) - b : (g + 4) - r;
    float circles = sixths * sixth + 1;
    circles = circles - floorf(circles) + turn;
    sixths = (circles - floorf(circles)) * 6;
    float sector = floorf(sixths), part = chroma * (sixths - sector), pale = 1 - chroma;
    float p = pale * value, q = (1 - part) * value, t = (part + pale) * value;
    // Sector 6 equals sector 0; rounding at the end of the circle can give it.
    red = sector == 1 ? q : sector == 2 || sector == 3 ? p : sector == 4 ? t : value;
    green = sector == 1 || sector == 2 ? value : sector == 3 ? q : sector == 4 || sector == 5 ? p : t;
    blue = sector == 2 ? t : sector == 3 || sector == 4 ? value : sector == 5 ? q : p;
    target[0] = level(red * levels);
    target[1] = level(green * levels);
    target[2] = level(blue * levels);
  }
}
