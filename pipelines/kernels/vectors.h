// The parts that all kernels use: vectors, levels, rounding and memory.
//
// Every variant computes the same bits, so nothing here depends on the instruction set: additions and multiplications
// are never contracted (the build makes sure of it), `fused` rounds once on each processor, and sums have one order.

#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__) && !defined(__clang__)
#include <xmmintrin.h>
#endif

// For functions that are compiled for each constant argument.
#define SPECIALISED static inline __attribute__((always_inline))

enum { CHANNELS = 3, LANES = 16 };

typedef float floats4 __attribute__((vector_size(16)));
typedef float floats16 __attribute__((vector_size(64)));
typedef uint8_t levels16 __attribute__((vector_size(16)));

// Uses memcpy because the addresses are not multiples of a vector's size; it becomes one instruction.
static inline floats4 load4(const float *from) {
  floats4 vector;
  memcpy(&vector, from, sizeof vector);
  return vector;
}

static inline void store4(float *to, floats4 vector) { memcpy(to, &vector, sizeof vector); }

static inline floats16 load16(const float *from) {
  floats16 vector;
  memcpy(&vector, from, sizeof vector);
  return vector;
}

static inline void store16(float *to, floats16 vector) { memcpy(to, &vector, sizeof vector); }

// Stores past the caches; `to` is a multiple of 64 bytes.
static inline void stream16(float *to, floats16 vector) {
#if defined(__clang__)
  __builtin_nontemporal_store(vector, (floats16 *)to);
#elif defined(__SSE2__)
  for (int lane = 0; lane < LANES; lane += 4) _mm_stream_ps(to + lane, load4((float *)&vector + lane));
#else
  store16(to, vector);
#endif
}

static inline floats16 load_levels16(const uint8_t *from) {
  levels16 vector;
  memcpy(&vector, from, sizeof vector);
  return __builtin_convertvector(vector, floats16);
}

// total + value * factor, rounded once, like torch's vectorised operators.
static inline float fused(float total, float value, float factor) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(value, factor, total);
#else
  // The product is exact in double precision. The sum is rounded to odd, so that the second rounding is correct:
  // Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008.
  double product = (double)value * factor, sum = product + total, of_total = sum - product;
  double error = (product - (sum - of_total)) + (total - of_total);
  int64_t bits;
  memcpy(&bits, &sum, sizeof bits);
  if (error != 0 && !(bits & 1)) bits += (error > 0) == (sum > 0) ? 1 : -1;
  memcpy(&sum, &bits, sizeof bits);
  return (float)sum;
#endif
}

// Clamped to [0, 255] and truncated; 0 for NaN.
static inline uint8_t level(float value) {
  value = value > 0 ? value : 0;
  return (uint8_t)(int32_t)(value < 255 ? value : 255);
}

// Memory for `count` items of `bytes` each, to be freed with `free`; no more, so that sanitizers detect its end.
static void *take(size_t count, size_t bytes) {
  void *memory = NULL;
  if (posix_memalign(&memory, 64, count * bytes)) { // DALI gives no way to raise an error
    fprintf(stderr, "gpuloader: no memory for %zu bytes of an image that is worked on; use a smaller batch\n",
            count * bytes);
    abort();
  }
  return memory;
}

enum dtype { FLOAT32, FLOAT16, UINT8 };

static inline void store_value(void *out, size_t place, enum dtype dtype, float value) {
  if (dtype == FLOAT32)
    ((float *)out)[place] = value;
  else if (dtype == FLOAT16)
    ((_Float16 *)out)[place] = (_Float16)value;
  else
    ((uint8_t *)out)[place] = (uint8_t)(int32_t)(value + 0.5f);
}
