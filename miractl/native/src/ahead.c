#include "ahead.h"

#include <math.h>

#define RATE 0.05 /* of the averages, a layer's step; as miractl/simulate/betting.py has it */
#define PRIZE_RATE 0.02 /* what bets bring differs much from layer to layer */

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

int32_t ahead_settle(mira_ahead *a)
{
    mira_residency *r = a->table;
    time_experts(a);
    mark(a, r->layer);
    mira_routed routed = {.layer = r->layer, .count = r->count, .ids = r->ids, .now = a->now,
                          .transfer = a->transfer, .compute = a->each[a->was_prompt]};
    mira_bets_settle(a->bets, r, &routed);
    double *stall = a->stalls + a->was_prompt;
    *stall += RATE * (routed.stall - *stall);
    double *prize = a->prizes + a->was_prompt;
    if (a->tried)
        *prize += PRIZE_RATE * (routed.gained - routed.lost - *prize);
    a->tried = 0;
    a->prize = fmin(*stall, *prize);
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
        at->stall = a->stalls[a->was_prompt];
    }
    at->layer = r->layer + ahead;
    at->ahead = ahead;
    at->class_ = ahead - 1 + (a->prompt ? a->horizon : 0);
    mira_bets_place(a->bets, r, at, guesses);
    a->tried = a->transfer > 0;
    return r->bet_count;
}
