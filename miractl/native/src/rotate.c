/* Rotary positions: each half of a head's vector turned against the other. */
#include "miractl_native.h"

void mira_rotate(const mira_heads *at, const float *x, const float *cos, const float *sin, float *y)
{
    int half = at->dim / 2;
    for (int64_t row = 0; row < at->batch * at->heads * at->tokens; row++) {
        int64_t t = row % at->tokens, h = row / at->tokens % at->heads;
        int64_t b = row / at->tokens / at->heads;
        int64_t start = b * at->batch_stride + h * at->head_stride + t * at->token_stride;
        int64_t angle = b * at->angle_stride + t * at->dim;
        const float *left = x + start, *right = left + half;
        const float *c = cos + angle, *s = sin + angle;
        for (int i = 0; i < half; i++) {
            y[start + i] = left[i] * c[i] + -right[i] * s[i];
            y[start + half + i] = right[i] * c[half + i] + left[i] * s[half + i];
        }
    }
}
