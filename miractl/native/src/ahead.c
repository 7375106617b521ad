#include "ahead.h"

#include <math.h>

#define RATE 0.05 /* of the averages, a layer's step; as miractl/simulate/betting.py has it */
#define PRIZE_RATE 0.02 /* what bets save differs much from layer to layer */
#define EVERY 256 /* layers, of which so many in a row are bet on where that takes too long */
#define TRIED 16

/* A layer takes from the routing of the one before to its own. */
static void mark(mira_ahead *a, int32_t layer)
{
    double seconds = a->now - a->last_now - (a->waited - a->last_waited);
    if (a->last >= 0 && a->last == layer - 1) {
        double *pace = a->pace + (a->prompt ? a->layers : 0) + layer;
        seconds = seconds > 0 ? seconds : 0;
        *pace = *pace < 0 ? seconds : *pace + RATE * (seconds - *pace);
    }
    a->last = layer;
    a->last_now = a->now;
    a->last_waited = a->waited;
}

/* Experts that were there took so long: others come meanwhile. */
static void time_experts(mira_ahead *a)
{
    if (a->computed > 0) {
        double *each = a->each + a->was_prompt, seconds = a->spent / a->computed;
        *each = *each == 0 ? seconds : *each + RATE * (seconds - *each);
    }
    a->was_prompt = a->prompt != 0;
}

/* What bets on a layer save where they are tried, on average; no more than it would wait without. */
static void appraise(mira_ahead *a, const mira_routed *routed)
{
    double *prize = a->prizes + a->was_prompt;
    if (a->tried)
        *prize += PRIZE_RATE * (routed->gained - routed->lost - *prize);
    a->tried = 0;
    a->prize = fmin(a->stall, *prize);
}

/* Where deciding takes longer than bets save, nobody bets; now and then it is tried and timed again. A
 * pause of the thread looks like long deciding. */
static void skip(mira_ahead *a)
{
    if (a->took >= 0 && a->deciding > 0)
        a->deciding += RATE * (fmin(a->took, 2 * a->deciding) - a->deciding);
    else if (a->took >= 0)
        a->deciding = a->took;
    a->took = -1;
    a->skips = a->prize < a->deciding;
    if (a->skips) {
        a->skipped = (a->skipped + 1) % EVERY;
        a->skips = a->skipped < EVERY - TRIED;
    }
}

int32_t ahead_settle(mira_ahead *a)
{
    mira_residency *r = a->table;
    time_experts(a);
    mark(a, r->layer);
    mira_routed routed = {.layer = r->layer, .count = r->count, .ids = r->ids, .now = a->now,
                          .transfer = a->transfer, .compute = a->each[a->was_prompt],
                          .chunks = a->bets->chunks};
    mira_bets_settle(a->bets, r, &routed);
    double *stall = a->stalls + a->was_prompt;
    *stall += RATE * (routed.stall - *stall);
    a->stall = *stall;
    appraise(a, &routed);
    skip(a);
    return routed.unwanted;
}

int32_t mira_ahead_place(mira_ahead *a, int32_t ahead, const double *guesses)
{
    mira_residency *r = a->table;
    mira_moment *at = &a->at;
    double compute = r->layer + ahead < a->layers
                         ? a->pace[(a->prompt ? a->layers : 0) + r->layer + 1] : -1;
    if (compute < 0)
        return 0;
    if (ahead == 1) {
        at->elapsed = a->now - a->began;
        at->promised = 0;
        at->link = (a->demands + a->under_way) * a->transfer;
        at->gate = a->demands * a->transfer + compute;
        at->transfer = a->transfer;
        at->compute = compute;
        at->stall = a->stall;
    }
    at->layer = r->layer + ahead;
    at->ahead = ahead;
    at->class_ = ahead - 1 + (a->prompt ? a->horizon : 0);
    mira_bets_place(a->bets, r, at, guesses);
    a->tried = a->transfer > 0;
    return r->bet_count;
}

int32_t mira_ahead_follow(mira_ahead *a, const mira_teller *t, const int64_t *ids)
{
    int32_t layer = a->table->layer;
    if (mira_teller_follow(t, layer, ids))
        return -1;
    if (a->skips || layer + 1 >= a->layers)
        return 0;
    mira_teller_tell(t, layer, 1);
    return mira_ahead_place(a, 1, t->guess);
}
