/* Bets of a runtime: when they are placed, by times as they are measured; native/ahead.py checks all. */
#ifndef MIRACTL_AHEAD_H
#define MIRACTL_AHEAD_H

#include "bets.h"

/* Seconds of one clock. The first part is what the caller knows, of the layer that is routed. */
typedef struct {
    double now, began;           /* when it all began */
    double waited;               /* for transfers, in all */
    double transfer;             /* of one expert; 0: not known, and nothing is learned or issued */
    int32_t demands, under_way;  /* transfers that are not finished: for demands, for bets */
    int32_t prompt, horizon;     /* whether tokens of a prompt are routed; layers ahead at most */
    double missing;              /* average of experts of a layer that were not resident */
    int32_t layers, last;        /* layer that was routed before; -1: none */
    double last_now, last_waited;
    double *pace;                /* [2][layers], of prompts the second: from the layer before to this
                                  * one, waiting left out; below 0: not known */
    mira_moment at;
} mira_ahead;

/* A layer is routed, that of the table: settle the bets on it. How many of them are to be cancelled. */
MIRA_API int32_t mira_ahead_settle(mira_ahead *a, mira_bets *bets, mira_residency *r);

/* Bet on the layer so many `ahead`, by guesses[experts]; nearer ones come first. */
MIRA_API void mira_ahead_place(mira_ahead *a, mira_bets *bets, mira_residency *r, int32_t ahead,
                               const double *guesses);

#endif
