/* The thread pool. Everything it shares is guarded by one mutex: a task takes tens of microseconds
 * or more, taking it a few dozen nanoseconds. A helper that wakes late finds no task and sleeps on,
 * so nothing of a finished call is touched. */
#include "pool.h"

#include <pthread.h>
#include <stdlib.h>

struct mira_pool {
    int helpers;
    pthread_t *threads;
    pthread_mutex_t caller; /* held during a whole call */
    pthread_mutex_t lock;   /* guards what follows */
    pthread_cond_t wake;    /* helpers: there are tasks, or it is time to stop */
    pthread_cond_t done;    /* who waits for tasks: another one is done */
    pool_task *run;
    pool_ready *ready;
    void *job;
    int next, count, finished;
    int waiting; /* workers that wait for `done` */
    int numbered; /* helpers that have taken their number */
    int stop;
};

int pool_threads(const mira_pool *pool)
{
    return pool ? pool->helpers + 1 : 1;
}

static void wait_for_task(mira_pool *pool)
{
    pool->waiting++;
    pthread_cond_wait(&pool->done, &pool->lock);
    pool->waiting--;
}

/* Take and run tasks until none is left. Called and left with the lock held. */
static void work(mira_pool *pool, int worker)
{
    while (pool->next < pool->count) {
        if (pool->ready && !pool->ready(pool->job, pool->next)) {
            wait_for_task(pool);
            continue;
        }
        int task = pool->next++;
        pthread_mutex_unlock(&pool->lock);
        pool->run(pool->job, task, worker);
        pthread_mutex_lock(&pool->lock);
        pool->finished++;
        if (pool->waiting)
            pthread_cond_broadcast(&pool->done);
    }
}

static void *helper(void *argument)
{
    mira_pool *pool = argument;
    pthread_mutex_lock(&pool->lock);
    int worker = ++pool->numbered;
    while (!pool->stop) {
        work(pool, worker);
        if (!pool->stop)
            pthread_cond_wait(&pool->wake, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

void pool_run(mira_pool *pool, pool_task *run, pool_ready *ready, void *job, int count)
{
    if (!pool || count == 1) {
        for (int task = 0; task < count; task++)
            run(job, task, 0);
        return;
    }
    pthread_mutex_lock(&pool->caller);
    pthread_mutex_lock(&pool->lock);
    pool->run = run;
    pool->ready = ready;
    pool->job = job;
    pool->next = pool->finished = 0;
    pool->count = count;
    pthread_cond_broadcast(&pool->wake);
    work(pool, 0);
    while (pool->finished < count)
        wait_for_task(pool);
    pool->next = pool->count = 0;
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_unlock(&pool->caller);
}

mira_pool *mira_pool_new(int threads)
{
    mira_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pthread_mutex_init(&pool->caller, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->threads = calloc(threads, sizeof *pool->threads);
    while (pool->threads && pool->helpers < threads - 1) {
        if (pthread_create(&pool->threads[pool->helpers], NULL, helper, pool))
            break;
        pool->helpers++;
    }
    if (!pool->threads || pool->helpers < threads - 1) {
        mira_pool_free(pool);
        return NULL;
    }
    return pool;
}

void mira_pool_free(mira_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->helpers; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->caller);
    free(pool->threads);
    free(pool);
}
