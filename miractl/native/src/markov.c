/* Markov tables: counts of who followed whom; miractl/policy/markov.py says what is counted. */
#include "learner.h"
#include "vectors.h"

#include <string.h>

/* Who followed `from` at a layer, [experts], and the sum of that. */
static float *row_of(const mira_chain *c, int32_t kind, int32_t layer, int64_t from)
{
    return c->tables[kind] + ((size_t)layer * c->experts + from) * c->experts;
}

static double *total_of(const mira_chain *c, int32_t kind, int32_t layer, int64_t from)
{
    return c->totals[kind] + (size_t)layer * c->experts + from;
}

static void count(const mira_chain *c, int32_t kind, int32_t layer, const int64_t *before,
                  const int64_t *after)
{
    for (int32_t i = 0; i < c->top; i++) {
        float *row = row_of(c, kind, layer, before[i]);
        double *total = total_of(c, kind, layer, before[i]);
        for (int32_t j = 0; j < c->top; j++)
            row[after[j]] += 1;
        *total += c->top;
        if (*total <= c->most)
            continue;
        *total *= 0.5;
        for (int32_t e = 0; e < c->experts; e++)
            row[e] *= 0.5f;
    }
}

int mira_markov_count(const mira_chain *c, int32_t kind, int32_t layer, const int64_t *before,
                      const int64_t *after, int32_t tokens)
{
    for (int32_t i = 0; i < tokens * c->top; i++)
        if (before[i] < 0 || before[i] >= c->experts || after[i] < 0 || after[i] >= c->experts)
            return MIRA_BAD_EXPERT;
    for (int32_t t = 0; t < tokens; t++)
        count(c, kind, layer, before + (size_t)t * c->top, after + (size_t)t * c->top);
    return MIRA_OK;
}

/* --- one sequence ----------------------------------------------------------------------------- */

static int64_t *ids_at(const mira_walk *w, int32_t before, int32_t layer)
{
    const mira_chain *c = w->chain;
    return w->ids + ((size_t)(w->turn ^ before) * c->layers + layer) * c->top;
}

int mira_markov_follow(mira_walk *w, int32_t layer, const int64_t *ids)
{
    for (int32_t i = 0; i < w->chain->top; i++)
        if (ids[i] < 0 || ids[i] >= w->chain->experts)
            return MIRA_BAD_EXPERT;
    memcpy(ids_at(w, 0, layer), ids, w->chain->top * sizeof *ids);
    return MIRA_OK;
}

void walk_update(mira_walk *w)
{
    const mira_chain *c = w->chain;
    for (int32_t l = 0; l < c->layers; l++) {
        if (l > 0)
            count(c, MIRA_BY_LAYER, l, ids_at(w, 0, l - 1), ids_at(w, 0, l));
        if (w->known)
            count(c, MIRA_BY_TOKEN, l, ids_at(w, 1, l), ids_at(w, 0, l));
    }
    w->known = 1;
    w->turn ^= 1;
}

/* Probabilities of what follows ids[top], [experts]: the share of each, at most 1. */
static void follow(const mira_chain *c, int32_t kind, int32_t layer, const int64_t *ids, float *next)
{
    memset(next, 0, c->experts * sizeof *next);
    for (int32_t i = 0; i < c->top; i++) {
        int again = 0; /* a router may name an expert twice */
        for (int32_t j = 0; j < i; j++)
            again |= ids[j] == ids[i];
        if (!again)
            vector_add_scaled(next, row_of(c, kind, layer, ids[i]),
                              (float)(1 / *total_of(c, kind, layer, ids[i])), c->experts);
    }
    for (int32_t e = 0; e < c->experts; e++)
        next[e] = next[e] < 1 ? next[e] : 1;
}

/* The same of experts with a probability each: a sum over paths. */
static void follow_all(const mira_chain *c, int32_t layer, const float *wanted, float *next)
{
    memset(next, 0, c->experts * sizeof *next);
    for (int32_t from = 0; from < c->experts; from++)
        vector_add_scaled(next, row_of(c, MIRA_BY_LAYER, layer, from),
                          (float)(wanted[from] / *total_of(c, MIRA_BY_LAYER, layer, from)),
                          c->experts);
    for (int32_t e = 0; e < c->experts; e++)
        next[e] = next[e] < 1 ? next[e] : 1;
}

void mira_markov_guess(const mira_walk *w, int32_t layer, int32_t ahead, double *guess)
{
    const mira_chain *c = w->chain;
    float *found = w->scratch, *other = found + c->experts;
    follow(c, MIRA_BY_LAYER, layer + 1, ids_at(w, 0, layer), found);
    for (int32_t a = 2; a <= ahead; a++) {
        memcpy(other, found, c->experts * sizeof *found);
        follow_all(c, layer + a, other, found);
    }
    double share = w->known ? c->of_layer : 1;
    if (w->known)
        follow(c, MIRA_BY_TOKEN, layer + ahead, ids_at(w, 1, layer + ahead), other);
    for (int32_t e = 0; e < c->experts; e++)
        guess[e] = share * found[e] + (w->known ? (1 - share) * other[e] : 0);
}
