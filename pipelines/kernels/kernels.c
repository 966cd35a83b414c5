// The kernels as functions that DALI calls, in its own threads: see gpuloader/internals/dali.py for the signatures.
//
// Compiled once for each VARIANT, an instruction set; pipelines/kernels/library.py chooses one.

#define _GNU_SOURCE // for preadv2

#include "augment.h"
#include "reading.h"
#include "resample.h"

#define JOIN(name, variant) name##_##variant
#define NAMED(name, variant) JOIN(name, variant)
#define EXPORTED(name) __attribute__((visibility("default"))) void NAMED(name, VARIANT)

#ifdef SOURCES
__attribute__((visibility("default"))) const char *const sources = SOURCES; // a digest of these files
#endif

EXPORTED(resample)(void *const *outs, const int64_t *const *out_shapes, const void *out_dims, int32_t out_count,
                   const void *const *ins, const int64_t *const *in_shapes, const void *in_dims, int32_t in_count) {
  const struct resampling *how = ins[3];
  const int64_t *size = out_shapes[0] + (how->channels_first != 0);
  resample_image(outs[0], size[0], size[1], ins[0], in_shapes[0][0], in_shapes[0][1], ins[1], ins[2], how);
}

EXPORTED(augment)(void *const *outs, const int64_t *const *out_shapes, const void *out_dims, int32_t out_count,
                  const void *const *ins, const int64_t *const *in_shapes, const void *in_dims, int32_t in_count) {
  augment_image(outs[0], ins[0], in_shapes[0][0], in_shapes[0][1], ins[1], ins[2], in_shapes[1][0], ins[3], ins[4]);
}

// The output's shape is the shape of the last input, an empty one, without its first dimension.
EXPORTED(setup)(int64_t *const *out_shapes, const void *out_dims, int32_t out_count, const int64_t *const *in_shapes,
                const void *in_dims, int32_t in_count, int32_t samples) {
  for (int32_t sample = 0; sample < samples; sample++)
    memcpy(out_shapes[sample], in_shapes[(in_count - 1) * samples + sample] + 1, 3 * sizeof(int64_t));
}

// Not DALI's but Python's: see pipelines/kernels/reading.py.
EXPORTED(read_cached)(struct row *rows, int64_t count) { read_rows(rows, count); }
