/* Rotary positions: each half of a head's vector turned against the other. */
#include "small.h"

void turn(const float *x, const float *cos, const float *sin, int dim, float *y)
{
    int half = dim / 2;
    for (int i = 0; i < half; i++) {
        float left = x[i], right = x[half + i];
        y[i] = left * cos[i] + -right * sin[i];
        y[half + i] = right * cos[half + i] + left * sin[half + i];
    }
}

void mira_rotate(const mira_heads *at, const float *x, const float *cos, const float *sin, float *y)
{
    for (int64_t row = 0; row < at->batch * at->heads * at->tokens; row++) {
        int64_t t = row % at->tokens, h = row / at->tokens % at->heads;
        int64_t b = row / at->tokens / at->heads;
        int64_t start = b * at->batch_stride + h * at->head_stride + t * at->token_stride;
        int64_t angle = b * at->angle_stride + t * at->dim;
        turn(x + start, cos + angle, sin + angle, (int)at->dim, y + start);
    }
}
