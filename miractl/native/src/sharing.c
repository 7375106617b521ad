/* Ways that move between the sets of a pool of the slot table; miractl/policy/allocation.py says why. */
#include "residency.h"

#include <string.h>

/* The least worthy of a set that has lost a way goes. Between steps: nobody is in use. */
static void shrink(mira_residency *r, int32_t set)
{
    int32_t loser = r->first[set];
    residency_rank(r);
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

static int32_t bets_in(const mira_residency *r, int32_t set)
{
    int32_t count = 0;
    for (int32_t i = 0; i < r->staged; i++)
        count += r->set[r->staging[i] / r->experts] == set;
    return count;
}

static void move(mira_residency *r)
{
    for (int32_t pool = 0; pool < r->pools; pool++) {
        int32_t from = -1, to = -1;
        for (int32_t set = 0; set < r->sets; set++)
            if (is_of(r, set, pool))
                shares_taker(&r->shares, set, r->held[set], &to);
        for (int32_t set = 0; set < r->sets; set++)
            if (is_of(r, set, pool))
                shares_giver(&r->shares, set, to, bets_in(r, set), &from);
        if (shares_move(&r->shares, from, to) && r->held[from] > r->shares.ways[from])
            shrink(r, from);
    }
}

/* Experts of the step's set that stand between an expert of its layer and the border. */
static int32_t nearer(const mira_residency *r, int32_t expert, int resident)
{
    double own = r->worth[residency_at(r, r->layer, expert)];
    int32_t sum = 0;
    for (int32_t l = r->first[r->set[r->layer]]; l < r->layers; l = r->sibling[l]) {
        size_t row = residency_at(r, l, 0);
        int32_t first = l < r->layer ? r->experts : l > r->layer ? 0 : expert;
        sum += shares_nearer(r->worth + row, r->role + row, r->experts, own, resident, first,
                             r->shares.width);
    }
    return sum;
}

void mira_share(mira_residency *r)
{
    int32_t set = r->set[r->layer];
    if (r->layer == 0 && shares_begin(&r->shares))
        move(r);
    memset(r->needed, 0, r->experts);
    for (int32_t i = 0; i < r->count; i++) {
        int64_t expert = r->ids[i];
        if (expert < 0 || expert >= r->experts || r->needed[expert])
            continue;
        int resident = r->role[residency_at(r, r->layer, (int32_t)expert)] == MIRA_RESIDENT;
        r->needed[expert] = 1;
        shares_count(&r->shares, set, r->held[set], resident, nearer(r, (int32_t)expert, resident));
    }
}
