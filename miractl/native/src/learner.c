/* How soon each expert is used again, learned online from the routing alone.
 *
 * score = weights . features + bias[layer, expert] + sum of table rows, one for each expert of each
 * context: the experts of a few layers of this token and of the token before, whose rows are added up
 * as soon as that is learned. It is the log-odds of
 * the sum over later uses of discount^(d - 1), of which only the first counts. After `window`
 * tokens the outcome is known and weights, bias and rows take an AdaGrad step.
 *
 * Every sum runs in the order that miractl/simulate/learning.py has, rounded to float32: the two
 * agree to the last bit.
 */
#include "learner.h"
#include "vectors.h"

#include <math.h>
#include <string.h>

#define AVERAGES (MIRA_FEATURES - 5)
#define ROWS 16 /* that are added at a time */
#define GATE_RATE 0.25f
#define MOST_COUNTS 4096.0f /* an expert that has been followed so often halves: it can change */
#define FAINT 0x1p-40f
#define FAINT_TRAIL 0x1p-10f /* fewer experts to count for */

/* What followed an expert: of the token before, of all before, of the layer before at those. It is
 * counted after the last layer: a score knows of what followed up to the token before. */
enum { REPEAT, TRAIL, CROSS, COUNTS };
static const float TRAIL_DECAYS[COUNTS] = {0, 0.8f, 0.8f};
static const float SPANS[AVERAGES] = {5, 20, 100, 1000}; /* tokens */
static const int32_t CONTEXT_TOKEN[MIRA_CONTEXTS] = {0, 0, 0, 0, 0, 1, 1, 1};
#define OF_TOKEN 5 /* the first context that is of the token before */
static const int32_t CONTEXT_LAYER[MIRA_CONTEXTS] = {0, -1, -2, -3, -4, 0, 1, 2};

/* --- the last tokens -------------------------------------------------------------------------- */

static int32_t place(const mira_learner *m, int64_t token)
{
    return (int32_t)(token % (m->window + 2));
}

static uint16_t *ids_at(const mira_learner *m, int64_t token, int32_t layer)
{
    return m->ids + ((size_t)place(m, token) * m->layers + layer) * m->top;
}

static float *features_at(const mira_learner *m, int64_t token, int32_t layer)
{
    return m->features + ((size_t)place(m, token) * m->layers + layer) * MIRA_FEATURES * m->lanes;
}

/* Experts of a context; NULL if it reaches outside the layers or the text. */
static const uint16_t *context(const mira_learner *m, int64_t token, int32_t layer, int32_t c)
{
    int32_t other = layer + CONTEXT_LAYER[c];
    if (other < 0 || other >= m->layers)
        return NULL;
    if (CONTEXT_TOKEN[c] && m->starts[place(m, token)])
        return NULL;
    return ids_at(m, token - CONTEXT_TOKEN[c], other);
}

/* Let values from 0 fade; below `faintest` they are gone, before they are too small to be fast. */
static void fade(float *values, float keep, float faintest, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        float value = values[i] * keep;
        values[i] = value < faintest ? 0 : value;
    }
}

/* --- counts ----------------------------------------------------------------------------------- */

/* What followed an expert, [lanes]. */
static float *counts_of(const mira_learner *m, int32_t kind, int32_t layer, int32_t before)
{
    return m->counts + (((size_t)kind * m->layers + layer) * m->experts + before) * m->lanes;
}

static float *totals_of(const mira_learner *m, int32_t kind, int32_t layer)
{
    return m->totals + ((size_t)kind * m->layers + layer) * m->lanes;
}

/* Count that `ids` followed the experts of a trail. */
static void count(mira_learner *m, int32_t kind, int32_t layer, const float *trail,
                  const uint16_t *ids)
{
    float *totals = totals_of(m, kind, layer);
    for (int32_t before = 0; before < m->experts; before++) {
        if (trail[before] == 0)
            continue;
        float *row = counts_of(m, kind, layer, before);
        totals[before] += trail[before];
        for (int32_t i = 0; i < m->top; i++)
            row[ids[i]] += trail[before];
        if (totals[before] < MOST_COUNTS)
            continue;
        totals[before] *= 0.5f;
        for (int32_t e = 0; e < m->lanes; e++)
            row[e] *= 0.5f;
    }
}

/* Count what followed the experts of a trail, then let it fade and lay on `fresh`. */
static void follow(mira_learner *m, int32_t kind, int32_t layer, const uint16_t *fresh,
                   const uint16_t *ids)
{
    float *trail = m->trails + ((size_t)kind * m->layers + layer) * m->lanes;
    if (m->starts[place(m, m->token)])
        memset(trail, 0, m->lanes * sizeof *trail);
    else
        count(m, kind, layer, trail, ids);
    fade(trail, TRAIL_DECAYS[kind], FAINT_TRAIL, m->lanes);
    for (int32_t i = 0; i < m->top; i++)
        trail[fresh[i]] += 1;
}

