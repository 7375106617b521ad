/* NEON with the dot product instructions of ARMv8.2. A panel is two vectors of four sums. */
#if defined(__aarch64__)

#include <arm_neon.h>

#include "weights.h"

#define NEON __attribute__((target("arch=armv8.2-a+dotprod")))
#define EACH_TOKEN _Pragma("GCC unroll 4") for (int t = 0; t < tokens; t++)
#define EACH_HALF _Pragma("GCC unroll 2") for (int h = 0; h < 2; h++)

typedef int32x4_t int_pair[2];
typedef float32x4_t pair[2];

NEON INLINE void i8_dot(const uint8_t *codes, const int16_t *q, const int group, int32x4_t *d)
{
    int32x4_t row[PANEL];
    for (int r = 0; r < PANEL; r++)
        row[r] = vdupq_n_s32(0);
    for (int k = 0; k < group; k += 4, codes += 32) {
        int16x4_t four = vld1_s16(q + k);
#pragma GCC unroll 4
        for (int r = 0; r < PANEL; r += 2) {
            int16x8_t w = vmovl_s8(vreinterpret_s8_u8(vld1_u8(codes + r * 4)));
            row[r] = vmlal_s16(row[r], vget_low_s16(w), four);
            row[r + 1] = vmlal_s16(row[r + 1], vget_high_s16(w), four);
        }
    }
    EACH_HALF {
        int32x4_t first = vpaddq_s32(row[4 * h], row[4 * h + 1]);
        int32x4_t second = vpaddq_s32(row[4 * h + 2], row[4 * h + 3]);
        d[h] = vpaddq_s32(first, second);
    }
}

/* Four columns of the lower and four of the upper halves of the codes, twice. */
NEON INLINE int32x4_t i4k_dot16(int32x4_t d, uint8x16_t w0, uint8x16_t w1, int8x16_t q)
{
    const uint8x16_t low_half = vdupq_n_u8(15);
    d = vdotq_laneq_s32(d, vreinterpretq_s8_u8(vandq_u8(w0, low_half)), q, 0);
    d = vdotq_laneq_s32(d, vreinterpretq_s8_u8(vshrq_n_u8(w0, 4)), q, 1);
    d = vdotq_laneq_s32(d, vreinterpretq_s8_u8(vandq_u8(w1, low_half)), q, 2);
    return vdotq_laneq_s32(d, vreinterpretq_s8_u8(vshrq_n_u8(w1, 4)), q, 3);
}

NEON INLINE void i4k_dot(const uint8_t *codes, const int8_t *q, int32x4_t *d)
{
    EACH_HALF d[h] = vdupq_n_s32(0);
#pragma GCC unroll 2
    for (int k = 0; k < I4K_GROUP; k += 16, codes += 64) {
        int8x16_t sixteen = vld1q_s8(q + k);
        EACH_HALF d[h] = i4k_dot16(d[h], vld1q_u8(codes + 16 * h), vld1q_u8(codes + 32 + 16 * h),
                                   sixteen);
    }
}

NEON INLINE void add_group(float32x4_t *acc, const int32x4_t *d, const float32x4_t *scale,
                           float token_scale)
{
    EACH_HALF acc[h] = vfmaq_f32(acc[h], vcvtq_f32_s32(d[h]), vmulq_n_f32(scale[h], token_scale));
}

NEON INLINE void scaled_bytes(const uint8_t *bytes, const float32x4_t *by, float32x4_t *out)
{
    uint16x8_t wide = vmovl_u8(vld1_u8(bytes));
    out[0] = vmulq_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), by[0]);
    out[1] = vmulq_f32(vcvtq_f32_u32(vmovl_u16(vget_high_u16(wide))), by[1]);
}

