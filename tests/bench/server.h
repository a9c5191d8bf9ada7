/* server.h - other servers that a benchmark starts on this machine and asks over HTTP. They die
 * with the benchmark.
 *
 *     int port = server_port();
 *     pid_t pid = server_spawn((const char *const[]){path, "--port", text, NULL});
 *     if (!server_ready(pid, port))
 *         ...                             // it ended, or did not answer within a minute
 *     ...
 *     server_end(pid);
 */
#ifndef LLMD_BENCH_SERVER_H
#define LLMD_BENCH_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

int server_port(void); /* of loopback, free a moment ago */
pid_t server_spawn(const char *const argv[]);
bool server_ready(pid_t pid, int port); /* GET /health is answered with 200 */
void server_end(pid_t pid);             /* kills it; <= 0 is allowed */

int server_connect(int port); /* a blocking socket, or -1 */

/* One POST on a connection of its own; the answer's head and body go to `answer`, NUL-terminated,
 * cut at `size`. Returns the HTTP status, or -1. */
int server_post(int port, const char *path, const char *body, char *answer, size_t size);

#endif
