#include "cache.h"

#include <math.h>
#include <stdlib.h>

#define KEPT 2  /* ways that a layer keeps, if it had so many */
#define WIDTH 4 /* as miractl/policy/allocation.py has it */
#define GONE INFINITY /* not to be evicted: absent, or needed */

static int shares_open(cache *c)
{
    mira_shares *s = &c->shares;
    s->sets = c->shape.pooled ? 1 : c->layers;
    s->ways = malloc(3 * s->sets * sizeof *s->ways);
    s->gain = calloc(2 * s->sets, sizeof *s->gain);
    if (!s->ways || !s->gain)
        return MIRA_NO_MEMORY;
    s->least = s->ways + s->sets;
    s->most = s->least + s->sets;
    s->loss = s->gain + s->sets;
    for (int32_t i = 0; i < s->sets; i++) {
        s->ways[i] = c->shape.ways[i];
        s->least[i] = s->ways[i] < KEPT ? s->ways[i] : KEPT;
        s->most[i] = c->experts;
        s->width += s->ways[i];
    }
    s->width /= 2 * s->sets;
    s->width = s->width < 1 ? 1 : s->width > WIDTH ? WIDTH : s->width;
    return MIRA_OK;
}

int cache_open(cache *c, const mira_routing *routing, const mira_cache *shape)
{
    size_t cells = (size_t)routing->layers * routing->experts;
    *c = (cache){.layers = routing->layers, .experts = routing->experts, .shape = *shape};
    c->worth = calloc(cells, sizeof *c->worth);
    c->standing = malloc(cells * sizeof *c->standing);
    c->least = malloc(c->layers * sizeof *c->least);
    c->loser = malloc(c->layers * sizeof *c->loser);
    c->held = calloc(c->layers, sizeof *c->held);
    c->resident = calloc(cells, 1);
    c->shape.shifts = shape->shifts && !shape->pooled;
    if (!c->worth || !c->standing || !c->least || !c->loser || !c->held || !c->resident)
        return MIRA_NO_MEMORY;
    for (size_t i = 0; i < cells; i++)
        c->standing[i] = GONE;
    for (int32_t l = 0; l < c->layers; l++) {
        c->least[l] = GONE;
        c->loser[l] = -1;
    }
    return shares_open(c);
}

void cache_close(cache *c)
{
    free(c->worth);
    free(c->standing);
    free(c->least);
    free(c->loser);
    free(c->held);
    free(c->resident);
    free(c->shares.ways);
    free(c->shares.gain);
}

void cache_look(const cache *c, int32_t layer, const uint16_t *ids, int32_t top, uint8_t *hit)
{
    const uint8_t *resident = c->resident + (size_t)layer * c->experts;
    for (int32_t i = 0; i < top; i++)
        hit[i] = resident[ids[i]];
}

void cache_count(cache *c, int32_t layer, const uint16_t *ids, int32_t top)
{
    const uint8_t *resident = c->resident + (size_t)layer * c->experts;
    const double *worth = c->worth + (size_t)layer * c->experts;
    if (!c->shape.shifts)
        return;
    for (int32_t i = 0; i < top; i++) {
        int there = resident[ids[i]];
        int32_t nearer = shares_nearer(worth, resident, c->experts, worth[ids[i]], there, ids[i],
                                       c->shares.width);
        shares_count(&c->shares, layer, c->held[layer], there, nearer);
    }
}

/* Standing of a row from the worth of now. */
static void refresh(cache *c, int32_t layer)
{
    size_t row = (size_t)layer * c->experts;
    for (int32_t e = 0; e < c->experts; e++)
        c->standing[row + e] = c->resident[row + e] ? c->worth[row + e] : GONE;
}

/* Find the least worthy of a row; the first of equals. */
static void rank(cache *c, int32_t layer)
{
    const double *standing = c->standing + (size_t)layer * c->experts;
    double least = GONE;
    int32_t loser = -1;
    for (int32_t e = 0; e < c->experts; e++)
        if (standing[e] < least) {
            least = standing[e];
            loser = e;
        }
    c->least[layer] = least;
    c->loser[layer] = loser;
}

void cache_begin(cache *c)
{
    int32_t from = -1, to = -1;
    if (!c->shape.shifts || !shares_begin(&c->shares))
        return;
    for (int32_t l = 0; l < c->layers; l++)
        shares_taker(&c->shares, l, c->held[l], &to);
    for (int32_t l = 0; l < c->layers; l++)
        shares_giver(&c->shares, l, to, 0, &from);
    if (!shares_move(&c->shares, from, to) || c->held[from] <= c->shares.ways[from])
        return;
    refresh(c, from);
    rank(c, from);
    c->resident[(size_t)from * c->experts + c->loser[from]] = 0;
    c->held[from]--;
}

/* The layer whose least worthy resident has to go for a newcomer of `layer`; -1: nobody may go. */
static int32_t losing_layer(cache *c, int32_t layer)
{
    if (!c->shape.pooled)
        return c->loser[layer] < 0 ? -1 : layer;
    int32_t found = -1;
    double least = GONE;
    for (int32_t l = 0; l < c->layers; l++)
        if (c->least[l] < least) {
            least = c->least[l];
            found = l;
        }
    return found;
}

static int admits(const cache *c, double newcomer, double victim)
{
    switch (c->shape.admission) {
    case MIRA_WORTHIER: return newcomer >= victim;
    case MIRA_HOTTER: return newcomer >= HOT || victim < HOT;
    default: return 1;
    }
}

/* Make room and move in; returns whether it did. */
static int enter(cache *c, int32_t layer, int32_t expert)
{
    size_t at = (size_t)layer * c->experts + expert;
    int32_t set = c->shape.pooled ? 0 : layer;
    if (c->held[set] >= c->shares.ways[set]) {
        int32_t from = losing_layer(c, layer);
        if (from < 0 || !admits(c, c->worth[at], c->least[from]))
            return 0;
        size_t victim = (size_t)from * c->experts + c->loser[from];
        c->resident[victim] = 0;
        c->standing[victim] = GONE;
        c->held[set]--;
        rank(c, from);
    }
    c->resident[at] = 1;
    c->held[set]++;
    if (c->shape.admission == MIRA_WORTHIER) {
        c->standing[at] = c->worth[at];
        rank(c, layer);
    }
    return 1;
}

void cache_settle(cache *c, int32_t layer, const uint16_t *ids, int32_t top, const uint8_t *hit,
                  int all_rows, int64_t *entered)
{
    if (all_rows && c->shape.pooled)
        for (int32_t l = 0; l < c->layers; l++)
            if (l != layer) {
                refresh(c, l);
                rank(c, l);
            }
    refresh(c, layer);
    if (c->shape.admission != MIRA_WORTHIER)
        for (int32_t i = 0; i < top; i++)
            c->standing[(size_t)layer * c->experts + ids[i]] = GONE;
    rank(c, layer);
    for (int32_t i = 0; i < top; i++)
        if (!hit[i])
            entered[layer] += enter(c, layer, ids[i]);
    if (c->shape.pooled) {
        refresh(c, layer);
        rank(c, layer);
    }
}
