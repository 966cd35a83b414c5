// Crops, pads, resizes, crops, pads, flips, transposes, normalises and lays out in one pass over the image.
//
// The filters are those of PIL and torch: widened by the scale if `antialias` is on, cut off at the image's border, and
// their weights then normalised again. (DALI's resize repeats the border instead, and differs by up to a few levels.)
// Indexes are computed in double precision, because single precision would misplace the pixels of wide images.
//
// The vertical pass comes first, then the horizontal one, for four output rows at a time. A vector of 16 has one pixel
// of each row, so a weight is loaded once for all of them. The rows in between stay in the processor's first caches.
// The image's rows are prefetched from main memory; the output is written to main memory, bypassing the caches.

#pragma once

#include "vectors.h"

enum filter { NEAREST, BILINEAR, BICUBIC, LANCZOS };
enum padding { CONSTANT, EDGE, REFLECT, SYMMETRIC };
enum { ROWS = 4, ROWS_AHEAD = 8, CACHE_LINE_BYTES = 64 };

// The settings of `resample` of call.py.
struct resampling {
  float scale[3], offset[3], level[3], fill[3], antialias, padding, channels_first, dtype;
};

// What is done along one axis, in pixels of the image: `start` to `end` is resized to `resized` pixels. The picture is
// `picture_start` to `picture_end`, and of the resized pixels `shown_start` to `shown_end` are left; padding is outside
// of both. The output has `size` pixels, from `corner` on. The kernel has `region_size` of the image's pixels, from
// `region_start` on; no weight depends on these two, so a region gives the same bits as the whole image.
struct axis {
  double start, end;
  int64_t begin, behind; // of the pixels that the window touches
  int64_t picture_start, picture_end, region_start, region_size, resized, shown_start, shown_end, corner, size;
  int mirror;
};

// For each output pixel along one axis: the first source pixel, the number of pixels, and their weights. These and the
// share of the padding's fill have the sum 1.
struct taps {
  int64_t *first, *count;
  float *weights; // `most` for each pixel; 0 after its count
  float *filled;
  int64_t most, least_count;
  int blends; // whether any pixel has weights and a share of fill
};

// A filter's weight at a distance of x pixels, within its support. The cubic filter is Keys' with a = -1/2, as in PIL
// and in torch with antialiasing; in torch without antialiasing, a = -3/4.
static double weigh_distance(enum filter filter, int antialias, double x) {
  x = fabs(x);
  if (filter == BILINEAR) return fmax(0, 1 - x);
  if (filter == BICUBIC) {
    double a = antialias ? -0.5 : -0.75;
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
  }
  if (x == 0) return 1;
  return x < 3 ? 3 * sin(M_PI * x) * sin(M_PI * x / 3) / ((M_PI * x) * (M_PI * x)) : 0;
}

enum { NOWHERE = INT64_MIN };

// The pixel from `start` to `end` that is repeated at a place outside of them.
static inline int64_t find_unpadded(int64_t place, int64_t start, int64_t end, enum padding padding) {
  int64_t size = end - start;
  if (start <= place && place < end) return place;
  if (padding == CONSTANT || size < 1) return NOWHERE;
  if (padding == EDGE || size == 1) return place < start ? start : end - 1;
  int64_t period = padding == SYMMETRIC ? 2 * size : 2 * size - 2;
  place = ((place - start) % period + period) % period;
  return start + (place < size ? place : period - place - (padding == SYMMETRIC));
}

static inline int64_t clamp(int64_t value, int64_t least, int64_t most) {
  value = value > least ? value : least;
  return value < most ? value : most;
}

// Where a tap finds its pixel in the region, which has all pixels of the picture that have a weight.
static inline int64_t find_source(const struct axis *axis, int64_t tap, enum padding padding) {
  tap = clamp(tap, axis->begin, axis->behind - 1); // as torch does without antialiasing
  int64_t place = find_unpadded(tap, axis->picture_start, axis->picture_end, padding);
  return place == NOWHERE ? NOWHERE : clamp(place - axis->region_start, 0, axis->region_size - 1);
}

