#include "decide.h"

#include <string.h>

void mira_keep(mira_deciding *d)
{
    if (!d->router_ids)
        return;
    memcpy(d->ids, d->router_ids, d->count * sizeof *d->ids);
    memcpy(d->scores, d->router_scores, d->count * sizeof *d->scores);
    d->router_ids = NULL;
}

static void rate(const mira_deciding *d)
{
    d->table->now = d->now;
    if (d->kind == MIRA_BY_STAMP) {
        const mira_stamp *stamp = d->rule;
        double *worth = stamp->worth + residency_at(d->table, d->layer, 0);
        for (int32_t i = 0; i < d->count; i++)
            worth[d->ids[i]] = stamp->number;
        return;
    }
    if (d->kind == MIRA_BY_HEAT) {
        if (d->layer == 0) /* time has passed for everyone */
            memset(d->table->changed, 1, d->table->layers);
        mira_heat_record(d->rule, d->layer, d->ids, d->count);
        return;
    }
    mira_rating *rating = d->rule;
    rating->layer = d->layer;
    rating->ids = d->ids;
    rating->probabilities = d->scores;
    mira_rate(rating);
}

static int32_t settle(const mira_deciding *d)
{
    mira_ahead *a = d->ahead;
    a->now = d->now;
    a->waited = d->waited;
    a->transfer = d->transfer;
    a->spent = d->spent;
    a->computed = d->computed;
    a->prompt = d->prompt;
    return ahead_settle(a);
}

int mira_decide(mira_deciding *d)
{
    mira_residency *r = d->table;
    mira_keep(d);
    for (int32_t i = 0; i < d->count; i++)
        if (d->ids[i] < 0 || d->ids[i] >= r->experts)
            return -1;
    r->layer = d->layer;
    r->count = d->count;
    r->ids = d->ids;
    if (d->rule) {
        mira_note(r);
        rate(d);
    }
    r->called_count = d->ahead ? settle(d) : 0;
    if (r->called_count)
        return MIRA_UNWANTED;
    if (!d->whole)
        return MIRA_PLACED;
    int status = mira_ask(r);
    int others = r->called_count + r->absent_count + r->arrived;
    return others ? status : MIRA_HERE;
}
