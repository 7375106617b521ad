/* Which expert is in which slot; miractl/native/residency.py checks all.
 *
 * The rules are those of miractl/policy/residency.py, which makes the same decisions. */
#ifndef MIRACTL_RESIDENCY_H
#define MIRACTL_RESIDENCY_H

#include "brain.h"
#include "shares.h"

#include <math.h>

enum { MIRA_ABSENT, MIRA_RESIDENT, MIRA_STAGED, MIRA_TRANSIT };

/* How far a step has come: all who can be placed are, the called in bets come first, or somebody
 * would get the slot of a bet that is dropped. */
enum { MIRA_PLACED, MIRA_CALLED, MIRA_SHORT };

/* How far the transfer into a slot has come, where it is a bet. */
enum { MIRA_QUEUED, MIRA_RUNNING, MIRA_PAUSED, MIRA_DONE, MIRA_FAILED, MIRA_DROPPED };

/* All memory is the caller's: zeros, but for `least`, infinite, `idle`, all slots pool by pool, and
 * what is const. A layer belongs to a set, which other layers may share, and a set to a pool, whose
 * slots are of one size. Lists of a step are in ascending order of experts, `here` in two parts.
 * Whoever brings experts in writes `state`, `began`, `finished` and `moved` while others read them. */
typedef struct {
    int32_t layers, experts, sets, pools, admission, staging_limit;
    int32_t staged, passing;     /* how many there are: on bets, in transit */
    int32_t layer, count;        /* of the step under way, as is what follows; of its ids */
    int32_t here_count, called_count, absent_count, placed_count, waiting_count, next;
    int32_t arrived;             /* the last of `here` were bet on, and are there */
    int32_t bet_count;           /* bets placed by the last call */
    int32_t stale_count;         /* staged experts whose layer has been routed since */
    int64_t evictions, bypassed; /* in all; who entered in transit was bypassed */
    int64_t issued, used, late, wasted, cancelled; /* bets in all; cancelled: never moved */
    double now, decay;           /* the heat's time in seconds, and what 100 ms leave of it */
    const int64_t *ids;          /* [count]: may come several times */
    const double *worth;         /* [layers][experts], the policy's */
    const int32_t *set, *pool;   /* [layers]: where a layer belongs */
    const int32_t *first, *sibling; /* [sets], [layers]: layers of a set, `layers` after the last */
    int32_t *spare;              /* [pools]: slots beyond all ways that nobody in transit has */
    int32_t *held;               /* [sets]: residents, and the staged that have a place of theirs */
    uint8_t *role;               /* [layers][experts] */
    int32_t *slot;               /* [layers][experts], of those with a role */
    int32_t *idle;               /* [slots]: a stack of each pool's that are free */
    int32_t *top;                /* [pools]: where in `idle` the next one that is freed goes */
    int32_t *transit;            /* [slots]: layer * experts + expert */
    uint8_t *changed;            /* [layers]: the worth of a layer has changed */
    double *least;               /* [layers]: of its residents; infinite if there is none */
    int32_t *loser;              /* [layers]: whose it is, the first of equals */
    int64_t *hits, *misses;      /* [layers][experts], as are the next two */
    int64_t *prefetched, *prefetch_used;
    int64_t *in_vain;            /* [layers]: bytes moved of bets on it that were wasted */
    int64_t *activations;        /* [layers][experts]: tokens that were routed there */
    uint8_t *needed;             /* [experts]: by the step */
    int32_t *here, *placed;      /* [experts][2]: experts and slots: residents, and those brought in */
    int32_t *called, *absent;    /* [experts]: staged; nowhere */
    int32_t *waiting;            /* [experts]: for the next wave */
    int32_t *staging;            /* [slots]: layer * experts + expert of the staged, oldest first */
    int32_t *bet;                /* [experts][2]: experts and slots of the bets just placed */
    uint8_t *stale;              /* [slots] */
    uint8_t *state;              /* [slots]: of bets, as are the next two */
    double *began, *finished;    /* [slots]: seconds; pauses are left out: it begins that much later */
    int64_t *moved;              /* [slots]: bytes, of bets that are not under way */
    double *score, *since;       /* [layers][experts]: of the heat, and when decay began to run */
    mira_shares shares;          /* ways of the sets */
} mira_residency;

