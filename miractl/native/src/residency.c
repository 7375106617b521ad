/* The slot table of the runtime: miractl/policy/residency.py says what it keeps to. */
#include "residency.h"

#include <math.h>
#include <string.h>

#define HOT 2.0 /* with MIRA_HOTTER: worth of this or more is above the threshold */

/* The least worthy resident of a layer, or of those that the step can do without. */
static int32_t least_of(const mira_residency *r, int32_t layer, int dispensable, double *least)
{
    const uint8_t *role = r->role + residency_at(r, layer, 0);
    const double *worth = r->worth + residency_at(r, layer, 0);
    int32_t loser = 0;
    *least = INFINITY;
    for (int32_t e = 0; e < r->experts; e++)
        if (role[e] == MIRA_RESIDENT && worth[e] < *least && !(dispensable && r->needed[e])) {
            *least = worth[e];
            loser = e;
        }
    return loser;
}

static void rank(mira_residency *r, int32_t layer)
{
    r->loser[layer] = least_of(r, layer, 0, &r->least[layer]);
}

void residency_rank(mira_residency *r)
{
    for (int32_t layer = 0; layer < r->layers; layer++)
        if (r->changed[layer]) {
            r->changed[layer] = 0;
            rank(r, layer);
        }
}

static void give(mira_residency *r, int32_t layer, int32_t slot)
{
    r->idle[r->top[r->pool[layer]]++] = slot;
}

void residency_enter(mira_residency *r, int32_t layer, int32_t expert, int32_t slot, int role)
{
    size_t key = residency_at(r, layer, expert);
    r->role[key] = (uint8_t)role;
    r->slot[key] = slot;
    if (role == MIRA_TRANSIT) {
        r->spare[r->pool[layer]]--;
        r->transit[r->passing++] = (int32_t)key;
        return;
    }
    r->held[r->set[layer]]++;
    if (role == MIRA_RESIDENT)
        rank(r, layer);
    else
        staged_enter(r, (int32_t)key, slot);
}

/* An expert gives up its role; its slot. */
static int32_t leave(mira_residency *r, int32_t layer, int32_t expert)
{
    size_t key = residency_at(r, layer, expert);
    int role = r->role[key];
    r->role[key] = MIRA_ABSENT;
    if (role != MIRA_TRANSIT) {
        r->held[r->set[layer]]--;
        if (role == MIRA_RESIDENT)
            rank(r, layer);
        else
            staged_leave(r, (int32_t)key, r->slot[key]);
        return r->slot[key];
    }
    r->spare[r->pool[layer]]++;
    int32_t i = 0;
    while (r->transit[i] != (int32_t)key)
        i++;
    r->transit[i] = r->transit[--r->passing];
    return r->slot[key];
}

typedef struct {
    int granted;
    int32_t layer, expert; /* who has to go for it; -1: nobody */
} room;

static int is_full(const mira_residency *r, int32_t set)
{
    return r->held[set] >= r->shares.ways[set];
}

static int admits(const mira_residency *r, double newcomer, double victim)
{
    if (r->admission == MIRA_WORTHIER)
        return newcomer >= victim;
    return r->admission == MIRA_ALWAYS || newcomer >= HOT || victim < HOT;
}

/* The least worthy resident of a layer's set, or of those that the step can do without. */
static room least_of_set(const mira_residency *r, int32_t layer, int dispensable)
{
    int32_t set = r->set[layer];
    double own, least = INFINITY;
    int32_t own_loser = least_of(r, r->layer, dispensable, &own);
    room found = {0, layer, -1};
    for (int32_t l = r->first[set]; l < r->layers; l = r->sibling[l]) {
        double worth = l == r->layer ? own : r->least[l];
        if (worth < least) {
            least = worth;
            found.layer = l;
            found.expert = l == r->layer ? own_loser : r->loser[l];
        }
    }
    return found;
}

/* Whether a newcomer of the step's layer may become resident. */
static room room_for(const mira_residency *r, int32_t expert)
{
    if (!is_full(r, r->set[r->layer]))
        return (room){1, -1, -1};
    room found = least_of_set(r, r->layer, r->admission != MIRA_WORTHIER);
    if (found.expert >= 0) {
        double least = r->worth[residency_at(r, found.layer, found.expert)];
        found.granted = admits(r, r->worth[residency_at(r, r->layer, expert)], least);
    }
    return found;
}

static int keeps_slot(const mira_residency *r, const room *found)
{
    return found->expert >= 0 && found->layer == r->layer && r->needed[found->expert];
}

/* Whoever has to go loses his place; his slot too, unless the step needs it. */
static void evict(mira_residency *r, const room *found)
{
    if (found->expert < 0)
        return;
    int keeps = keeps_slot(r, found);
    int32_t slot = leave(r, found->layer, found->expert);
    r->evictions++;
    if (keeps)
        residency_enter(r, found->layer, found->expert, slot, MIRA_TRANSIT);
    else
        give(r, found->layer, slot);
}

