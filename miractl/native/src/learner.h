/* What is left to lessons. */
#ifndef MIRACTL_LEARNER_H
#define MIRACTL_LEARNER_H

#include "brain.h"

/* Learn from the token `window` before, in all layers, now that the last one is rated. */
void learner_update(mira_learner *learner);

/* Learn from the last token in all layers. */
void predictor_update(mira_predictor *predictor);
void walk_update(mira_walk *walk);

#endif
