/* notify.h - tells the service manager how the engine fares: sd_notify(3)'s protocol, spoken
 * directly.
 *
 * A datagram of VARIABLE=VALUE lines to the socket that $NOTIFY_SOCKET names. Without that variable
 * nothing is sent and everything here succeeds.
 *
 * The watchdog ($WATCHDOG_USEC) is tied to progress: a sign of life is sent each half of its
 * period, but only if within the period a step was completed or there was nothing to do. It is
 * given from the io loop's tick, so a step that hangs ends it too.
 *
 * Sources: sd_notify(3), sd_watchdog_enabled(3), systemd.service(5).
 */
#ifndef LLMD_NOTIFY_H
#define LLMD_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "../gpu/fail.h"

struct notify {
    int fd;               /* connected; -1: nobody wants to know */
    uint64_t watchdog_ns; /* 0: no watchdog */
    uint64_t steps;       /* at the last tick */
    uint64_t progress_ns; /* when a step was last seen completed, or nothing to do */
    uint64_t sent_ns;     /* the last sign of life */
};

/* Reads the environment, and takes the variables out of it. -EINVAL, -errno: the socket is named
 * wrongly or nobody has it. */
int notify_open(struct notify *n, struct fail *f);
void notify_close(struct notify *n);

/* Sends without waiting; a manager that does not listen misses it. */
void notify_send(const struct notify *n, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* How often notify_tick must be called: half the watchdog's period, but at most `most_ns`. */
uint64_t notify_period_ns(const struct notify *n, uint64_t most_ns);

/* The watchdog's clock starts. */
void notify_begin(struct notify *n, uint64_t now_ns);
/* `steps`: completed so far. `busy`: there is work. True if a sign of life was sent. */
bool notify_tick(struct notify *n, uint64_t steps, bool busy, uint64_t now_ns);

#endif
