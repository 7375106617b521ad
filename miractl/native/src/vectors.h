/* Vectors of floats, for learning. Results do not depend on the processor.
 *
 * Lengths are multiples of 8 where a comment says so.
 */
#ifndef MIRACTL_VECTORS_H
#define MIRACTL_VECTORS_H

#include "brain.h"

/* x = ln(x + 0.004) + 2, to about 1e-6; x from 0. */
void vector_log(float *restrict x, int32_t n);

/* The same of what is not near 0: x = ln(x). */
void vector_ln(float *restrict x, int32_t n);

/* The odds that anything happens of what had odds y, and of another thing of log-odds x. */
void vector_join_odds(float *restrict y, const float *restrict x, int32_t n);

/* x = 1 / (1 + exp(-x)) - y. */
void vector_residuals(float *restrict x, const float *restrict y, int32_t n);

/* Rows one after the other; n is a multiple of 8. */
void vector_add_rows(float *restrict y, const float *const *rows, int32_t count, int32_t n);
void vector_add_scaled_rows(float *restrict y, const float *const *rows, const float *factors,
                            int32_t count, int32_t n);
void vector_add(float *restrict y, const float *restrict x, int32_t n);
void vector_add_scaled(float *restrict y, const float *restrict x, float factor, int32_t n);

/* One AdaGrad step against the gradient. */
void vector_descend(float *restrict x, float *restrict sums, const float *restrict gradient,
                    float rate, int32_t n);

/* In eight partial sums; n is a multiple of 8. */
float vector_product(const float *restrict x, const float *restrict y, int32_t n);

#endif
