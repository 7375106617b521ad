/* The interface of miractl's brain: expert caches replayed over recorded routing, plain C.
 *
 * Callers check shapes and ranges (miractl/native/replay.py does). Ids of one token and layer are
 * distinct and below `experts`.
 */
#ifndef MIRACTL_BRAIN_H
#define MIRACTL_BRAIN_H

#include "miractl_native.h"

/* Routing of consecutive tokens: ids[tokens, layers, top] and probabilities of that shape. */
typedef struct {
    int32_t tokens, layers, experts, top;
    const uint16_t *ids;
    const float *probabilities;
    const uint8_t *starts; /* [tokens]: whether a text begins here */
} mira_routing;

/* How a newcomer gets in when the cache is full.
 * ALWAYS: the least worthy resident goes, of those that the step can do without.
 * WORTHIER: only if the newcomer is worth as much; whoever the step has used may go as well.
 * HOTTER: as ALWAYS, but nobody below the threshold displaces anybody above it. */
enum { MIRA_ALWAYS, MIRA_WORTHIER, MIRA_HOTTER };

/* One cache a layer, of ways[layers] experts, or one of ways[0] for all. `shifts`: ways move from one
 * layer to another as the replay goes. */
typedef struct {
    int32_t pooled, admission, shifts;
    const int32_t *ways;
} mira_cache;

enum { MIRA_FEATURES = 9, MIRA_CONTEXTS = 8 };

/* A learner of how soon each expert is used again; learner.c says how. All memory is the caller's:
 * zeros, but for what miractl/native/learner.py fills. `lanes` is experts rounded up to 8, and rows
 * are that long. "Sums" belong to AdaGrad. Learners of several streams may share what is marked so:
 * then one call at a time. */
typedef struct {
    int32_t layers, experts, lanes, top;
    int32_t window; /* tokens until a score is judged */
    float discount; /* an expert used d tokens later counts discount^(d - 1) */
    float weight_rate, table_rate;
    int64_t token;                /* of the stream, counts from 0; -1 before the first */
    int64_t begun_token, begun_lesson;
    float *weights, *weight_sums; /* shared: [FEATURES] */
    float *bias, *bias_sums;      /* shared: [layers][lanes] */
    float *table, *table_sums;    /* shared: [layers][CONTEXTS][experts][lanes] */
    float *counts;                /* shared: [3][layers][experts][lanes]: what followed whom */
    float *totals;                /* shared: [3][layers][lanes] */
    float *trails;                /* [3][layers][lanes] */
    float *averages;              /* [layers][FEATURES - 5][lanes] */
    float *gate;                  /* [layers][lanes] */
    float *features;              /* [window + 2][layers][FEATURES][lanes]: of the last tokens */
    uint16_t *ids;                /* [window + 2][layers][top], as is */
    uint8_t *starts;              /* [window + 2] */
    int64_t *lessons;             /* [1], shared: how often what is shared was changed */
    float *begun;                 /* [layers][lanes]: of the scores of a token, as of a lesson */
    float *scores;                /* [layers][lanes]: log-odds of a use soon */
    float *scratch;               /* [2][lanes], shared */
} mira_learner;

/* One token's routing of one layer, layers in order: set scores[layer]; after the last layer learn
 * from the token `window` before. `starts`: the token begins a text. */
MIRA_API void mira_learn(mira_learner *learner, int32_t layer, int32_t starts, const uint16_t *ids,
                         const float *probabilities);

/* One token of each of several learners that share their tables. */
typedef struct {
    mira_learner *const *learners; /* [count] */
    const uint8_t *starts;         /* [count]: whether a text begins, at the first layer */
    const int64_t *ids;            /* [count, top] */
    const float *probabilities;
    double *worth;                 /* [layers][experts] */
    double nearer, step;           /* what a score gains in a step; of them all so far */
    mira_learner *const *voters;   /* [voter_count]: whose scores make the worth */
    int32_t count, layer, voter_count;
} mira_rating;

/* The first half of mira_learn for them, then mira_weigh. MIRA_BAD_EXPERT, and nothing done, or MIRA_OK. */
MIRA_API int mira_rate(const mira_rating *rating);

/* The layer's worth becomes the log-odds that any of the voters uses the expert soon, and more as time
 * passes; without voters it stays. */
MIRA_API void mira_weigh(const mira_rating *rating);

/* What is left to learn, of the last token or of a whole text. */
enum { MIRA_LEARNER, MIRA_PREDICTOR, MIRA_WALK };
typedef struct {
    void *pupil;              /* a mira_learner, mira_predictor or mira_walk */
    const mira_routing *text; /* NULL: none; a walk reads none */
    int32_t kind;
} mira_lesson;

