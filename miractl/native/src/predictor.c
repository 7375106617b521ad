/* Which experts the next layer will want, learned online from the routing alone.
 *
 * score = weights . hints + one table row for each expert of each source; the sources are the same
 * layer at the token before and, at this token, the last three layers that are known, which end
 * `ahead` layers before. Hints are averages of use
 * and what has followed the experts of each source. When the last layer has chosen, weights and rows
 * take an AdaGrad step for each layer in turn. miractl/simulate/predicting.py is the same, to the last bit.
 */
#include "learner.h"
#include "vectors.h"

#include <math.h>
#include <string.h>

#define S MIRA_SOURCES
#define MOST_COUNTS 4096.0f
#define ROWS 16 /* that are added at a time */
static const float RATES[S] = {0.4f, 0.125f, 0.025f, 0.001f}; /* of the averages, a token */

static uint16_t *ids_at(const mira_predictor *p, int64_t token, int32_t layer)
{
    return p->ids + ((size_t)(token & 1) * p->layers + layer) * p->top;
}

/* Experts of a source; NULL if it lies outside the layers or the text. */
static const uint16_t *source(const mira_predictor *p, int32_t layer, int32_t s)
{
    if (s == 0)
        return p->begins ? NULL : ids_at(p, p->token - 1, layer);
    int32_t other = layer - p->ahead + 1 - s;
    return other < 0 ? NULL : ids_at(p, p->token, other);
}

static size_t row(const mira_predictor *p, int32_t layer, int32_t s)
{
    return ((size_t)layer * S + s) * p->lanes;
}

void mira_begin(mira_predictor *p, int32_t starts)
{
    p->token++;
    p->begins = starts || p->token == 0;
}

static float *hint(const mira_predictor *p, int32_t layer, int32_t h)
{
    return p->hints + ((size_t)layer * MIRA_HINTS + h) * p->lanes;
}

/* Set the hint of a source, as a logarithm; without a source it is that before. */
static void follow(const mira_predictor *p, int32_t layer, int32_t s)
{
    float *x = hint(p, layer, S + s);
    const uint16_t *from = source(p, layer, s);
    if (!from) {
        memcpy(x, hint(p, layer, S + s - 1), p->lanes * sizeof *x);
        return;
    }
    const float *totals = p->totals + row(p, layer, s), *rows[ROWS];
    const float *counts = p->counts + row(p, layer, s) * p->experts;
    float shares[ROWS];
    memset(x, 0, p->lanes * sizeof *x);
    for (int32_t i = 0, count; i < p->top; i += count) {
        count = p->top - i < ROWS ? p->top - i : ROWS;
        for (int32_t j = 0; j < count; j++) {
            rows[j] = counts + (size_t)from[i + j] * p->lanes;
            shares[j] = 1.0f / p->top / totals[from[i + j]];
        }
        vector_add_scaled_rows(x, rows, shares, count, p->lanes);
    }
    vector_log(x, p->lanes);
}

/* Add hints [first, end) by their weights. */
static void add_hints(const mira_predictor *p, int32_t layer, int32_t first, int32_t end, float *z)
{
    const float *hints[MIRA_HINTS];
    for (int32_t h = first; h < end; h++)
        hints[h - first] = hint(p, layer, h);
    vector_add_scaled_rows(z, hints, p->weights + first, end - first, p->lanes);
}

static void add_rows(const mira_predictor *p, int32_t layer, int32_t s, float *z)
{
    const uint16_t *from = source(p, layer, s);
    const float *table = p->table + row(p, layer, s) * p->experts;
    const float *rows[ROWS];
    for (int32_t i = 0, count; from && i < p->top; i += count) {
        count = p->top - i < ROWS ? p->top - i : ROWS;
        for (int32_t j = 0; j < count; j++)
            rows[j] = table + (size_t)from[i + j] * p->lanes;
        vector_add_rows(z, rows, count, p->lanes);
    }
}

