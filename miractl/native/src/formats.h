/* Layout of the formats: where a panel's codes and scales are. See docs/formats.md. */
#ifndef MIRACTL_FORMATS_H
#define MIRACTL_FORMATS_H

#include <string.h>

#include "miractl_native.h"

#define PANEL 8 /* rows that are stored, and computed, together */

/* I4K, the scales of a panel: float32 D[8], E[8], then per group uint8 scale[8], offset[8]. */
#define I4K_HEAD (2 * PANEL * sizeof(float))

static inline size_t panel_code_bytes(const mira_matrix *m)
{
    size_t codes = (size_t)PANEL * m->columns;
    return m->format == MIRA_I8 ? codes : codes / 2;
}

static inline size_t panel_scale_bytes(const mira_matrix *m)
{
    size_t groups = m->columns / m->group;
    return m->format == MIRA_I8 ? groups * PANEL * sizeof(uint16_t) : I4K_HEAD + groups * 2 * PANEL;
}

/* All panels' codes come first, then all panels' scales. */
static inline size_t panel_codes_at(const mira_matrix *m, int panel)
{
    return panel * panel_code_bytes(m);
}

static inline size_t panel_scales_at(const mira_matrix *m, int panel)
{
    return m->rows / PANEL * panel_code_bytes(m) + panel * panel_scale_bytes(m);
}

/* I8: byte of code (row r of the panel, column k). I4K: byte of the code, in its low half for
 * k % 8 < 4, else in its high half. */
static inline size_t i8_code_at(int r, int k)
{
    return (size_t)(k / 4) * 32 + r * 4 + k % 4;
}

static inline size_t i4k_code_at(int r, int k)
{
    return (size_t)(k / 8) * 32 + r * 4 + k % 4;
}

static inline int i4k_code_shift(int k)
{
    return k & 4;
}

static inline mira_matrix gate_up_matrix(const mira_expert *e)
{
    return (mira_matrix){e->format, e->group, e->gated ? 2 * e->inner : e->inner, e->hidden};
}

static inline mira_matrix down_matrix(const mira_expert *e)
{
    return (mira_matrix){e->format, e->group, e->hidden, e->inner};
}

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

float half_to_float(uint16_t half);
uint16_t float_to_half(float value); /* nearest, ties to even, at most the largest finite half */

#endif
