// The operation WARP of gpuloader/recipe/program.py.
//
// It makes one row of the output at a time. First it computes the source places and the weights of the neighbours of
// all pixels, in loops that become vector instructions. Coordinates are in single precision, as in torch.

#pragma once

#include "vectors.h"

// The `parameters` of WARP.
struct warp {
  float matrix[9], interpolation, fill[3], weighed_again;
};

enum { WARP_NEAREST, WARP_BILINEAR, WARP_BICUBIC, MOST_TAPS = 4 };

// The input places of the pixels in the output's row y; the centres of input pixels are whole numbers.
static inline void find_origins(float *xs, float *ys, int64_t width, int64_t y, const float *m) {
  float row = (float)y + 0.5f;
  for (int64_t x = 0; x < width; x++) {
    float column = (float)(int32_t)x + 0.5f, depth = m[6] * column + (m[7] * row + m[8]);
    xs[x] = (m[0] * column + (m[1] * row + m[2])) / depth - 0.5f;
    ys[x] = (m[3] * column + (m[4] * row + m[5])) / depth - 0.5f;
  }
}

static void warp_nearest(const uint8_t *restrict source, uint8_t *restrict target, int64_t height, int64_t width,
                         const struct warp *warp) {
  float *xs = take(width, sizeof(float)), *ys = take(width, sizeof(float));
  int64_t *places = take(width, sizeof(int64_t));
  uint8_t fill[CHANNELS];
  for (int channel = 0; channel < CHANNELS; channel++) fill[channel] = level(rintf(warp->fill[channel]));
  for (int64_t y = 0; y < height; y++) {
    find_origins(xs, ys, width, y, warp->matrix);
    for (int64_t x = 0; x < width; x++) {
      float column = rintf(xs[x]), row = rintf(ys[x]);
      int inside = (column >= 0) & (column < width) & (row >= 0) & (row < height); // false for NaN
      places[x] = inside ? CHANNELS * ((int64_t)row * width + (int64_t)column) : -1;
    }
    for (int64_t x = 0; x < width; x++, target += CHANNELS)
      memcpy(target, places[x] < 0 ? fill : source + places[x], CHANNELS);
  }
  free(xs);
  free(ys);
  free(places);
}

// The weight of neighbour `tap` for a place that is `part` after the first of the two middle neighbours.
//
// Linear, or cubic with a = -0.75 (Keys, "Cubic convolution interpolation for digital image processing", 1981).
SPECIALISED float weigh_tap(float part, int tap, int taps) {
  const float a = -0.75f;
  if (taps == 2) return tap ? part : 1 - part;
  float distance = fabsf(part + (float)(1 - tap));
  if (tap == 1 || tap == 2) return ((a + 2) * distance - (a + 3)) * distance * distance + 1;
  return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a;
}

// The neighbours of one output row's pixels along one axis.
struct neighbours {
  int32_t *places[MOST_TAPS]; // one for each pixel
  float *weights[MOST_TAPS];  // 0 outside of the input
  float *share;               // the sum of the weights
};

static struct neighbours take_neighbours(int64_t width, int taps) {
  struct neighbours all = {.share = take(width, sizeof(float))};
  for (int tap = 0; tap < taps; tap++)
    all.places[tap] = take(width, sizeof(int32_t)), all.weights[tap] = take(width, sizeof(float));
  return all;
}

static void free_neighbours(struct neighbours all, int taps) {
  free(all.share);
  for (int tap = 0; tap < taps; tap++) free(all.places[tap]), free(all.weights[tap]);
}

SPECIALISED void find_neighbours(struct neighbours all, const float *origins, int64_t width, int64_t size,
                                 int32_t stride, int taps) {
  float *restrict share = all.share;
  memset(share, 0, width * sizeof(float));
  for (int tap = 0; tap < taps; tap++) {
    int32_t *restrict places = all.places[tap];
    float *restrict weights = all.weights[tap];
    for (int64_t x = 0; x < width; x++) {
      float before = floorf(origins[x]), part = origins[x] - before;
      // Always a whole number, also for NaN; far outside of the input it is limited, with all neighbours outside.
      before = before > -4 ? before : -4;
      before = before < (float)(size + 4) ? before : (float)(size + 4);
      int32_t place = (int32_t)before + 1 - taps / 2 + tap;
      int inside = (place >= 0) & (place < size);
      weights[x] = inside ? weigh_tap(part, tap, taps) : 0;
      places[x] = inside ? stride * place : 0;
      share[x] += weights[x];
    }
  }
}

SPECIALISED void warp_weighed(const uint8_t *restrict source, uint8_t *restrict target, int64_t height, int64_t width,
                              const struct warp *warp, int taps) {
  int64_t values = CHANNELS * height * width, row = CHANNELS * width;
  float *xs = take(width, sizeof(float)), *ys = take(width, sizeof(float));
  struct neighbours columns = take_neighbours(width, taps), rows = take_neighbours(width, taps);
  // One float more, because pixels are read and written as vectors of four.
  float *image = take(values + 1, sizeof(float)), *line = take(row + 1, sizeof(float));
  int again = warp->weighed_again != 0;
  for (int64_t value = 0; value < values; value++) image[value] = source[value];
  image[values] = 0;
  for (int64_t y = 0; y < height; y++, target += row) {
    find_origins(xs, ys, width, y, warp->matrix);
    find_neighbours(columns, xs, width, width, CHANNELS, taps);
    find_neighbours(rows, ys, width, height, (int32_t)row, taps);
    for (int64_t x = 0; x < width; x++) {
      floats4 total = {0};
      for (int i = 0; i < taps; i++) {
        const float *from = image + rows.places[i][x];
        floats4 of_row = columns.weights[0][x] * load4(from + columns.places[0][x]);
        for (int j = 1; j < taps; j++) of_row += columns.weights[j][x] * load4(from + columns.places[j][x]);
        total += rows.weights[i][x] * of_row;
      }
      store4(line + CHANNELS * x, total);
    }
    for (int64_t x = 0; x < width; x++) {
      float share = rows.share[x] * columns.share[x], factor = again ? share : 1;
      for (int channel = 0; channel < CHANNELS; channel++)
        target[CHANNELS * x + channel] =
            level(rintf(factor * line[CHANNELS * x + channel] + (1 - share) * warp->fill[channel]));
    }
  }
  free(xs);
  free(ys);
  free_neighbours(columns, taps);
  free_neighbours(rows, taps);
  free(image);
  free(line);
}

static void warp_image(const uint8_t *restrict source, uint8_t *restrict target, int64_t height, int64_t width,
                       const struct warp *warp) {
  if (warp->interpolation == WARP_NEAREST)
    warp_nearest(source, target, height, width, warp);
  else if (warp->interpolation == WARP_BILINEAR)
    warp_weighed(source, target, height, width, warp, 2);
  else
    warp_weighed(source, target, height, width, warp, 4);
}
