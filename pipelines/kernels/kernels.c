// The kernels as functions that DALI calls, in its own threads: see gpuloader/base/dali.py for the signatures.
//
// Compiled once for each VARIANT, an instruction set; pipelines/kernels/library.py chooses one.

#define _GNU_SOURCE // for preadv2

#include "augment.h"
#include "cutting.h"
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
  augment_image(outs[0], ins[0], in_shapes[0][0], in_shapes[0][1], ins[1], ins[2], in_shapes[1][0], ins[3],
                in_shapes[3][0] / BOX_AND_KEY, ins[4]);
}

// The output's height and width are those of the last input, an empty one, (0, height, width).
static void set_shapes(int64_t *const *out_shapes, const int64_t *const *like_output, int32_t samples,
                       int channels_first) {
  for (int32_t sample = 0; sample < samples; sample++) {
    out_shapes[sample][channels_first ? 0 : 2] = CHANNELS;
    memcpy(out_shapes[sample] + (channels_first ? 1 : 0), like_output[sample] + 1, 2 * sizeof(int64_t));
  }
}

EXPORTED(setup_chw)(int64_t *const *out_shapes, const void *out_dims, int32_t out_count,
                    const int64_t *const *in_shapes, const void *in_dims, int32_t in_count, int32_t samples) {
  set_shapes(out_shapes, in_shapes + (in_count - 1) * samples, samples, 1);
}

EXPORTED(setup_hwc)(int64_t *const *out_shapes, const void *out_dims, int32_t out_count,
                    const int64_t *const *in_shapes, const void *in_dims, int32_t in_count, int32_t samples) {
  set_shapes(out_shapes, in_shapes + (in_count - 1) * samples, samples, 0);
}

// Not DALI's but Python's: see pipelines/kernels/reading.py and cutting.py.
EXPORTED(read_cached)(struct row *rows, int64_t count) { read_rows(rows, count); }

EXPORTED(cut_jpegs)(struct cut *cuts, int64_t count) {
  for (struct cut *cut = cuts; cut < cuts + count; cut++) cut_jpeg(cut);
}
