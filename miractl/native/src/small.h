/* Small operations of a token that are part of larger ones, too. */
#ifndef MIRACTL_SMALL_H
#define MIRACTL_SMALL_H

#include "miractl_native.h"

/* mira_rms_norm on this thread. */
void norm_rows(const mira_norm *norm, const float *x, int rows, float *y);

/* One vector of mira_rotate; y may be x. */
void turn(const float *x, const float *cos, const float *sin, int dim, float *y);

#endif
