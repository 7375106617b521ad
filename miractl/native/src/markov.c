/* Markov tables: counts of who followed whom; miractl/policy/markov.py says what is counted. */
#include "brain.h"

#include <string.h>

static double sum_of(const float *row, int32_t n)
{
    double part[8] = {0}, sum = 0;
    int32_t e = 0;
    for (; e + 8 <= n; e += 8)
        for (int32_t i = 0; i < 8; i++)
            part[i] += row[e + i];
    for (; e < n; e++)
        sum += row[e];
    for (int32_t i = 0; i < 8; i++)
        sum += part[i];
    return sum;
}

int mira_markov_count(float *table, int32_t experts, const int64_t *before, const int64_t *after,
                      int32_t tokens, int32_t top, double most)
{
    int32_t all = tokens * top;
    for (int32_t i = 0; i < all; i++)
        if (before[i] < 0 || before[i] >= experts || after[i] < 0 || after[i] >= experts)
            return MIRA_BAD_EXPERT;
    for (int32_t i = 0; i < all; i++)
        for (int32_t j = i / top * top; j < (i / top + 1) * top; j++)
            table[before[i] * experts + after[j]] += 1;
    for (int32_t i = 0; i < all; i++) {
        float *row = table + before[i] * experts;
        if (sum_of(row, experts) > most)
            for (int32_t e = 0; e < experts; e++)
                row[e] *= 0.5f;
    }
    return MIRA_OK;
}

/* Probabilities after one more layer, [experts]: a sum over paths, at most 1. */
static void walk(const float *table, int32_t experts, const double *wanted, double *next)
{
    memset(next, 0, experts * sizeof *next);
    for (int32_t from = 0; from < experts; from++) {
        if (wanted[from] == 0)
            continue;
        const float *row = table + (size_t)from * experts;
        double share = wanted[from] / sum_of(row, experts);
        for (int32_t e = 0; e < experts; e++)
            next[e] += share * row[e];
    }
    for (int32_t e = 0; e < experts; e++)
        next[e] = next[e] < 1 ? next[e] : 1;
}

static void only(double *wanted, int32_t experts, const int64_t *ids, int32_t top)
{
    memset(wanted, 0, experts * sizeof *wanted);
    for (int32_t i = 0; i < top; i++)
        wanted[ids[i]] = 1;
}

void mira_markov_guess(const float *by_layer, const float *by_token, int32_t experts, int32_t ahead,
                       const int64_t *ids, const int64_t *past, int32_t top, double of_layer,
                       double *scratch, double *guess)
{
    size_t table = (size_t)experts * experts;
    only(guess, experts, ids, top);
    for (int32_t a = 0; a < ahead; a++) {
        memcpy(scratch, guess, experts * sizeof *guess);
        walk(by_layer + a * table, experts, scratch, guess);
    }
    if (!past)
        return;
    double *again = scratch + experts;
    only(scratch, experts, past, top);
    walk(by_token, experts, scratch, again);
    for (int32_t e = 0; e < experts; e++)
        guess[e] = of_layer * guess[e] + (1 - of_layer) * again[e];
}