// Padding behind resizing has no taps, and pixels outside of `start` to `end` have no weight.
static struct taps make_taps(const struct axis *axis, enum filter filter, const struct resampling *how) {
  int antialias = how->antialias != 0;
  enum padding padding = (enum padding)how->padding;
  int64_t begin = axis->begin, behind = axis->behind, size = axis->size;
  double start = axis->start, scale = (axis->end - start) / axis->resized;
  double support = filter == LANCZOS ? 3 : filter == BICUBIC ? 2 : 1;
  double stretch = antialias ? fmax(scale, 1) : 1, reach = support * stretch;
  int64_t room = 2 * (int64_t)ceil(reach) + 1;
  struct taps taps = {take(size, sizeof(int64_t)),
                      take(size, sizeof(int64_t)),
                      take(size * room, sizeof(float)),
                      take(size, sizeof(float)),
                      1,
                      INT64_MAX,
                      0};
  double *exact = take(room, sizeof(double));
  int64_t *sources = take(room, sizeof(int64_t));
  for (int64_t pixel = 0; pixel < size; pixel++) {
    float *weights = taps.weights + pixel * room;
    memset(weights, 0, room * sizeof(float));
    int64_t place = axis->corner + (axis->mirror ? size - 1 - pixel : pixel), first = 0, count = 0;
    double filled = 1;
    place = find_unpadded(place, axis->shown_start, axis->shown_end, padding);
    if (place != NOWHERE && filter == NEAREST) { // halfway between two pixels, adding `start` could round to either
      int64_t tap = begin + (int64_t)floor(start - (double)begin + (place + 0.5) * scale);
      int64_t source = find_source(axis, tap, padding);
      if (source != NOWHERE) {
        first = source;
        count = 1;
        weights[0] = 1;
        filled = 0;
      }
    } else if (place != NOWHERE) {
      double centre = start + (place + 0.5) * scale, total = 0;
      int64_t low = (int64_t)floor(centre - reach + 0.5), high = (int64_t)floor(centre + reach + 0.5);
      int64_t least = INT64_MAX, most = INT64_MIN;
      filled = 0;
      for (int64_t tap = low; tap < high; tap++) {
        int counts = !antialias || (begin <= tap && tap < behind);
        exact[tap - low] = counts ? weigh_distance(filter, antialias, (tap + 0.5 - centre) / stretch) : 0;
        total += exact[tap - low];
        int64_t source = counts ? find_source(axis, tap, padding) : NOWHERE;
        sources[tap - low] = source;
        if (source == NOWHERE) continue;
        if (source < least) least = source;
        if (source > most) most = source;
      }
      for (int64_t tap = low; tap < high; tap++) {
        int64_t source = sources[tap - low];
        if (source == NOWHERE) filled += exact[tap - low] / total;
        if (source == NOWHERE) continue;
        weights[source - least] = (float)(weights[source - least] + exact[tap - low] / total);
      }
      if (least <= most) {
        first = least;
        count = most + 1 - least;
      }
      while (count > 1 && weights[count - 1] == 0) count--; // for example if nothing is resized
    }
    taps.first[pixel] = first;
    taps.count[pixel] = count;
    taps.filled[pixel] = (float)filled;
    if (count && filled != 0) taps.blends = 1;
    if (count > taps.most) taps.most = count;
    if (count < taps.least_count) taps.least_count = count;
  }
  for (int64_t pixel = 1; pixel < size; pixel++) // moves the weights together, without unused space
    memmove(taps.weights + pixel * taps.most, taps.weights + pixel * room, taps.most * sizeof(float));
  free(exact);
  free(sources);
  return taps;
}

static void free_taps(struct taps taps) {
  free(taps.first);
  free(taps.count);
  free(taps.weights);
  free(taps.filled);
}

// row = the weighted sum of `count` rows of `source` with `values` values each.
SPECIALISED void weigh_rows(float *restrict row, const uint8_t *restrict source, int64_t values, int64_t count,
                            const float *restrict weights) {
  int64_t value = 0;
  for (; value + LANES <= values; value += LANES) {
    floats16 total = {0};
    for (int64_t tap = 0; tap < count; tap++) total += weights[tap] * load_levels16(source + tap * values + value);
    store16(row + value, total);
  }
  for (; value < values; value++) {
    float total = 0;
    for (int64_t tap = 0; tap < count; tap++) total += weights[tap] * (float)source[tap * values + value];
    row[value] = total;
  }
}

// The counts are constants, so that a loop is compiled for each of them.
static void make_row(float *row, const uint8_t *source, int64_t values, int64_t count, const float *weights) {
  switch (count) {
    case 1: weigh_rows(row, source, values, 1, weights); break;
    case 2: weigh_rows(row, source, values, 2, weights); break;
    case 3: weigh_rows(row, source, values, 3, weights); break;
    case 4: weigh_rows(row, source, values, 4, weights); break;
    default: weigh_rows(row, source, values, count, weights);
  }
}

