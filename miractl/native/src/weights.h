/* Weights to codes, eight rows at once: lane r of a vector is row r of the panel.
 *
 * Sums run over columns in order, so the bits do not depend on the instruction set. The vectors
 * are the compilers' own (GCC's vector extension), compiled for each instruction set by the
 * kernels_*.c that includes this file.
 */
#ifndef MIRACTL_WEIGHTS_H
#define MIRACTL_WEIGHTS_H

#include "rows.h"

typedef float lanes __attribute__((vector_size(32)));
typedef int32_t int_lanes __attribute__((vector_size(32)));

#define I4K_GROUP 32
#define ALL(value) ((lanes){0} + (value))
#define ALL_INT(value) ((int_lanes){0} + (value))

INLINE lanes choose(int_lanes condition, lanes yes, lanes no)
{
    return (lanes)(((int_lanes)yes & condition) | ((int_lanes)no & ~condition));
}

INLINE lanes smaller(lanes a, lanes b)
{
    return choose(a < b, a, b);
}

INLINE lanes larger(lanes a, lanes b)
{
    return choose(a > b, a, b);
}

/* 1 / x, and 0 where x is too small to divide by */
INLINE lanes inverse_of(lanes x)
{
    return choose(x >= ALL(SMALLEST), ALL(1.f) / x, ALL(0.f));
}

/* rint(x) within low .. high, as bits of ROUND + code: these compare as integers for every x, the
 * infinite included. */
INLINE int_lanes code_bits(lanes x, int low, int high)
{
    int_lanes bits = (int_lanes)(x + ROUND);
    int_lanes lowest = ALL_INT((int32_t)ROUND_BITS + low);
    int_lanes highest = ALL_INT((int32_t)ROUND_BITS + high);
    bits = (int_lanes)choose(bits > lowest, (lanes)bits, (lanes)lowest);
    return (int_lanes)choose(bits < highest, (lanes)bits, (lanes)highest);
}

/* A group of eight rows, columns first; returns 0 if a weight is not finite. */
INLINE int load_group(const float *w, int columns, int group, lanes *v)
{
    uint32_t bad = 0;
    for (int k = 0; k < group; k++)
        for (int r = 0; r < PANEL; r++)
            v[k][r] = w[(size_t)r * columns + k];
    for (int r = 0; r < PANEL; r++)
        bad |= largest_bits(w + (size_t)r * columns, group) >= INFINITY_BITS;
    return !bad;
}

INLINE int quantize_i8_body(const mira_matrix *m, const float *w, uint8_t *codes, uint8_t *scales)
{
    lanes v[128];
    for (int g = 0; g < m->columns / m->group; g++) {
        if (!load_group(w + (size_t)g * m->group, m->columns, m->group, v))
            return MIRA_NOT_FINITE;
        lanes largest = {0}, scale;
        for (int k = 0; k < m->group; k++)
            largest = larger(larger(v[k], -v[k]), largest);
        largest = largest / 127.f;
        for (int r = 0; r < PANEL; r++) {
            uint16_t half = float_to_half(largest[r]);
            memcpy(scales + 2 * ((size_t)g * PANEL + r), &half, sizeof half);
            scale[r] = half_to_float(half);
        }
        lanes inverse = inverse_of(scale);
        for (int k = 0; k < m->group; k++) {
            int_lanes code = code_bits(v[k] * inverse, -127, 127);
            for (int r = 0; r < PANEL; r++)
                codes[i8_code_at(r, g * m->group + k)] = (uint8_t)code[r];
        }
    }
    return MIRA_OK;
}

/* Half widths of the range that the search starts from, relative to the group's own. */
#define STARTS 6
#define ROUNDS 4
static const float start_width[STARTS] = {1.10f, 1.05f, 1.0f, 0.95f, 0.90f, 0.85f};

/* Scale and offset (<= 0) of one group by least squares: from each start, codes for the scale and
 * the best scale for the codes in turn. Kept is what explains most of sum v^2; a best offset above
 * zero is held at zero. */
