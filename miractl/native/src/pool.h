/* A few threads that share the tasks of one call at a time. */
#ifndef MIRACTL_POOL_H
#define MIRACTL_POOL_H

#include "miractl_native.h"

/* One task. Workers are numbered from 0, the caller. */
typedef void pool_task(void *job, int task, int worker);

/* Whether a task can begin: what it reads was made by tasks before it. */
typedef int pool_ready(void *job, int task);

int pool_threads(const mira_pool *pool); /* with the caller; 1 for NULL */

/* Run tasks 0 .. count - 1, begun in this order; returns when all are done. `ready` may be NULL. */
void pool_run(mira_pool *pool, pool_task *run, pool_ready *ready, void *job, int count);

#endif
