// Runs a program of gpuloader/recipe/program.py on an image; then normalises it, lays it out and erases a part.

#pragma once

#include "colours.h"
#include "filters.h"
#include "warps.h"

enum { PARAMETERS = 14 };
enum { BOX_AND_KEY = 6, ONE_COLOUR = 2 }; // the numbers of a box; the value of `noisy` for one colour

// The settings of `augment` of call.py.
struct finishing {
  float scale[3], offset[3], erase_value[3], noisy, channels_first, dtype;
};

// Applies an operation to the source and writes the target. Not for IDENTITY or the operations that mix.
static void apply(enum op op, const float *parameters, const uint8_t *source, uint8_t *target, int64_t height,
                  int64_t width) {
  int64_t pixels = height * width;
  switch (op) {
    case WARP: warp_image(source, target, height, width, (const struct warp *)parameters); break;
    case SATURATION: saturate(source, target, pixels, parameters[0]); break;
    case HUE: turn_hue(source, target, pixels, parameters[0]); break;
    case SHARPNESS: sharpen(source, target, height, width, parameters[0]); break;
    case GRAYSCALE: make_gray(source, target, pixels); break;
    case BLUR: blur(source, target, height, width, parameters[0], parameters[1]); break;
    case PERMUTE: permute(source, target, pixels, parameters); break;
    default: apply_table(source, target, pixels, op, parameters[0]);
  }
}

// An image and the memory for its steps, allocated at first use. The target of a step is the source of the next one.
struct work {
  const uint8_t *source;
  uint8_t *target, *other, *noted;
  float *total;
};

static void mix(struct work *work, enum op op, float share, int64_t values) {
  if (!work->noted) {
    work->noted = take(values, 1);
    work->total = take(values, sizeof(float));
  }
  if (op == MIX_BEGIN) {
    memcpy(work->noted, work->source, values);
    memset(work->total, 0, values * sizeof(float));
  } else {
    for (int64_t value = 0; value < values; value++) work->total[value] += share * (float)work->source[value];
    work->source = work->noted;
  }
}

static void change(struct work *work, enum op op, const float *parameters, int64_t height, int64_t width) {
  int64_t values = CHANNELS * height * width;
  if (!work->target) {
    work->target = take(values, 1);
    work->other = take(values, 1);
  }
  if (op == MIX_END)
    for (int64_t value = 0; value < values; value++) work->target[value] = level(work->total[value]);
  else
    apply(op, parameters, work->source, work->target, height, width);
  uint8_t *made = work->target;
  work->target = work->other;
  work->other = made;
  work->source = made;
}

SPECIALISED void finish_values(void *out, enum dtype dtype, const uint8_t *source, int64_t pixels,
                               const struct finishing *how) {
  if (how->channels_first != 0)
    for (int channel = 0; channel < CHANNELS; channel++)
      for (int64_t pixel = 0; pixel < pixels; pixel++)
        store_value(out, channel * pixels + pixel, dtype,
                    fused(how->offset[channel], (float)source[CHANNELS * pixel + channel], how->scale[channel]));
  else
    for (int64_t pixel = 0; pixel < pixels; pixel++)
      for (int channel = 0; channel < CHANNELS; channel++)
        store_value(out, CHANNELS * pixel + channel, dtype,
                    fused(how->offset[channel], (float)source[CHANNELS * pixel + channel], how->scale[channel]));
}

static void finish(void *out, const uint8_t *source, int64_t pixels, const struct finishing *how) {
  switch ((enum dtype)how->dtype) {
    case FLOAT32: finish_values(out, FLOAT32, source, pixels, how); break;
    case FLOAT16: finish_values(out, FLOAT16, source, pixels, how); break;
    case UINT8: finish_values(out, UINT8, source, pixels, how);
  }
}

// The hash lowbias32 by Chris Wellons ("Prospecting for Hash Functions").
static inline uint32_t hash(uint32_t x) {
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}

// A standard normal number (Box and Muller) for a place and a key.
static inline float make_noise(uint32_t place, const uint32_t *key) {
  const float per_word = 0x1p-32f, circle = (float)(2 * M_PI);
  float first = ((float)hash(place ^ key[0]) + 1) * per_word, second = (float)hash(place + key[1]) * per_word;
  return sqrtf(-2 * logf(first)) * cosf(circle * second);
}

static void erase(void *out, int64_t height, int64_t width, const int32_t *box_and_key, const struct finishing *how) {
  int64_t top = box_and_key[0], left = box_and_key[1], bottom = top + box_and_key[2], right = left + box_and_key[3];
  uint32_t key[2] = {(uint32_t)box_and_key[4], (uint32_t)box_and_key[5]};
  for (int64_t row = top > 0 ? top : 0; row < bottom && row < height; row++)
    for (int64_t column = left > 0 ? left : 0; column < right && column < width; column++)
      for (int channel = 0; channel < CHANNELS; channel++) {
        int64_t place = CHANNELS * (row * width + column) + channel;
        int64_t index = how->noisy == ONE_COLOUR ? channel : place;
        float value = how->noisy != 0 ? make_noise((uint32_t)index, key) : how->erase_value[channel];
        if (how->channels_first != 0) place = (channel * height + row) * width + column;
        store_value(out, place, (enum dtype)how->dtype, value);
      }
}

// Runs a program on an image, computes scale x + offset, and erases a part.
//
// out: as many values as the image. image: HWC, RGB. ops, parameters: `steps` steps of a `Program`, for one sample.
// boxes_and_keys: for each of `boxes`: top, left, height, width, and the noise's key, two words.
static void augment_image(void *out, const uint8_t *image, int64_t height, int64_t width, const int32_t *ops,
                          const float *parameters, int64_t steps, const int32_t *boxes_and_keys, int64_t boxes,
                          const struct finishing *how) {
  struct work work = {.source = image};
  for (int64_t step = 0; step < steps; step++) {
    int32_t op = ops[step];
    int begun = op <= MIX_BEGIN || work.noted;
    if (op <= IDENTITY || op > MIX_END || !begun) continue; // a recipe's program never has the last two cases
    if (op == MIX_BEGIN || op == MIX_ADD)
      mix(&work, (enum op)op, parameters[PARAMETERS * step], CHANNELS * height * width);
    else
      change(&work, (enum op)op, parameters + PARAMETERS * step, height, width);
  }
  finish(out, work.source, height * width, how);
  for (int64_t box = 0; box < boxes; box++) erase(out, height, width, boxes_and_keys + BOX_AND_KEY * box, how);
  free(work.target);
  free(work.other);
  free(work.noted);
  free(work.total);
}
