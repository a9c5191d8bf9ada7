/* engine_rig.h - the scheduling core on a bench: a fake backend under it, arrays in place of rings
 * above it. Every completion is checked as it comes (order of positions, one final, room kept);
 * what a request should have brought is computed from the fake's model alone. */
#ifndef LLMD_TESTS_ENGINE_RIG_H
#define LLMD_TESTS_ENGINE_RIG_H

/* before cmocka.h, whose fail() is a macro */
#include "../../appliance/engine.h"
#include "../../shm/board.h"
#include "fake_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { RIG_CLIENTS = 8, RIG_STREAMS = 1024, RIG_TOKENS = 640 };

#define RIG_ROOM_ENDLESS UINT32_MAX

/* What one choice of one entry has brought so far. */
struct rig_stream {
    uint32_t client, choice;
    uint64_t user_data;
    uint8_t op;
    bool logprobs;
    uint32_t n, n_prompt, puts;
    int32_t tokens[RIG_TOKENS];
    float logprob[RIG_TOKENS];
    uint32_t finals;
    struct llm_cqe final;
    struct llm_result result;
};

struct rig {
    struct engine_config config; /* to be changed between rig_init and rig_open */
    struct fake_gpu gpu;
    struct engine *engine;
    struct llm_board *board;
    uint32_t room[RIG_CLIENTS]; /* token entries that fit */
    bool gone[RIG_CLIENTS];     /* dropped: nothing may come any more */
    struct rig_stream *streams; /* (RIG_STREAMS) in order of submission */
    uint32_t n_streams;
    uint64_t puts; /* completions of all kinds */
    uint64_t last_put_of[RIG_CLIENTS];
};

/* Defaults: 512 tokens, 8 sequences, 64 rows, no chunk cap, 64 requests, 256 blocks, 97 tokens in
 * the vocabulary, of which 5 and 11 end a generation. */
void rig_init(struct rig *r);
void rig_open(struct rig *r);
/* Checks that no block is missing once nothing runs or waits, and frees all. */
void rig_close(struct rig *r);

struct llm_sqe rig_generate(uint64_t user_data, uint32_t n_prompt, uint32_t max_tokens);
struct llm_sqe rig_score(uint64_t user_data, uint32_t n_prompt);
struct llm_sqe rig_cancel(uint64_t user_data, uint64_t target);

/* A prompt that depends on `seed` alone. */
void rig_prompt(const struct rig *r, uint64_t seed, int32_t *tokens, uint32_t n);

/* Submits as the io loop does. False if the engine cannot take it now. */
bool rig_submit(struct rig *r, uint32_t client, const struct llm_sqe *q, const int32_t *tokens);
/* The same with rig_prompt(user_data); must be taken. */
void rig_send(struct rig *r, uint32_t client, const struct llm_sqe *q);

void rig_step(struct rig *r);
void rig_run(struct rig *r); /* until there is no work */
void rig_drop(struct rig *r, uint32_t client);

struct rig_stream *rig_stream(struct rig *r, uint32_t client, uint64_t user_data, uint32_t choice);

/* The stream is what the request should have brought: every token and log-probability, the finish,
 * the counts. */
void rig_expect_whole(struct rig *r, uint32_t client, const struct llm_sqe *q);
/* What there is of it is a right beginning (cancelled, or not at its end). */
void rig_expect_prefix(struct rig *r, uint32_t client, const struct llm_sqe *q);
/* It was refused, every choice of it, with that code and number. */
void rig_expect_refused(struct rig *r, uint32_t client, const struct llm_sqe *q, int32_t code,
                        uint32_t fits);

static inline uint64_t rig_figure(const order_u64 *p)
{
    return order_read64(p);
}

#endif
