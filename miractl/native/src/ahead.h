/* Bets of a runtime: when they are placed, by times as they are measured; native/ahead.py checks all. */
#ifndef MIRACTL_AHEAD_H
#define MIRACTL_AHEAD_H

#include "bets.h"

/* Seconds of one clock. The first part is what the caller knows, of the layer that is routed. */
typedef struct {
    double now;
    double transfer;             /* of one expert; 0: not known, and nothing is learned or issued */
    int32_t demands, under_way;  /* transfers that are not finished: for demands, for bets */
    double waited;               /* for transfers, in all */
    double spent;                /* computing the experts of the layer before that were there */
    int32_t computed, prompt;    /* how many they were; whether tokens of a prompt are routed */
    double took;                 /* to decide on bets on the layers after the last one; below 0: there were none */
    double began;                /* when it all began */
    double stall;                /* out: that a layer has to expect without bets, on average */
    double prize;                /* out: that bets on a layer save, on average, and no more than that */
    double deciding;             /* what it takes to bet, on average; 0: not known yet */
    int32_t skips, skipped;      /* out: no bets on the next layers; layers that they were too dear for */
    int32_t horizon;             /* layers ahead at most */
    int32_t layers, last;        /* layer that was routed before; -1: none */
    int32_t was_prompt, tried;   /* whether it was a prompt's; whether the next was bet on, if only
                                  * nothing seemed worth it */
    double last_now, last_waited;
    double *pace;                /* [2][layers], of prompts the second: from the layer before to this
                                  * one, waiting left out; below 0: not known */
    double each[2], stalls[2];   /* of single tokens and of prompts: an expert's computing, 0 is not
                                  * known; the averages of `stall` */
    double prizes[2];            /* what bets on a layer save where they are tried, on average */
    mira_bets *bets;
    mira_residency *table;
    mira_moment at;
} mira_ahead;

/* A layer is routed, that of the table: settle the bets on it. How many of them are to be cancelled. */
int32_t ahead_settle(mira_ahead *a);

/* Bet on the layer so many `ahead`, by guesses[experts]; nearer ones come first. How many are staged. */
MIRA_API int32_t mira_ahead_place(mira_ahead *a, int32_t ahead, const double *guesses);

/* A teller takes in what the routed layer chose, ids[rows, top], and unless bets are skipped they are
 * placed on the next one by what it tells. How many are staged; -1: an expert that does not exist. */
MIRA_API int32_t mira_ahead_follow(mira_ahead *a, const mira_teller *teller, const int64_t *ids);

#endif
