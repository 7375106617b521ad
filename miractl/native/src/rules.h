/* What an expert is worth, by the rules that need no learning. */
#ifndef MIRACTL_RULES_H
#define MIRACTL_RULES_H

#include "cache.h"

#define POWERS 1024

typedef struct {
    mira_rule rule;
    const mira_routing *routing;
    double *worth;   /* [layers, experts], the cache's */
    uint64_t random; /* RANDOM */
    int32_t *next;   /* BELADY [tokens, layers, top]: token of the next use, or NEVER */
    double *score;   /* HEAT [layers, experts], as are the next three */
    double *since;   /* when decay began to run */
    double *counts;  /* uses in this window */
    double *used;    /* number of the last step with a use */
    double window_start;
    double power[POWERS]; /* of the decay */
} rules;

int rules_open(rules *r, const mira_routing *routing, const mira_rule *rule, double *worth);
void rules_close(rules *r);

/* Learn what a token needs of a layer. Returns whether the worth changed in other rows too. */
int rules_observe(rules *r, int32_t token, int32_t layer);

#endif
