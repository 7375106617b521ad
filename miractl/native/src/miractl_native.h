/* The interface of miractl's CPU kernels: plain C, called through ctypes.
 *
 * A matrix W[rows, columns] is stored as one block of bytes; docs/formats.md has the layouts and
 * the arithmetic, which is the same to the last bit on every processor, for every number of tokens
 * and of threads. Callers check shapes, lengths and alignment (miractl/native/checks.py).
 */
#ifndef MIRACTL_NATIVE_H
#define MIRACTL_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define MIRA_API __attribute__((visibility("default")))
#define MIRA_ABI 17 /* raised with every change of this file, brain.h, bets.h, residency.h, shares.h */

enum { MIRA_OK, MIRA_NO_MEMORY, MIRA_NOT_FINITE, MIRA_BAD_EXPERT, MIRA_TIED, MIRA_UNFIT };
enum { MIRA_I8, MIRA_I4K };
enum { MIRA_SILU, MIRA_GELU_TANH, MIRA_GELU_ERF, MIRA_RELU2 };
enum { MIRA_SCALAR, MIRA_AVX2, MIRA_VNNI, MIRA_NEON, MIRA_ISAS };

/* rows % 8 == 0 and columns % group == 0; group is 32 (I4K) or 32, 64, 128 (I8). */
typedef struct {
    int32_t format, group, rows, columns;
} mira_matrix;

/* An expert's block: gate and up [2 * inner, hidden] (gate rows first; without a gate just
 * up [inner, hidden]), then down [hidden, inner], then, if biased, float32 biases of the rows of
 * both. Its hidden values are act(min(gate, limit)) * (clamp(up, -limit, limit) + shift), where
 * silu(x) = x / (1 + exp(-slope * x)). hidden and inner are multiples of group. */
typedef struct {
    int32_t format, group, hidden, inner, gated, biased, activation;
    float slope, limit, shift;
} mira_expert;

typedef struct mira_pool mira_pool;

MIRA_API int mira_abi(void);

/* Bytes of a block, a multiple of 64 for a matrix and of 4 for an expert. */
MIRA_API size_t mira_matrix_bytes(const mira_matrix *matrix);
MIRA_API size_t mira_expert_bytes(const mira_expert *expert);

/* w[rows, columns] to a block and back. MIRA_NOT_FINITE: a weight is infinite or not a number. */
MIRA_API int mira_quantize(const mira_matrix *matrix, const float *w, uint8_t *block);
MIRA_API void mira_dequantize(const mira_matrix *matrix, const uint8_t *block, float *w);

/* Instruction sets: which can run here, which to use. Use is for the whole process and not to be
 * changed while a product runs. */
MIRA_API int mira_isa_supported(int isa);
MIRA_API void mira_isa_use(int isa);
MIRA_API int mira_isa_used(void);

/* A number made of the results of every kernel: equal on all machines, or a kernel is wrong.
 * 0: no memory. */
MIRA_API uint64_t mira_self_test(void);

/* Threads beside the caller's, which works too; NULL: no memory, or no thread to be had. One call
 * at a time uses them, others wait. They do not survive a fork. */
MIRA_API mira_pool *mira_pool_new(int threads);
MIRA_API void mira_pool_free(mira_pool *pool);

/* y[tokens, rows] = x[tokens, columns] W^T for each of `count` matrices of one format, group and
 * number of columns; the outputs lie one after another. The pool may be NULL. */
MIRA_API int mira_multiply(mira_pool *pool, const mira_matrix *matrices,
                           const uint8_t *const *blocks, int32_t count, const float *x,
                           int32_t tokens, float *y);

/* x / sqrt(mean of x^2 + eps) * scale[columns]. `lanes` is 4, 8 or 16: of the vectors in which a
 * row's squares are added, as torch does. */
typedef struct {
    const float *scale;
    int32_t columns, lanes;
    float eps;
} mira_norm;

/* y[rows, columns] = the norm of each row of x. */
MIRA_API void mira_rms_norm(mira_pool *pool, const mira_norm *norm, const float *x, int32_t rows,
                            float *y);

/* y[t] = sum over k in order of weights[t, k] * parts[place[t, k]]; rows of parts and y have `width`
 * numbers. */
MIRA_API void mira_combine(const float *parts, const int64_t *place, const float *weights,
                           int32_t tokens, int32_t top, int32_t width, float *y);

/* y[n] += x[n]. */
MIRA_API void mira_add(float *y, const float *x, int64_t n);

