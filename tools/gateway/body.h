/* body.h - a request's body: bytes of a stranger to a JSON object. */
#ifndef LLMD_GATEWAY_BODY_H
#define LLMD_GATEWAY_BODY_H

#include <jansson.h>

#include "problem.h"

enum { BODY_DEPTH_MAX = 128 }; /* arrays and objects in each other */

/* A new reference; NULL after a problem (400). Refused: what is no UTF-8, nests deeper than
 * BODY_DEPTH_MAX, is no JSON, or is no object. */
json_t *body_parse(const char *text, size_t bytes, struct problem *p);

#endif
