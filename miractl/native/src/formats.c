/* Blocks: their sizes, and the way from weights to codes and back. */
#include "formats.h"

#include <stdlib.h>

#include "kernels.h"

int mira_abi(void)
{
    return MIRA_ABI;
}

size_t mira_matrix_bytes(const mira_matrix *matrix)
{
    size_t panels = matrix->rows / PANEL;
    size_t bytes = panels * (panel_code_bytes(matrix) + panel_scale_bytes(matrix));
    return (bytes + 63) / 64 * 64;
}

size_t mira_expert_bytes(const mira_expert *expert)
{
    mira_matrix gate_up = gate_up_matrix(expert), down = down_matrix(expert);
    size_t biases = expert->biased ? (size_t)gate_up.rows + down.rows : 0;
    return mira_matrix_bytes(&gate_up) + mira_matrix_bytes(&down) + biases * sizeof(float);
}

/* By bits instead of a half type, which not every compiler and target has. */
float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest < 0x400) /* subnormal: a multiple of 2^-24, the last place of 0.5 */
        return float_of_bits(bits_of_float(float_of_bits(0x3f000000 + rest) - 0.5f) | sign);
    uint32_t bias = rest < 0x7c00 ? 112u << 23 : 224u << 23;
    return float_of_bits(((rest << 13) + bias) | sign);
}

uint16_t float_to_half(float value)
{
    uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000;
    float magnitude = float_of_bits(bits & 0x7fffffff);
    if (!(magnitude < 65504.f))
        return sign | 0x7bff;
    if (magnitude < 0x1p-14f) /* subnormal: the sum rounds to multiples of 2^-24 */
        return sign | (bits_of_float(magnitude + 0.5f) - bits_of_float(0.5f));
    uint32_t odd = bits >> 13 & 1;
    return sign | (((bits & 0x7fffffff) + 0xfff + odd - (112u << 23)) >> 13);
}

int mira_quantize(const mira_matrix *matrix, const float *w, uint8_t *block)
{
    void *fits = aligned_alloc(64, (size_t)matrix->columns / matrix->group * FIT_BYTES);
    int status = fits ? MIRA_OK : MIRA_NO_MEMORY;
    memset(block, 0, mira_matrix_bytes(matrix));
    for (int p = 0; p < matrix->rows / PANEL && status == MIRA_OK; p++) {
        const float *rows = w + (size_t)p * PANEL * matrix->columns;
        status = isa_in_use()->quantize_panel(matrix, rows, block + panel_codes_at(matrix, p),
                                              block + panel_scales_at(matrix, p), fits);
    }
    free(fits);
    return status;
}

/* w = scale * code */
static void dequantize_i8(const mira_matrix *m, const uint8_t *codes, const uint8_t *scales,
                          float *w)
{
    for (int r = 0; r < PANEL; r++) {
        for (int g = 0; g < m->columns / m->group; g++) {
            uint16_t half;
            memcpy(&half, scales + 2 * ((size_t)g * PANEL + r), sizeof half);
            float scale = half_to_float(half);
            for (int k = g * m->group; k < (g + 1) * m->group; k++)
                w[(size_t)r * m->columns + k] = scale * (int8_t)codes[i8_code_at(r, k)];
        }
    }
}

/* w = (scale * D) * code + offset * E */
static void dequantize_i4k(const mira_matrix *m, const uint8_t *codes, const uint8_t *scales,
                           float *w)
{
    float head[2 * PANEL];
    memcpy(head, scales, sizeof head);
    for (int r = 0; r < PANEL; r++) {
        for (int g = 0; g < m->columns / m->group; g++) {
            const uint8_t *u = scales + I4K_HEAD + (size_t)g * 2 * PANEL;
            float scale = u[r] * head[r], offset = u[PANEL + r] * head[PANEL + r];
            for (int k = g * m->group; k < (g + 1) * m->group; k++) {
                int code = codes[i4k_code_at(r, k)] >> i4k_code_shift(k) & 15;
                w[(size_t)r * m->columns + k] = scale * code + offset;
            }
        }
    }
}

void mira_dequantize(const mira_matrix *matrix, const uint8_t *block, float *w)
{
    for (int p = 0; p < matrix->rows / PANEL; p++) {
        const uint8_t *codes = block + panel_codes_at(matrix, p);
        const uint8_t *scales = block + panel_scales_at(matrix, p);
        float *rows = w + (size_t)p * PANEL * matrix->columns;
        if (matrix->format == MIRA_I8)
            dequantize_i8(matrix, codes, scales, rows);
        else
            dequantize_i4k(matrix, codes, scales, rows);
    }
}
