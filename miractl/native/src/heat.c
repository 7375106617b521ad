/* The heat score and what it is worth; miractl/policy/heat.py and eviction.py say what it is. */
#include "brain.h"

#include <math.h>

#define ACTIVATION 0.1
#define DECAY_SECONDS 0.1
#define HOT 2.0

static double decayed(double score, double idle, double decay)
{
    double intervals = floor(idle / DECAY_SECONDS + 1e-9);
    return intervals == 0 ? score : score * pow(decay, intervals);
}

static double score_at(const mira_heat *h, size_t at)
{
    return decayed(h->score[at], h->now - h->since[at], h->decay);
}

void mira_warm(const mira_warming *w)
{
    for (int64_t i = 0; i < w->cells; i++) {
        int64_t tokens = w->activations[i] - w->felt[i];
        if (tokens <= 0)
            continue;
        w->score[i] = fmin(1, decayed(w->score[i], w->now - w->since[i], w->decay) + ACTIVATION);
        w->since[i] = w->now;
        w->counts[i] += tokens;
        w->felt[i] = w->activations[i];
    }
}

static void warm(mira_heat *h, size_t row, const int64_t *ids, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        size_t at = row + ids[i];
        int again = 0; /* a step counts once */
        for (int32_t j = 0; j < i && !again; j++)
            again = ids[j] == ids[i];
        h->counts[at]++;
        if (again)
            continue;
        h->score[at] = fmin(1, score_at(h, at) + ACTIVATION);
        h->since[at] = h->now;
        h->used[at] = h->stamp;
    }
}

static void rate(mira_heat *h, size_t row)
{
    for (size_t at = row; at < row + h->experts; at++) {
        double score = score_at(h, at);
        h->worth[at] = score < h->threshold ? score : HOT + h->used[at];
    }
}

int mira_heat_record(mira_heat *h, int32_t layer, const int64_t *ids, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= h->experts)
            return MIRA_BAD_EXPERT;
    warm(h, (size_t)layer * h->experts, ids, count);
    if (layer > 0)
        rate(h, (size_t)layer * h->experts);
    for (int32_t l = 0; layer == 0 && l < h->layers; l++) /* time has passed for everyone */
        rate(h, (size_t)l * h->experts);
    return MIRA_OK;
}
