/* The half of a layer that comes before its experts, for one new token of each sequence. */
#include <stdlib.h>

#include "product.h"
#include "small.h"

enum { QUERIES, KEYS, VALUES, OUT };

/* What is made on the way; queries, keys and values lie one after another. */
typedef struct {
    float *normed, *queries, *keys, *values, *attended;
} half_room;

static void take_room(const mira_half *half, size_t tokens, workspace *ws, half_room *room)
{
    const mira_matrix *m = half->matrices;
    room->normed = take(ws, tokens * m[QUERIES].columns * sizeof(float));
    room->queries = take(ws, tokens * (m[QUERIES].rows + m[KEYS].rows + m[VALUES].rows)
                                 * sizeof(float));
    room->attended = take(ws, tokens * m[OUT].columns * sizeof(float));
    if (!room->queries)
        return;
    room->keys = room->queries + tokens * m[QUERIES].rows;
    room->values = room->keys + tokens * m[KEYS].rows;
}

static void add_bias(const float *bias, float *y, int32_t tokens, int32_t rows)
{
    for (int32_t t = 0; bias && t < tokens; t++, y += rows)
        for (int32_t n = 0; n < rows; n++)
            y[n] += bias[n];
}

/* Queries or keys of all tokens, in place. */
static void norm_heads(const mira_norm *norm, float *x, int32_t tokens, int32_t rows)
{
    if (norm->columns)
        norm_rows(norm, x, tokens * (rows / norm->columns), x);
}

/* Queries or keys of one token, in place. */
static void turn_heads(const mira_half *half, const float *cos, const float *sin, float *x, int heads)
{
    for (int i = 0; i < heads; i++, x += half->dim)
        turn(x, cos, sin, half->turned, x);
}

/* The place of the new token of sequence b in what is kept, of its first head. */
static int64_t place_of(const mira_kept *kept, int32_t b)
{
    return b * kept->batch + (kept->rows ? kept->written[b] : kept->tokens) * kept->token;
}

/* Keys and values of the new tokens to where they are kept. */
static void keep(const mira_half *half, const mira_kept *kept, int32_t tokens,
                 const half_room *room)
{
    const float *key = room->keys, *value = room->values;
    size_t bytes = half->dim * sizeof(float);
    for (int32_t b = 0; b < tokens; b++) {
        int64_t at = place_of(kept, b);
        for (int i = 0; i < half->heads; i++, at += kept->head) {
            memcpy(kept->keys + at, key, bytes);
            memcpy(kept->values + at, value, bytes);
            key += half->dim;
            value += half->dim;
        }
    }
}

static void attend(mira_pool *pool, const mira_half *half, const mira_kept *kept, int32_t tokens,
                   const half_room *room)
{
    int64_t dim = half->dim, queries = (int64_t)half->heads * half->group;
    mira_attention at = {.batch = tokens, .heads = half->heads, .group = half->group,
                         .tokens = kept->tokens + 1, .dim = dim, .query_batch = queries * dim,
                         .query_head = dim, .key_batch = kept->batch, .key_head = kept->head,
                         .key_token = kept->token, .value_batch = kept->batch,
                         .value_head = kept->head, .value_token = kept->token,
                         .rows = kept->rows, .starts = kept->starts, .scale = half->scale};
    mira_attend(pool, &at, room->queries, kept->keys, kept->values, room->attended);
}

/* From normed tokens to queries, keys and values, the last two kept. */
static int take_in(mira_pool *pool, const mira_half *half, const mira_kept *kept, int32_t tokens,
                   const float *cos, const float *sin, int64_t angle_stride, const half_room *room)
{
    const mira_matrix *m = half->matrices;
    int status = mira_multiply(pool, m, half->blocks, 3, room->normed, tokens, room->queries);
    if (status != MIRA_OK)
        return status;
    add_bias(half->biases[QUERIES], room->queries, tokens, m[QUERIES].rows);
    add_bias(half->biases[KEYS], room->keys, tokens, m[KEYS].rows);
    add_bias(half->biases[VALUES], room->values, tokens, m[VALUES].rows);
    norm_heads(&half->query, room->queries, tokens, m[QUERIES].rows);
    norm_heads(&half->key, room->keys, tokens, m[KEYS].rows);
    for (int32_t t = 0; t < tokens; t++, cos += angle_stride, sin += angle_stride) {
        turn_heads(half, cos, sin, room->queries + (size_t)t * m[QUERIES].rows,
                   half->heads * half->group);
        turn_heads(half, cos, sin, room->keys + (size_t)t * m[KEYS].rows, half->heads);
    }
    keep(half, kept, tokens, room);
    return MIRA_OK;
}

static int is_fit(const mira_half *half, const mira_kept *kept, int32_t tokens)
{
    return kept->sequences == tokens && kept->heads == half->heads && kept->dim == half->dim
           && (kept->rows || kept->tokens < kept->room);
}

int mira_attention_half(mira_pool *pool, const mira_half *half, mira_kept *kept, int32_t tokens,
                        const float *x, const float *cos, const float *sin,
                        int64_t angle_stride, float *h, float *y)
{
    const mira_matrix *out = &half->matrices[OUT];
    half_room room = {0};
    workspace ws = {0};
    if (!is_fit(half, kept, tokens))
        return MIRA_UNFIT;
    take_room(half, tokens, &ws, &room);
    ws = (workspace){.base = aligned_alloc(64, ws.used)};
    if (!ws.base)
        return MIRA_NO_MEMORY;
    take_room(half, tokens, &ws, &room);
    norm_rows(&half->before, x, tokens, room.normed);
    int status = take_in(pool, half, kept, tokens, cos, sin, angle_stride, &room);
    if (status == MIRA_OK) {
        attend(pool, half, kept, tokens, &room);
        status = mira_multiply(pool, out, half->blocks + OUT, 1, room.attended, tokens, h);
    }
    if (status == MIRA_OK) {
        add_bias(half->biases[OUT], h, tokens, out->rows);
        for (size_t i = 0; i < (size_t)tokens * out->rows; i++)
            h[i] = x[i] + h[i];
        norm_rows(&half->after, h, tokens, y);
        kept->tokens++;
    }
    free(ws.base);
    return status;
}
