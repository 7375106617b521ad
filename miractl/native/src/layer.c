/* The experts of one layer on their tokens.
 *
 * Pairs (token, k) are grouped by expert, in the order of experts and then of pairs. Tasks follow:
 * first those of hidden values, some rows of one expert for all its tokens, straight to codes; then
 * those of outputs. Outputs of an expert wait for its hidden values alone, so threads need not meet
 * in between. Each number is computed by one task in a fixed order, so how many threads there are
 * cannot be seen in a result.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "pool.h"
#include "product.h"

#define HIDDEN_ROWS 256  /* of one task, a multiple of every group; */
#define OUTPUT_ROWS 256  /* small: threads end a call apart by up to one task */
#define LONG_ROWS 1024   /* hidden rows of a task where nobody shares them: memory is read on */
#define LONG_TOKENS 8    /* and where few tokens' hidden values stay in the first caches */

typedef struct {
    const mira_expert *e;
    mira_matrix gate_up, down;
    const uint8_t *const *blocks;
    const float *x;
    int32_t experts, tokens, top;
    const int32_t *ids;
    const float *weights;
    float *parts, *y;

    int32_t *start;  /* [experts + 1]: where the pairs of an expert begin */
    int32_t *active; /* [experts]: those with pairs */
    int32_t *pair;   /* [pairs]: t * top + k */
    int32_t actives, pairs, most; /* most pairs of one expert */
    int32_t hidden_rows; /* of one task */
    token_store in;     /* [tokens] */
    token_store hidden; /* [pairs] */
    token *token_of;    /* [pairs] */
    float *scratch;     /* [workers][most][2 * hidden_rows] */
    atomic_int *hidden_done; /* [actives]: finished tasks of hidden values */
} layer_job;

static int pieces(int rows, int size)
{
    return (rows + size - 1) / size;
}

static int smaller_of(int a, int b)
{
    return a < b ? a : b;
}

static int is_here(const layer_job *job, int32_t id)
{
    return job->blocks[id] != NULL;
}

/* Count the pairs of every expert; returns 0 for an id that no expert has. */
static int count_pairs(layer_job *job)
{
    memset(job->start, 0, (job->experts + 1) * sizeof *job->start);
    for (size_t i = 0; i < (size_t)job->tokens * job->top; i++) {
        int32_t id = job->ids[i];
        if (id < 0 || id >= job->experts)
            return 0;
        job->start[id + 1] += is_here(job, id);
    }
    for (int32_t id = 0; id < job->experts; id++) {
        int32_t count = job->start[id + 1];
        if (count)
            job->active[job->actives++] = id;
        job->most = count > job->most ? count : job->most;
        job->start[id + 1] += job->start[id];
    }
    job->pairs = job->start[job->experts];
    return 1;
}

/* Codes of the tokens that have a pair: of a long prompt, a group of late experts has few. */
static void store_tokens(layer_job *job)
{
    int hidden = job->e->hidden;
    for (int32_t t = 0; t < job->tokens; t++) {
        const int32_t *ids = job->ids + (size_t)t * job->top;
        int32_t k = 0;
        while (k < job->top && !is_here(job, ids[k]))
            k++;
        if (k < job->top)
            store_token(&job->in, t, 0, hidden, job->x + (size_t)t * hidden);
    }
}

/* Fill `pair` and `token_of`. Moves every start to the expert's end and back. */
static void group_pairs(layer_job *job)
{
    for (int32_t i = 0; i < job->tokens * job->top; i++)
        if (is_here(job, job->ids[i]))
            job->pair[job->start[job->ids[i]]++] = i;
    for (int32_t id = job->experts; id > 0; id--)
        job->start[id] = job->start[id - 1];
    job->start[0] = 0;
    for (int32_t i = 0; i < job->pairs; i++)
        job->token_of[i] = job->in.tokens[job->pair[i] / job->top];
}

static const float *biases(const layer_job *job, const uint8_t *block)
{
    if (!job->e->biased)
        return NULL;
    return (const float *)(block + mira_matrix_bytes(&job->gate_up)
                           + mira_matrix_bytes(&job->down));
}

static int hidden_tasks(const layer_job *job)
{
    return job->actives * pieces(job->e->inner, job->hidden_rows);
}

/* Some hidden values of one expert, for all its tokens. */
static void hidden_task(const layer_job *job, int task, int worker)
{
    const mira_expert *e = job->e;
    int rows = job->hidden_rows, per_expert = pieces(e->inner, rows);
    int32_t id = job->active[task / per_expert];
    int first = task % per_expert * rows, last = smaller_of(first + rows, e->inner);
    int begin = job->start[id], tokens = job->start[id + 1] - begin;
    const uint8_t *block = job->blocks[id];
    const float *bias = biases(job, block), *up_bias = NULL;
    float *gate = job->scratch + (size_t)worker * job->most * 2 * rows;
    sink to = {gate, 2 * rows, NULL};
    multiply_rows(&job->gate_up, block, first, last, job->token_of + begin, tokens, &to);
    if (e->gated) {
        to.base = gate + rows;
        multiply_rows(&job->gate_up, block, e->inner + first, e->inner + last,
                      job->token_of + begin, tokens, &to);
        up_bias = bias ? bias + e->inner + first : NULL;
    }
    for (int t = 0; t < tokens; t++, gate += 2 * rows) {
        isa_in_use()->activate(e, gate, gate + rows, bias ? bias + first : NULL, up_bias,
                               last - first);
        store_token(&job->hidden, begin + t, first, last - first, gate);
    }
    atomic_fetch_add(&job->hidden_done[task / per_expert], 1);
}

