/* A router: the most probable experts of each token.
 *
 * Which of two equal probabilities comes first is the affair of whoever sorts, so tokens with such
 * a pair in question are refused, and those with numbers that are none.
 */
#include <stdlib.h>

#include "lanes.h"
#include "pool.h"
#include "rows.h"

#define TASK_ROWS 32 /* experts of one task of a pool */

typedef struct {
    const mira_router *router;
    const float *weight, *x;
    int32_t tokens;
    float *logits;
} route_job;

CLONES static void logits_of(const float *weight, const float *x, int rows, int columns,
                             float *logits)
{
    int row = 0;
    for (; row + 4 <= rows; row += 4)
        lanes_products(x, weight + (size_t)row * columns, columns, columns, logits + row);
    for (; row < rows; row++)
        logits[row] = lanes_product(weight + (size_t)row * columns, x, columns);
}

static void logits_task(void *argument, int task, int worker)
{
    (void)worker;
    const route_job *job = argument;
    int experts = job->router->experts, hidden = job->router->hidden;
    int first = task * TASK_ROWS, rows = experts - first < TASK_ROWS ? experts - first : TASK_ROWS;
    for (int32_t t = 0; t < job->tokens; t++)
        logits_of(job->weight + (size_t)first * hidden, job->x + (size_t)t * hidden, rows, hidden,
                  job->logits + (size_t)t * experts + first);
}

CLONES static void softmax(const float *logits, int n, float *y)
{
    float largest = lanes_largest(logits[0], logits, n);
    for (int i = 0; i < n; i++)
        y[i] = exponential(logits[i] - largest);
    float sum = lanes_total(y, n);
    for (int i = 0; i < n; i++)
        y[i] /= sum;
}

/* Ids and scores of the `top` largest, in order. Returns 0 where the order is in question. */
static int choose(const float *y, int experts, int top, int64_t *ids, float *scores)
{
    int found = 0, reached = 0, apart = 1;
    for (int id = 0; id < experts; id++) {
        if (found == top && !(y[id] > scores[top - 1]))
            continue;
        int at = found < top ? found++ : top - 1;
        for (; at > 0 && y[id] > scores[at - 1]; at--) {
            scores[at] = scores[at - 1];
            ids[at] = ids[at - 1];
        }
        scores[at] = y[id];
        ids[at] = id;
    }
    for (int id = 0; id < experts; id++)
        reached += y[id] >= scores[top - 1];
    for (int at = 1; at < top; at++)
        apart &= scores[at] < scores[at - 1];
    return apart && reached == top;
}

static void renormalize(float *scores, int top)
{
    float sum = 0;
    for (int k = 0; k < top; k++)
        sum += scores[k];
    for (int k = 0; k < top; k++)
        scores[k] /= sum;
}

static int route_all(mira_pool *pool, const route_job *job, float *probabilities, float *scores,
                     int64_t *ids)
{
    int experts = job->router->experts, top = job->router->top;
    pool_run(pool, logits_task, NULL, (void *)job, (experts + TASK_ROWS - 1) / TASK_ROWS);
    for (int32_t t = 0; t < job->tokens; t++, scores += top, ids += top) {
        softmax(job->logits + (size_t)t * experts, experts, probabilities);
        if (!choose(probabilities, experts, top, ids, scores))
            return MIRA_TIED;
        if (job->router->renormalized)
            renormalize(scores, top);
    }
    return MIRA_OK;
}

int mira_route(mira_pool *pool, const mira_router *router, const float *weight, const float *x,
               int32_t tokens, float *logits, float *scores, int64_t *ids)
{
    size_t rows = logits ? 1 : (size_t)tokens + 1;
    float *room = malloc(rows * router->experts * sizeof *room);
    if (!room)
        return MIRA_NO_MEMORY;
    route_job job = {router, weight, x, tokens, logits ? logits : room + router->experts};
    int status = route_all(pool, &job, room, scores, ids);
    free(room);
    return status;
}
