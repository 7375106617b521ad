/* The slot table of the runtime: miractl/policy/residency.py says what it keeps to. */
#include "residency.h"

#include <math.h>
#include <string.h>

#define HOT 2.0 /* with MIRA_HOTTER: worth of this or more is above the threshold */

static size_t at(const mira_residency *r, int32_t layer, int32_t expert)
{
    return (size_t)layer * r->experts + expert;
}

/* The least worthy resident of a layer, or of those that the step can do without. */
static int32_t least_of(const mira_residency *r, int32_t layer, int dispensable, double *least)
{
    const uint8_t *role = r->role + at(r, layer, 0);
    const double *worth = r->worth + at(r, layer, 0);
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

static void rank_changed(mira_residency *r)
{
    for (int32_t layer = 0; layer < r->layers; layer++)
        if (r->changed[layer]) {
            r->changed[layer] = 0;
            rank(r, layer);
        }
}

static int32_t take_slot(mira_residency *r, int32_t layer)
{
    return r->idle[--r->top[r->pool[layer]]];
}

static void free_slot(mira_residency *r, int32_t layer, int32_t slot)
{
    r->idle[r->top[r->pool[layer]]++] = slot;
}

static void enter(mira_residency *r, int32_t layer, int32_t expert, int32_t slot, int role)
{
    size_t key = at(r, layer, expert);
    r->role[key] = (uint8_t)role;
    r->slot[key] = slot;
    if (role == MIRA_RESIDENT) {
        r->held[r->set[layer]]++;
        rank(r, layer);
        return;
    }
    r->spare[r->pool[layer]]--;
    if (role == MIRA_TRANSIT)
        r->transit[r->passing++] = (int32_t)key;
    else
        r->staged++;
}

/* An expert gives up its role; its slot. */
static int32_t leave(mira_residency *r, int32_t layer, int32_t expert)
{
    size_t key = at(r, layer, expert);
    int role = r->role[key];
    r->role[key] = MIRA_ABSENT;
    if (role == MIRA_RESIDENT) {
        r->held[r->set[layer]]--;
        rank(r, layer);
        return r->slot[key];
    }
    r->spare[r->pool[layer]]++;
    if (role == MIRA_STAGED) {
        r->staged--;
        return r->slot[key];
    }
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

static int admits(const mira_residency *r, double newcomer, double victim)
{
    if (r->admission == MIRA_WORTHIER)
        return newcomer >= victim;
    return r->admission == MIRA_ALWAYS || newcomer >= HOT || victim < HOT;
}

/* Whether a newcomer of the step's layer may become resident. */
static room room_for(const mira_residency *r, int32_t expert)
{
    int32_t set = r->set[r->layer];
    if (r->held[set] < r->shares.ways[set])
        return (room){1, -1, -1};
    double own, least = INFINITY;
    int32_t own_loser = least_of(r, r->layer, r->admission != MIRA_WORTHIER, &own);
    room found = {0, r->layer, 0};
    for (int32_t l = r->first[set]; l < r->layers; l = r->sibling[l]) {
        double worth = l == r->layer ? own : r->least[l];
        if (worth < least) {
            least = worth;
            found.layer = l;
            found.expert = l == r->layer ? own_loser : r->loser[l];
        }
    }
    found.granted = least != INFINITY && admits(r, r->worth[at(r, r->layer, expert)], least);
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
        enter(r, found->layer, found->expert, slot, MIRA_TRANSIT);
    else
        free_slot(r, found->layer, slot);
}

/* Bring an absent expert of the step in; 0: it has to wait. */
static int demand(mira_residency *r, int32_t expert)
{
    room found = room_for(r, expert);
    if (r->spare[r->pool[r->layer]] <= 0 && (!found.granted || keeps_slot(r, &found)))
        return 0;
    if (found.granted)
        evict(r, &found);
    else
        r->bypassed++;
    int32_t slot = take_slot(r, r->layer), *pair = r->placed + 2 * r->placed_count++;
    enter(r, r->layer, expert, slot, found.granted ? MIRA_RESIDENT : MIRA_TRANSIT);
    pair[0] = expert;
    pair[1] = slot;
    return 1;
}

/* Whether bets hold slots that the step could have: who is in transit is of its layer. */
static int has_bets(const mira_residency *r)
{
    int32_t pool = r->pool[r->layer];
    return r->reserve[pool] - r->spare[pool] > r->passing;
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

/* Sort those that the step needs by where they are. */
static int look_up(mira_residency *r)
{
    r->here_count = r->called_count = r->absent_count = 0;
    r->placed_count = r->waiting_count = r->next = 0;
    for (int32_t e = 0; e < r->experts; e++) {
        if (!r->needed[e])
            continue;
        size_t key = at(r, r->layer, e);
        if (r->role[key] == MIRA_STAGED) {
            r->called[r->called_count++] = e;
        } else if (r->role[key] == MIRA_RESIDENT) {
            r->here[2 * r->here_count] = e;
            r->here[2 * r->here_count++ + 1] = r->slot[key];
        } else {
            r->absent[r->absent_count++] = e;
        }
    }
    return r->called_count ? MIRA_CALLED : MIRA_PLACED;
}

/* The least worthy of a set that has lost a way goes. Between steps: nobody is in use. */
static void shrink(mira_residency *r, int32_t set)
{
    int32_t loser = r->first[set];
    rank_changed(r);
    for (int32_t l = loser; l < r->layers; l = r->sibling[l])
        if (r->least[l] < r->least[loser])
            loser = l;
    r->evictions++;
    mira_release(r, loser, r->loser[loser]);
}

/* Whether a set has layers, and these are of a pool. */
static int is_of(const mira_residency *r, int32_t set, int32_t pool)
{
    return r->first[set] < r->layers && r->pool[r->first[set]] == pool;
}

static void move_shares(mira_residency *r)
{
    for (int32_t pool = 0; pool < r->pools; pool++) {
        int32_t from = -1, to = -1;
        for (int32_t set = 0; set < r->sets; set++)
            if (is_of(r, set, pool))
                shares_taker(&r->shares, set, r->held[set], &to);
        for (int32_t set = 0; set < r->sets; set++)
            if (is_of(r, set, pool))
                shares_giver(&r->shares, set, to, &from);
        if (shares_move(&r->shares, from, to) && r->held[from] > r->shares.ways[from])
            shrink(r, from);
    }
}

static int32_t nearer(const mira_residency *r, int32_t layer, int32_t expert, int resident)
{
    double own = r->worth[at(r, layer, expert)];
    int32_t sum = 0;
    for (int32_t l = r->first[r->set[layer]]; l < r->layers; l = r->sibling[l]) {
        int32_t first = l < layer ? r->experts : l > layer ? 0 : expert;
        sum += shares_nearer(r->worth + at(r, l, 0), r->role + at(r, l, 0), r->experts, own, resident,
                             first, r->shares.width);
    }
    return sum;
}

void mira_share(mira_residency *r, int32_t layer, const int64_t *ids, int32_t count)
{
    if (layer == 0 && shares_begin(&r->shares))
        move_shares(r);
    int32_t set = r->set[layer];
    memset(r->needed, 0, r->experts);
    for (int32_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= r->experts || r->needed[ids[i]])
            continue;
        int32_t expert = (int32_t)ids[i];
        int resident = r->role[at(r, layer, expert)] == MIRA_RESIDENT;
        r->needed[expert] = 1;
        shares_count(&r->shares, set, r->held[set], resident, nearer(r, layer, expert, resident));
    }
}

int mira_ask(mira_residency *r, int32_t layer, const int64_t *ids, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= r->experts)
            return -1;
    memset(r->needed, 0, r->experts);
    for (int32_t i = 0; i < count; i++)
        r->needed[ids[i]] = 1;
    r->layer = layer;
    rank_changed(r);
    int status = look_up(r);
    for (int32_t i = 0; i < r->here_count; i++)
        r->hits[at(r, layer, r->here[2 * i])]++;
    for (int32_t i = 0; i < r->absent_count; i++)
        r->misses[at(r, layer, r->absent[i])]++;
    return status == MIRA_CALLED ? status : mira_place(r, 0);
}

int mira_ask_again(mira_residency *r)
{
    memset(r->needed, 0, r->experts);
    for (int32_t i = 0; i < r->waiting_count; i++)
        r->needed[r->waiting[i]] = 1;
    int status = look_up(r);
    return status == MIRA_CALLED ? status : mira_place(r, 0);
}

void mira_adopt(mira_residency *r, int32_t expert)
{
    room found = room_for(r, expert);
    if (found.granted)
        evict(r, &found);
    else
        r->bypassed++;
    int32_t slot = leave(r, r->layer, expert);
    enter(r, r->layer, expert, slot, found.granted ? MIRA_RESIDENT : MIRA_TRANSIT);
}

int32_t mira_stage(mira_residency *r, int32_t layer, int32_t expert)
{
    if (r->staged >= r->staging_limit || r->spare[r->pool[layer]] <= 1)
        return -1;
    int32_t slot = take_slot(r, layer);
    enter(r, layer, expert, slot, MIRA_STAGED);
    return slot;
}

void mira_release(mira_residency *r, int32_t layer, int32_t expert)
{
    free_slot(r, layer, leave(r, layer, expert));
}

void mira_end_transit(mira_residency *r)
{
    while (r->passing) {
        int32_t key = r->transit[r->passing - 1];
        mira_release(r, key / r->experts, key % r->experts);
    }
}