/* What is known of a score before the token begins. */
static void begin_score(const mira_predictor *p, int32_t layer)
{
    float *z = p->begun + (size_t)layer * p->lanes;
    memcpy(hint(p, layer, 0), p->averages + row(p, layer, 0), S * p->lanes * sizeof *z);
    vector_log(hint(p, layer, 0), S * p->lanes);
    follow(p, layer, 0);
    memset(z, 0, p->lanes * sizeof *z);
    add_hints(p, layer, 0, S + 1, z);
    add_rows(p, layer, 0, z);
}

void mira_predict(mira_predictor *p, int32_t layer)
{
    float *z = p->scores + (size_t)layer * p->lanes, *one = hint(p, layer, 2 * S);
    if (p->begun_token != p->token || p->begun_lesson != *p->lessons || p->begins)
        begin_score(p, layer);
    memcpy(z, p->begun + (size_t)layer * p->lanes, p->lanes * sizeof *z);
    for (int32_t s = 1; s < S; s++)
        follow(p, layer, s);
    for (int32_t e = 0; e < p->lanes; e++)
        one[e] = 1;
    add_hints(p, layer, S + 1, MIRA_HINTS, z);
    for (int32_t s = 1; s < S; s++)
        add_rows(p, layer, s, z);
    p->scored[layer] = p->token;
}

/* Step down the gradient of what the layer chose. */
static void learn(mira_predictor *p, int32_t layer, const uint16_t *ids)
{
    float *r = p->scratch, *y = r + p->lanes, gradient[MIRA_HINTS];
    memset(y, 0, p->lanes * sizeof *y);
    for (int32_t i = 0; i < p->top; i++)
        y[ids[i]] = 1;
    memcpy(r, p->scores + (size_t)layer * p->lanes, p->lanes * sizeof *r);
    vector_residuals(r, y, p->lanes);
    memset(r + p->experts, 0, (p->lanes - p->experts) * sizeof *r);
    const float *x = p->hints + (size_t)layer * MIRA_HINTS * p->lanes;
    for (int32_t h = 0; h < MIRA_HINTS; h++)
        gradient[h] = vector_product(r, x + h * p->lanes, p->lanes) / p->experts;
    vector_descend(p->weights, p->weight_sums, gradient, p->weight_rate, MIRA_HINTS);
    for (int32_t s = 0; s < S; s++) {
        const uint16_t *from = source(p, layer, s);
        for (int32_t i = 0; from && i < p->top; i++) {
            size_t at = row(p, layer, s) * p->experts + (size_t)from[i] * p->lanes;
            vector_descend(p->table + at, p->table_sums + at, r, p->table_rate, p->lanes);
        }
    }
}

static void count(mira_predictor *p, int32_t layer, int32_t s, const uint16_t *ids)
{
    const uint16_t *from = source(p, layer, s);
    float *totals = p->totals + row(p, layer, s);
    for (int32_t i = 0; from && i < p->top; i++) {
        float *after = p->counts + row(p, layer, s) * p->experts + (size_t)from[i] * p->lanes;
        totals[from[i]] += 1;
        for (int32_t j = 0; j < p->top; j++)
            after[ids[j]] += 1;
        if (totals[from[i]] < MOST_COUNTS)
            continue;
        totals[from[i]] *= 0.5f;
        for (int32_t e = 0; e < p->lanes; e++)
            after[e] *= 0.5f;
    }
}

static void study(mira_predictor *p, int32_t layer)
{
    const uint16_t *ids = ids_at(p, p->token, layer);
    learn(p, layer, ids);
    float warming = 1.0f / (p->token + 8);
    for (int32_t s = 0; s < S; s++) {
        count(p, layer, s, ids);
        float *average = p->averages + row(p, layer, s);
        float rate = RATES[s] > warming ? RATES[s] : warming;
        for (int32_t e = 0; e < p->lanes; e++)
            average[e] *= 1 - rate;
        for (int32_t i = 0; i < p->top; i++)
            average[ids[i]] += rate;
    }
}

/* Begin the scores of the next token, if it goes on with the text and nobody learns before. */
static void begin_next(mira_predictor *p)
{
    mira_predictor next = *p; /* whose token before is this one */
    next.token = p->begun_token = p->token + 1;
    next.begins = 0;
    p->begun_lesson = ++*p->lessons;
    for (int32_t layer = 0; layer < p->layers; layer++)
        begin_score(&next, layer);
}

