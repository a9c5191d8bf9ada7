/* list.h - intrusive doubly linked rings. A head and a node are the same struct; a node that is in
 * no list is linked to itself, so that removing it twice is harmless. */
#ifndef LLMD_LIST_H
#define LLMD_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev, *next;
};

#define LIST_OF(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))
/* The body must not remove nodes. */
#define LIST_EACH(at, head) for (struct list *at = (head)->next; at != (head); at = at->next)

static inline void list_init(struct list *l)
{
    l->prev = l->next = l;
}

static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

/* Puts the free node in front of `at`; with `at` a head that is the end of the list. */
static inline void list_insert_before(struct list *at, struct list *node)
{
    node->prev = at->prev;
    node->next = at;
    at->prev->next = node;
    at->prev = node;
}

static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

#endif