typedef struct mira_tutor mira_tutor;

/* A thread that learns while the caller computes. NULL: no memory, or no thread to be had. It does
 * not survive a fork. */
MIRA_API mira_tutor *mira_tutor_new(void);
MIRA_API void mira_tutor_free(mira_tutor *tutor);

/* Let the thread give lessons, in order, after those before; returns at once. Until `wait` returns
 * the lessons have to live and no learner may be touched. */
MIRA_API void mira_teach(mira_tutor *tutor, const mira_lesson *lessons, int32_t count);
MIRA_API void mira_tutor_wait(mira_tutor *tutor);

enum { MIRA_LRU, MIRA_LFU, MIRA_RANDOM, MIRA_BELADY, MIRA_HEAT, MIRA_LEARNED };

typedef struct {
    int32_t kind;
    uint32_t seed;                                   /* RANDOM */
    double decay;                                    /* LFU: a token; HEAT: 100 ms */
    double token_seconds, threshold, window_seconds; /* HEAT */
    mira_learner *learner;                           /* LEARNED */
} mira_rule;

/* Replay from a cold cache. hits[tokens, layers, top] gets 1 for every expert that was resident
 * when asked for; entered[layers] counts those brought in to stay; resident[tokens, layers, experts],
 * unless NULL, is who was there before the token. MIRA_NO_MEMORY or MIRA_OK. */
MIRA_API int mira_replay(const mira_routing *routing, const mira_cache *cache,
                         const mira_rule *rule, uint8_t *hits, int64_t *entered,
                         uint8_t *resident);

/* The heat score of a runtime. All memory is the caller's. */
typedef struct {
    int32_t layers, experts;
    double decay;          /* what 100 ms leave */
    double now, threshold; /* seconds; of the scores */
    double stamp;          /* number of the step */
    double *score, *since; /* [layers][experts], as all: when decay began to run */
    int64_t *counts;       /* tokens of the window */
    double *used;          /* stamp of the last use */
    double *worth;         /* the score below the threshold, else more, by the last use */
} mira_heat;

/* The heat of what was used since the last time, whatever the policy; arrays of `cells`. */
typedef struct {
    int64_t cells;
    double decay, now;          /* as in mira_heat, as are the next three */
    double *score, *since;
    int64_t *counts;
    const int64_t *activations; /* tokens, in all */
    int64_t *felt;              /* those that the heat knows of */
} mira_warming;

/* Warm up, all at one moment. */
MIRA_API void mira_warm(const mira_warming *warming);

/* A layer's step activates ids[count], which may come several times: warm them up, and set the worth of
 * the layer, at the first layer of all. MIRA_BAD_EXPERT, and nothing done, or MIRA_OK. */
MIRA_API int mira_heat_record(mira_heat *heat, int32_t layer, const int64_t *ids, int32_t count);

enum { MIRA_MOST_EXPERTS = 1 << 16 };

enum { MIRA_HINTS = 9, MIRA_SOURCES = 4, MIRA_BINS = 20 };

/* A learner of which experts the next layer will want; predictor.c says how. Memory and lanes as in
 * mira_learner. */
typedef struct {
    int32_t layers, experts, lanes, top;
    int32_t ahead; /* layers between what is known and what is predicted; at least 1 */
    float weight_rate, table_rate;
    int64_t token;                /* of the stream; -1 before the first */
    int64_t begun_token, begun_lesson; /* whose scores are begun, as of which lesson */
    int32_t begins;               /* whether it begins a text */
    float *weights, *weight_sums; /* [HINTS] */
    float *table, *table_sums;    /* [layers][SOURCES][experts][lanes] */
    float *counts;                /* [layers][SOURCES][experts][lanes]: who (lane) followed whom */
    float *totals;                /* [layers][SOURCES][lanes] */
    float *averages;              /* [layers][SOURCES][lanes] */
    float *hints;                 /* [layers][HINTS][lanes] */
    float *scores;                /* [layers][lanes]: log-odds of a use */
    int64_t *lessons;             /* [1]: how often what is shared was changed */
    float *begun;                 /* [layers][lanes]: of those scores; their hints are in place */
    int64_t *scored;              /* [layers]: the token that a score is of */
    uint16_t *ids;                /* [2][layers][top]: of the last two tokens */
    float *scratch;               /* [2][lanes] */
} mira_predictor;

