/* Float32 vectors made one number, in sixteen partial ones: the same bits on every processor.
 *
 * Compilers make registers of vectors, however wide these are; of arrays of sums only some do.
 */
#ifndef MIRACTL_LANES_H
#define MIRACTL_LANES_H

#include <string.h>

#include "kernels.h"

#define LANES 16

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t lanes_mask __attribute__((vector_size(4 * LANES)));
typedef float lanes8 __attribute__((vector_size(32)));
typedef float lanes4 __attribute__((vector_size(16)));

/* Compiled three times, and chosen at load, where a compiler does that. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

#define LANES_AT(x, v) memcpy(&(v), x, sizeof(v))

/* The sum of all lanes, halves onto halves. */
#define LANES_SUM(v, sum) \
    do { \
        lanes8 a8, b8; \
        lanes4 a4, b4; \
        memcpy(&a8, &(v), 32); \
        memcpy(&b8, (const char *)&(v) + 32, 32); \
        a8 += b8; \
        memcpy(&a4, &a8, 16); \
        memcpy(&b4, (const char *)&a8 + 16, 16); \
        a4 += b4; \
        sum = (a4[0] + a4[2]) + (a4[1] + a4[3]); \
    } while (0)

INLINE float lanes_product(const float *x, const float *y, int n)
{
    lanes part = {0}, a, b;
    float sum;
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        LANES_AT(x + i, a);
        LANES_AT(y + i, b);
        part += a * b;
    }
    LANES_SUM(part, sum);
    for (; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* The same of one x and four y's, `stride` apart. */
INLINE void lanes_products(const float *x, const float *y, int64_t stride, int n, float *sums)
{
    lanes p0 = {0}, p1 = {0}, p2 = {0}, p3 = {0}, a, b;
    const float *y1 = y + stride, *y2 = y1 + stride, *y3 = y2 + stride;
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        LANES_AT(x + i, a);
        LANES_AT(y + i, b);
        p0 += a * b;
        LANES_AT(y1 + i, b);
        p1 += a * b;
        LANES_AT(y2 + i, b);
        p2 += a * b;
        LANES_AT(y3 + i, b);
        p3 += a * b;
    }
    LANES_SUM(p0, sums[0]);
    LANES_SUM(p1, sums[1]);
    LANES_SUM(p2, sums[2]);
    LANES_SUM(p3, sums[3]);
    for (; i < n; i++) {
        sums[0] += x[i] * y[i];
        sums[1] += x[i] * y1[i];
        sums[2] += x[i] * y2[i];
        sums[3] += x[i] * y3[i];
    }
}

INLINE float lanes_total(const float *x, int n)
{
    lanes part = {0}, a;
    float sum;
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        LANES_AT(x + i, a);
        part += a;
    }
    LANES_SUM(part, sum);
    for (; i < n; i++)
        sum += x[i];
    return sum;
}

/* The largest of `least` and x[n]. */
INLINE float lanes_largest(float least, const float *x, int n)
{
    lanes part = {0}, a;
    int i = 0;
    part += least;
    for (; i + LANES <= n; i += LANES) {
        LANES_AT(x + i, a);
        lanes_mask greater = a > part;
        part = (lanes)(((lanes_mask)a & greater) | ((lanes_mask)part & ~greater));
    }
    for (int j = 0; j < LANES; j++)
        least = part[j] > least ? part[j] : least;
    for (; i < n; i++)
        least = x[i] > least ? x[i] : least;
    return least;
}

#endif
