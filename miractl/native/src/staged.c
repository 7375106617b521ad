/* Experts brought ahead of need: what becomes of them; miractl/policy/staged.py does the same. */
#include "residency.h"

#include <math.h>
#include <string.h>

#define USED 0.03 /* heat, as miractl/policy/heat.py has it */
#define IN_VAIN -0.05
#define DECAY_SECONDS 0.1

void staged_enter(mira_residency *r, int32_t key, int32_t slot)
{
    r->staging[r->staged++] = key;
    r->state[slot] = MIRA_QUEUED;
    r->moved[slot] = 0;
    r->stale[slot] = 0;
}

void staged_leave(mira_residency *r, int32_t key, int32_t slot)
{
    int32_t i = 0;
    while (r->staging[i] != key)
        i++;
    r->staged--;
    memmove(r->staging + i, r->staging + i + 1, (r->staged - i) * sizeof *r->staging);
    r->stale_count -= r->stale[slot];
    r->stale[slot] = 0;
}

/* The heat is told how a bet ended. */
static void feel(mira_residency *r, int32_t key, double change)
{
    double idle = fmax(0, r->now - r->since[key]), intervals = floor(idle / DECAY_SECONDS + 1e-9);
    double score = r->score[key] * pow(r->decay, intervals) + change;
    r->since[key] = r->now - (idle - DECAY_SECONDS * intervals);
    r->score[key] = fmin(1, fmax(0, score));
}

static void call_in(mira_residency *r, int32_t expert)
{
    residency_adopt(r, expert);
    feel(r, r->layer * r->experts + expert, USED);
}

void staged_use(mira_residency *r, int32_t expert)
{
    call_in(r, expert);
    r->used++;
    r->prefetch_used[r->layer * r->experts + expert]++;
}

void mira_call_in(mira_residency *r, int32_t expert)
{
    call_in(r, expert);
    r->late++;
}

void mira_drop(mira_residency *r, int32_t layer, int32_t expert)
{
    int32_t key = layer * r->experts + expert;
    int64_t moved = r->moved[r->slot[key]];
    if (moved > 0) {
        r->wasted++;
        r->in_vain[layer] += moved;
        feel(r, key, IN_VAIN);
    } else {
        r->cancelled++;
    }
    mira_release(r, layer, expert);
}

/* Mark the experts of the layer and count the missing; returns how long the computing of the others
 * outlasts their transfers: below 0 it is waited. While one comes, the one before is computed. */
static double outlasts(mira_residency *r, mira_routed *in)
{
    const uint8_t *role = r->role + (size_t)in->layer * r->experts;
    int32_t there = 0;
    in->missing = 0;
    memset(r->needed, 0, r->experts);
    for (int32_t i = 0; i < in->count; i++) {
        if (in->ids[i] < 0 || in->ids[i] >= r->experts || r->needed[in->ids[i]])
            continue;
        r->needed[in->ids[i]] = 1;
        if (role[in->ids[i]] == MIRA_RESIDENT)
            there++;
        else
            in->missing++;
    }
    double beside = fmin(in->compute, in->transfer);
    return there * in->compute + (in->missing - 1) * beside - in->missing * in->transfer;
}

void mira_judge_bets(mira_residency *r, mira_routed *in)
{
    double slack = outlasts(r, in);
    in->unwanted = 0;
    in->stall = in->missing ? fmax(0, -slack) : 0;
    in->gained = in->lost = 0;
    for (int32_t i = 0; i < r->staged; i++) {
        int32_t layer = r->staging[i] / r->experts, expert = r->staging[i] % r->experts;
        int32_t slot = r->slot[r->staging[i]], state = r->state[slot];
        int wanted = layer == in->layer && r->needed[expert];
        if (layer == in->layer) {
            r->stale_count += !wanted - r->stale[slot];
            r->stale[slot] = !wanted;
        }
        if (state < MIRA_DONE && layer == in->layer && !wanted)
            r->called[in->unwanted++] = expert;
        if (state == MIRA_QUEUED || state > MIRA_DONE)
            continue;
        double passed = (state == MIRA_RUNNING ? in->now : r->finished[slot]) - r->began[slot];
        if (wanted)
            in->gained += fmin(in->transfer, passed);
        else if (state == MIRA_RUNNING)
            in->lost = fmax(in->lost, mira_overrun(passed, in->transfer, in->chunks));
    }
    in->gained = fmin(in->gained, in->stall);
    in->lost = in->missing ? fmax(0, in->lost - fmax(0, slack)) : 0;
}

int staged_drop_stale(mira_residency *r, int32_t set)
{
    for (int32_t i = 0; i < r->staged; i++) {
        int32_t key = r->staging[i], slot = r->slot[key];
        int is_far = set >= 0 && r->set[key / r->experts] != set;
        if (is_far || !r->stale[slot] || r->state[slot] < MIRA_DONE)
            continue;
        mira_drop(r, key / r->experts, key % r->experts);
        return 1;
    }
    return 0;
}

/* A place for another bet: one that is free, that of a bet in vain, or the least worthy resident's. */
static int make_room(mira_residency *r, int32_t layer)
{
    int32_t set = r->set[layer];
    if (r->staged >= r->staging_limit && !staged_drop_stale(r, -1))
        return 0;
    return r->held[set] < r->shares.ways[set] || staged_drop_stale(r, set)
           || residency_clear(r, layer);
}

void mira_stage(mira_residency *r, int32_t layer, const uint16_t *experts, int32_t count)
{
    r->bet_count = 0;
    for (int32_t i = 0; i < count; i++) {
        if (!make_room(r, layer))
            return;
        int32_t slot = residency_take(r, layer), *pair = r->bet + 2 * r->bet_count++;
        residency_enter(r, layer, experts[i], slot, MIRA_STAGED);
        r->issued++;
        r->prefetched[layer * r->experts + experts[i]]++;
        pair[0] = experts[i];
        pair[1] = slot;
    }
}
