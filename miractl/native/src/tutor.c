/* Lessons on a thread of their own. Scores of a layer have to be known before its experts are looked
 * for; what is learned from a token has not, and is learned beside other work, once a step: to wake
 * a thread costs more than to learn a small layer. */
#include "learner.h"

#include <pthread.h>
#include <stdlib.h>

struct mira_tutor {
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;  /* the thread: there is a lesson, or it is time to stop */
    pthread_cond_t done;  /* the caller: the lesson is over */
    const mira_lesson *lessons;
    int32_t count;
    int busy, stop;
};

static void give(const mira_lesson *lesson)
{
    const mira_routing *in = lesson->text;
    if (lesson->kind == MIRA_PREDICTOR) {
        if (in)
            mira_foresee(in, lesson->pupil, NULL);
        else
            predictor_update(lesson->pupil);
        return;
    }
    if (lesson->kind == MIRA_WALK) {
        walk_update(lesson->pupil);
        return;
    }
    mira_learner *m = lesson->pupil;
    if (!in) {
        learner_update(m);
        return;
    }
    for (int32_t t = 0; t < in->tokens; t++)
        for (int32_t l = 0; l < in->layers; l++) {
            size_t at = ((size_t)t * in->layers + l) * in->top;
            mira_learn(m, l, in->starts[t], in->ids + at, in->probabilities + at);
        }
}

static void *teach(void *argument)
{
    mira_tutor *tutor = argument;
    pthread_mutex_lock(&tutor->lock);
    for (;;) {
        while (!tutor->busy && !tutor->stop)
            pthread_cond_wait(&tutor->wake, &tutor->lock);
        if (!tutor->busy)
            break;
        pthread_mutex_unlock(&tutor->lock);
        for (int32_t i = 0; i < tutor->count; i++)
            give(&tutor->lessons[i]);
        pthread_mutex_lock(&tutor->lock);
        tutor->busy = 0;
        pthread_cond_signal(&tutor->done);
    }
    pthread_mutex_unlock(&tutor->lock);
    return NULL;
}

mira_tutor *mira_tutor_new(void)
{
    mira_tutor *tutor = calloc(1, sizeof *tutor);
    if (!tutor)
        return NULL;
    pthread_mutex_init(&tutor->lock, NULL);
    pthread_cond_init(&tutor->wake, NULL);
    pthread_cond_init(&tutor->done, NULL);
    if (pthread_create(&tutor->thread, NULL, teach, tutor)) {
        free(tutor);
        return NULL;
    }
    return tutor;
}

void mira_tutor_free(mira_tutor *tutor)
{
    pthread_mutex_lock(&tutor->lock);
    tutor->stop = 1;
    pthread_cond_signal(&tutor->wake);
    pthread_mutex_unlock(&tutor->lock);
    pthread_join(tutor->thread, NULL);
    pthread_cond_destroy(&tutor->done);
    pthread_cond_destroy(&tutor->wake);
    pthread_mutex_destroy(&tutor->lock);
    free(tutor);
}

void mira_tutor_wait(mira_tutor *tutor)
{
    pthread_mutex_lock(&tutor->lock);
    while (tutor->busy)
        pthread_cond_wait(&tutor->done, &tutor->lock);
    pthread_mutex_unlock(&tutor->lock);
}

void mira_teach(mira_tutor *tutor, const mira_lesson *lessons, int32_t count)
{
    mira_tutor_wait(tutor);
    pthread_mutex_lock(&tutor->lock);
    tutor->lessons = lessons;
    tutor->count = count;
    tutor->busy = 1;
    pthread_cond_signal(&tutor->wake);
    pthread_mutex_unlock(&tutor->lock);
}