/* Some outputs of one expert, for all its tokens. */
static void output_task(const layer_job *job, int task)
{
    int hidden = job->e->hidden, per_expert = pieces(hidden, OUTPUT_ROWS);
    int32_t id = job->active[task / per_expert];
    int first = task % per_expert * OUTPUT_ROWS, last = smaller_of(first + OUTPUT_ROWS, hidden);
    int begin = job->start[id], tokens = job->start[id + 1] - begin;
    const float *bias = biases(job, job->blocks[id]);
    const uint8_t *block = job->blocks[id] + mira_matrix_bytes(&job->gate_up);
    sink to = {job->parts + first, hidden, job->pair + begin};
    multiply_rows(&job->down, block, first, last, job->hidden.tokens + begin, tokens, &to);
    for (int t = 0; bias && t < tokens; t++)
        for (int n = first; n < last; n++)
            sink_row(&to, t)[n - first] += bias[job->gate_up.rows + n];
}

static void expert_task(void *argument, int task, int worker)
{
    const layer_job *job = argument;
    int hidden = hidden_tasks(job);
    if (task < hidden)
        hidden_task(job, task, worker);
    else
        output_task(job, task - hidden);
}

/* Whether the hidden values are there that the task reads. */
static int is_ready(void *argument, int task)
{
    const layer_job *job = argument;
    int outputs = task - hidden_tasks(job), per_expert = pieces(job->e->hidden, OUTPUT_ROWS);
    return outputs < 0 || atomic_load(&job->hidden_done[outputs / per_expert])
                              == pieces(job->e->inner, job->hidden_rows);
}

/* y = sum of weight * part, in the order of k. */
static void sum_task(void *argument, int t, int worker)
{
    (void)worker;
    const layer_job *job = argument;
    int hidden = job->e->hidden;
    const float *weight = job->weights + (size_t)t * job->top;
    const float *part = job->parts + (size_t)t * job->top * hidden;
    float *y = job->y + (size_t)t * hidden;
    for (int n = 0; n < hidden; n++)
        y[n] = weight[0] * part[n];
    for (int k = 1; k < job->top; k++) {
        part += hidden;
        for (int n = 0; n < hidden; n++)
            y[n] = y[n] + weight[k] * part[n];
    }
}

static void take_tables(layer_job *job, workspace *ws)
{
    job->start = take(ws, (job->experts + 1) * sizeof *job->start);
    job->active = take(ws, job->experts * sizeof *job->active);
}

static void take_room(layer_job *job, workspace *ws, int workers)
{
    job->pair = take(ws, job->pairs * sizeof *job->pair);
    job->in = take_token_store(ws, &job->gate_up, job->tokens);
    job->hidden = take_token_store(ws, &job->down, job->pairs);
    job->token_of = take(ws, job->pairs * sizeof *job->token_of);
    job->scratch = take(ws, (size_t)workers * job->most * 2 * job->hidden_rows * sizeof(float));
    job->hidden_done = take(ws, job->actives * sizeof *job->hidden_done);
}

/* The second half of the call, once the pairs are counted. */
static int run_pairs(mira_pool *pool, layer_job *job)
{
    workspace ws = {0};
    int is_long = pool_threads(pool) == 1 && job->most <= LONG_TOKENS;
    job->hidden_rows = is_long ? LONG_ROWS : HIDDEN_ROWS;
    take_room(job, &ws, pool_threads(pool));
    ws = (workspace){.base = aligned_alloc(64, ws.used)};
    if (!ws.base)
        return MIRA_NO_MEMORY;
    take_room(job, &ws, pool_threads(pool));
    store_tokens(job);
    group_pairs(job);
    for (int32_t i = 0; i < job->actives; i++)
        atomic_init(&job->hidden_done[i], 0);
    int outputs = job->actives * pieces(job->e->hidden, OUTPUT_ROWS);
    pool_run(pool, expert_task, is_ready, job, hidden_tasks(job) + outputs);
    free(ws.base);
    return MIRA_OK;
}

int mira_layer(mira_pool *pool, const mira_expert *expert, const uint8_t *const *blocks,
               int32_t experts, const float *x, int32_t tokens, const int32_t *ids, int32_t top,
               const float *weights, float *parts, float *y)
{
    layer_job job = {.e = expert, .gate_up = gate_up_matrix(expert), .down = down_matrix(expert),
                     .blocks = blocks, .x = x, .experts = experts, .tokens = tokens, .top = top,
                     .ids = ids, .weights = weights, .parts = parts, .y = y};
    workspace tables = {0};
    take_tables(&job, &tables);
    tables = (workspace){.base = aligned_alloc(64, tables.used)};
    if (!tables.base)
        return MIRA_NO_MEMORY;
    take_tables(&job, &tables);
    int status = count_pairs(&job) ? MIRA_OK : MIRA_BAD_EXPERT;
    if (status == MIRA_OK && job.pairs)
        status = run_pairs(pool, &job);
    if (status == MIRA_OK && y)
        pool_run(pool, sum_task, NULL, &job, tokens);
    free(tables.base);
    return status;
}