NEON INLINE void i8_neon(const uint8_t *codes, const uint8_t *scales, int columns, const token *x,
                         float (*y)[PANEL], const int group, const int tokens)
{
    pair acc[4], scale;
    int_pair d;
    EACH_TOKEN acc[t][0] = acc[t][1] = vdupq_n_f32(0);
    for (int g = 0; g < columns / group; g++) {
        EACH_HALF {
            uint16x4_t halves = vld1_u16((const uint16_t *)scales + 4 * h);
            scale[h] = vcvt_f32_f16(vreinterpret_f16_u16(halves));
        }
        EACH_TOKEN {
            i8_dot(codes, (const int16_t *)x[t].codes + g * group, group, d);
            add_group(acc[t], d, scale, x[t].scale[g]);
        }
        codes += group * PANEL;
        scales += PANEL * sizeof(uint16_t);
    }
    EACH_TOKEN EACH_HALF vst1q_f32(y[t] + 4 * h, acc[t][h]);
}

NEON INLINE void i4k_neon(const uint8_t *codes, const uint8_t *scales, int columns, const token *x,
                          float (*y)[PANEL], const int group, const int tokens)
{
    const float *head = (const float *)scales;
    pair row_scale = {vld1q_f32(head), vld1q_f32(head + 4)};
    pair row_offset = {vld1q_f32(head + PANEL), vld1q_f32(head + PANEL + 4)};
    pair acc[4], scale, offset;
    int_pair d;
    scales += I4K_HEAD;
    EACH_TOKEN acc[t][0] = acc[t][1] = vdupq_n_f32(0);
    for (int g = 0; g < columns / group; g++) {
        scaled_bytes(scales, row_scale, scale);
        scaled_bytes(scales + PANEL, row_offset, offset);
        EACH_TOKEN {
            i4k_dot(codes, (const int8_t *)x[t].codes + g * group, d);
            add_group(acc[t], d, scale, x[t].scale[g]);
            EACH_HALF acc[t][h] = vfmaq_n_f32(acc[t][h], offset[h], x[t].offset[g]);
        }
        codes += group * PANEL / 2;
        scales += 2 * PANEL;
    }
    EACH_TOKEN EACH_HALF vst1q_f32(y[t] + 4 * h, acc[t][h]);
}

/* One function for each group and number of tokens, named like i8_neon_128_3. */
#define KERNEL(kind, group, tokens)                                                               \
    NEON static void kind##_neon_##group##_##tokens(const uint8_t *codes, const uint8_t *scales,  \
                                                    int columns, const token *x,                  \
                                                    float (*y)[PANEL])                            \
    {                                                                                             \
        kind##_neon(codes, scales, columns, x, y, group, tokens);                                 \
    }
#define KERNELS(kind, group)                                                                      \
    KERNEL(kind, group, 1)                                                                        \
    KERNEL(kind, group, 2)                                                                        \
    KERNEL(kind, group, 3)                                                                        \
    KERNEL(kind, group, 4)
#define TILES(kind, group)                                                                        \
    {                                                                                             \
        kind##_neon_##group##_1, kind##_neon_##group##_2, kind##_neon_##group##_3,                \
            kind##_neon_##group##_4                                                               \
    }

KERNELS(i4k, 32)
KERNELS(i8, 32)
KERNELS(i8, 64)
KERNELS(i8, 128)

static void quantize_token(const float *x, int columns, int group, int format, void *codes,
                           float *scale, float *offset)
{
    quantize_token_body(x, columns, group, format, codes, scale, offset);
}

static void activate(const mira_expert *e, float *gate, float *up, const float *gate_bias,
                     const float *up_bias, int n)
{
    activate_body(e, gate, up, gate_bias, up_bias, n);
}

static int quantize_panel(const mira_matrix *m, const float *w, uint8_t *codes, uint8_t *scales,
                          void *fits)
{
    return quantize_panel_body(m, w, codes, scales, fits);
}

const isa isa_neon = {
    .tile = 4,
    .panel = {[I4K_32] = TILES(i4k, 32),
              [I8_32] = TILES(i8, 32),
              [I8_64] = TILES(i8, 64),
              [I8_128] = TILES(i8, 128)},
    .quantize_token = quantize_token,
    .activate = activate,
    .quantize_panel = quantize_panel,
};

#endif
