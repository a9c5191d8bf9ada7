/* bell.c - waiting in somebody else's loop: a descriptor that becomes readable, and the rule by
 * which the client announces that it waits there.
 *
 *   bell          datagrams from the engine, a byte each, after publishes while cq_wait is BELL
 *   socket        its end is the engine's end, or an eviction
 *   descriptor    an epoll instance over both, made by the first llm_fd. After llm_resume it stays
 *                 when the engine goes: a timer, and then the new socket, are in it instead
 *
 *           llm_arm                        llm_poll
 *   NONE --------------> armed (BELL) ----------------> NONE
 *
 * Invariants
 *   1. A round is: empty the bell, cq_wait = BELL, C2, recheck, poll, cq_wait = NONE, empty the
 *      ring. What is emptied before the recheck was published before it, so the recheck sees it;
 *      emptied later it would be lost.
 *   2. A byte may come late, after the client has disarmed: the descriptor is then readable for
 *      nothing, once.
 *   3. An armed client that finds nothing in the ring asks the socket: so a readable descriptor is
 *      always explained, by an event or by the end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "handle.h"

/* Bytes that the bell can hold are a few; an engine that sends without end is not followed. */
enum { BELL_BYTES_MAX = 64 };

void client_bell_empty(const struct llm_client *c)
{
    char byte;
    for (int i = 0; i < BELL_BYTES_MAX && recv(c->bell, &byte, 1, MSG_DONTWAIT) >= 0; i++)
        ;
}

int client_watch(const struct llm_client *c, int fd, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.fd = fd};
    if (c->descriptor < 0 || !epoll_ctl(c->descriptor, EPOLL_CTL_ADD, fd, &e))
        return 0;
    return -errno;
}

void client_unwatch(const struct llm_client *c, int fd)
{
    if (c->descriptor >= 0)
        epoll_ctl(c->descriptor, EPOLL_CTL_DEL, fd, NULL);
}

static int watch_all(struct llm_client *c)
{
    int rc = c->resume ? resume_watch(c) : 0;
    if (rc || c->socket < 0) /* the engine is away */
        return rc;
    rc = client_watch(c, c->bell, EPOLLIN);
    return rc ? rc : client_watch(c, c->socket, EPOLLIN | EPOLLRDHUP);
}

static int make_descriptor(struct llm_client *c)
{
    c->descriptor = epoll_create1(EPOLL_CLOEXEC);
    if (c->descriptor < 0)
        return -errno;
    int rc = watch_all(c);
    if (rc) {
        close(c->descriptor);
        c->descriptor = -1;
    }
    return rc;
}

int llm_fd(struct llm_client *c)
{
    int rc = c->descriptor < 0 ? make_descriptor(c) : 0;
    if (rc) {
        client_fail(c, rc, "no descriptor to wait on can be made: %s", llm_strerror(rc));
        return rc;
    }
    return c->descriptor;
}

/* The head goes out before C2: an engine that holds tokens for our room must not wait for us. */
int llm_arm(struct llm_client *c)
{
    uint32_t expected;
    if (resume_is_away(c) || resume_is_due(c))
        return client_ended(c) || resume_is_due(c);
    client_release_head(c);
    client_bell_empty(c);
    c->armed = ring_wait_begin(&c->ring, LLM_WAIT_BELL, &expected);
    return client_ended(c) || !c->armed;
}

bool client_disarm(struct llm_client *c)
{
    bool was = c->armed;
    if (was)
        ring_wait_end(&c->ring);
    c->armed = false;
    return was;
}