/* Count what followed what at the last token. */
static void tally(mira_learner *m, int32_t layer)
{
    const uint16_t *ids = ids_at(m, m->token, layer);
    follow(m, REPEAT, layer, ids, ids);
    follow(m, TRAIL, layer, ids, ids);
    if (layer > 0)
        follow(m, CROSS, layer, ids_at(m, m->token, layer - 1), ids);
}

static void average(mira_learner *m, int32_t layer, const uint16_t *ids, const float *probabilities)
{
    float *gate = m->gate + (size_t)layer * m->lanes, sum = 0, warming = 1.0f / (m->token + 8);
    for (int32_t i = 0; i < m->top; i++)
        sum += probabilities[i];
    for (int32_t a = 0; a < AVERAGES; a++) {
        float *row = m->averages + ((size_t)layer * AVERAGES + a) * m->lanes;
        float rate = 1 / SPANS[a];
        rate = rate > warming ? rate : warming;
        fade(row, 1 - rate, FAINT, m->lanes);
        for (int32_t i = 0; i < m->top; i++)
            row[ids[i]] += rate;
    }
    fade(gate, 1 - GATE_RATE, FAINT, m->lanes);
    for (int32_t i = 0; i < m->top; i++)
        gate[ids[i]] += sum > 0 && sum < INFINITY ? GATE_RATE * m->top * probabilities[i] / sum
                                                  : GATE_RATE;
}

/* --- score and step --------------------------------------------------------------------------- */

/* Mean over the given experts of what followed each. */
static void expect(const mira_learner *m, int32_t kind, int32_t layer, const uint16_t *from,
                   float *x)
{
    const float *totals = totals_of(m, kind, layer);
    const float *rows[ROWS];
    float shares[ROWS];
    memset(x, 0, m->lanes * sizeof *x);
    for (int32_t i = 0, count; i < m->top; i += count) {
        count = m->top - i < ROWS ? m->top - i : ROWS;
        for (int32_t j = 0; j < count; j++) {
            rows[j] = counts_of(m, kind, layer, from[i + j]);
            shares[j] = 1.0f / m->top / totals[from[i + j]];
        }
        vector_add_scaled_rows(x, rows, shares, count, m->lanes);
    }
}

static void describe(mira_learner *m, int32_t layer, const uint16_t *ids)
{
    size_t row = m->lanes * sizeof(float);
    float *x = features_at(m, m->token, layer);
    memcpy(x, m->averages + (size_t)layer * AVERAGES * m->lanes, AVERAGES * row);
    float *expected = x + AVERAGES * m->lanes;
    expect(m, REPEAT, layer, ids, expected);
    expect(m, TRAIL, layer, ids, expected + m->lanes);
    if (layer > 0)
        expect(m, CROSS, layer, ids_at(m, m->token, layer - 1), expected + 2 * m->lanes);
    else
        memcpy(expected + 2 * m->lanes, expected + m->lanes, row);
    vector_log(x, (AVERAGES + 3) * m->lanes);
    memcpy(x + (AVERAGES + 3) * m->lanes, m->gate + (size_t)layer * m->lanes, row);
    for (int32_t e = 0; e < m->lanes; e++)
        x[(AVERAGES + 4) * m->lanes + e] = 1;
}

static float *table_row(const mira_learner *m, float *table, int32_t layer, int32_t c, int32_t e)
{
    return table + (((size_t)layer * MIRA_CONTEXTS + c) * m->experts + e) * m->lanes;
}

/* Add the rows of some contexts. */
static void add_rows(const mira_learner *m, int64_t token, int32_t layer, int32_t first,
                     int32_t last, float *z)
{
    const float *rows[ROWS];
    int32_t count = 0;
    for (int32_t c = first; c <= last; c++) {
        const uint16_t *ids = context(m, token, layer, c);
        for (int32_t i = 0; ids && i < m->top; i++) {
            rows[count++] = table_row(m, m->table, layer, c, ids[i]);
            if (count == ROWS) {
                vector_add_rows(z, rows, count, m->lanes);
                count = 0;
            }
        }
    }
    vector_add_rows(z, rows, count, m->lanes);
}

/* What is known of a score before the token begins. */
static void begin_score(const mira_learner *m, int64_t token, int32_t layer, float *z)
{
    memcpy(z, m->bias + (size_t)layer * m->lanes, m->lanes * sizeof *z);
    add_rows(m, token, layer, OF_TOKEN, MIRA_CONTEXTS - 1, z);
}

static void score(const mira_learner *m, int64_t token, int32_t layer, float *z)
{
    const float *x = features_at(m, token, layer);
    if (token == m->begun_token && *m->lessons == m->begun_lesson && !m->starts[place(m, token)])
        memcpy(z, m->begun + (size_t)layer * m->lanes, m->lanes * sizeof *z);
    else
        begin_score(m, token, layer, z);
    const float *features[MIRA_FEATURES];
    for (int32_t f = 0; f < MIRA_FEATURES; f++)
        features[f] = x + f * m->lanes;
    vector_add_scaled_rows(z, features, m->weights, MIRA_FEATURES, m->lanes);
    add_rows(m, token, layer, 0, OF_TOKEN - 1, z);
}