/* A layer is routed, before its worth changes: learn what other ways would have done. With the first
 * layer a step begins; ways move between sets of a pool then, if it pays. In sharing.c. */
MIRA_API void mira_share(mira_residency *r);

/* A layer is routed: count its tokens, and that their worth changes. */
MIRA_API void mira_note(mira_residency *r);

/* Look up whom the step wants, and count; bets that are there are called in, those that failed are
 * absent. Then go on as `place` does unless others are on their way. -1: an expert that does not
 * exist, and nothing done. */
MIRA_API int mira_ask(mira_residency *r);

/* The same for those that wait, uncounted: the next wave. */
MIRA_API int mira_ask_again(mira_residency *r);

/* Make room for the absent. `skip`: the one that came short waits. */
MIRA_API int mira_place(mira_residency *r, int32_t skip);

/* A bet on an expert of the step is waited for: it becomes resident, in the place that it has. */
MIRA_API void mira_call_in(mira_residency *r, int32_t expert);

/* Free the slot of an expert, or of all that are in transit. */
MIRA_API void mira_release(mira_residency *r, int32_t layer, int32_t expert);
MIRA_API void mira_end_transit(mira_residency *r);

/* A layer is routed: what became of the bets on it. */
typedef struct {
    int32_t layer, count;
    const int64_t *ids;    /* [count]: may come several times */
    double now, transfer;  /* seconds: on the clock of the transfers; of one expert */
    double compute;        /* of one expert; those that are there are computed while others come */
    int32_t chunks;        /* of a transfer, which is left at the end of one when others want the link */
    int32_t missing;       /* out: experts that are not resident */
    int32_t unwanted;      /* out: bets on it that are not done and not wanted, in `called` */
    double stall;          /* out: seconds that it would wait, without bets, for what is missing */
    double gained, lost;   /* out: of that saved by bets on it; that it waits for others */
} mira_routed;

/* A bet ends that nobody has called in: in vain if it was moved. */
MIRA_API void mira_drop(mira_residency *r, int32_t layer, int32_t expert);

/* Fill in what is `out`; bets that are not wanted are stale. Ids that do not exist are
 * passed over. */
void mira_judge_bets(mira_residency *r, mira_routed *routed);

/* Bet on absent experts[count] of a layer, as far as there is room, in `bet`. Stale bets make way, the
 * oldest first, then the least worthy residents of the layer's set that the step can do without. */
MIRA_API void mira_stage(mira_residency *r, int32_t layer, const uint16_t *experts, int32_t count);

static inline size_t residency_at(const mira_residency *r, int32_t layer, int32_t expert)
{
    return (size_t)layer * r->experts + expert;
}

/* A free slot of a layer's pool: it must have one. */
static inline int32_t residency_take(mira_residency *r, int32_t layer)
{
    return r->idle[--r->top[r->pool[layer]]];
}

/* How long a transfer goes on that has had the link for `passed`, when somebody else wants it. */
static inline double mira_overrun(double passed, double transfer, int32_t chunks)
{
    if (passed >= transfer)
        return 0;
    double chunk = transfer / chunks, border = ceil(passed / chunk) * chunk;
    return (border < transfer ? border : transfer) - passed;
}

/* What staged.c, sharing.c and residency.c need of each other: the least worthy of layers whose worth
 * has changed; an expert takes a slot; a staged one of the step becomes resident; the least worthy
 * resident of a layer's set goes that the step can do without, 0 if there is none; a bet was right; an
 * expert is staged, and is not any more; the oldest stale bet that has ended goes, of a set or, with
 * -1, of all, 0 if there is none. */
void residency_rank(mira_residency *r);
void residency_enter(mira_residency *r, int32_t layer, int32_t expert, int32_t slot, int role);
void residency_adopt(mira_residency *r, int32_t expert);
int residency_clear(mira_residency *r, int32_t layer);
void staged_use(mira_residency *r, int32_t expert);
void staged_enter(mira_residency *r, int32_t key, int32_t slot);
void staged_leave(mira_residency *r, int32_t key, int32_t slot);
int staged_drop_stale(mira_residency *r, int32_t set);

#endif
