/* One number made of the results of every kernel on made-up data.
 *
 * Computed when the library is loaded, and in bench/cross_isa.sh on other processors: equal numbers
 * mean equal bits. The data is small, the combinations are all there.
 */
#include <stdlib.h>

#include "kernels.h"

#define ROWS 16
#define COLUMNS 256
#define TOKENS 9
#define WIDTH 128 /* of the experts, hidden and inner */
#define EXPERTS 3
#define TOP 2
#define EXPERT_BYTES (3 * WIDTH * WIDTH * 2)

/* Everything that the test computes with, so that one allocation does. */
typedef struct {
    uint32_t seed;
    uint64_t hash;
    float w[ROWS * COLUMNS > WIDTH * WIDTH * 2 ? ROWS * COLUMNS : WIDTH * WIDTH * 2];
    float x[TOKENS * COLUMNS], y[TOKENS * COLUMNS];
    float parts[TOKENS * TOP * WIDTH];
    _Alignas(64) uint8_t block[EXPERTS][EXPERT_BYTES];
} test_room;

/* A product of two even numbers of a linear congruential generator: heavier tails than one. */
static float draw(test_room *b)
{
    float product = 1;
    for (int i = 0; i < 2; i++) {
        b->seed = b->seed * 1664525u + 1013904223u;
        product *= (float)(int32_t)(b->seed >> 8) / 8388608.f - 1.f;
    }
    return product;
}

static void fill(test_room *b, float *values, int n, float factor)
{
    for (int i = 0; i < n; i++)
        values[i] = draw(b) * factor;
}

/* FNV-1a, byte after byte. */
static void mix(test_room *b, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        b->hash = (b->hash ^ ((const uint8_t *)data)[i]) * 1099511628211u;
}

static int mix_matrix(test_room *b, int format, int group)
{
    mira_matrix m = {format, group, ROWS, COLUMNS};
    fill(b, b->w, ROWS * COLUMNS, 0.1f);
    int status = mira_quantize(&m, b->w, b->block[0]);
    mix(b, b->block[0], mira_matrix_bytes(&m));
    mira_dequantize(&m, b->block[0], b->w);
    mix(b, b->w, sizeof(float) * ROWS * COLUMNS);
    fill(b, b->x, TOKENS * COLUMNS, 3.f);
    const uint8_t *block = b->block[0];
    for (int tokens = 1; tokens <= TOKENS && status == MIRA_OK; tokens++) {
        status = mira_multiply(NULL, &m, &block, 1, b->x, tokens, b->y);
        mix(b, b->y, sizeof(float) * tokens * ROWS);
    }
    return status;
}

static int fill_expert(test_room *b, const mira_expert *e, uint8_t *block)
{
    mira_matrix gate_up = gate_up_matrix(e), down = down_matrix(e);
    fill(b, b->w, gate_up.rows * WIDTH, 0.1f);
    int status = mira_quantize(&gate_up, b->w, block);
    block += mira_matrix_bytes(&gate_up);
    fill(b, b->w, down.rows * WIDTH, 0.1f);
    if (status == MIRA_OK)
        status = mira_quantize(&down, b->w, block);
    block += mira_matrix_bytes(&down);
    if (e->biased)
        fill(b, (float *)block, gate_up.rows + down.rows, 0.5f);
    return status;
}

static int mix_layer(test_room *b, const mira_expert *e)
{
    const uint8_t *blocks[EXPERTS];
    int32_t ids[TOKENS * TOP];
    float weights[TOKENS * TOP];
    for (int i = 0; i < EXPERTS; i++) {
        blocks[i] = b->block[i];
        if (fill_expert(b, e, b->block[i]) != MIRA_OK)
            return MIRA_NO_MEMORY;
    }
    fill(b, b->x, TOKENS * WIDTH, 4.f);
    fill(b, weights, TOKENS * TOP, 1.f);
    for (int i = 0; i < TOKENS * TOP; i++)
        ids[i] = i * 5 / 3 % EXPERTS;
    int status = mira_layer(NULL, e, blocks, EXPERTS, b->x, TOKENS, ids, TOP, weights, b->parts,
                            b->y);
    mix(b, b->y, sizeof(float) * TOKENS * WIDTH);
    return status;
}

static int mix_all(test_room *b)
{
    static const int32_t groups[] = {32, 64, 128};
    int status = mix_matrix(b, MIRA_I4K, 32);
    for (int i = 0; i < 3 && status == MIRA_OK; i++)
        status = mix_matrix(b, MIRA_I8, groups[i]);
    for (int kind = MIRA_SILU; kind <= MIRA_RELU2 && status == MIRA_OK; kind++) {
        mira_expert e = {.format = kind % 2 ? MIRA_I8 : MIRA_I4K, .group = 32, .hidden = WIDTH,
                         .inner = WIDTH, .gated = kind != MIRA_RELU2, .biased = kind % 2,
                         .activation = kind, .slope = 1.702f, .limit = 3.f, .shift = 1.f};
        status = mix_layer(b, &e);
    }
    return status;
}

uint64_t mira_self_test(void)
{
    test_room *b = aligned_alloc(64, (sizeof *b + 63) / 64 * 64);
    if (!b)
        return 0;
    b->seed = 1;
    b->hash = 14695981039346656037u;
    uint64_t hash = mix_all(b) == MIRA_OK ? b->hash : 0;
    free(b);
    return hash;
}
