// Cuts JPEGs with restart intervals as bytes: what is left is a smaller JPEG of the pixels that are needed.
//
// A restart interval is decoded without any other one (ITU-T T.81, F.1.1.5 and F.2.1.3.1). If intervals divide the rows
// of MCUs, those that a window touches, behind a header with the window's size, are a whole JPEG of that window.

#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Pixels around the window. Decoders interpolate chroma from the neighbouring sample, which is at most four pixels
// away.
#define MARGIN 4

struct cut {
  uint8_t *file;                    // the JPEG, which is overwritten from the beginning
  int64_t bytes;                    // its size, then that of the result
  int64_t top, left, bottom, right; // the window: becomes that of the pixels of the result
};

struct jpeg {
  int64_t frame, scan; // offsets: of the frame header's marker, and of the first coded byte
  int64_t height, width;
  int64_t mcu_height, mcu_width; // pixels
  int64_t interval;              // MCUs
};

static int64_t big_endian(const uint8_t *bytes) { return bytes[0] << 8 | bytes[1]; }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Whether a decoder needs the segment with this marker: not metadata, except what decides how colours are stored.
static int is_needed(uint8_t marker, const uint8_t *content, int64_t bytes) {
  if (marker == 0xE0) return bytes >= 5 && memcmp(content, "JFIF", 5) == 0;
  if (marker == 0xEE) return bytes >= 5 && memcmp(content, "Adobe", 5) == 0;
  return marker != 0xFE && (marker & 0xF0) != 0xE0;
}

// Pixels of a side. libjpeg-turbo refuses an image with a longer one, so it must get that side.
#define LONGEST_SIDE 65500

// Reads a frame header; returns 0 if a JPEG with this header is not cut.
static int read_frame(struct jpeg *jpeg, const uint8_t *content, int64_t bytes) {
  int64_t components = bytes < 6 ? 0 : content[5], across = 1, down = 1;
  if (components < 1 || components > 4 || bytes != 6 + 3 * components || content[0] != 8) return 0;
  for (int64_t each = 0; each < components; each++) {
    int64_t horizontal = content[7 + 3 * each] >> 4, vertical = content[7 + 3 * each] & 15;
    if (horizontal < 1 || horizontal > 4 || vertical < 1 || vertical > 4) return 0;
    across = most(across, horizontal);
    down = most(down, vertical);
  }
  if (components == 1) // an MCU of a single component is one block, whatever its factors are
    across = down = 1;
  jpeg->height = big_endian(content + 1);
  jpeg->width = big_endian(content + 3);
  jpeg->mcu_height = 8 * down;
  jpeg->mcu_width = 8 * across;
  return jpeg->height > 0 && jpeg->width > 0 && most(jpeg->height, jpeg->width) <= LONGEST_SIDE;
}

// Reads all up to the coded bytes; returns 0 if the JPEG is not one of a single, sequential, interleaved scan of 8
// bits.
static int read_header(struct jpeg *jpeg, const uint8_t *file, int64_t bytes) {
  int64_t at = 2;
  uint8_t components = 0;
  memset(jpeg, 0, sizeof *jpeg);
  if (bytes < 4 || big_endian(file) != 0xFFD8) return 0;
  for (;;) {
    if (at + 4 > bytes || file[at] != 0xFF) return 0;
    uint8_t marker = file[at + 1];
    int64_t length = big_endian(file + at + 2) - 2;
    const uint8_t *content = file + at + 4;
    if (length < 0 || at + 4 + length > bytes) return 0;
    switch (marker) {
      case 0xC0:
      case 0xC1:
        if (jpeg->frame || !read_frame(jpeg, content, length)) return 0;
        jpeg->frame = at;
        components = content[5];
        break;
      case 0xDD:
        if (length != 2) return 0;
        jpeg->interval = big_endian(content);
        break;
      case 0xDA:
        if (!jpeg->frame || length != 4 + 2 * components || content[0] != components) return 0;
        for (int64_t each = 0; each < components; each++)
          if (content[1 + 2 * each] != file[jpeg->frame + 10 + 3 * each]) return 0;
        if (content[length - 3] != 0 || content[length - 2] != 63 || content[length - 1] != 0) return 0;
        jpeg->scan = at + 4 + length;
        return 1;
      case 0xC4:
      case 0xDB:
      case 0xFE: break;
      default:
        if ((marker & 0xF0) != 0xE0) return 0;
    }
    at += 4 + length;
  }
}

