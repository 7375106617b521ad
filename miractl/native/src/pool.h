/* A few threads that share the tasks of one call at a time. */
#ifndef MIRACTL_POOL_H
#define MIRACTL_POOL_H

#include "miractl_native.h"

/* One task. Workers are numbered from 0, the caller. */
typedef void pool_task(void *job, int task, int worker);

int pool_threads(const mira_pool *pool); /* with the caller; 1 for NULL */

/* Run tasks 0 .. count - 1 in any order; returns when all are done. */
void pool_run(mira_pool *pool, pool_task *run, void *job, int count);

#endif
