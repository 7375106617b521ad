#include "vectors.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

#define LANES 8 /* partial sums of a reduction */
#define MOST_ODDS 1e24f /* times e^30 it is still a number */

static inline float natural_log(float value)
{
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    int32_t exponent = (bits - 0x3f3504f3) >> 23; /* mantissas from sqrt(1/2) to sqrt(2) */
    bits -= exponent * (1 << 23);
    memcpy(&value, &bits, sizeof bits);
    float m = value - 1, square = m * m;
    float p = 7.0376836292e-2f;
    p = p * m + -1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m + -1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m + -1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m + -2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    float ln = m + (p * m * square - 0.5f * square);
    return (float)exponent * 0.69314718056f + ln;
}

/* e^v, of v from -30 to 30. */
static inline float power_of_e(float v)
{
    const float round = 12582912.0f; /* adding it leaves no fraction */
    v = v < -30 ? -30 : v;
    v = v > 30 ? 30 : v;
    float whole = v * 1.44269504089f + round - round;
    float r = v - whole * 0.693359375f;
    r = r - whole * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1;
    int32_t bits = ((int32_t)whole + 127) * (1 << 23);
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

WIDE void vector_log(float *restrict x, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        x[i] = natural_log(x[i] + 0.004f) + 2;
}

WIDE void vector_ln(float *restrict x, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        x[i] = natural_log(x[i]);
}

WIDE void vector_join_odds(float *restrict y, const float *restrict x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        float odds = power_of_e(x[i]), any = y[i] + odds + y[i] * odds;
        y[i] = any < MOST_ODDS ? any : MOST_ODDS;
    }
}

WIDE void vector_residuals(float *restrict x, const float *restrict y, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        x[i] = 1 / (1 + power_of_e(-x[i])) - y[i];
}

WIDE void vector_add_scaled(float *restrict y, const float *restrict x, float factor, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] += factor * x[i];
}

/* Eight columns; GCC and clang have the operations. */
typedef float columns __attribute__((vector_size(32), aligned(4), may_alias));

/* Rows are added to y in order, column by column; the sums of some columns are waited for together. */
#define ADD_ROWS(term)                                                                             \
    do {                                                                                           \
        int32_t i = 0;                                                                             \
        for (; i + 4 * LANES <= n; i += 4 * LANES) {                                               \
            columns *sum = (columns *)(y + i), a = sum[0], b = sum[1], c = sum[2], d = sum[3];     \
            for (int32_t r = 0; r < count; r++) {                                                  \
                const columns *row = (const columns *)(rows[r] + i);                               \
                a += term(row[0]);                                                                 \
                b += term(row[1]);                                                                 \
                c += term(row[2]);                                                                 \
                d += term(row[3]);                                                                 \
            }                                                                                      \
            sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;                                        \
        }                                                                                          \
        for (; i < n; i += LANES) {                                                                \
            columns *sum = (columns *)(y + i), a = *sum;                                           \
            for (int32_t r = 0; r < count; r++)                                                    \
                a += term(*(const columns *)(rows[r] + i));                                        \
            *sum = a;                                                                              \
        }                                                                                          \
    } while (0)

WIDE void vector_add_rows(float *restrict y, const float *const *rows, int32_t count, int32_t n)
{
#define PLAIN(x) (x)
    ADD_ROWS(PLAIN);
}

WIDE void vector_add_scaled_rows(float *restrict y, const float *const *rows, const float *factors,
                                 int32_t count, int32_t n)
{
#define SCALED(x) (factors[r] * (x))
    ADD_ROWS(SCALED);
}

WIDE void vector_add(float *restrict y, const float *restrict x, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] += x[i];
}

WIDE void vector_descend(float *restrict x, float *restrict sums, const float *restrict gradient,
                         float rate, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        float g = gradient[i];
        sums[i] += g * g;
        x[i] -= rate * g / sqrtf(sums[i]);
    }
}

WIDE float vector_product(const float *restrict x, const float *restrict y, int32_t n)
{
    float part[LANES] = {0}, sum = 0;
    for (int32_t i = 0; i < n; i += LANES)
        for (int32_t j = 0; j < LANES; j++)
            part[j] += x[i + j] * y[i + j];
    for (int32_t j = 0; j < LANES; j++)
        sum += part[j];
    return sum;
}