INLINE void fit_i4k(const lanes *v, lanes *best_scale, lanes *best_offset)
{
    lanes low = {0}, high = v[0], sum = {0}, best = ALL(-1.f);
    for (int k = 0; k < I4K_GROUP; k++) {
        low = smaller(v[k], low);
        high = larger(v[k], high);
        sum = sum + v[k];
    }
    const float n = I4K_GROUP;
    lanes middle = (low + high) * 0.5f, half = (high - low) * 0.5f;
    *best_scale = (high - low) / 15.f;
    *best_offset = low;
    for (int start = 0; start < STARTS; start++) {
        lanes scale = half * (start_width[start] * (2.f / 15.f));
        lanes offset = smaller(middle - half * start_width[start], ALL(0.f));
        for (int round = 0; round < ROUNDS; round++) {
            lanes inverse = inverse_of(scale), q_sum = {0}, qq_sum = {0}, qv_sum = {0};
            for (int k = 0; k < I4K_GROUP; k++) {
                lanes q = (lanes)code_bits((v[k] - offset) * inverse, 0, 15) - ROUND;
                q_sum = q_sum + q;
                qq_sum = qq_sum + q * q;
                qv_sum = qv_sum + q * v[k];
            }
            lanes spread = n * qq_sum - q_sum * q_sum, slope = n * qv_sum - q_sum * sum;
            lanes free_scale = slope / spread, free_offset = (sum - free_scale * q_sum) / n;
            int_lanes held = free_offset > 0.f;
            scale = choose(held, qv_sum / qq_sum, free_scale);
            offset = choose(held, ALL(0.f), free_offset);
            lanes explained = choose(held, scale * qv_sum, (sum * sum + slope * free_scale) / n);
            int_lanes better = (explained > best) & (scale > 0.f);
            best = choose(better, explained, best);
            *best_scale = choose(better, scale, *best_scale);
            *best_offset = choose(better, offset, *best_offset);
        }
    }
}

/* Fit every group, then round scales and offsets to 8 bits under the row's D and E, then codes.
 * fits: room for [groups][2], because D and E are known only after the last group. */
INLINE int quantize_i4k_body(const mira_matrix *m, const float *w, uint8_t *codes, uint8_t *scales,
                             lanes (*fits)[2])
{
    lanes v[I4K_GROUP], head[2] = {{0}, {0}};
    int groups = m->columns / I4K_GROUP;
    for (int g = 0; g < groups; g++) {
        if (!load_group(w + (size_t)g * I4K_GROUP, m->columns, I4K_GROUP, v))
            return MIRA_NOT_FINITE;
        fit_i4k(v, &fits[g][0], &fits[g][1]);
        head[0] = larger(fits[g][0], head[0]);
        head[1] = smaller(fits[g][1], head[1]);
    }
    head[0] = head[0] / 255.f;
    head[1] = head[1] / 255.f;
    memcpy(scales, head, I4K_HEAD);
    lanes to_scale = inverse_of(head[0]), to_offset = -inverse_of(-head[1]);
    for (int g = 0; g < groups; g++) {
        load_group(w + (size_t)g * I4K_GROUP, m->columns, I4K_GROUP, v);
        lanes scale = (lanes)code_bits(fits[g][0] * to_scale, 1, 255) - ROUND;
        lanes offset = (lanes)code_bits(fits[g][1] * to_offset, 0, 255) - ROUND;
        for (int r = 0; r < PANEL; r++) {
            scales[I4K_HEAD + (size_t)g * 2 * PANEL + r] = (uint8_t)scale[r];
            scales[I4K_HEAD + (size_t)g * 2 * PANEL + PANEL + r] = (uint8_t)offset[r];
        }
        offset = offset * head[1];
        lanes inverse = inverse_of(scale * head[0]);
        for (int k = 0; k < I4K_GROUP; k++) {
            int_lanes code = code_bits((v[k] - offset) * inverse, 0, 15);
            int column = g * I4K_GROUP + k;
            for (int r = 0; r < PANEL; r++)
                codes[i4k_code_at(r, column)] |= (code[r] & 15) << i4k_code_shift(column);
        }
    }
    return MIRA_OK;
}

INLINE int quantize_panel_body(const mira_matrix *m, const float *w, uint8_t *codes,
                               uint8_t *scales, void *fits)
{
    return m->format == MIRA_I8 ? quantize_i8_body(m, w, codes, scales)
                                : quantize_i4k_body(m, w, codes, scales, fits);
}

#endif
