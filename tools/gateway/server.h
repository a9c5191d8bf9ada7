/* server.h - listening sockets and their connections: how many, and how long they may take.
 *
 * libmicrohttpd closes what is silent for idle_timeout_s. What drips is not silent: a request that has
 * not come within read_timeout_s is cut off here, by server_look.
 */
#ifndef LLMD_GATEWAY_SERVER_H
#define LLMD_GATEWAY_SERVER_H

#include "gateway.h"

struct server;
struct connection;

/* "HOST:PORT", "[v6]:PORT" with a port up to 65535, or "unix:/path" with one that fits a socket. */
bool server_address_ok(const char *listen);
/* Listens on such an address. 0, or negative after a message. */
int server_start(struct server **out, struct gateway *g, const char *listen);
/* Where it listens, with the port that it got: "http://127.0.0.1:8000", "unix:/path". */
const char *server_address(const struct server *s);
/* No new connections. */
void server_quiesce(struct server *s);
/* To be called about once a second. */
void server_look(struct server *s);
/* Whether something has come on a connection that is not being answered, and was not read yet. */
bool server_unread(struct server *s);
/* All calls have ended before. */
void server_stop(struct server *s);

/* The request has come whole; its answer is over. NULL is allowed. */
void connection_received(struct connection *c);
void connection_answered(struct connection *c);

#endif
