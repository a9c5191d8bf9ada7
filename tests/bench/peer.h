/* peer.h - llama.cpp, as tests/bench/peer.sh builds it: its speed by llama-batched-bench, which
 * neither samples nor passes through a server, and the memory of its server.
 *
 * Each measurement is a process of its own, which has ended when the call returns. Functions return
 * 0 or a negative code with a sentence; the caller goes on without that figure.
 */
#ifndef LLMD_BENCH_PEER_H
#define LLMD_BENCH_PEER_H

#include "peer_output.h"

struct peer {
    const char *folder; /* of its programs */
    unsigned threads;
};

/* -ENOENT where a program is missing. */
int peer_check(const struct peer *p, struct fail *f);

int peer_measure(const struct peer *p, const char *model, const struct peer_load *load,
                 struct peer_speed *out, struct fail *f);

/* Resident bytes of llama-server with a context of so many tokens, after it has served a prompt. */
int peer_resident(const struct peer *p, const char *model, uint32_t context, uint64_t *rss,
                  struct fail *f);

#endif
