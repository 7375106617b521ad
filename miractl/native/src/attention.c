/* Attention of one new token of each sequence to all keys of it.
 *
 * Keys come in blocks, each read once for all queries that share it; the largest score so far
 * scales what was summed before. The order of sums is fixed, so threads cannot be seen in a result.
 */
#include "lanes.h"
#include "pool.h"
#include "rows.h"

#define BLOCK 16 /* keys at a time: what is fetched meanwhile stays in the first cache */
#define LEAST_TASK (1 << 16) /* values that are worth waking a thread for */

typedef struct {
    const mira_attention *at;
    const float *query, *keys, *values;
    float *y;
} attention_job;

/* What a query knows of the keys so far: the largest score, and the sum of exp(score - largest). */
typedef struct {
    float largest, sum;
} progress;

/* Ask for one line of so many rows: their pages are too short for the processor to do so. */
INLINE void fetch(const float *x, int64_t stride, int rows)
{
    for (int i = 0; i < rows; i++)
        __builtin_prefetch(x + i * stride);
}

/* score[keys] of one query. Meanwhile some lines of each value are fetched, from `line` on. */
CLONES static void block_scores(const float *query, const float *key, int64_t stride, int keys,
                                int dim, const float *value, int64_t value_stride, int line,
                                int lines, float *score)
{
    int i = 0;
    for (; i + 4 <= keys; i += 4) {
        for (int n = line; n < dim; n += lines)
            fetch(value + i * value_stride + n, value_stride, 4);
        lanes_products(query, key + i * stride, stride, dim, score + i);
    }
    for (; i < keys; i++)
        score[i] = lanes_product(query, key + i * stride, dim);
}

/* Scores to weights exp(score - largest); returns what the weights before are scaled by. */
CLONES static float block_weights(progress *of, float *score, float scale, int keys)
{
    for (int i = 0; i < keys; i++)
        score[i] *= scale;
    float largest = lanes_largest(of->largest, score, keys);
    float before = of->sum == 0 ? 0 : exponential(of->largest - largest);
    for (int i = 0; i < keys; i++)
        score[i] = exponential(score[i] - largest);
    of->largest = largest;
    of->sum = of->sum * before + lanes_total(score, keys);
    return before;
}

/* y[LANES] = y * before + weights of the values. */
INLINE void values_lanes(float *y, float before, const float *weight, const float *value,
                         int64_t stride, int keys)
{
    lanes sum, v0, v1, v2, v3;
    LANES_AT(y, sum);
    sum *= before;
    int i = 0;
    for (; i + 4 <= keys; i += 4, value += 4 * stride) {
        LANES_AT(value, v0);
        LANES_AT(value + stride, v1);
        LANES_AT(value + 2 * stride, v2);
        LANES_AT(value + 3 * stride, v3);
        sum += (weight[i] * v0 + weight[i + 1] * v1) + (weight[i + 2] * v2 + weight[i + 3] * v3);
    }
    for (; i < keys; i++, value += stride) {
        LANES_AT(value, v0);
        sum += weight[i] * v0;
    }
    memcpy(y, &sum, sizeof sum);
}

/* y[dim] of one query. Meanwhile some of the keys that come next are fetched, `rows` of them. */
CLONES static void block_values(float *y, float before, const float *weight, const float *value,
                                int64_t stride, int keys, int dim, const float *next,
                                int64_t next_stride, int rows)
{
    int n = 0;
    for (; n + LANES <= dim; n += LANES) {
        fetch(next + n, next_stride, rows);
        values_lanes(y + n, before, weight, value + n, stride, keys);
    }
    for (; n < dim; n++) {
        y[n] *= before;
        for (int i = 0; i < keys; i++)
            y[n] += weight[i] * value[i * stride + n];
    }
}

/* The keys of one sequence: row[i] is where the i-th lies; without rows, i. */
typedef struct {
    const int64_t *row;
    int64_t tokens;
} sequence;

static sequence sequence_of(const mira_attention *at, int64_t b)
{
    if (!at->rows)
        return (sequence){NULL, at->tokens};
    return (sequence){at->rows + at->starts[b], at->starts[b + 1] - at->starts[b]};
}

static int64_t row_of(const sequence *of, int64_t i)
{
    return of->row ? of->row[i] : i;
}

/* Keys from the i-th on that lie side by side, BLOCK at most. */
static int block_at(const sequence *of, int64_t i)
{
    int64_t most = of->tokens - i < BLOCK ? of->tokens - i : BLOCK, count = 1;
    while (count < most && row_of(of, i + count) == row_of(of, i) + count)
        count++;
    return (int)count;
}

/* All queries of one head of keys on one block of these; `next` is where the next keys are. */
static void attend_block(const mira_attention *at, const float *query, const float *key,
                         const float *value, int keys, const float *next, progress *of, float *y)
{
    int dim = (int)at->dim, group = (int)at->group, rows = (keys + group - 1) / group;
    float score[BLOCK];
    for (int g = 0; g < group; g++, y += dim) {
        block_scores(query + g * at->query_head, key, at->key_token, keys, dim, value,
                     at->value_token, g * LANES, group * LANES, score);
        float before = block_weights(&of[g], score, at->scale, keys);
        block_values(y, before, score, value, at->value_token, keys, dim,
                     next + g * rows * at->key_token, at->key_token, rows);
    }
}

/* All queries of one head of keys. */
static void attention_task(void *argument, int task, int worker)
{
    (void)worker;
    const attention_job *job = argument;
    const mira_attention *at = job->at;
    int64_t b = task / at->heads, h = task % at->heads;
    int dim = (int)at->dim, group = (int)at->group, keys;
    const float *query = job->query + b * at->query_batch + h * group * at->query_head;
    const float *key = job->keys + b * at->key_batch + h * at->key_head;
    const float *value = job->values + b * at->value_batch + h * at->value_head;
    float *y = job->y + (b * at->heads + h) * group * dim;
    sequence own = sequence_of(at, b);
    progress of[MIRA_MOST_GROUP];
    for (int g = 0; g < group; g++)
        of[g] = (progress){float_of_bits(0xff800000), 0};
    memset(y, 0, (size_t)group * dim * sizeof *y);
    for (int64_t i = 0; i < own.tokens; i += keys) {
        int64_t row = row_of(&own, i);
        keys = block_at(&own, i);
        int more = i + keys < own.tokens;
        const float *next = key + (more ? 0 : at->key_head)
                            + row_of(&own, more ? i + keys : 0) * at->key_token;
        attend_block(at, query, key + row * at->key_token, value + row * at->value_token, keys,
                     next, of, y);
    }
    for (int g = 0; g < group; g++, y += dim)
        for (int n = 0; n < dim; n++)
            y[n] /= of[g].sum;
}

void mira_attend(mira_pool *pool, const mira_attention *at, const float *query, const float *keys,
                 const float *values, float *y)
{
    attention_job job = {at, query, keys, values, y};
    int64_t tasks = at->batch * at->heads, tokens = at->rows ? at->starts[at->batch] : at->tokens;
    mira_pool *shared = tasks * tokens * at->dim < LEAST_TASK ? NULL : pool;
    pool_run(shared, attention_task, NULL, &job, (int)tasks);
}
