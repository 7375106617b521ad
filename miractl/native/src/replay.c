/* A cache and a rule, over a recording. */
#include "rules.h"

#include <string.h>

static void run(const mira_routing *in, cache *c, rules *r, uint8_t *hits, int64_t *entered,
                uint8_t *resident)
{
    for (int32_t t = 0; t < in->tokens; t++) {
        cache_begin(c);
        for (int32_t l = 0; l < in->layers; l++) {
            size_t step = (size_t)t * in->layers + l, at = step * in->top;
            if (resident)
                memcpy(resident + step * in->experts, c->resident + (size_t)l * in->experts,
                       in->experts);
            cache_look(c, l, in->ids + at, in->top, hits + at);
            cache_count(c, l, in->ids + at, in->top);
            int all_rows = rules_observe(r, t, l);
            cache_settle(c, l, in->ids + at, in->top, hits + at, all_rows, entered);
        }
    }
}

int mira_replay(const mira_routing *routing, const mira_cache *shape, const mira_rule *rule,
                uint8_t *hits, int64_t *entered, uint8_t *resident)
{
    cache c;
    rules r = {0};
    int status = cache_open(&c, routing, shape);
    if (status == MIRA_OK)
        status = rules_open(&r, routing, rule, c.worth);
    if (status == MIRA_OK)
        run(routing, &c, &r, hits, entered, resident);
    rules_close(&r);
    cache_close(&c);
    return status;
}
