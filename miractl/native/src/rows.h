/* Loops over the values of one token: to codes, and through an activation.
 *
 * Plain float32 operations, each rounded, in an order that does not depend on the width of
 * vectors, so that compilers may vectorise them and every instruction set gives the same bits.
 * Included by each kernels_*.c, which compiles them for its instruction set.
 */
#ifndef MIRACTL_ROWS_H
#define MIRACTL_ROWS_H

#include "kernels.h"

#define INFINITY_BITS 0x7f800000u
#define ROUND_BITS 0x4b400000u        /* of 1.5 * 2^23: */
#define ROUND 12582912.f              /* x + ROUND has rint(x) in its low bits, |x| < 2^22 */
#define SMALLEST 0x1p-100f            /* a group below this is zero: 32767 / SMALLEST is finite */

/* The bits of the largest magnitude: integers compare as the numbers do, NaN above all. */
INLINE uint32_t largest_bits(const float *x, int n)
{
    uint32_t largest = 0;
    for (int k = 0; k < n; k++) {
        uint32_t bits = bits_of_float(x[k]) & 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

INLINE int32_t nearest(float x)
{
    return (int32_t)(bits_of_float(x + ROUND) - ROUND_BITS);
}

/* Per group: code = rint(x * (levels / max|x|)), scale = max|x| / levels. A group with an infinity
 * or NaN gets codes 0 and the scale NaN, which spoils every output of the token. */
INLINE void quantize_token_body(const float *x, int columns, int group, int format, void *codes,
                                float *scale, float *offset)
{
    const float levels = format == MIRA_I8 ? 32767.f : 127.f;
    int16_t *wide = codes;
    int8_t *narrow = codes;
    for (int g = 0; g < columns / group; g++, x += group) {
        uint32_t bits = largest_bits(x, group);
        float largest = float_of_bits(bits);
        int usable = bits < INFINITY_BITS && largest >= SMALLEST;
        float inverse = usable ? levels / largest : 0;
        int32_t sum = 0;
        if (bits >= INFINITY_BITS)
            memset((int8_t *)codes + (size_t)g * group * (format == MIRA_I8 ? 2 : 1), 0,
                   (size_t)group * (format == MIRA_I8 ? 2 : 1));
        else if (format == MIRA_I8)
            for (int k = 0; k < group; k++)
                wide[g * group + k] = (int16_t)nearest(x[k] * inverse);
        else
            for (int k = 0; k < group; k++) {
                int32_t code = nearest(x[k] * inverse);
                narrow[g * group + k] = (int8_t)code;
                sum += code;
            }
        scale[g] = bits >= INFINITY_BITS ? float_of_bits(0x7fc00000)
                   : usable              ? largest / levels
                                         : 0;
        offset[g] = scale[g] * (float)sum;
    }
}

/* exp(x), x kept within +-87: the polynomial of Cephes' expf, each step rounded. */
INLINE float exponential(float x)
{
    x = x > 87.f ? 87.f : x;
    x = x < -87.f ? -87.f : x;
    float shifted = x * 1.44269504f + ROUND;
    float whole = shifted - ROUND;
    float f = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 0.5f;
    p = p * f * f + f + 1.f;
    return p * float_of_bits((bits_of_float(shifted) << 23) + 0x3f800000u); /* 2^whole */
}

/* x * Phi(x); erf by Abramowitz and Stegun 7.1.26, within 1.5e-7. */
INLINE float gelu_erf(float x)
{
    float z = float_of_bits(bits_of_float(x) & 0x7fffffff) * 0.70710678f;
    float t = 1.f / (1.f + 0.3275911f * z);
    float p = 1.061405429f;
    p = p * t + -1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t + -0.284496736f;
    p = p * t + 0.254829592f;
    float tail = 0.5f * (p * t) * exponential(-(z * z));
    return x * (x < 0.f ? tail : 1.f - tail);
}

INLINE float activation(int kind, float slope, float x)
{
    if (kind == MIRA_RELU2) {
        float positive = x < 0.f ? 0.f : x;
        return positive * positive;
    }
    if (kind == MIRA_GELU_ERF)
        return gelu_erf(x);
    /* gelu with tanh is x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)) */
    float inner = kind == MIRA_SILU ? slope * x : 1.5957691f * (x + 0.044715f * (x * x * x));
    return x / (1.f + exponential(-inner));
}

INLINE void add_bias(float *values, const float *bias, int n)
{
    for (int i = 0; bias && i < n; i++)
        values[i] = values[i] + bias[i];
}

INLINE void activate_kind(const int kind, const int gated, const mira_expert *e,
                          float *restrict gate, const float *restrict up, int n)
{
    const float slope = e->slope, limit = e->limit, shift = e->shift;
    for (int i = 0; i < n; i++) {
        float g = gate[i], u = gated ? up[i] : 0.f;
        g = g > limit ? limit : g;
        u = u > limit ? limit : u;
        u = u < -limit ? -limit : u;
        float h = activation(kind, slope, g);
        gate[i] = gated ? h * (u + shift) : h;
    }
}

/* One loop for each activation, so that none has a branch inside. */
INLINE void activate_body(const mira_expert *e, float *gate, float *up, const float *gate_bias,
                          const float *up_bias, int n)
{
    add_bias(gate, gate_bias, n);
    add_bias(up, up_bias, n);
#define CASE(kind) \
    case kind: \
        if (e->gated) \
            activate_kind(kind, 1, e, gate, up, n); \
        else \
            activate_kind(kind, 0, e, gate, up, n); \
        break;
    switch (e->activation) {
        CASE(MIRA_SILU)
        CASE(MIRA_GELU_TANH)
        CASE(MIRA_GELU_ERF)
        CASE(MIRA_RELU2)
    }
#undef CASE
}

#endif
