#include "shares.h"

#include <math.h>

#define EVERY 32     /* steps */
#define FADE 0.99983 /* a step: half is forgotten in 4,096 */
#define MARGIN 1.3
#define NOISE 1.5 /* standard deviations of a count */

int shares_begin(mira_shares *s)
{
    for (int32_t i = 0; i < s->sets; i++) {
        s->gain[i] *= FADE;
        s->loss[i] *= FADE;
    }
    return s->steps++ % EVERY == EVERY - 1;
}

void shares_taker(const mira_shares *s, int32_t set, int32_t held, int32_t *to)
{
    if (held >= s->ways[set] && s->ways[set] < s->most[set]
        && (*to < 0 || s->gain[set] > s->gain[*to]))
        *to = set;
}

void shares_giver(const mira_shares *s, int32_t set, int32_t to, int32_t bets, int32_t *from)
{
    int32_t least = s->least[set] > bets ? s->least[set] : bets;
    if (set != to && s->ways[set] > least
        && (*from < 0 || s->loss[set] < s->loss[*from]))
        *from = set;
}

int shares_move(mira_shares *s, int32_t from, int32_t to)
{
    if (from < 0 || to < 0)
        return 0;
    double gain = s->gain[to], loss = s->loss[from];
    if (!(gain > loss * MARGIN + NOISE * sqrt(gain + loss)))
        return 0;
    s->ways[from]--;
    s->ways[to]++;
    return 1;
}

int32_t shares_nearer(const double *worth, const uint8_t *role, int32_t experts, double own,
                      int resident, int32_t first, int32_t most)
{
    int32_t nearer = 0;
    for (int32_t e = 0; e < experts && nearer < most; e++)
        if ((role[e] == 1) == resident)
            nearer += worth[e] == own ? e < first : (worth[e] < own) == resident;
    return nearer;
}

void shares_count(mira_shares *s, int32_t set, int32_t held, int resident, int32_t nearer)
{
    int32_t idle = s->ways[set] - held; /* ways are nearer to the border than any resident */
    if (resident)
        s->loss[set] += nearer + (idle > 0 ? idle : 0) < s->width;
    else
        s->gain[set] += idle <= 0 && nearer < s->width;
}
