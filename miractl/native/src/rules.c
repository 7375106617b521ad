#include "rules.h"

#include <math.h>
#include <stdlib.h>

#define NEVER INT32_MAX
#define ACTIVATION 0.1
#define WINDOW_WEIGHT 0.1
#define DECAY_SECONDS 0.1

static const uint16_t *ids_of(const mira_routing *r, int32_t token, int32_t layer)
{
    return r->ids + ((size_t)token * r->layers + layer) * r->top;
}

/* --- Belady ----------------------------------------------------------------------------------- */

static int look_ahead(rules *r)
{
    const mira_routing *in = r->routing;
    size_t cells = (size_t)in->layers * in->experts;
    int32_t *coming = malloc(cells * sizeof *coming);
    r->next = malloc((size_t)in->tokens * in->layers * in->top * sizeof *r->next);
    if (!coming || !r->next) {
        free(coming);
        return MIRA_NO_MEMORY;
    }
    for (size_t i = 0; i < cells; i++)
        coming[i] = NEVER;
    for (int32_t t = in->tokens - 1; t >= 0; t--)
        for (int32_t l = 0; l < in->layers; l++) {
            const uint16_t *ids = ids_of(in, t, l);
            int32_t *next = r->next + (ids - in->ids);
            for (int32_t i = 0; i < in->top; i++) {
                size_t at = (size_t)l * in->experts + ids[i];
                next[i] = coming[at];
                coming[at] = t;
            }
        }
    free(coming);
    return MIRA_OK;
}

static void observe_belady(rules *r, int32_t layer, const uint16_t *ids, double *worth)
{
    const int32_t *next = r->next + (ids - r->routing->ids);
    for (int32_t i = 0; i < r->routing->top; i++)
        worth[ids[i]] = next[i] == NEVER ? -1e18 : -((double)next[i] * r->routing->layers + layer);
}

/* --- heat: miractl/policy/heat.py says what it is --------------------------------------------- */

static int open_heat(rules *r)
{
    size_t cells = (size_t)r->routing->layers * r->routing->experts;
    r->score = calloc(cells, sizeof *r->score);
    r->since = calloc(cells, sizeof *r->since);
    r->counts = calloc(cells, sizeof *r->counts);
    r->used = calloc(cells, sizeof *r->used);
    for (int32_t n = 0; n < POWERS; n++)
        r->power[n] = pow(r->rule.decay, n);
    return r->score && r->since && r->counts && r->used ? MIRA_OK : MIRA_NO_MEMORY;
}

static double intervals(double seconds)
{
    return floor(seconds / DECAY_SECONDS + 1e-9);
}

static double score_at(const rules *r, size_t at, double now)
{
    double n = intervals(now - r->since[at]);
    return r->score[at] * (n < POWERS ? r->power[(int)n] : pow(r->rule.decay, n));
}

static void close_window(rules *r, double now)
{
    const mira_routing *in = r->routing;
    for (int32_t l = 0; l < in->layers; l++) {
        size_t row = (size_t)l * in->experts;
        double largest = 1;
        for (int32_t e = 0; e < in->experts; e++)
            largest = fmax(largest, r->counts[row + e]);
        for (size_t at = row; at < row + in->experts; at++) {
            double idle = now - r->since[at];
            double score = score_at(r, at, now) + WINDOW_WEIGHT * r->counts[at] / largest;
            r->since[at] = now - (idle - DECAY_SECONDS * intervals(idle));
            r->score[at] = fmin(1, score);
            r->counts[at] = 0;
        }
    }
    r->window_start = now;
}

static void rate_by_heat(rules *r, int32_t layer, double now)
{
    size_t row = (size_t)layer * r->routing->experts;
    for (size_t at = row; at < row + r->routing->experts; at++) {
        double score = score_at(r, at, now);
        r->worth[at] = score < r->rule.threshold ? score : HOT + r->used[at];
    }
}

static int observe_heat(rules *r, int32_t token, int32_t layer, const uint16_t *ids)
{
    const mira_routing *in = r->routing;
    double now = token * r->rule.token_seconds;
    if (now - r->window_start >= r->rule.window_seconds)
        close_window(r, now);
    for (int32_t i = 0; i < in->top; i++) {
        size_t at = (size_t)layer * in->experts + ids[i];
        r->score[at] = fmin(1, score_at(r, at, now) + ACTIVATION);
        r->since[at] = now;
        r->counts[at]++;
        r->used[at] = (double)token * in->layers + layer + 1;
    }
    if (layer == 0) /* time has passed for everyone */
        for (int32_t l = 1; l < in->layers; l++)
            rate_by_heat(r, l, now);
    rate_by_heat(r, layer, now);
    return layer == 0;
}

static void observe_learner(rules *r, int32_t token, int32_t layer, const uint16_t *ids,
                            double *worth)
{
    const mira_routing *in = r->routing;
    mira_learner *learner = r->rule.learner;
    mira_learn(learner, layer, in->starts[token], ids, in->probabilities + (ids - in->ids));
    /* Layers are scored in turn: what an older score foresees has come nearer since. */
    double now = token + (double)layer / in->layers, nearer = now * log(learner->discount);
    const float *scores = learner->scores + (size_t)layer * learner->lanes;
    for (int32_t e = 0; e < in->experts; e++)
        worth[e] = scores[e] + nearer;
}

/* --- all -------------------------------------------------------------------------------------- */

int rules_open(rules *r, const mira_routing *routing, const mira_rule *rule, double *worth)
{
    *r = (rules){.rule = *rule, .routing = routing, .worth = worth, .random = rule->seed};
    if (rule->kind == MIRA_BELADY)
        return look_ahead(r);
    return rule->kind == MIRA_HEAT ? open_heat(r) : MIRA_OK;
}

void rules_close(rules *r)
{
    free(r->next);
    free(r->score);
    free(r->since);
    free(r->counts);
    free(r->used);
}

/* The generator splitmix64; 53 bits of it. */
static double draw(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

int rules_observe(rules *r, int32_t token, int32_t layer)
{
    const mira_routing *in = r->routing;
    const uint16_t *ids = ids_of(in, token, layer);
    double *worth = r->worth + (size_t)layer * in->experts;
    switch (r->rule.kind) {
    case MIRA_LRU:
        for (int32_t i = 0; i < in->top; i++)
            worth[ids[i]] = (double)token * in->layers + layer + 1;
        return 0;
    case MIRA_LFU:
        for (int32_t e = 0; e < in->experts; e++)
            worth[e] *= r->rule.decay;
        for (int32_t i = 0; i < in->top; i++)
            worth[ids[i]] += 1;
        return 0;
    case MIRA_RANDOM:
        for (int32_t e = 0; e < in->experts; e++)
            worth[e] = draw(&r->random);
        return 0;
    case MIRA_BELADY:
        observe_belady(r, layer, ids, worth);
        return 0;
    case MIRA_LEARNED:
        observe_learner(r, token, layer, ids, worth);
        return 0;
    default: return observe_heat(r, token, layer, ids);
    }
}
