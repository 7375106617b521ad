/* Attention of one new token of each sequence to all keys of it.
 *
 * Keys come in blocks, each read once for all queries that share it; the largest score so far
 * scales what was summed before. The order of sums is fixed, so threads cannot be seen in a result.
 */
#include "lanes.h"
#include "pool.h"
#include "rows.h"

#define BLOCK 64 /* keys at a time */
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

/* score[keys] of one query. */
CLONES static void block_scores(const float *query, const float *key, int64_t stride, int keys,
                                int dim, float *score)
{
    int i = 0;
    for (; i + 4 <= keys; i += 4)
        lanes_products(query, key + i * stride, stride, dim, score + i);
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

CLONES static void block_values(float *y, float before, const float *weight, const float *value,
                                int64_t stride, int keys, int dim)
{
    int n = 0;
    for (; n + LANES <= dim; n += LANES)
        values_lanes(y + n, before, weight, value + n, stride, keys);
    for (; n < dim; n++) {
        y[n] *= before;
        for (int i = 0; i < keys; i++)
            y[n] += weight[i] * value[i * stride + n];
    }
}

/* All queries of one head of keys. */
static void attention_task(void *argument, int task, int worker)
{
    (void)worker;
    const attention_job *job = argument;
    const mira_attention *at = job->at;
    int64_t b = task / at->heads, h = task % at->heads;
    int dim = (int)at->dim, group = (int)at->group;
    const float *query = job->query + b * at->query_batch + h * group * at->query_head;
    const float *keys = job->keys + b * at->key_batch + h * at->key_head;
    const float *values = job->values + b * at->value_batch + h * at->value_head;
    float *y = job->y + (b * at->heads + h) * group * dim;
    progress of[MIRA_MOST_GROUP];
    float score[BLOCK];
    for (int g = 0; g < group; g++)
        of[g] = (progress){float_of_bits(0xff800000), 0};
    memset(y, 0, (size_t)group * dim * sizeof *y);
    for (int64_t first = 0; first < at->tokens; first += BLOCK) {
        int count = at->tokens - first < BLOCK ? (int)(at->tokens - first) : BLOCK;
        const float *key = keys + first * at->key_token;
        const float *value = values + first * at->value_token;
        for (int g = 0; g < group; g++) {
            block_scores(query + g * at->query_head, key, at->key_token, count, dim, score);
            float before = block_weights(&of[g], score, at->scale, count);
            block_values(y + g * dim, before, score, value, at->value_token, count, dim);
        }
    }
    for (int g = 0; g < group; g++, y += dim)
        for (int n = 0; n < dim; n++)
            y[n] /= of[g].sum;
}

void mira_attend(mira_pool *pool, const mira_attention *at, const float *query, const float *keys,
                 const float *values, float *y)
{
    attention_job job = {at, query, keys, values, y};
    int64_t tasks = at->batch * at->heads;
    mira_pool *shared = tasks * at->tokens * at->dim < LEAST_TASK ? NULL : pool;
    pool_run(shared, attention_task, NULL, &job, (int)tasks);
}
