/* control_server.h - the door: the instance's lock, its socket, and what is said there before
 * somebody is a client.
 *
 * Owns the lock file and the listening socket, and the connections that have not said HELLO yet (at
 * most CONTROL_KNOCKS; when one more comes the oldest is shut out). The loop polls the descriptors
 * and tells what became readable; nothing here blocks.
 *
 * Invariants
 *   1. The lock is held for the life of the process; only its owner creates or removes the socket
 *      and the board of that name.
 *   2. A connection is heard once: HELLO, then it is a client or closed. It has
 *      CONTROL_HELLO_NS for that.
 *   3. No descriptor that a client sends is ever installed.
 */
#ifndef LLMD_CONTROL_SERVER_H
#define LLMD_CONTROL_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "../gpu/fail.h"
#include "../shm/control.h"

enum { CONTROL_KNOCKS = 32 };
#define CONTROL_HELLO_NS 5000000000ull

/* A connection that has not said who it is. */
struct knock {
    int fd; /* -1: the slot is free */
    uint32_t generation;
    bool armed;   /* the loop's poll on fd has not completed; set by the loop */
    bool closing; /* shut: is closed when that poll completes */
    bool waits;   /* it spoke while the door was shut: is to be heard; set by the loop */
    uint64_t since_ns;
};

struct control_server {
    int lock_fd, listen_fd;                /* -1: none */
    char lock_path[256], socket_path[108]; /* as long as a socket address allows */
    struct knock knock[CONTROL_KNOCKS];
};

void control_server_init(struct control_server *s);

/* Makes the runtime directory if need be and takes the lock. -EBUSY names the process that holds
 * it. */
int control_lock(struct control_server *s, const char *instance, struct fail *f);

/* Removes a stale socket and listens. The lock is held. */
int control_listen(struct control_server *s, struct fail *f);

/* Takes one waiting connection into a knock slot and returns its index. -EAGAIN: nobody waits;
 * -EBUSY: no slot can be had before a poll has completed; else -errno (-EMFILE ...). */
int control_accept(struct control_server *s, uint64_t now_ns);

/* Index of a knock that has been silent for too long, or -1. */
int control_overdue(const struct control_server *s, uint64_t now_ns);

/* Reads the HELLO of a knock whose socket is readable. 0; -EAGAIN: nothing there after all;
 * LLM_EPROTO and others: close it. With LLM_EPROTO and a non-empty refusal->text, the refusal
 * should be sent. */
int control_hear(struct control_server *s, uint32_t knock, struct llm_hello *hello,
                 struct llm_reject *refusal);

/* The poll on a knock has completed. False: it was shut meanwhile and is closed now. */
bool control_polled(struct control_server *s, uint32_t knock);

/* Takes the descriptor out of the knock, on which no poll is armed: the caller owns it now. */
int control_take(struct control_server *s, uint32_t knock);
/* Shuts the connection: the other side sees its end at once, an armed poll completes. */
void control_shut(struct control_server *s, uint32_t knock);

/* Sends REJECT (the socket stays the caller's). */
void control_refuse(int socket, const struct llm_reject *refusal);

/* What a client asked for, made whole: defaults for zeros, powers of two, whole pages; or a refusal
 * when it is out of range. */
struct control_grant {
    uint32_t sq_entries, cq_entries, arena_bytes, max_inflight;
    uint32_t top; /* candidates of a token */
};
bool control_grant(const struct llm_hello *hello, struct control_grant *grant,
                   struct llm_reject *refusal);

/* Stops listening and closes every knock; the loop polls no more. */
void control_close(struct control_server *s);
/* Removes the lock file and lets the lock go. Last of all. */
void control_unlock(struct control_server *s);

#endif
