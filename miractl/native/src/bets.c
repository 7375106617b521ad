/* Which bets are worth their risk.
 *
 * A bet that comes true saves the time its transfer was under way before the layer was routed, all
 * of them together never more than the layer would have waited. One that does not may make demands
 * wait: for what is left of the transfer, or of its chunk. A bet is proposed if by its probability the
 * first outweighs the second, and a price for bytes in vain.
 * Three things make that safe whatever the guesses are:
 *
 * - the probability is what became of earlier guesses alike, of absent experts;
 * - a proposal is issued only if the ledger can bear its worst case: time gained less time lost, and
 *   a small share of the time that has passed;
 * - proposals are judged whether issued or not; while they lose on average, none is issued.
 *
 * miractl/simulate/betting.py is the same, to the last bit.
 */
#include "bets.h"

#include <math.h>
#include <string.h>

#define LEAST 1e-4         /* no guess is surer than this, nor than 1 - this */
#define TRUSTED 10.0       /* guesses that came true as often as they said, before the first */
#define MOST_GUESSES 1024  /* of a bin; then it fades by half */
#define DEMAND_RATE 0.02   /* of the averages, a layer */
#define WORTH_RATE 0.005   /* a proposal */
#define WORTH_ON 0.05      /* transfers a proposal, from which issuing begins again */
#define CREDIT 50.0        /* transfers; what was gained once does not pay for ever */
#define LAYERS_AHEAD 12    /* over which a delay is followed */

static double *bin_of(const mira_bets *b, int32_t class_, double p)
{
    int32_t bin = (int32_t)(p * MIRA_BINS);
    return b->bins + (size_t)class_ * 3 * MIRA_BINS + bin;
}

static double within(double p)
{
    return p > 1 - LEAST ? 1 - LEAST : p >= LEAST ? p : LEAST; /* what is no number is unlikely */
}

typedef struct {
    double held, failed; /* odds of what a bin said and of what came, multiplied crosswise */
} record;

/* What a bin of guesses said and what came of them; if it is empty, of a guess p. */
static record record_of(const double *bin, double p)
{
    double said = bin[0] > 0 ? bin[MIRA_BINS] / bin[0] : p;
    double came = within((bin[2 * MIRA_BINS] + TRUSTED * said) / (bin[0] + TRUSTED));
    return (record){came * (1 - said), said * (1 - came)};
}

/* Its odds become as much better or worse as those of guesses alike were. */
static double corrected(double p, const record *found)
{
    double held = p * found->held;
    return held / (held + (1 - p) * found->failed);
}

double mira_bets_calibrated(const mira_bets *b, int32_t class_, double guess)
{
    double p = within(guess);
    record found = record_of(bin_of(b, class_, p), p);
    return corrected(p, &found);
}

/* Time that demands are expected to wait for a transfer in vain, from the layer's own gate on. */
static double delay(const mira_bets *b, int32_t layer, double over, double compute)
{
    double cost = 0, idle = 1;
    for (int32_t h = 0; h < LAYERS_AHEAD && over > 0; h++) {
        double demand = b->demand[(layer + h) % b->layers];
        cost += idle * demand * over;
        idle *= 1 - demand;
        over -= compute;
    }
    return cost;
}

typedef struct {
    double hidden, risk, sure_cost, vain_cost;
} prospect;

/* What a transfer that begins when the link is free may save and cost. */
static prospect look(const mira_bets *b, const mira_moment *at)
{
    double due = at->gate + (at->ahead - 1) * at->compute, room = due - at->link;
    prospect found = {.hidden = room < at->transfer ? room : at->transfer};
    if (room <= 0)
        return found;
    for (int32_t a = 0; a < at->ahead - 1; a++) { /* gates of the layers between */
        double gate = at->gate + a * at->compute;
        if (at->link >= gate)
            continue;
        double over = mira_overrun(gate - at->link, at->transfer, b->chunks);
        int32_t layer = (at->layer - at->ahead + 1 + a + b->layers) % b->layers;
        found.sure_cost += b->demand[layer] * over;
        found.risk = over > found.risk ? over : found.risk;
    }
    double over = mira_overrun(due - at->link, at->transfer, b->chunks);
    found.vain_cost = delay(b, at->layer, over, at->compute);
    found.risk = over > found.risk ? over : found.risk;
    return found;
}

static int32_t likeliest(const mira_bets *b)
{
    int32_t best = 0;
    for (int32_t e = 1; e < b->experts; e++)
        if (b->sure[e] > b->sure[best])
            best = e;
    return best;
}

/* Remember the guesses for their judgement; the probabilities are in `sure` of those absent who are
 * likely enough to be bet on if it delays nobody: a transfer in vain has its price. */
static void take(mira_bets *b, const mira_moment *at, const float *p, const uint8_t *there)
{
    float *guess = b->guess + ((size_t)at->class_ * b->layers + at->layer) * b->experts;
    record bins[MIRA_BINS];
    const double *first = b->bins + (size_t)at->class_ * 3 * MIRA_BINS;
    for (int32_t i = 0; i < MIRA_BINS; i++)
        bins[i] = record_of(first + i, 0.5);
    for (int32_t e = 0; e < b->experts; e++) {
        guess[e] = there[e] ? -1 : p[e];
        b->sure[e] = -1;
        if (there[e])
            continue;
        double own = within(p[e]);
        int32_t bin = (int32_t)(own * MIRA_BINS);
        record found = first[bin] > 0 ? bins[bin] : record_of(first + bin, own);
        if (own * found.held > b->price * ((1 - own) * found.failed))
            b->sure[e] = corrected(own, &found);
    }
    b->asked[at->class_ * b->layers + at->layer] = 1;
    for (int32_t i = 0; i < b->most; i++)
        b->proposal[(size_t)at->layer * b->most + i] = -1;
}

