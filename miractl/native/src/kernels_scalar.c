/* The normative arithmetic, one step after the other; also for processors without other kernels.
 *
 * For an output, over its groups in order:
 *     d   = sum of weight code * token code               (exact, int32)
 *     acc = fma(d, weight scale * token scale, acc)
 *     acc = fma(weight offset, token offset, acc)         (I4K alone)
 */
#include <math.h>

#include "weights.h"

INLINE void i8_panel(const uint8_t *codes, const uint8_t *scales, int columns, const token *x,
                     float (*y)[PANEL], const int group)
{
    const int16_t *q = x->codes;
    for (int r = 0; r < PANEL; r++) {
        float acc = 0;
        for (int g = 0; g < columns / group; g++) {
            int32_t d = 0;
            for (int k = g * group; k < (g + 1) * group; k++)
                d += (int8_t)codes[i8_code_at(r, k)] * q[k];
            uint16_t half;
            memcpy(&half, scales + 2 * ((size_t)g * PANEL + r), sizeof half);
            acc = fmaf((float)d, half_to_float(half) * x->scale[g], acc);
        }
        y[0][r] = acc;
    }
}

static void i8_32(const uint8_t *codes, const uint8_t *scales, int columns, const token *x,
                  float (*y)[PANEL])
{
    i8_panel(codes, scales, columns, x, y, 32);
}

static void i8_64(const uint8_t *codes, const uint8_t *scales, int columns, const token *x,
                  float (*y)[PANEL])
{
    i8_panel(codes, scales, columns, x, y, 64);
}

static void i8_128(const uint8_t *codes, const uint8_t *scales, int columns, const token *x,
                   float (*y)[PANEL])
{
    i8_panel(codes, scales, columns, x, y, 128);
}

static void i4k_32(const uint8_t *codes, const uint8_t *scales, int columns, const token *x,
                   float (*y)[PANEL])
{
    const int8_t *q = x->codes;
    float head[2 * PANEL];
    memcpy(head, scales, sizeof head);
    for (int r = 0; r < PANEL; r++) {
        float acc = 0;
        for (int g = 0; g < columns / I4K_GROUP; g++) {
            const uint8_t *u = scales + I4K_HEAD + (size_t)g * 2 * PANEL;
            int32_t d = 0;
            for (int k = g * I4K_GROUP; k < (g + 1) * I4K_GROUP; k++)
                d += (codes[i4k_code_at(r, k)] >> i4k_code_shift(k) & 15) * q[k];
            acc = fmaf((float)d, u[r] * head[r] * x->scale[g], acc);
            acc = fmaf(u[PANEL + r] * head[PANEL + r], x->offset[g], acc);
        }
        y[0][r] = acc;
    }
}

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

const isa isa_scalar = {
    .tile = 1,
    .panel = {[I4K_32] = {i4k_32}, [I8_32] = {i8_32}, [I8_64] = {i8_64}, [I8_128] = {i8_128}},
    .quantize_token = quantize_token,
    .activate = activate,
    .quantize_panel = quantize_panel,
};
