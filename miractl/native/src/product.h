/* Products of a block with tokens, some rows at a time. */
#ifndef MIRACTL_PRODUCT_H
#define MIRACTL_PRODUCT_H

#include "kernels.h"

/* Memory handed out piece by piece. With base NULL pieces are only counted: a job takes its pieces
 * once to know how much it needs, and again to have them. */
typedef struct {
    uint8_t *base;
    size_t used;
} workspace;

void *take(workspace *ws, size_t bytes);

/* Tokens as codes: quantised piece by piece, then read through `tokens`. */
typedef struct {
    const mira_matrix *m;
    size_t code_bytes; /* of one token */
    uint8_t *codes;    /* [tokens][code_bytes] */
    float *scale;      /* [tokens][groups] */
    float *offset;     /* [tokens][groups] */
    token *tokens;     /* [tokens] */
} token_store;

token_store take_token_store(workspace *ws, const mira_matrix *m, size_t tokens);

/* Columns first .. first + n - 1 (multiples of the group) of token t. */
void store_token(const token_store *store, size_t t, int first, int n, const float *x);

/* Where outputs go: token t's start at base + (row ? row[t] : t) * stride. */
typedef struct {
    float *base;
    size_t stride;
    const int32_t *row;
} sink;

static inline float *sink_row(const sink *to, int t)
{
    return to->base + (to->row ? (size_t)to->row[t] : (size_t)t) * to->stride;
}

/* Rows first .. last - 1 (multiples of eight) on the tokens. Row `first` is a token's first
 * output. */
void multiply_rows(const mira_matrix *m, const uint8_t *block, int first, int last, const token *x,
                   int tokens, const sink *to);

#endif
