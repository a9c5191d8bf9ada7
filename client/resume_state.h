/* resume_state.h - what record.c and resume.c share: the list of records, and where the handle
 * stands on its way to a new engine. States: resume.h. */
#ifndef LLMD_CLIENT_RESUME_STATE_H
#define LLMD_CLIENT_RESUME_STATE_H

#include "handle.h"

enum link_state { LINK_UP, LINK_LOST, LINK_DOWN, LINK_GREETED };

struct resume {
    enum link_state state;
    unsigned flags; /* enum llm_resume_flags */
    uint64_t timeout_ns;
    struct record *first, *last; /* in order of submission */
    uint32_t n_unsent, n_over;   /* records that have any */

    /* away */
    char how[32];            /* "died" or "was stopped" */
    uint64_t give_up_ns;     /* CLOCK_MONOTONIC, as all times here */
    uint64_t due_ns;         /* DOWN: the next knock; GREETED: the answer comes before */
    uint64_t pause_ns;       /* before the next knock but one */
    bool late;               /* the time was over, and a knock was heard all the same */
    int timer;               /* a timerfd at due_ns, for who waits on llm_fd */
    struct llm_client *next; /* a handle in which the new connection is made */
    char why[640];           /* why the last try failed */

    struct mapping old_up; /* an llm_reserve of the engine before lies there */
};

void records_append(struct resume *s, struct record *r);
void records_remove(struct resume *s, struct record *r);

#endif
