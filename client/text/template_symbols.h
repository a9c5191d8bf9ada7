/* template_symbols.h - the names of scopes and the slots they get; for template_scope.c. */
#ifndef LLMD_CLIENT_TEMPLATE_SYMBOLS_H
#define LLMD_CLIENT_TEMPLATE_SYMBOLS_H

#include "template_internal.h"

/* ---- template_walk.c ---- */

typedef void tpl_visit(void *context, struct node *n);
void tpl_walk_all(const struct nodes *list, tpl_visit *visit, void *context);
bool tpl_walk_children(const struct node *n, tpl_visit *visit, void *context);

/* ---- template_symbols.c ---- */

/* The slots of a function: one a (level of scope, name). */
struct function_slots {
    struct function_slots *outer;
    uint16_t depth;
    struct slot_name {
        uint32_t level;
        const struct str *name;
    } * v; /* (n) */
    uint32_t n, room;
};

struct symbol {
    const struct str *name;
    uint16_t slot;
    uint8_t load; /* enum load_kind */
    bool stored;
};

struct symbols {
    struct symbols *outer;
    uint32_t level;
    struct function_slots *f;
    struct symbol *v; /* (n) */
    uint32_t n, room;
};

struct symbols *tpl_symbols_new(struct tpl *t, struct symbols *outer, struct function_slots *f);
struct function_slots *tpl_function_new(struct tpl *t, struct function_slots *outer);
/* The symbol that a name means in s, and whose it is; NULL if nobody knows it. */
struct symbol *tpl_symbol_find(struct tpl *t, struct symbols *s, const struct str *name,
                               struct symbols **owner);
/* Returns its slot. */
uint16_t tpl_symbol_parameter(struct tpl *t, struct symbols *s, const struct str *name);

/* Takes note of the names that a scope's own statements use and assign. n may be NULL. */
void tpl_look(struct tpl *t, struct symbols *s, const struct node *n);
void tpl_look_all(struct tpl *t, struct symbols *s, const struct nodes *list);
/* Of a target whose names are parameters of the scope. */
void tpl_look_parameters(struct tpl *t, struct symbols *s, const struct node *n);
/* Whether a body uses a name before it assigns it. */
bool tpl_uses(struct tpl *t, const struct nodes *body, const char *name);

#endif
