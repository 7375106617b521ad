/* Root mean square norms, with the bits that torch's own operations give.
 *
 * Sums of floats depend on their order, so this is torch's for the sum over a row: vectors of as
 * many lanes as it was compiled for, four at a time, added up in cascades of levels; then what is
 * left of a row, and lane after lane.
 */
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "pool.h"
#include "small.h"

#define ROWS 4 /* vectors at a time */
#define LEVELS 4
#define MOST_LANES 16
#define TASK_VALUES (1 << 16) /* about; of one task of a pool */

typedef struct {
    const mira_norm *norm;
    const float *x;
    int32_t rows, task_rows;
    float *y;
} norm_job;

INLINE void add_squares(float *sum, const float *x, const int n)
{
    for (int i = 0; i < n; i++)
        sum[i] += x[i] * x[i];
}

INLINE void add(float *sum, const float *x, const int n)
{
    for (int i = 0; i < n; i++)
        sum[i] += x[i];
}

static int level_power(int size)
{
    int log = 0;
    while (1 << log < size)
        log++;
    return log / LEVELS > 4 ? log / LEVELS : 4;
}

/* sum[ROWS * lanes] of `size` times as many squares. */
INLINE void cascade(const float *x, int size, float *sum, const int lanes)
{
    const int width = ROWS * lanes;
    float level[LEVELS][ROWS * MOST_LANES] = {{0}};
    int power = level_power(size), step = 1 << power, i = 0;
    while (i + step <= size) {
        for (int j = 0; j < step; j++, i++)
            add_squares(level[0], x + (size_t)i * width, width);
        for (int j = 1; j < LEVELS; j++) {
            add(level[j], level[j - 1], width);
            memset(level[j - 1], 0, sizeof level[0]);
            if (i & ((step - 1) << (j * power)))
                break;
        }
    }
    for (; i < size; i++)
        add_squares(level[0], x + (size_t)i * width, width);
    for (int j = 1; j < LEVELS; j++)
        add(level[0], level[j], width);
    memcpy(sum, level[0], width * sizeof *sum);
}

INLINE float sum_of_squares(const float *x, int n, const int lanes)
{
    float sum[ROWS * MOST_LANES];
    int vectors = n / lanes, size = vectors / ROWS;
    cascade(x, size, sum, lanes);
    for (int i = size * ROWS; i < vectors; i++)
        add_squares(sum, x + i * lanes, lanes);
    for (int k = 1; k < ROWS; k++)
        add(sum, sum + k * lanes, lanes);
    float total = 0;
    for (int k = vectors * lanes; k < n; k++)
        total += x[k] * x[k];
    for (int k = 0; k < lanes; k++)
        total += sum[k];
    return total;
}

static float squares(const float *x, int n, int lanes)
{
    return lanes == 4    ? sum_of_squares(x, n, 4)
           : lanes == 8  ? sum_of_squares(x, n, 8)
                         : sum_of_squares(x, n, MOST_LANES);
}

void norm_rows(const mira_norm *norm, const float *x, int rows, float *y)
{
    int n = norm->columns;
    for (int row = 0; row < rows; row++, x += n, y += n) {
        float factor = 1 / sqrtf(squares(x, n, norm->lanes) / (float)n + norm->eps);
        for (int k = 0; k < n; k++)
            y[k] = x[k] * factor * norm->scale[k];
    }
}

static void norm_task(void *argument, int task, int worker)
{
    (void)worker;
    const norm_job *job = argument;
    int first = task * job->task_rows, rows = job->rows - first;
    size_t at = (size_t)first * job->norm->columns;
    norm_rows(job->norm, job->x + at, rows < job->task_rows ? rows : job->task_rows, job->y + at);
}

void mira_rms_norm(mira_pool *pool, const mira_norm *norm, const float *x, int32_t rows, float *y)
{
    int task_rows = TASK_VALUES / norm->columns + 1;
    norm_job job = {norm, x, rows, task_rows, y};
    pool_run(pool, norm_task, NULL, &job, (rows + task_rows - 1) / task_rows);
}
