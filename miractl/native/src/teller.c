/* Several sequences, one new token of each: what any of them will want. */
#include "brain.h"

static void *pupil(const mira_teller *t, int32_t sequence, int32_t ahead)
{
    return t->pupils[sequence * t->each + ahead - 1];
}

static int follow(const mira_teller *t, int32_t sequence, int32_t layer, const int64_t *ids)
{
    if (t->kind == MIRA_WALK)
        return mira_markov_follow(pupil(t, sequence, 1), layer, ids);
    for (int32_t ahead = 1; ahead <= t->each; ahead++)
        if (mira_follow(pupil(t, sequence, ahead), layer, ids))
            return MIRA_BAD_EXPERT;
    return MIRA_OK;
}

int mira_teller_follow(const mira_teller *t, int32_t layer, const int64_t *ids)
{
    for (int32_t s = 0; s < t->sequences; s++)
        if (follow(t, s, layer, ids + (size_t)t->rows[s] * t->top))
            return MIRA_BAD_EXPERT;
    return MIRA_OK;
}

static void tell(const mira_teller *t, int32_t sequence, int32_t layer, int32_t ahead, double *guess)
{
    if (t->kind == MIRA_WALK)
        mira_markov_guess(pupil(t, sequence, 1), layer, ahead, guess);
    else
        mira_foretell(pupil(t, sequence, ahead), layer + ahead, guess);
}

void mira_teller_tell(const mira_teller *t, int32_t layer, int32_t ahead)
{
    double *guess = t->guess + (size_t)(ahead - 1) * t->experts;
    tell(t, 0, layer, ahead, guess);
    if (t->sequences == 1)
        return;
    for (int32_t e = 0; e < t->experts; e++)
        guess[e] = 1 - guess[e]; /* nobody */
    for (int32_t s = 1; s < t->sequences; s++) {
        tell(t, s, layer, ahead, t->other);
        for (int32_t e = 0; e < t->experts; e++)
            guess[e] *= 1 - t->other[e];
    }
    for (int32_t e = 0; e < t->experts; e++)
        guess[e] = 1 - guess[e];
}
