/* A layer of a step, decided in one call; miractl/native/deciding.py checks all. */
#ifndef MIRACTL_DECIDE_H
#define MIRACTL_DECIDE_H

#include "ahead.h"

/* What a policy rates by: a mira_rating of one learner, a mira_heat, or a mira_stamp. */
enum { MIRA_BY_LEARNER, MIRA_BY_HEAT, MIRA_BY_STAMP };

typedef struct {
    double number; /* becomes the worth of whoever is used */
    double *worth; /* [layers][experts] */
} mira_stamp;

/* Before a step is asked for: bets on the layer are to be cancelled. And after: everybody was there,
 * and nobody had been bet on. */
enum { MIRA_UNWANTED = MIRA_SHORT + 1, MIRA_HERE };

/* The first part is told with each layer. Seconds are of the transfers' clock. */
typedef struct {
    int64_t *ids;                    /* [count]: whom the router chose */
    float *scores;                   /* [count] */
    const int64_t *router_ids;       /* [count]: the same where they have to be copied from, or NULL */
    const float *router_scores;
    void *rule;                      /* rate by it, and count; NULL: that has been done */
    double now, waited;              /* `waited` for transfers in all */
    double transfer;                 /* of one expert; 0: not known */
    double spent;                    /* of the layer before: computing those that were there */
    int32_t computed, prompt;        /* how many they were; whether tokens of a prompt are routed */
    int32_t layer, count, whole;     /* `whole`: look all of them up; else nobody yet */
    int32_t kind;                    /* of the rule */
    mira_residency *table;
    mira_ahead *ahead;               /* NULL: nobody bets */
} mira_deciding;

/* Copy what has to be copied. */
MIRA_API void mira_keep(mira_deciding *deciding);

/* A layer is routed: keep its routing, rate its experts and count its tokens, settle the bets on it,
 * and ask for its experts as mira_ask does, or more exactly; MIRA_UNWANTED, and nobody is asked for,
 * where bets are to be cancelled first. -1: an expert that does not exist, and nothing done. */
MIRA_API int mira_decide(mira_deciding *deciding);

#endif
