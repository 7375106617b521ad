/* Caches that keep the experts of most worth. */
#ifndef MIRACTL_CACHE_H
#define MIRACTL_CACHE_H

#include "brain.h"
#include "shares.h"

#define HOT 2.0 /* for MIRA_HOTTER: worth of this or more is above the threshold */

/* worth[layers, experts] belongs to the policy, which changes rows as it observes. */
typedef struct {
    int32_t layers, experts;
    mira_cache shape;
    double *worth;
    double *standing; /* [layers, experts]: worth of residents that may go, else GONE */
    double *least;    /* [layers]: smallest of each row of `standing`; of a pool */
    int32_t *loser;   /* [layers]: whose it is, -1: nobody's */
    int32_t *held;    /* [layers]: residents; a pool counts in the first */
    uint8_t *resident;
    mira_shares shares; /* its ways; a pool's are the first */
} cache;

int cache_open(cache *c, const mira_routing *routing, const mira_cache *shape);
void cache_close(cache *c);

/* A token begins: where ways move between layers, they do so now. */
void cache_begin(cache *c);

/* Learn, before the worth changes, what another number of ways would have done for these uses. */
void cache_count(cache *c, int32_t layer, const uint16_t *ids, int32_t top);

/* Whether each of the experts is resident. */
void cache_look(const cache *c, int32_t layer, const uint16_t *ids, int32_t top, uint8_t *hit);

/* Bring in what was missed, by the worth of now. all_rows: worth has changed outside `layer`. */
void cache_settle(cache *c, int32_t layer, const uint16_t *ids, int32_t top, const uint8_t *hit,
                  int all_rows, int64_t *entered);

#endif
