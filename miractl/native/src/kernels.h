/* What an instruction set offers: the same functions, computing the same bits. */
#ifndef MIRACTL_KERNELS_H
#define MIRACTL_KERNELS_H

#include "formats.h"

#define INLINE static inline __attribute__((always_inline))
#define MAX_TILE 8
#define FIT_BYTES 64

/* One token, in codes: int16 for I8 weights and int8 for I4K. */
typedef struct {
    const void *codes;   /* [columns] */
    const float *scale;  /* [columns / group] */
    const float *offset; /* [columns / group]: scale * sum of the group's codes */
} token;

/* A panel on as many tokens as the kernel is made for: y[t][r] for its eight rows. */
typedef void panel_kernel(const uint8_t *codes, const uint8_t *scales, int columns, const token *x,
                          float (*y)[PANEL]);

/* The combinations of format and group that have kernels. */
enum { I4K_32, I8_32, I8_64, I8_128, VARIANTS };

typedef struct {
    int tile;                               /* the most tokens of a panel kernel */
    panel_kernel *panel[VARIANTS][MAX_TILE]; /* [variant][tokens - 1] */
    /* x[columns] to codes; see rows.h */
    void (*quantize_token)(const float *x, int columns, int group, int format, void *codes,
                           float *scale, float *offset);
    /* gate[n] = hidden values of an expert, made in place; the biases may be NULL */
    void (*activate)(const mira_expert *e, float *gate, float *up, const float *gate_bias,
                     const float *up_bias, int n);
    /* eight rows of w to zeroed codes, and scales; returns MIRA_OK or MIRA_NOT_FINITE.
     * fits: FIT_BYTES of room a column group, aligned to 64 */
    int (*quantize_panel)(const mira_matrix *m, const float *w, uint8_t *codes, uint8_t *scales,
                          void *fits);
} isa;

extern const isa isa_scalar, isa_avx2, isa_vnni, isa_neon;

const isa *isa_in_use(void);

static inline int variant_of(const mira_matrix *m)
{
    if (m->format == MIRA_I4K)
        return I4K_32;
    return m->group == 32 ? I8_32 : m->group == 64 ? I8_64 : I8_128;
}

#endif
