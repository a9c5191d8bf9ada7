/* template_filter_attr.h - attribute paths of filters: "a.b.0" follows a, then b, then item 0. */
#ifndef LLMD_CLIENT_TEMPLATE_FILTER_ATTR_H
#define LLMD_CLIENT_TEMPLATE_FILTER_ATTR_H

#include "template_internal.h"

struct attr_path {
    struct list *parts;    /* strings and integers; none: the value itself */
    struct value fallback; /* in place of what is undefined, or V_MISSING */
    bool ignore_case;      /* strings at the end are lowered */
};

/* `attribute` and `fallback` may be absent. */
struct attr_path tpl_attr_path(struct tpl *t, struct value attribute, struct value fallback,
                               bool ignore_case);
struct value tpl_attr_follow(struct tpl *t, const struct attr_path *path, struct value v);

#endif