void predictor_update(mira_predictor *p)
{
    for (int32_t layer = 0; layer < p->layers; layer++)
        if (p->scored[layer] != p->token)
            mira_predict(p, layer);
    for (int32_t layer = 0; layer < p->layers; layer++)
        study(p, layer);
    begin_next(p);
}

void mira_confirm(mira_predictor *p, int32_t layer, const uint16_t *ids)
{
    memcpy(ids_at(p, p->token, layer), ids, p->top * sizeof *ids);
    if (layer == p->layers - 1)
        predictor_update(p);
}

int mira_follow(mira_predictor *p, int32_t layer, const int64_t *ids)
{
    for (int32_t i = 0; i < p->top; i++)
        if (ids[i] < 0 || ids[i] >= p->experts)
            return MIRA_BAD_EXPERT;
    uint16_t *own = ids_at(p, p->token, layer);
    for (int32_t i = 0; i < p->top; i++)
        own[i] = (uint16_t)ids[i];
    return MIRA_OK;
}

void mira_foretell(mira_predictor *p, int32_t layer, double *guess)
{
    if (p->scored[layer] != p->token)
        mira_predict(p, layer);
    float *x = p->scratch, *nothing = x + p->lanes;
    memcpy(x, p->scores + (size_t)layer * p->lanes, p->lanes * sizeof *x);
    memset(nothing, 0, p->lanes * sizeof *nothing);
    vector_residuals(x, nothing, p->lanes);
    for (int32_t e = 0; e < p->experts; e++)
        guess[e] = x[e];
}

void mira_foresee(const mira_routing *in, mira_predictor *p, float *probabilities)
{
    for (int32_t t = 0; t < in->tokens; t++) {
        size_t step = (size_t)t * in->layers;
        mira_begin(p, in->starts[t]);
        for (int32_t l = 0; l < p->ahead && l < in->layers; l++)
            mira_predict(p, l);
        for (int32_t l = 0; l < in->layers; l++) {
            float *row = probabilities ? probabilities + (step + l) * in->experts : NULL;
            const float *scores = p->scores + (size_t)l * p->lanes;
            for (int32_t e = 0; row && e < in->experts; e++)
                row[e] = (float)(1 / (1 + exp(-(double)scores[e])));
            mira_confirm(p, l, in->ids + (step + l) * in->top);
            if (l + p->ahead < in->layers)
                mira_predict(p, l + p->ahead);
        }
    }
}

double mira_recall(const double *guess, int32_t experts, const int64_t *ids, int32_t count)
{
    uint8_t used[MIRA_MOST_EXPERTS];
    int32_t different = 0, right = 0;
    memset(used, 0, experts);
    for (int32_t i = 0; i < count; i++)
        if (ids[i] >= 0 && ids[i] < experts) {
            different += !used[ids[i]];
            used[ids[i]] = 1;
        }
    for (int32_t own = 0; own < experts; own++) {
        int32_t before = 0;
        for (int32_t e = 0; used[own] && e < experts; e++)
            before += guess[e] > guess[own] || (guess[e] == guess[own] && e < own);
        right += used[own] && before < different;
    }
    return different ? (double)right / different : 0;
}

void mira_lookahead(const mira_foretold *in)
{
    double *guess = in->guess;
    memset(guess, 0, in->experts * sizeof *guess);
    for (int32_t t = 0; t < in->tokens; t++) {
        const int64_t *ids = in->ids + (size_t)t * in->top;
        const float *weights = in->weights ? in->weights + (size_t)t * in->top : NULL;
        float most = 1e-9f;
        for (int32_t i = 0; weights && i < in->top; i++)
            most = weights[i] > most ? weights[i] : most;
        for (int32_t i = 0; i < in->top; i++) {
            double share = weights ? weights[i] / most : 1;
            if (ids[i] >= 0 && ids[i] < in->experts)
                guess[ids[i]] = 1 - (1 - guess[ids[i]]) * (0.5 - 0.5 * (share > 0 ? share : 0));
        }
    }
}