/* Bring an absent expert of the step in; 0: it has to wait. */
static int demand(mira_residency *r, int32_t expert)
{
    int32_t set = r->set[r->layer];
    if (is_full(r, set))
        staged_drop_stale(r, set);
    room found = room_for(r, expert);
    if (r->spare[r->pool[r->layer]] <= 0 && (!found.granted || keeps_slot(r, &found)))
        return 0;
    if (found.granted)
        evict(r, &found);
    else
        r->bypassed++;
    int32_t slot = residency_take(r, r->layer), *pair = r->placed + 2 * r->placed_count++;
    residency_enter(r, r->layer, expert, slot, found.granted ? MIRA_RESIDENT : MIRA_TRANSIT);
    pair[0] = expert;
    pair[1] = slot;
    return 1;
}

/* Whether bets hold slots that the step could have. */
static int has_bets(const mira_residency *r)
{
    for (int32_t i = 0; i < r->staged; i++)
        if (r->set[r->staging[i] / r->experts] == r->set[r->layer])
            return 1;
    return 0;
}

int mira_place(mira_residency *r, int32_t skip)
{
    for (; r->next < r->absent_count; r->next++, skip = 0) {
        int32_t expert = r->absent[r->next];
        if (!skip && demand(r, expert))
            continue;
        if (!skip && has_bets(r))
            return MIRA_SHORT;
        r->waiting[r->waiting_count++] = expert;
    }
    return MIRA_PLACED;
}

/* Sort those that the step needs by where they are, and go on with them. */
static int look_up(mira_residency *r, int32_t count)
{
    int32_t failed = 0, *arrived = r->waiting; /* free until somebody has to wait again */
    r->here_count = r->called_count = r->absent_count = r->arrived = 0;
    r->placed_count = r->waiting_count = r->next = 0;
    for (int32_t e = 0; e < r->experts; e++) {
        if (!r->needed[e])
            continue;
        size_t key = residency_at(r, r->layer, e);
        int staged = r->role[key] == MIRA_STAGED;
        int there = staged ? r->state[r->slot[key]] == MIRA_DONE : r->role[key] == MIRA_RESIDENT;
        *(there ? r->hits + key : r->misses + key) += count;
        if (there && staged) {
            arrived[r->arrived++] = e;
        } else if (there) {
            r->here[2 * r->here_count] = e;
            r->here[2 * r->here_count++ + 1] = r->slot[key];
        } else if (!staged) {
            r->absent[r->absent_count++] = e;
        } else if (r->state[r->slot[key]] >= MIRA_FAILED) {
            r->called[r->experts - ++failed] = e;
        } else {
            r->called[r->called_count++] = e;
        }
    }
    for (int32_t i = 0; i < r->arrived; i++) {
        staged_use(r, arrived[i]);
        r->here[2 * r->here_count] = arrived[i];
        r->here[2 * r->here_count++ + 1] = r->slot[residency_at(r, r->layer, arrived[i])];
    }
    for (int32_t i = 1; i <= failed; i++) {
        mira_drop(r, r->layer, r->called[r->experts - i]);
        r->absent[r->absent_count++] = r->called[r->experts - i];
    }
    return r->called_count ? MIRA_CALLED : mira_place(r, 0);
}

void mira_note(mira_residency *r)
{
    int64_t *tokens = r->activations + residency_at(r, r->layer, 0);
    for (int32_t i = 0; i < r->count; i++)
        if (r->ids[i] >= 0 && r->ids[i] < r->experts)
            tokens[r->ids[i]]++;
    r->changed[r->layer] = 1;
}

int mira_ask(mira_residency *r)
{
    for (int32_t i = 0; i < r->count; i++)
        if (r->ids[i] < 0 || r->ids[i] >= r->experts)
            return -1;
    memset(r->needed, 0, r->experts);
    for (int32_t i = 0; i < r->count; i++)
        r->needed[r->ids[i]] = 1;
    residency_rank(r);
    return look_up(r, 1);
}

int mira_ask_again(mira_residency *r)
{
    memset(r->needed, 0, r->experts);
    for (int32_t i = 0; i < r->waiting_count; i++)
        r->needed[r->waiting[i]] = 1;
    return look_up(r, 0);
}

void residency_adopt(mira_residency *r, int32_t expert)
{
    residency_enter(r, r->layer, expert, leave(r, r->layer, expert), MIRA_RESIDENT);
}

int residency_clear(mira_residency *r, int32_t layer)
{
    residency_rank(r);
    room found = least_of_set(r, layer, 1);
    if (found.expert < 0)
        return 0;
    evict(r, &found);
    return 1;
}

void mira_release(mira_residency *r, int32_t layer, int32_t expert)
{
    give(r, layer, leave(r, layer, expert));
}

void mira_end_transit(mira_residency *r)
{
    while (r->passing) {
        int32_t key = r->transit[r->passing - 1];
        mira_release(r, key / r->experts, key % r->experts);
    }
}