/* Begin a token; `starts`: it begins a text. Then set scores[layer] from what came before, and take in
 * what the layer chose: layers in order, predictions up to `ahead` before. With the last layer what all
 * of them chose is learned. */
MIRA_API void mira_begin(mira_predictor *predictor, int32_t starts);
MIRA_API void mira_predict(mira_predictor *predictor, int32_t layer);
MIRA_API void mira_confirm(mira_predictor *predictor, int32_t layer, const uint16_t *ids);

/* Take in what the layer chose, ids[top]. What is to be learned is left to a lesson, and so is to predict
 * what nobody asks about. MIRA_BAD_EXPERT, and nothing done, or MIRA_OK. */
int mira_follow(mira_predictor *predictor, int32_t layer, const int64_t *ids);

/* The probabilities of a layer by what has been taken in, as guess[experts]. */
void mira_foretell(mira_predictor *predictor, int32_t layer, double *guess);

/* Share of the different experts in ids[count] that are among as many likeliest by guess[experts]; of
 * equals the first. Ids that do not exist are passed over. */
MIRA_API double mira_recall(const double *guess, int32_t experts, const int64_t *ids,
                            int32_t count);

/* Who followed whom in the next layer, and at the next token. All memory is the caller's. */
enum { MIRA_BY_LAYER, MIRA_BY_TOKEN };
typedef struct {
    int32_t layers, experts, top;
    double most;       /* a row that sums to more fades by half */
    double of_layer;   /* weight of the layer before, where the token before is known too */
    float *tables[2];  /* [layers][experts before][experts after] */
    double *totals[2]; /* [layers][experts before]: sums of the rows */
} mira_chain;

/* One sequence on its tables. */
typedef struct {
    const mira_chain *chain;
    int64_t *ids;   /* [2][layers][top]: of this token, by `turn`, and of the one before */
    float *scratch; /* [2][experts] */
    int32_t turn, known; /* whether there is a token before */
} mira_walk;

/* Count that in each of some tokens the experts before[tokens, top] were followed by after[tokens, top]
 * at a layer. MIRA_BAD_EXPERT, and nothing done, or MIRA_OK. */
MIRA_API int mira_markov_count(const mira_chain *chain, int32_t kind, int32_t layer,
                               const int64_t *before, const int64_t *after, int32_t tokens);

/* Take in what a layer chose, ids[top]; what is to be learned when all have is left to a lesson.
 * MIRA_BAD_EXPERT, and nothing done, or MIRA_OK. */
int mira_markov_follow(mira_walk *walk, int32_t layer, const int64_t *ids);

/* What follows the layer taken in last so many layers `ahead`, as guess[experts]. */
void mira_markov_guess(const mira_walk *walk, int32_t layer, int32_t ahead, double *guess);

/* Who tells of the next layers of a step that is one new token of some sequences, some rows of it: of each
 * a walk, or predictors, the first of them one layer ahead and each further one layer more. */
typedef struct {
    int32_t kind;            /* MIRA_PREDICTOR or MIRA_WALK */
    int32_t sequences, each; /* how many, and how many pupils of each */
    int32_t top, experts;
    void *const *pupils;     /* [sequences][each] */
    const int32_t *rows;     /* [sequences]: of the step */
    double *guess;           /* [layers ahead][experts] */
    double *other;           /* [experts], scratch */
} mira_teller;

/* Take in what a layer chose, ids[rows, top]. MIRA_BAD_EXPERT, or MIRA_OK. */
MIRA_API int mira_teller_follow(const mira_teller *teller, int32_t layer, const int64_t *ids);

/* Set the guess of the layer so many `ahead` of the one taken in last: that any of the tokens uses an
 * expert. */
MIRA_API void mira_teller_tell(const mira_teller *teller, int32_t layer, int32_t ahead);

/* What a router asked early says. */
typedef struct {
    const int64_t *ids;   /* [tokens, top]: whom it chooses */
    const float *weights; /* [tokens, top]; NULL: all alike */
    double *guess;        /* [experts] */
    int32_t tokens, top, experts;
} mira_foretold;

/* Set guess: 1/2 to 1 for whom it chooses, by weight, for any of the tokens. Ids that do not exist are
 * passed over. */
MIRA_API void mira_lookahead(const mira_foretold *told);

/* Over a recording: probabilities[tokens, layers, experts] of each expert as known `ahead` layers
 * before, of the first `ahead` layers at the beginning of the token; NULL: learn only. */
MIRA_API void mira_foresee(const mira_routing *routing, mira_predictor *predictor,
                           float *probabilities);

#endif