/* What the token `window` ago should have been scored: discounted first uses since. */
static void judge(const mira_learner *m, int64_t token, int32_t layer, float *y)
{
    memset(y, 0, m->lanes * sizeof *y);
    float worth = 1;
    for (int32_t d = 1; d <= m->window; d++) {
        const uint16_t *ids = ids_at(m, token + d, layer);
        for (int32_t i = 0; i < m->top; i++)
            if (y[ids[i]] == 0)
                y[ids[i]] = worth;
        worth *= m->discount;
    }
}

static void learn(mira_learner *m, int64_t token, int32_t layer)
{
    float *r = m->scratch, *y = r + m->lanes, gradient[MIRA_FEATURES];
    size_t at = (size_t)layer * m->lanes;
    judge(m, token, layer, y);
    score(m, token, layer, r);
    vector_residuals(r, y, m->lanes);
    memset(r + m->experts, 0, (m->lanes - m->experts) * sizeof *r);
    for (int32_t f = 0; f < MIRA_FEATURES; f++)
        gradient[f] = vector_product(r, features_at(m, token, layer) + f * m->lanes, m->lanes)
                      / m->experts;
    vector_descend(m->weights, m->weight_sums, gradient, m->weight_rate, MIRA_FEATURES);
    vector_descend(m->bias + at, m->bias_sums + at, r, m->table_rate, m->lanes);
    for (int32_t c = 0; c < MIRA_CONTEXTS; c++) {
        const uint16_t *ids = context(m, token, layer, c);
        for (int32_t i = 0; ids && i < m->top; i++)
            vector_descend(table_row(m, m->table, layer, c, ids[i]),
                    table_row(m, m->table_sums, layer, c, ids[i]), r, m->table_rate, m->lanes);
    }
}

/* Where the ids of the next layer go. */
static uint16_t *open_layer(mira_learner *m, int32_t layer, int32_t starts)
{
    if (layer == 0) {
        m->token++;
        m->starts[place(m, m->token)] = starts || m->token == 0;
    }
    return ids_at(m, m->token, layer);
}

static void rate(mira_learner *m, int32_t layer, const float *probabilities)
{
    const uint16_t *ids = ids_at(m, m->token, layer);
    average(m, layer, ids, probabilities);
    describe(m, layer, ids);
    score(m, m->token, layer, m->scores + (size_t)layer * m->lanes);
}

static const float *scores_of(const mira_learner *m, int32_t layer)
{
    return m->scores + (size_t)layer * m->lanes;
}

void mira_weigh(const mira_rating *in)
{
    if (in->voter_count == 0)
        return;
    const mira_learner *m = in->voters[0];
    const float *odds = scores_of(m, in->layer);
    if (in->voter_count > 1) {
        memset(m->scratch, 0, m->lanes * sizeof *m->scratch);
        for (int32_t i = 0; i < in->voter_count; i++)
            vector_join_odds(m->scratch, scores_of(in->voters[i], in->layer), m->lanes);
        vector_ln(m->scratch, m->lanes);
        odds = m->scratch;
    }
    /* Layers are scored in turn, and what an older score foresees has come nearer since. */
    double *worth = in->worth + (size_t)in->layer * m->experts;
    double nearer = (in->step + (double)in->layer / m->layers) * in->nearer;
    for (int32_t e = 0; e < m->experts; e++)
        worth[e] = (double)odds[e] + nearer;
}

int mira_rate(const mira_rating *in)
{
    mira_learner *const *learners = in->learners;
    for (int32_t i = 0; i < in->count * learners[0]->top; i++)
        if (in->ids[i] < 0 || in->ids[i] >= learners[0]->experts)
            return MIRA_BAD_EXPERT;
    for (int32_t i = 0; i < in->count; i++) {
        mira_learner *m = learners[i];
        size_t at = (size_t)i * m->top;
        uint16_t *own = open_layer(m, in->layer, in->starts[i]);
        for (int32_t k = 0; k < m->top; k++)
            own[k] = (uint16_t)in->ids[at + k];
        rate(m, in->layer, in->probabilities + at);
    }
    mira_weigh(in);
    return MIRA_OK;
}

/* Begin the scores of the next token, if it goes on with the text and nobody learns before. */
static void begin_next(mira_learner *m)
{
    m->begun_token = m->token + 1;
    m->begun_lesson = ++*m->lessons;
    m->starts[place(m, m->begun_token)] = 0;
    for (int32_t layer = 0; layer < m->layers; layer++)
        begin_score(m, m->begun_token, layer, m->begun + (size_t)layer * m->lanes);
}

void learner_update(mira_learner *m)
{
    for (int32_t layer = 0; layer < m->layers; layer++)
        tally(m, layer);
    if (m->token >= m->window)
        for (int32_t layer = 0; layer < m->layers; layer++)
            learn(m, m->token - m->window, layer);
    begin_next(m);
}

void mira_learn(mira_learner *m, int32_t layer, int32_t starts, const uint16_t *ids,
                const float *probabilities)
{
    memcpy(open_layer(m, layer, starts), ids, m->top * sizeof *ids);
    rate(m, layer, probabilities);
    if (layer == m->layers - 1)
        learner_update(m);
}
