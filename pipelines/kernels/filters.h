// The operations of gpuloader/recipe/program.py that use a pixel's neighbours.

#pragma once

#include "vectors.h"

enum { MOST_TAPS_OF_BLUR = 4095 };

static void sharpen(const uint8_t *restrict source, uint8_t *restrict target, int64_t height, int64_t width,
                    float factor) {
  int64_t row = CHANNELS * width;
  memcpy(target, source, height * row);
  if (height < 3 || width < 3) return;
  for (int64_t y = 1; y < height - 1; y++) {
    const uint8_t *above = source + (y - 1) * row, *here = above + row, *below = here + row;
    uint8_t *to = target + y * row;
    for (int64_t place = CHANNELS; place < row - CHANNELS; place++) {
      int32_t centre = here[place];
      int32_t total = above[place - 3] + above[place] + above[place + 3] + here[place - 3] + 5 * centre +
                      here[place + 3] + below[place - 3] + below[place] + below[place + 3];
      int32_t smooth = (2 * total + 13) / 26;
      to[place] = level(fused((float)centre, (float)(smooth - centre), 1 - factor));
    }
  }
}

static void make_gaussian(float *weights, float deviation, int64_t radius) {
  double total = 0;
  for (int64_t tap = -radius; tap <= radius; tap++) {
    double distance = (double)tap / deviation;
    total += exp(-0.5 * (distance * distance));
  }
  for (int64_t tap = -radius; tap <= radius; tap++) {
    double distance = (double)tap / deviation;
    weights[tap + radius] = (float)(exp(-0.5 * (distance * distance)) / total);
  }
}

// The place in [0, size) of a place beyond the border: it is reflected, several times if needed.
static inline int64_t reflect(int64_t place, int64_t size) {
  int64_t period = size > 1 ? 2 * (size - 1) : 1;
  place = (place < 0 ? -place : place) % period;
  return place < period - place || size == 1 ? place : period - place;
}

// sums = the weighted sum of rows of `count` values, one from each of the `taps` places in `rows`.
static void weigh_places(float *sums, int64_t count, const float *rows, const int64_t *places, const float *weights,
                         int64_t taps) {
  int64_t value = 0;
  for (; value + LANES <= count; value += LANES) {
    float totals[LANES] = {0};
    for (int64_t tap = 0; tap < taps; tap++)
      for (int lane = 0; lane < LANES; lane++)
        totals[lane] = fused(totals[lane], rows[places[tap] + value + lane], weights[tap]);
    memcpy(sums + value, totals, sizeof totals);
  }
  for (; value < count; value++) {
    float total = 0;
    for (int64_t tap = 0; tap < taps; tap++) total = fused(total, rows[places[tap] + value], weights[tap]);
    sums[value] = total;
  }
}

// Blurs over `pixels` pixels, an odd number, horizontally and then vertically; the values in between are floats.
static void blur(const uint8_t *restrict source, uint8_t *restrict target, int64_t height, int64_t width,
                 float deviation, float pixels) {
  int64_t radius = 0 < pixels && pixels <= MOST_TAPS_OF_BLUR ? (int64_t)pixels / 2 : 0;
  int64_t row = CHANNELS * width, taps = 2 * radius + 1;
  float *weights = take(taps, sizeof(float)), *rows = take(height * row, sizeof(float));
  float *line = take(row, sizeof(float)), *padded = take(row + 2 * CHANNELS * radius, sizeof(float));
  int64_t *places = take(taps, sizeof(int64_t)), *columns = take(width + 2 * radius, sizeof(int64_t));
  make_gaussian(weights, deviation, radius);
  for (int64_t tap = 0; tap < taps; tap++) places[tap] = CHANNELS * tap;
  for (int64_t x = 0; x < width + 2 * radius; x++) columns[x] = CHANNELS * reflect(x - radius, width);
  for (int64_t y = 0; y < height; y++) {
    for (int64_t x = 0; x < width + 2 * radius; x++)
      for (int channel = 0; channel < CHANNELS; channel++)
        padded[CHANNELS * x + channel] = source[y * row + columns[x] + channel];
    weigh_places(rows + y * row, row, padded, places, weights, taps);
  }
  for (int64_t y = 0; y < height; y++) {
    for (int64_t tap = 0; tap < taps; tap++) places[tap] = row * reflect(y + tap - radius, height);
    weigh_places(line, row, rows, places, weights, taps);
    for (int64_t value = 0; value < row; value++) target[y * row + value] = level(rintf(line[value]));
  }
  free(weights);
  free(rows);
  free(line);
  free(padded);
  free(places);
  free(columns);
}