static double sum_of(const float *p, int32_t experts)
{
    double all = 0;
    for (int32_t e = 0; e < experts; e++)
        all += p[e];
    return all;
}

/* Whether an expert is among the likeliest whose share is `most`, of all guesses. */
static int is_candidate(const mira_bets *b, const float *p, int32_t expert, double most)
{
    double before = 0;
    for (int32_t e = 0; e < b->experts; e++)
        if (p[e] > p[expert])
            before += p[e];
    return before < most;
}

int32_t mira_bets_choose(mira_bets *b, mira_moment *given, const float *p, const uint8_t *there,
                         uint16_t *chosen)
{
    mira_moment at = *given;
    size_t row = (size_t)at.layer * b->most;
    take(b, &at, p, there);
    int32_t room = at.room < b->most ? at.room : b->most, count = 0;
    double saved = 0, most = at.confidence * sum_of(p, b->experts);
    for (; count < room && at.transfer > 0; count++) {
        int32_t e = likeliest(b);
        double sure = b->sure[e];
        if (sure < 0 || !is_candidate(b, p, e, most))
            break;
        prospect found = look(b, &at);
        found.hidden = fmin(found.hidden, at.stall - saved);
        double cost = found.sure_cost
                      + (1 - sure) * (found.vain_cost + b->price * at.transfer);
        if (found.hidden <= 0 || sure * found.hidden <= cost
            || at.promised + found.risk > b->balance + b->allowance * at.elapsed) {
            b->withheld++;
            break;
        }
        b->proposal[row + count] = e;
        b->hidden[row + count] = found.hidden;
        b->risk[row + count] = found.risk;
        b->sure[e] = -1;
        chosen[count] = (uint16_t)e;
        saved += sure * found.hidden;
        at.link += at.transfer;
        at.promised += found.risk;
    }
    if (b->off) {
        b->withheld += count;
        return 0;
    }
    *given = at;
    return count;
}

static void judge_guesses(mira_bets *b, int32_t class_, int32_t layer, const uint8_t *wanted)
{
    float *guess = b->guess + ((size_t)class_ * b->layers + layer) * b->experts;
    uint8_t *asked = b->asked + class_ * b->layers + layer;
    for (int32_t e = 0; *asked && e < b->experts; e++) {
        if (guess[e] < 0)
            continue;
        double p = within(guess[e]), *bin = bin_of(b, class_, p);
        bin[0] += 1;
        bin[MIRA_BINS] += p;
        bin[2 * MIRA_BINS] += wanted[e];
        if (bin[0] >= MOST_GUESSES)
            for (int32_t i = 0; i < 3; i++)
                bin[i * MIRA_BINS] *= 0.5;
        guess[e] = -1;
    }
    *asked = 0;
}

void mira_bets_judge(mira_bets *b, int32_t layer, const uint8_t *wanted, int32_t fetch,
                     double transfer)
{
    for (int32_t c = 0; c < b->classes; c++)
        judge_guesses(b, c, layer, wanted);
    b->demand[layer] += DEMAND_RATE * (fetch - b->demand[layer]);
    for (int32_t i = 0; i < b->most && transfer > 0; i++) {
        size_t at = (size_t)layer * b->most + i;
        if (b->proposal[at] < 0)
            break;
        double value = -b->price - (fetch ? b->risk[at] / transfer : 0);
        if (wanted[b->proposal[at]])
            value = b->hidden[at] / transfer;
        b->worth += WORTH_RATE * (value - b->worth);
        b->proposal[at] = -1;
    }
    int32_t off = b->off ? b->worth < WORTH_ON : b->worth < 0;
    b->switches += off != b->off;
    b->off = off;
}

void mira_bets_account(mira_bets *b, double gained, double lost, double transfer)
{
    double most = CREDIT * transfer;
    b->balance += gained - lost;
    b->balance = b->balance < most ? b->balance : most;
}

void mira_bets_settle(mira_bets *b, mira_residency *r, mira_routed *in)
{
    mira_judge_bets(r, in);
    if (in->transfer <= 0)
        return;
    mira_bets_judge(b, in->layer, r->needed, in->missing > 0, in->transfer);
    mira_bets_account(b, in->gained, in->lost, in->transfer);
}

void mira_bets_place(mira_bets *b, mira_residency *r, mira_moment *at, const double *guesses)
{
    int32_t room = r->staging_limit - r->staged + r->stale_count;
    at->room = room > 0 ? room : 0;
    for (int32_t e = 0; e < b->experts; e++)
        b->told[e] = (float)guesses[e];
    const uint8_t *role = r->role + (size_t)at->layer * r->experts;
    int32_t count = mira_bets_choose(b, at, b->told, role, b->chosen);
    mira_stage(r, at->layer, b->chosen, count);
}