#define QUARTER(a) 4 * a, 4 * a + 1, 4 * a + 2, 4 * a + 3
#define QUARTERS(a, b, c, d) QUARTER(a), QUARTER(b), QUARTER(c), QUARTER(d)

// Writes four rows to `pixels`: each pixel has four floats of each row; the fourth is unused.
static inline void interleave(float *pixels, const float *rows, int64_t row, int64_t width) {
  for (int64_t x = 0; x < width; x += 4) {
    floats16 of_row[ROWS];
    for (int number = 0; number < ROWS; number++) {
      floats16 values = load16(rows + number * row + CHANNELS * x);
      of_row[number] = __builtin_shufflevector(values, values, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12);
    }
    floats16 front_even = __builtin_shufflevector(of_row[0], of_row[1], QUARTERS(0, 4, 2, 6));
    floats16 front_odd = __builtin_shufflevector(of_row[0], of_row[1], QUARTERS(1, 5, 3, 7));
    floats16 back_even = __builtin_shufflevector(of_row[2], of_row[3], QUARTERS(0, 4, 2, 6));
    floats16 back_odd = __builtin_shufflevector(of_row[2], of_row[3], QUARTERS(1, 5, 3, 7));
    float *to = pixels + 4 * ROWS * x;
    store16(to, __builtin_shufflevector(front_even, back_even, QUARTERS(0, 1, 4, 5)));
    store16(to + 16, __builtin_shufflevector(front_odd, back_odd, QUARTERS(0, 1, 4, 5)));
    store16(to + 32, __builtin_shufflevector(front_even, back_even, QUARTERS(2, 3, 6, 7)));
    store16(to + 48, __builtin_shufflevector(front_odd, back_odd, QUARTERS(2, 3, 6, 7)));
  }
}

#define IN_LANES(a, b, c, d)                                                                                           \
  a, b, c, d, a + 4, b + 4, c + 4, d + 4, a + 8, b + 8, c + 8, d + 8, a + 12, b + 12, c + 12, d + 12

// Writes four neighbouring pixels of four rows to `lines`, with rows of `line` floats: as planes of `stride`, or
// pixels.
static inline void store_pixels(float *lines, int64_t line, int64_t stride, int64_t pixel, int channels_first,
                                floats16 one, floats16 two, floats16 three, floats16 four) {
  if (channels_first) {
    floats16 low_even = __builtin_shufflevector(one, two, IN_LANES(0, 16, 1, 17));
    floats16 low_odd = __builtin_shufflevector(one, two, IN_LANES(2, 18, 3, 19));
    floats16 high_even = __builtin_shufflevector(three, four, IN_LANES(0, 16, 1, 17));
    floats16 high_odd = __builtin_shufflevector(three, four, IN_LANES(2, 18, 3, 19));
    floats16 red = __builtin_shufflevector(low_even, high_even, IN_LANES(0, 1, 16, 17));
    floats16 green = __builtin_shufflevector(low_even, high_even, IN_LANES(2, 3, 18, 19));
    floats16 blue = __builtin_shufflevector(low_odd, high_odd, IN_LANES(0, 1, 16, 17));
    for (int row = 0; row < ROWS; row++) {
      float *to = lines + row * line + pixel;
      memcpy(to, (float *)&red + 4 * row, 16);
      memcpy(to + stride, (float *)&green + 4 * row, 16);
      memcpy(to + 2 * stride, (float *)&blue + 4 * row, 16);
    }
  } else {
    floats16 each[] = {one, two, three, four};
    for (int row = 0; row < ROWS; row++)
      for (int number = 0; number < 4; number++) // the float after a pixel is the next pixel's, or unused
        memcpy(lines + row * line + CHANNELS * (pixel + number), (float *)&each[number] + 4 * row, 16);
  }
}

static inline floats16 clamp_levels(floats16 values) {
  float each[LANES];
  memcpy(each, &values, sizeof each);
  for (int lane = 0; lane < LANES; lane++) {
    each[lane] = each[lane] > 0 ? each[lane] : 0;
    each[lane] = each[lane] < 255 ? each[lane] : 255;
  }
  memcpy(&values, each, sizeof values);
  return values;
}

// A pixel four times: what is added and multiplied to finish its levels, and the fill.
struct finish {
  floats16 scale, offset, level;
};

struct columns {
  int64_t count;  // a multiple of four
  int64_t *start; // the beginning of each in the interleaved rows
  float *weights; // `taps` for each
  float *filled;
  int64_t taps;
};

// What the levels need beside the weights: to be clamped, as some filters overshoot; or the padding's fill before that.
enum extra { NONE, CLAMP, BLEND };

