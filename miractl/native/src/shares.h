/* Which set of a cache should have a slot more, and which can do with one less.
 *
 * miractl/policy/allocation.py says how, and decides the same. */
#ifndef MIRACTL_SHARES_H
#define MIRACTL_SHARES_H

#include <stdint.h>

/* All memory is the caller's: zeros, but for `width`, `ways`, `least` and `most`. */
typedef struct {
    int32_t sets, width;  /* width: experts on either side of the border that are counted */
    int32_t steps;        /* begun */
    int32_t *ways;        /* [sets]: changed here */
    int32_t *least, *most; /* [sets]: of the ways */
    double *gain, *loss;  /* [sets]: uses just beyond, and just within the ways; fading */
} mira_shares;

/* A step begins: what was counted fades. 1 when it is time to compare sets. */
int shares_begin(mira_shares *s);

/* Whether a set that holds so many gains most by one more way, or, of all but `to`, loses least by one
 * less: those found so far, -1 for none, become it then. Ways that `bets` have are not given up. */
void shares_taker(const mira_shares *s, int32_t set, int32_t held, int32_t *to);
void shares_giver(const mira_shares *s, int32_t set, int32_t to, int32_t bets, int32_t *from);

/* Move a slot if it pays; 1 if it does. */
int shares_move(mira_shares *s, int32_t from, int32_t to);

/* How many experts of a row stand nearer to the border than one of this worth, up to `most`: residents
 * worth less, or absent experts worth more. Of equals those before `first` come first. `role` is 1
 * for residents. */
int32_t shares_nearer(const double *worth, const uint8_t *role, int32_t experts, double own,
                      int resident, int32_t first, int32_t most);

/* An expert of a set that holds so many was used; `nearer` as above, summed over the set's rows. */
void shares_count(mira_shares *s, int32_t set, int32_t held, int resident, int32_t nearer);

#endif
