/* routes.h - the handlers of routes.c's table: each fills x->reply or starts x->call. 0, or -1 after
 * x->problem. */
#ifndef LLMD_GATEWAY_ROUTES_H
#define LLMD_GATEWAY_ROUTES_H

#include "http.h"

/* generate.c */
int route_chat(struct exchange *x);
int route_completion(struct exchange *x);
/* text.c */
int route_tokenize(struct exchange *x);
int route_detokenize(struct exchange *x);
/* info.c */
int route_models(struct exchange *x);
int route_model(struct exchange *x);
int route_health(struct exchange *x);
int route_ready(struct exchange *x);
int route_live(struct exchange *x);
int route_metrics(struct exchange *x);
int route_version(struct exchange *x);
int route_page(struct exchange *x);

#endif