/* Vectors x[batch, heads, tokens, dim] with gaps, strides in floats, and angles[batch, tokens, dim],
 * whose angle_stride is 0 if all of a batch have the same. dim is even. */
typedef struct {
    int64_t batch, heads, tokens, dim, batch_stride, head_stride, token_stride, angle_stride;
} mira_heads;

/* y = x * cos + (-right half of x, left half of x) * sin, with the strides of x. */
MIRA_API void mira_rotate(const mira_heads *at, const float *x, const float *cos, const float *sin,
                          float *y);

/* One query [group] a head of keys[batch, heads, tokens, dim], and values of the same shape, in
 * which the numbers of a vector have no gaps; the other strides are in floats. With `rows`, keys
 * rows[starts[b]] to rows[starts[b + 1] - 1] are those of b; tokens is not looked at. */
#define MIRA_MOST_GROUP 64
typedef struct {
    int64_t batch, heads, group, tokens, dim, query_batch, query_head;
    int64_t key_batch, key_head, key_token, value_batch, value_head, value_token;
    const int64_t *rows;
    const int32_t *starts; /* [batch + 1] */
    float scale;
} mira_attention;

/* y[batch, heads * group, dim] = softmax(scale * query keys^T) values. group is at most
 * MIRA_MOST_GROUP, and there is a token. */
MIRA_API void mira_attend(mira_pool *pool, const mira_attention *at, const float *query,
                          const float *keys, const float *values, float *y);

/* What a layer does before its experts: h = x + out(attention(queries, keys, values of before(x))),
 * then after(h). `matrices` and `biases`, NULL for none, are those of queries, keys, values and out;
 * `query` and `key` are norms of as many columns as divide all queries or keys of a token, or
 * without columns. The first `turned` numbers of each query and key are turned to their position. */
typedef struct {
    mira_norm before, query, key, after;
    mira_matrix matrices[4];
    const uint8_t *blocks[4];
    const float *biases[4];
    int32_t heads, group, dim, turned; /* heads of keys, each for `group` queries */
    float scale;
} mira_half;

/* Where the keys and values of some sequences are, and where those of one more token of each go.
 * Without rows, each of `sequences` has tokens 0 to tokens - 1 of `room`, and gets the next; with
 * rows, those that mira_attention says, of which written[b] is the new one. Strides are in
 * floats. */
typedef struct {
    float *keys, *values;
    int64_t sequences, heads, dim, room, batch, head, token, tokens;
    const int64_t *rows, *written;
    const int32_t *starts;
} mira_kept;

/* h[tokens, hidden] and y[tokens, hidden] = after(h) of x[tokens, hidden], one token of each
 * sequence; what is kept grows by these. cos and sin are [tokens, turned], or [turned] with
 * angle_stride 0. MIRA_UNFIT: what is kept is of others, or there is no room; nothing was done. */
MIRA_API int mira_attention_half(mira_pool *pool, const mira_half *half, mira_kept *kept,
                                 int32_t tokens, const float *x, const float *cos,
                                 const float *sin, int64_t angle_stride, float *h, float *y);

/* Of `experts`, a token is given `top`; renormalized: the scores of a token make one. */
typedef struct {
    int32_t experts, hidden, top, renormalized;
} mira_router;

/* logits[tokens, experts] = x[tokens, hidden] weight^T, which may be NULL, and the ids and
 * probabilities, scores, of the most probable, both [tokens, top]. MIRA_TIED: equal ones are in
 * question. */
MIRA_API int mira_route(mira_pool *pool, const mira_router *router, const float *weight,
                        const float *x, int32_t tokens, float *logits, float *scores,
                        int64_t *ids);

/* Experts on their tokens: parts[t, k] = expert ids[t, k] of x[t], for the pairs whose block is
 * not NULL; the other rows of parts stay as they are. Then, unless y is NULL,
 * y[t] = sum over k in order of weights[t, k] * parts[t, k].
 * Shapes: blocks[experts], x[tokens, hidden], ids[tokens, top], parts[tokens, top, hidden],
 * y[tokens, hidden]. MIRA_BAD_EXPERT: an id outside 0 .. experts - 1; nothing was written. */
MIRA_API int mira_layer(mira_pool *pool, const mira_expert *expert, const uint8_t *const *blocks,
                        int32_t experts, const float *x, int32_t tokens, const int32_t *ids,
                        int32_t top, const float *weights, float *parts, float *y);

#endif
