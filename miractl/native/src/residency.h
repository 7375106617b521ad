/* Which expert is in which slot; miractl/native/residency.py checks all.
 *
 * The rules are those of miractl/policy/residency.py, which makes the same decisions. */
#ifndef MIRACTL_RESIDENCY_H
#define MIRACTL_RESIDENCY_H

#include "brain.h"
#include "shares.h"

enum { MIRA_ABSENT, MIRA_RESIDENT, MIRA_STAGED, MIRA_TRANSIT };

/* How far a step has come: all who can be placed are, the called in bets come first, or somebody
 * would get the slot of a bet that is dropped. */
enum { MIRA_PLACED, MIRA_CALLED, MIRA_SHORT };

/* All memory is the caller's: zeros, but for `least`, infinite, `idle`, all slots pool by pool, and
 * what is const. A layer belongs to a set, which other layers may share, and a set to a pool, whose
 * slots are of one size. Lists of a step are in ascending order of experts. */
typedef struct {
    int32_t layers, experts, sets, pools, admission, staging_limit;
    int32_t staged, passing;     /* how many there are: on bets, in transit */
    int32_t layer;               /* of the step under way, as is what follows */
    int32_t here_count, called_count, absent_count, placed_count, waiting_count, next;
    int64_t evictions, bypassed; /* in all; who entered in transit was bypassed */
    const double *worth;         /* [layers][experts], the policy's */
    const int32_t *set, *pool;   /* [layers]: where a layer belongs */
    const int32_t *first, *sibling; /* [sets], [layers]: layers of a set, `layers` after the last */
    const int32_t *reserve;      /* [pools]: slots beyond the residents' */
    int32_t *spare;              /* [pools]: free slots of the reserve */
    int32_t *held;               /* [sets]: residents */
    uint8_t *role;               /* [layers][experts] */
    int32_t *slot;               /* [layers][experts], of those with a role */
    int32_t *idle;               /* [slots]: a stack of each pool's that are free */
    int32_t *top;                /* [pools]: where in `idle` the next one that is freed goes */
    int32_t *transit;            /* [slots]: layer * experts + expert */
    uint8_t *changed;            /* [layers]: the worth of a layer has changed */
    double *least;               /* [layers]: of its residents; infinite if there is none */
    int32_t *loser;              /* [layers]: whose it is, the first of equals */
    int64_t *hits, *misses;      /* [layers][experts] */
    uint8_t *needed;             /* [experts]: by the step */
    int32_t *here, *placed;      /* [experts][2]: experts and slots: residents, and those brought in */
    int32_t *called, *absent;    /* [experts]: staged; nowhere */
    int32_t *waiting;            /* [experts]: for the next wave */
    mira_shares shares;          /* ways of the sets */
} mira_residency;

/* A layer is routed, before the worth changes and anybody is looked up: learn what other ways would
 * have done. With the first layer a step begins; ways move between sets of a pool then, if it pays. */
MIRA_API void mira_share(mira_residency *r, int32_t layer, const int64_t *ids, int32_t count);

/* Look the experts ids[count] of a layer up, which may come several times, and count; then go on as
 * `place` does unless bets are called in. -1: an expert that does not exist, and nothing done. */
MIRA_API int mira_ask(mira_residency *r, int32_t layer, const int64_t *ids, int32_t count);

/* The same for those that wait, uncounted: the next wave. */
MIRA_API int mira_ask_again(mira_residency *r);

/* Make room for the absent. `skip`: the one that came short waits. */
MIRA_API int mira_place(mira_residency *r, int32_t skip);

/* A staged expert that the step needs becomes resident if it is worth it, else is in transit. */
MIRA_API void mira_adopt(mira_residency *r, int32_t expert);

/* A slot for a bet; -1: there is none. */
MIRA_API int32_t mira_stage(mira_residency *r, int32_t layer, int32_t expert);

/* Free the slot of an expert, or of all that are in transit. */
MIRA_API void mira_release(mira_residency *r, int32_t layer, int32_t expert);
MIRA_API void mira_end_transit(mira_residency *r);

#endif
