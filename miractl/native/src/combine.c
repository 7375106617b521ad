/* Sums: of a token's experts, weighted, in the order of k; and of what they are added to. */
#include "miractl_native.h"

void mira_combine(const float *parts, const int64_t *place, const float *weights, int32_t tokens,
                  int32_t top, int32_t width, float *y)
{
    for (int32_t t = 0; t < tokens; t++, y += width, place += top, weights += top)
        for (int32_t k = 0; k < top; k++) {
            const float *part = parts + (size_t)place[k] * width;
            if (k == 0)
                for (int32_t n = 0; n < width; n++)
                    y[n] = weights[0] * part[n];
            else
                for (int32_t n = 0; n < width; n++)
                    y[n] = y[n] + weights[k] * part[n];
        }
}

void mira_add(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = y[i] + x[i];
}
