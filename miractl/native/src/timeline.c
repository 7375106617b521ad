/* A recording on one link: what waits for what. */
#include "bets.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    int64_t step; /* (token, layer) that it is for */
    uint16_t expert;
    double left;    /* seconds of its transfer */
    double arrives; /* end of its last chunk */
} bet;

typedef struct {
    const mira_routing *in;
    const uint8_t *hits, *resident;
    const float *guesses;
    const mira_link *link;
    mira_bets *bets;
    double *times;
    int64_t *events;
    double now;        /* routing of the present step is known */
    double free;       /* the link is */
    bet *open;         /* in the order of transfer */
    int32_t count;
    uint8_t *wanted, *there; /* [experts] */
    uint16_t *chosen;        /* [most] */
} run;

static int64_t steps(const run *r)
{
    return (int64_t)r->in->tokens * r->in->layers;
}

/* Move bets until somebody else wants the link; a chunk begun is finished. */
static void work(run *r, double until)
{
    double chunk = r->link->transfer / r->bets->chunks;
    for (int32_t i = 0; i < r->count && r->free < until; i++) {
        bet *one = r->open + i;
        if (one->left <= 0)
            continue;
        double amount = one->left;
        if (r->free + amount > until) {
            double done = r->link->transfer - one->left;
            double border = ceil((done + until - r->free) / chunk - 1e-9) * chunk - done;
            amount = border < amount ? border : amount;
        }
        one->left -= amount;
        one->left = one->left < 1e-12 * r->link->transfer ? 0 : one->left;
        r->free += amount;
        one->arrives = r->free;
        r->times[MIRA_MOVED] += amount;
    }
}

typedef struct {
    double behind; /* the link goes on so long with the chunk that it is at */
    double needed; /* seconds of transfers that the step has to wait for */
    double gained;
    int is_ours; /* whether that chunk is of an expert that the step needs */
} reckoning;

/* A bet whose step has come. */
static void close_bet(run *r, const bet *one, reckoning *sum)
{
    double moved = r->link->transfer - one->left;
    int under_way = one->arrives > r->now;
    if (!r->wanted[one->expert]) {
        r->events[moved > 0 ? MIRA_WASTED : MIRA_CANCELLED]++;
        r->times[MIRA_WASTED_SECONDS] += moved;
        return;
    }
    r->wanted[one->expert] = 2; /* not to be demanded again */
    sum->needed += one->left;
    r->times[MIRA_MOVED] += one->left;
    sum->gained += moved - (under_way ? sum->behind : 0);
    sum->is_ours |= under_way;
    r->events[moved <= 0 ? MIRA_CANCELLED : one->left > 0 || under_way ? MIRA_LATE : MIRA_USED]++;
}

static void close_bets(run *r, int64_t step, reckoning *sum)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < r->count; i++) {
        if (r->open[i].step == step)
            close_bet(r, r->open + i, sum);
        else if (r->open[i].left < r->link->transfer)
            r->open[kept++] = r->open[i];
        else
            r->events[MIRA_CANCELLED]++; /* not begun: to be thought over */
    }
    r->count = kept;
}

/* The step is routed: settle the bets on it, demand the rest. Returns how long it has to wait. */
static double settle(run *r, int64_t step)
{
    const mira_routing *in = r->in;
    const uint16_t *ids = in->ids + (size_t)step * in->top;
    reckoning sum = {.behind = r->free > r->now ? r->free - r->now : 0};
    int fetch = 0;
    for (int32_t i = 0; i < in->top; i++) {
        r->wanted[ids[i]] = 1;
        fetch |= !r->hits[(size_t)step * in->top + i];
    }
    mira_bets_judge(r->bets, (int32_t)(step % in->layers), r->wanted, fetch, r->link->transfer);
    close_bets(r, step, &sum);
    for (int32_t i = 0; i < in->top; i++) {
        if (r->wanted[ids[i]] == 1 && !r->hits[(size_t)step * in->top + i]) {
            sum.needed += r->link->transfer;
            r->times[MIRA_MOVED] += r->link->transfer;
            r->events[MIRA_DEMANDS]++;
        }
        r->wanted[ids[i]] = 0;
    }
    double wait = sum.needed > 0 || sum.is_ours ? sum.behind + sum.needed : 0;
    double lost = wait > 0 && !sum.is_ours ? sum.behind : 0;
    mira_bets_account(r->bets, sum.gained, lost, r->link->transfer);
    r->free = wait > 0 ? r->now + wait : r->free;
    r->times[MIRA_STALL] += wait;
    return wait;
}

/* Experts of a step that need no bet. */
static void mark(run *r, int64_t step)
{
    const uint8_t *resident = r->resident + (size_t)step * r->in->experts;
    for (int32_t e = 0; e < r->in->experts; e++)
        r->there[e] = resident[e];
    for (int32_t i = 0; i < r->count; i++)
        if (r->open[i].step == step)
            r->there[r->open[i].expert] = 1;
}

/* Bet on the steps after this one; the next is routed in `gate`. */
static void bet_on(run *r, int64_t step, double gate)
{
    double pending = r->free > r->now ? r->free - r->now : 0;
    for (int32_t i = 0; i < r->count; i++)
        pending += r->open[i].left;
    mira_moment at = {.elapsed = r->now, .link = pending, .gate = gate,
                      .transfer = r->link->transfer, .compute = r->link->compute,
                      .confidence = r->link->confidence, .stall = INFINITY};
    for (int32_t ahead = 1; ahead <= r->link->horizon && step + ahead < steps(r); ahead++) {
        int64_t target = step + ahead;
        mark(r, target);
        at.layer = (int32_t)(target % r->in->layers);
        at.ahead = ahead;
        at.class_ = ahead - 1;
        at.room = r->bets->most - r->count;
        const float *p = r->guesses + ((ahead - 1) * steps(r) + target) * r->in->experts;
        int32_t found = mira_bets_choose(r->bets, &at, p, r->there, r->chosen);
        r->events[MIRA_ISSUED] += found;
        for (int32_t i = 0; i < found; i++)
            r->open[r->count++] = (bet){target, r->chosen[i], r->link->transfer, 0};
    }
}

static void play(run *r)
{
    double compute = r->link->compute, before = r->link->routed * compute;
    r->now = before;
    for (int64_t step = 0; step < steps(r); step++) {
        double wait = settle(r, step), gate = wait + compute;
        r->times[MIRA_SECONDS] += compute + wait;
        r->free = r->free > r->now ? r->free : r->now;
        bet_on(r, step, gate);
        work(r, r->now + gate);
        r->now += gate;
    }
}

int mira_timeline(const mira_routing *routing, const uint8_t *hits, const uint8_t *resident,
                  const float *guesses, const mira_link *link, mira_bets *bets, double *times,
                  int64_t *events)
{
    run r = {.in = routing, .hits = hits, .resident = resident, .guesses = guesses, .link = link,
             .bets = bets, .times = times, .events = events};
    r.open = malloc(bets->most * sizeof *r.open);
    r.chosen = malloc(bets->most * sizeof *r.chosen);
    r.wanted = calloc(routing->experts, 1);
    r.there = calloc(routing->experts, 1);
    int status = r.open && r.chosen && r.wanted && r.there ? MIRA_OK : MIRA_NO_MEMORY;
    if (status == MIRA_OK)
        play(&r);
    free(r.open);
    free(r.chosen);
    free(r.wanted);
    free(r.there);
    return status;
}