SPECIALISED void weigh_columns(float *lines, int64_t line, const float *pixels, const struct columns *columns,
                               const struct finish *finish, int64_t taps, enum extra extra, int channels_first) {
  const floats16 scale = finish->scale, offset = finish->offset, level = finish->level;
  for (int64_t pixel = 0; pixel < columns->count; pixel += 4) {
    floats16 totals[4] = {{0}, {0}, {0}, {0}};
    for (int64_t tap = 0; tap < taps; tap++)
      for (int number = 0; number < 4; number++)
        totals[number] += columns->weights[(pixel + number) * taps + tap] *
                          load16(pixels + columns->start[pixel + number] + 4 * ROWS * tap);
    for (int number = 0; number < 4; number++) {
      if (extra == BLEND) totals[number] += columns->filled[pixel + number] * level;
      if (extra) totals[number] = clamp_levels(totals[number]);
      totals[number] = totals[number] * scale + offset;
    }
    store_pixels(lines, line, columns->count, pixel, channels_first, totals[0], totals[1], totals[2], totals[3]);
  }
}

// Makes four output rows from four rows; compiled for each of the small numbers of taps that most images need.
static void make_lines(float *lines, int64_t line, const float *pixels, const struct columns *columns,
                       const struct finish *finish, enum extra extra, int channels_first) {
  int64_t taps = columns->taps;
  switch (extra ? -(int64_t)extra : taps) {
    case -BLEND: weigh_columns(lines, line, pixels, columns, finish, taps, BLEND, channels_first); break;
    case -CLAMP: weigh_columns(lines, line, pixels, columns, finish, taps, CLAMP, channels_first); break;
    case 1: weigh_columns(lines, line, pixels, columns, finish, 1, NONE, channels_first); break;
    case 2: weigh_columns(lines, line, pixels, columns, finish, 2, NONE, channels_first); break;
    case 3: weigh_columns(lines, line, pixels, columns, finish, 3, NONE, channels_first); break;
    case 4: weigh_columns(lines, line, pixels, columns, finish, 4, NONE, channels_first); break;
    default: weigh_columns(lines, line, pixels, columns, finish, taps, NONE, channels_first);
  }
}

static floats16 repeat_pixel(const float *rgb) {
  float one[LANES];
  for (int lane = 0; lane < LANES; lane++) one[lane] = lane % 4 < CHANNELS ? rgb[lane % 4] : 0;
  return load16(one);
}

// Writes `count` floats to the output in its dtype, from `place` on.
static void write_run(void *restrict out, int64_t place, enum dtype dtype, const float *restrict from, int64_t count) {
  int64_t value = 0;
  if (dtype == FLOAT32) {
    float *to = (float *)out + place;
    for (; value < count && (uintptr_t)(to + value) % 64; value++) to[value] = from[value];
    for (; value + LANES <= count; value += LANES) stream16(to + value, load16(from + value));
    for (; value < count; value++) to[value] = from[value];
  } else if (dtype == FLOAT16) {
    for (; value < count; value++) store_value(out, place + value, FLOAT16, from[value]);
  } else {
    for (; value < count; value++) store_value(out, place + value, UINT8, from[value]);
  }
}

static void fill_padding(float *line, int64_t stride, int64_t width, const int64_t *column_count, int whole_row,
                         const float *fill, int channels_first) {
  for (int64_t column = 0; column < width; column++)
    if (whole_row || column_count[column] == 0)
      for (int channel = 0; channel < CHANNELS; channel++)
        line[channels_first ? channel * stride + column : CHANNELS * column + channel] = fill[channel];
}

// Adds the share of the fill to a row of `values` values.
static void blend_fill(float *row, int64_t values, float filled, const float *level) {
  for (int64_t value = 0; value < values; value++) row[value] += filled * level[value % CHANNELS];
}

// Writes a row of the output as a column of it.
static void write_column(void *out, int64_t y, int64_t height, int64_t width, enum dtype dtype, const float *line,
                         int64_t stride, int channels_first) {
  for (int64_t x = 0; x < width; x++)
    for (int64_t channel = 0; channel < CHANNELS; channel++)
      if (channels_first)
        store_value(out, (channel * width + x) * height + y, dtype, line[channel * stride + x]);
      else
        store_value(out, (x * height + y) * CHANNELS + channel, dtype, line[CHANNELS * x + channel]);
}

