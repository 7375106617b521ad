/* Bets on what the next layers will want, and one link in time; miractl/native/bets.py checks all.
 *
 * Seconds throughout; any other unit of time does as well. */
#ifndef MIRACTL_BETS_H
#define MIRACTL_BETS_H

#include "residency.h"

/* Decides which bets are worth their risk, and sees to it that all of them together lose at most
 * `allowance` of the time that has passed, whatever the guesses are; bets.c says how.
 *
 * Guesses belong to classes, each calibrated for itself: by how many layers ahead they were made, and
 * those of prompts. All memory is the caller's, as miractl/native/bets.py fills it. */
typedef struct {
    int32_t layers, experts, classes;
    int32_t most;      /* bets of one layer */
    int32_t chunks;    /* a transfer can be left at the end of each */
    double allowance;  /* share of the time that may be lost */
    double price;      /* of a transfer in vain, in transfers, even if it delays nobody */
    double balance;    /* time gained less time lost, never more than CREDIT transfers */
    double worth;      /* of a proposal: average of what came of the last ones, in transfers */
    int32_t off;       /* whether nothing is issued because proposals are worth nothing */
    int64_t switches;  /* off and on again, each */
    int64_t withheld;  /* likely guesses that were not issued */
    double *demand;    /* [layers]: how often a layer has to fetch */
    double *bins;      /* [classes][3][MIRA_BINS]: guesses, sum of them, how many came true */
    float *guess;      /* [classes][layers][experts]: of the absent, until judged; else -1 */
    uint8_t *asked;    /* [classes][layers]: whether there are guesses to be judged */
    int32_t *proposal; /* [layers][most]: experts; -1: none */
    double *hidden;    /* [layers][most]: time that the proposal would save */
    double *risk;      /* [layers][most]: time that it may cost */
    double *sure;      /* [experts], scratch: of those who are likely enough; else -1 */
    float *told;       /* [experts], as is */
    uint16_t *chosen;  /* [most] */
} mira_bets;

/* What is known when bets are placed. Times count from now. */
typedef struct {
    int32_t layer, ahead; /* whom the bets are for, and how many layers from the present one */
    int32_t class_, room; /* of the guesses; how many may be issued */
    double elapsed;       /* since the beginning */
    double link;          /* until the link is free; moved on by what is issued */
    double gate;          /* until the next layer is routed */
    double transfer;      /* of one expert; 0: not known, nothing is issued */
    double compute;       /* of one layer that waits for nothing */
    double promised;      /* risk of what is on its way, added to by what is issued */
    double confidence;    /* the likeliest are chosen from, until their share of all is this */
    double stall;         /* that is expected of the layer without bets; infinite: not known */
} mira_moment;

/* Choose among the experts of a layer by guesses p[experts], likeliest first; those `there` need no
 * bet. Writes experts to chosen[room] and returns how many. */
MIRA_API int32_t mira_bets_choose(mira_bets *bets, mira_moment *at, const float *p,
                                  const uint8_t *there, uint16_t *chosen);

/* The layer is routed: learn from what it `wanted` [experts], and whether it had to `fetch`. */
MIRA_API void mira_bets_judge(mira_bets *bets, int32_t layer, const uint8_t *wanted, int32_t fetch,
                              double transfer);

/* Enter time gained and lost into the ledger. */
MIRA_API void mira_bets_account(mira_bets *bets, double gained, double lost, double transfer);

/* A layer is routed: what became of the bets on it, and both of the above unless the time of a
 * transfer is not known. Time is lost only by a layer that has to fetch. */
void mira_bets_settle(mira_bets *bets, mira_residency *r, mira_routed *routed);

/* Choose by guesses[experts] as there is room for, and stage. */
void mira_bets_place(mira_bets *bets, mira_residency *r, mira_moment *at, const double *guesses);

/* The probability that the record of a class makes of a guess. */
MIRA_API double mira_bets_calibrated(const mira_bets *bets, int32_t class_, double guess);

/* A recording on one link. A layer computes for `compute`; it is routed after `routed` of that, and
 * goes on when the experts that it lacks are there. Demands go first; a transfer under way is left at
 * the end of a chunk only. */
typedef struct {
    double transfer, compute, routed; /* routed: share of compute */
    double confidence;                /* as in mira_moment */
    int32_t horizon;                  /* layers ahead to bet on; 0: none */
} mira_link;

enum { MIRA_SECONDS, MIRA_STALL, MIRA_MOVED, MIRA_WASTED_SECONDS, MIRA_TIMES };
enum { MIRA_ISSUED, MIRA_USED, MIRA_LATE, MIRA_WASTED, MIRA_CANCELLED, MIRA_DEMANDS, MIRA_EVENTS };

/* hits[tokens, layers, top] and resident[tokens, layers, experts] are those of mira_replay,
 * guesses[horizon][tokens, layers, experts] what was known so many layers before. Adds to
 * times[TIMES], moved and wasted being the link's, and to events[EVENTS], of which a late one is a
 * miss that was under way. MIRA_NO_MEMORY or MIRA_OK. */
MIRA_API int mira_timeline(const mira_routing *routing, const uint8_t *hits,
                           const uint8_t *resident, const float *guesses, const mira_link *link,
                           mira_bets *bets, double *times, int64_t *events);

#endif