// Finds the end of a coded interval: the offset of the marker behind it, or -1.
static int64_t find_marker(const uint8_t *file, int64_t at, int64_t bytes) {
  while (at < bytes) {
    const uint8_t *found = memchr(file + at, 0xFF, (size_t)(bytes - at));
    if (!found || found + 1 == file + bytes) return -1;
    if (found[1]) return found - file;
    at = found - file + 2; // a stuffed zero: 0xFF itself is coded
  }
  return -1;
}

// Cuts one JPEG to the intervals that the window touches. Leaves it as it is if it has no intervals
// that divide its rows, if all of them are needed, or if anything is irregular, which the decoder may judge.
static void cut_jpeg(struct cut *cut) {
  const struct cut window = *cut;
  struct jpeg jpeg;
  uint8_t *file = cut->file;
  cut->top = cut->left = 0;
  if (!read_header(&jpeg, file, cut->bytes) || !jpeg.interval) return;
  int64_t rows = (jpeg.height + jpeg.mcu_height - 1) / jpeg.mcu_height;
  int64_t mcus = (jpeg.width + jpeg.mcu_width - 1) / jpeg.mcu_width;
  if (mcus % jpeg.interval || window.top < 0 || window.left < 0 || window.top >= window.bottom ||
      window.left >= window.right || window.bottom > jpeg.height || window.right > jpeg.width)
    return;
  int64_t in_row = mcus / jpeg.interval, pixels = jpeg.interval * jpeg.mcu_width;
  int64_t first_row = most(0, window.top - MARGIN) / jpeg.mcu_height;
  int64_t end_row = (least(jpeg.height, window.bottom + MARGIN) + jpeg.mcu_height - 1) / jpeg.mcu_height;
  int64_t first = most(0, window.left - MARGIN) / pixels;
  int64_t end = (least(jpeg.width, window.right + MARGIN) + pixels - 1) / pixels;
  // libjpeg-turbo interpolates chroma of more than two columns only, so one MCU could be decoded in another way.
  if ((end - first) * jpeg.interval < 2) {
    first = end < in_row ? first : most(0, first - 1);
    end = least(in_row, first + 2);
  }
  int64_t across = end - first, needed = (end_row - first_row) * across;
  int64_t scanned = (end_row - 1) * in_row + end;
  // Each interval has a marker behind it, so a small file with a large image in its header is irregular.
  if (needed == rows * in_row || scanned > cut->bytes / 2) return;
  int64_t (*intervals)[2] = malloc((size_t)needed * sizeof *intervals);
  if (!intervals) return;
  int64_t found = 0, at = jpeg.scan, total = rows * in_row;
  for (int64_t number = 0; number < scanned; number++) {
    int64_t begin = at, marker = find_marker(file, at, cut->bytes), column = number % in_row;
    if (marker < 0 || file[marker + 1] != (number + 1 == total ? 0xD9 : 0xD0 + number % 8)) {
      free(intervals);
      return;
    }
    if (number / in_row >= first_row && column >= first && column < end) {
      intervals[found][0] = begin;
      intervals[found++][1] = marker;
    }
    at = marker + 2;
  }

  // From here on the file is overwritten: each part moves towards the beginning, so nothing is overwritten before it
  // is read.
  int64_t to = 2;
  for (at = 2; at < jpeg.scan;) {
    int64_t length = 2 + big_endian(file + at + 2), frame = at == jpeg.frame;
    if (is_needed(file[at + 1], file + at + 4, length - 4)) {
      memmove(file + to, file + at, (size_t)length);
      if (frame) jpeg.frame = to;
      to += length;
    }
    at += length;
  }
  for (int64_t each = 0; each < needed; each++) {
    int64_t length = intervals[each][1] - intervals[each][0];
    if (each) {
      file[to++] = 0xFF;
      file[to++] = (uint8_t)(0xD0 + (each - 1) % 8);
    }
    memmove(file + to, file + intervals[each][0], (size_t)length);
    to += length;
  }
  free(intervals);
  file[to++] = 0xFF;
  file[to++] = 0xD9;
  cut->bytes = to;
  cut->top = first_row * jpeg.mcu_height;
  cut->left = first * pixels;
  int64_t height = least(end_row * jpeg.mcu_height, jpeg.height) - cut->top;
  int64_t width = least(end * pixels, jpeg.width) - cut->left;
  uint8_t *sides = file + jpeg.frame + 5;
  sides[0] = (uint8_t)(height >> 8);
  sides[1] = (uint8_t)height;
  sides[2] = (uint8_t)(width >> 8);
  sides[3] = (uint8_t)width;
}