// Crops, pads, resizes, crops, pads, flips, transposes, and computes scale x + offset.
//
// out: height x width x 3 values. image: HWC, RGB.
// roi, placed: as for the operator `resample` of call.py.
static void resample_image(void *out, int64_t height, int64_t width, const uint8_t *image, int64_t image_height,
                           int64_t image_width, const double *roi, const int32_t *placed,
                           const struct resampling *how) {
  enum dtype dtype = (enum dtype)how->dtype;
  int channels_first = how->channels_first != 0, transposed = placed[10] != 0;
  if (transposed) {
    int64_t swapped = height;
    height = width;
    width = swapped;
  }
  struct axis axes[2];
  for (int axis = 0; axis < 2; axis++)
    axes[axis] = (struct axis){.start = roi[axis],
                               .end = roi[2 + axis],
                               .begin = (int64_t)floor(roi[axis]),
                               .behind = (int64_t)ceil(roi[2 + axis]),
                               .picture_start = (int64_t)roi[4 + axis],
                               .picture_end = (int64_t)roi[6 + axis],
                               .region_start = placed[12 + axis],
                               .region_size = axis ? image_width : image_height,
                               .resized = placed[axis],
                               .corner = placed[2 + axis],
                               .mirror = placed[4 + axis],
                               .shown_start = placed[6 + axis],
                               .shown_end = placed[8 + axis],
                               .size = axis ? width : height};
  enum filter filter = (enum filter)placed[11];
  struct taps down = make_taps(&axes[0], filter, how), across = make_taps(&axes[1], filter, how);
  enum extra extra = down.blends || across.blends ? BLEND : filter >= BICUBIC ? CLAMP : NONE;
  int64_t values = CHANNELS * image_width, stride = (width + 3) / 4 * 4, line = CHANNELS * stride + 4;

  struct columns columns = {stride, take(stride, sizeof(int64_t)), take(stride * across.most, sizeof(float)),
                            take(stride, sizeof(float)), across.most};
  memset(columns.start, 0, stride * sizeof(int64_t));
  memset(columns.weights, 0, stride * across.most * sizeof(float));
  memset(columns.filled, 0, stride * sizeof(float));
  for (int64_t pixel = 0; pixel < width; pixel++) columns.start[pixel] = 4 * ROWS * across.first[pixel];
  memcpy(columns.weights, across.weights, width * across.most * sizeof(float));
  memcpy(columns.filled, across.filled, width * sizeof(float));

  int64_t row = values + LANES;
  float *rows_between = take(ROWS * row, sizeof(float));
  // Taps with weight 0 read beyond the rows' end.
  size_t pixels_count = 4 * ROWS * (image_width + across.most + 4);
  float *pixels = take(pixels_count, sizeof(float)), *lines = take(ROWS * line, sizeof(float));
  memset(rows_between, 0, ROWS * row * sizeof(float));
  memset(pixels, 0, pixels_count * sizeof(float));
  struct finish finish = {repeat_pixel(how->scale), repeat_pixel(how->offset), repeat_pixel(how->level)};
  const uint8_t *asked_for = image, *end = image + image_height * values;
  int64_t runs = channels_first ? CHANNELS : 1, run = channels_first ? width : CHANNELS * width;

  for (int64_t top = 0; top < height; top += ROWS) {
    int64_t rows = height - top < ROWS ? height - top : ROWS;
    for (int64_t number = 0; number < rows; number++) {
      int64_t y = top + number;
      const uint8_t *first = image + down.first[y] * values, *needed = first + (down.count[y] + ROWS_AHEAD) * values;
      if (asked_for < first) asked_for = first;
      for (; asked_for < needed && asked_for < end; asked_for += CACHE_LINE_BYTES) __builtin_prefetch(asked_for);
      make_row(rows_between + number * row, first, values, down.count[y], down.weights + y * down.most);
      if (down.count[y] && down.filled[y] != 0)
        blend_fill(rows_between + number * row, values, down.filled[y], how->level);
    }
    interleave(pixels, rows_between, row, image_width);
    make_lines(lines, line, pixels, &columns, &finish, extra, channels_first);
    for (int64_t number = 0; number < rows; number++) {
      int64_t y = top + number;
      if (down.count[y] == 0 || across.least_count == 0)
        fill_padding(lines + number * line, stride, width, across.count, down.count[y] == 0, how->fill, channels_first);
      if (transposed) write_column(out, y, height, width, dtype, lines + number * line, stride, channels_first);
      for (int64_t part = 0; part < runs && !transposed; part++)
        write_run(out, part * height * width + y * run, dtype, lines + number * line + part * stride, run);
    }
  }
  free_taps(down);
  free_taps(across);
  free(columns.start);
  free(columns.weights);
  free(columns.filled);
  free(rows_between);
  free(pixels);
  free(lines);
}
