/* Matrices on a batch of tokens. */
#include "product.h"

#include <stdlib.h>

#include "pool.h"

#define TASK_ROWS 256            /* rows of one task of a pool */
#define CACHED_CODES (512 << 10) /* bytes of token codes that stay cached while panels pass */

void *take(workspace *ws, size_t bytes)
{
    void *piece = ws->base ? ws->base + ws->used : NULL;
    ws->used += (bytes + 63) / 64 * 64;
    return piece;
}

token_store take_token_store(workspace *ws, const mira_matrix *m, size_t tokens)
{
    size_t groups = m->columns / m->group;
    token_store store = {.m = m, .code_bytes = m->columns * (m->format == MIRA_I8 ? 2 : 1)};
    store.codes = take(ws, tokens * store.code_bytes);
    store.scale = take(ws, tokens * groups * sizeof(float));
    store.offset = take(ws, tokens * groups * sizeof(float));
    store.tokens = take(ws, tokens * sizeof(token));
    for (size_t t = 0; store.tokens && t < tokens; t++)
        store.tokens[t] = (token){store.codes + t * store.code_bytes, store.scale + t * groups,
                                  store.offset + t * groups};
    return store;
}

void store_token(const token_store *store, size_t t, int first, int n, const float *x)
{
    const mira_matrix *m = store->m;
    size_t group = t * (m->columns / m->group) + first / m->group;
    size_t code = t * store->code_bytes + store->code_bytes / m->columns * first;
    isa_in_use()->quantize_token(x, n, m->group, m->format, store->codes + code,
                                 store->scale + group, store->offset + group);
}

/* Panels pass over the tokens, tile by tile; a panel stays in the first cache meanwhile. */
static void multiply_cached(const mira_matrix *m, const uint8_t *block, int first, int last,
                            const token *x, int begin, int end, const sink *to)
{
    const isa *set = isa_in_use();
    panel_kernel *const *kernels = set->panel[variant_of(m)];
    float tile[MAX_TILE][PANEL];
    for (int row = first; row < last; row += PANEL) {
        const uint8_t *codes = block + panel_codes_at(m, row / PANEL);
        const uint8_t *scales = block + panel_scales_at(m, row / PANEL);
        for (int t = begin; t < end; t += set->tile) {
            int n = end - t < set->tile ? end - t : set->tile;
            kernels[n - 1](codes, scales, m->columns, x + t, tile);
            for (int i = 0; i < n; i++)
                memcpy(sink_row(to, t + i) + (row - first), tile[i], sizeof tile[i]);
        }
    }
}

void multiply_rows(const mira_matrix *m, const uint8_t *block, int first, int last, const token *x,
                   int tokens, const sink *to)
{
    int batch = CACHED_CODES / (m->columns * 2) / MAX_TILE * MAX_TILE;
    if (batch < MAX_TILE)
        batch = MAX_TILE;
    for (int begin = 0; begin < tokens; begin += batch) {
        int end = tokens - begin < batch ? tokens : begin + batch;
        multiply_cached(m, block, first, last, x, begin, end, to);
    }
}

typedef struct {
    const mira_matrix *matrices;
    const uint8_t *const *blocks;
    token_store x;
    int32_t tokens;
    float *y;
} multiply_job;

static int tasks_of(const mira_matrix *m)
{
    return (m->rows + TASK_ROWS - 1) / TASK_ROWS;
}

static void multiply_task(void *argument, int task, int worker)
{
    (void)worker;
    const multiply_job *job = argument;
    const mira_matrix *m = job->matrices;
    const uint8_t *const *block = job->blocks;
    float *y = job->y;
    for (; task >= tasks_of(m); m++, block++) {
        task -= tasks_of(m);
        y += (size_t)job->tokens * m->rows;
    }
    int first = task * TASK_ROWS, last = first + TASK_ROWS;
    if (last > m->rows)
        last = m->rows;
    sink to = {y + first, m->rows, NULL};
    multiply_rows(m, *block, first, last, job->x.tokens, job->tokens, &to);
}

int mira_multiply(mira_pool *pool, const mira_matrix *matrices, const uint8_t *const *blocks,
                  int32_t count, const float *x, int32_t tokens, float *y)
{
    workspace ws = {0};
    take_token_store(&ws, matrices, tokens);
    ws = (workspace){.base = aligned_alloc(64, ws.used + 64)};
    if (!ws.base)
        return MIRA_NO_MEMORY;
    multiply_job job = {matrices, blocks, take_token_store(&ws, matrices, tokens), tokens, y};
    int columns = matrices->columns, tasks = 0;
    for (int32_t t = 0; t < tokens; t++)
        store_token(&job.x, t, 0, columns, x + (size_t)t * columns);
    for (int32_t i = 0; i < count; i++)
        tasks += tasks_of(matrices + i);
    pool_run(pool, multiply_task, NULL, &job, tasks);
    free(ws.base);
    return MIRA_OK;
}
