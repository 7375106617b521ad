/* The second half of mira_learn. */
#ifndef MIRACTL_LEARNER_H
#define MIRACTL_LEARNER_H

#include "brain.h"

/* Learn from the token `window` before, in all layers, now that the last one is rated. */
void learner_update(mira_learner *learner);

#endif
