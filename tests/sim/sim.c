/* sim.c - see sim.h: clients, their rings, and the loop that the engine's io loop stands for. */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "arrivals.h"
#include "device.h"
#include "invariants.h"
#include "random.h"

#define CANCEL_ID (1ull << 63) /* user_data of cancels: nobody looks at their answers */

/* One choice of a request that the engine has. */
struct stream {
    uint32_t sent;
    int32_t last; /* token */
    uint64_t last_ns, last_step;
    bool ended;
};

struct flight {
    uint32_t request;
    bool first; /* its first token came */
    struct stream streams[SIM_CHOICES];
};

struct ring {
    uint32_t head, tail; /* requests, or ARRIVALS_NONE */
    uint64_t pending_ns; /* since when the engine has looked at the head; 0: it did not yet */
};

struct sim {
    const struct sim_config *config;
    struct sim_result *result;
    struct arrivals arrivals;
    uint32_t n_arrived;
    uint64_t start_ns;
    struct device device;
    struct engine *engine;
    struct llm_board *board;
    struct invariants invariants;
    struct ring *rings;     /* (n_clients) */
    struct flight *flights; /* (max_requests) */
    uint32_t *free_flights; /* (n_free_flights) */
    uint32_t n_free_flights;
    uint32_t *cancels; /* (n_cancels) requests to be cancelled before the next step */
    uint32_t n_cancels;
    uint32_t n_ended;
    uint32_t swept; /* times: each begins with the next client */
};

static const struct sim_kind *kind_of(const struct sim *s, const struct request *r)
{
    return &s->config->kinds[r->kind];
}

static struct sim_kind_result *figures_of(struct sim *s, const struct request *r)
{
    return &s->result->kinds[r->kind];
}

/* ---- completions ---- */

static uint32_t sink_room(void *context, uint32_t client)
{
    (void)context;
    (void)client;
    return UINT32_MAX;
}

static void note_digest(struct sim *s, const struct llm_cqe *c)
{
    uint64_t what = (uint64_t)c->type << 48 ^ (uint64_t)c->position << 16 ^ c->choice ^
                    (uint64_t)(uint32_t)c->status << 24;
    s->result->digest = random_mix(s->result->digest ^ random_mix(c->user_data ^ what) ^
                                   random_mix(s->device.now_ns + (uint64_t)c->tokens[0]));
}

static void note_times(struct sim *s, const struct request *r, struct flight *f,
                       struct stream *stream)
{
    struct sim_kind_result *k = figures_of(s, r);
    uint64_t now_ns = s->device.now_ns;
    if (!f->first) {
        k->served++;
        histogram_add(&k->ttft, now_ns - s->start_ns - r->arrival_ns);
    }
    if (stream->sent)
        histogram_add(&k->gap, now_ns - stream->last_ns);
    f->first = true;
    stream->last_ns = now_ns;
}

static void check_token(struct sim *s, const struct request *r, struct stream *stream,
                        const struct llm_cqe *c, uint32_t i)
{
    uint32_t position = r->n_prompt - 1 + stream->sent;
    int32_t right = device_token(stream->last, position, c->choice, s->config->engine.vocab);
    if (kind_of(s, r)->op == LLM_OP_GENERATE && c->tokens[i] != right)
        invariants_broken(s->result, "request %llu: token %u is %d, not %d",
                          (unsigned long long)c->user_data, stream->sent, c->tokens[i], right);
    stream->last = c->tokens[i];
    stream->sent++;
}

static void want_cancel(struct sim *s, const struct request *r, const struct stream *stream)
{
    if (r->cancel_at && stream->sent == r->cancel_at)
        s->cancels[s->n_cancels++] = (uint32_t)(r - s->arrivals.requests);
}

static void take_tokens(struct sim *s, struct request *r, struct flight *f, const struct llm_cqe *c)
{
    struct stream *stream = &f->streams[c->choice];
    bool generates = kind_of(s, r)->op == LLM_OP_GENERATE;
    if (c->position != stream->sent)
        invariants_broken(s->result, "request %llu: token %u came where %u was next",
                          (unsigned long long)c->user_data, c->position, stream->sent);
    note_times(s, r, f, stream);
    for (uint32_t i = 0; i < c->count; i++)
        check_token(s, r, stream, c, i);
    figures_of(s, r)->output_tokens += c->count;
    if (!generates)
        return;
    invariants_drew(&s->invariants, stream->last_step);
    stream->last_step = s->invariants.step;
    want_cancel(s, r, stream);
}

static void count_end(struct sim *s, const struct request *r, const struct flight *f,
                      const struct llm_cqe *c)
{
    struct sim_kind_result *k = figures_of(s, r);
    s->n_ended++;
    if (c->status < 0 && c->finish == LLM_FINISH_REFUSED)
        k->refused++;
    else
        k->prompt_tokens += r->n_prompt;
    k->missed += c->finish == LLM_FINISH_DEADLINE;
    k->cancelled += c->finish == LLM_FINISH_CANCELLED;
    if (!f->first)
        histogram_add(&k->ttft, UINT64_MAX);
}

static void take_final(struct sim *s, struct request *r, struct flight *f, const struct llm_cqe *c,
                       const struct llm_result *result)
{
    struct stream *stream = &f->streams[c->choice];
    struct sim_kind_result *k = figures_of(s, r);
    if (stream->ended)
        invariants_broken(s->result, "request %llu: a second final",
                          (unsigned long long)c->user_data);
    if (c->finish == LLM_FINISH_LENGTH && stream->sent != r->n_output)
        invariants_broken(s->result, "request %llu: %u tokens of %u",
                          (unsigned long long)c->user_data, stream->sent, r->n_output);
    stream->ended = true;
    if (kind_of(s, r)->op == LLM_OP_GENERATE)
        invariants_ended(&s->invariants, stream->last_step);
    uint64_t arrival_ns = s->start_ns + r->arrival_ns;
    if (result->t_admit && result->t_admit - arrival_ns > k->longest_wait_ns)
        k->longest_wait_ns = result->t_admit - arrival_ns;
    if (++r->finals < kind_of(s, r)->choices)
        return;
    count_end(s, r, f, c);
    s->free_flights[s->n_free_flights++] = r->flight;
    r->flight = ARRIVALS_NONE;
}

static void sink_put(void *context, uint32_t client, const struct llm_cqe *c,
                     const struct llm_result *result)
{
    struct sim *s = context;
    note_digest(s, c);
    if (c->user_data & CANCEL_ID)
        return;
    struct request *r = &s->arrivals.requests[c->user_data];
    if (r->flight == ARRIVALS_NONE || r->client != client || c->choice >= SIM_CHOICES) {
        invariants_broken(s->result, "request %llu: a completion that nobody waits for",
                          (unsigned long long)c->user_data);
        return;
    }
    if (c->type == LLM_CQE_TOKENS)
        take_tokens(s, r, &s->flights[r->flight], c);
    else
        take_final(s, r, &s->flights[r->flight], c, result);
}

/* ---- submissions ---- */

static struct llm_sqe entry_of(const struct sim *s, uint32_t number)
{
    const struct request *r = &s->arrivals.requests[number];
    const struct sim_kind *k = kind_of(s, r);
    bool generate = k->op == LLM_OP_GENERATE;
    return (struct llm_sqe){.user_data = number,
                            .op = (uint8_t)k->op,
                            .flags = LLM_SQE_IGNORE_EOS,
                            .priority = k->priority,
                            .tokens_len = r->n_prompt,
                            .max_tokens = generate ? r->n_output : 0,
                            .choices = k->choices,
                            .top_p = 1.0f,
                            .repetition = 1.0f,
                            .deadline_us = k->deadline_us};
}

/* A msgpack map {"labels": [bin, ...]} of that many labels of the request's n_output tokens. */
static uint32_t write_labels(const struct sim *s, const struct request *r, uint8_t *out)
{
    static const uint8_t head[] = {0x81, 0xa6, 'l', 'a', 'b', 'e', 'l', 's'};
    uint32_t n = kind_of(s, r)->choices, bytes = sizeof head;
    memcpy(out, head, sizeof head);
    out[bytes++] = (uint8_t)(0x90 | n);
    for (uint32_t label = 0; label < n; label++) {
        out[bytes++] = 0xc4;
        out[bytes++] = (uint8_t)(r->n_output * sizeof(int32_t));
        for (uint32_t i = 0; i < r->n_output; i++) {
            int32_t token = (int32_t)(label * 64 + i);
            memcpy(out + bytes, &token, sizeof token);
            bytes += sizeof token;
        }
    }
    return bytes;
}

static void begin_flight(struct sim *s, uint32_t number, int32_t last)
{
    struct request *r = &s->arrivals.requests[number];
    r->flight = s->free_flights[--s->n_free_flights];
    s->flights[r->flight] = (struct flight){.request = number};
    for (uint32_t i = 0; i < SIM_CHOICES; i++)
        s->flights[r->flight].streams[i].last = last;
}

/* The head of that ring, if the engine has room for it. */
static bool submit_head(struct sim *s, uint32_t client)
{
    struct ring *ring = &s->rings[client];
    uint32_t number = ring->head;
    if (number == ARRIVALS_NONE)
        return false;
    if (!ring->pending_ns)
        ring->pending_ns = s->device.now_ns;
    struct request *r = &s->arrivals.requests[number];
    struct llm_sqe q = entry_of(s, number);
    if (!engine_can_take_from(s->engine, client, &q))
        return false;
    int32_t *tokens = engine_token_buffer(s->engine);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        tokens[i] = arrivals_token(s->config, &s->arrivals, number, i);
    if (q.op == LLM_OP_CHOOSE)
        q.options_len = write_labels(s, r, engine_option_buffer(s->engine));
    ring->head = r->next;
    begin_flight(s, number, tokens[r->n_prompt - 1]);
    engine_submit(s->engine, client, &q, ring->pending_ns);
    ring->pending_ns = 0;
    return true;
}

static void send_cancels(struct sim *s)
{
    for (uint32_t i = 0; i < s->n_cancels; i++) {
        const struct request *r = &s->arrivals.requests[s->cancels[i]];
        struct llm_sqe q = {
            .user_data = CANCEL_ID | s->cancels[i], .op = LLM_OP_CANCEL, .target = s->cancels[i]};
        engine_submit(s->engine, r->client, &q, s->device.now_ns);
    }
    s->n_cancels = 0;
}

/* Each client in turn, one entry each, as long as there is room. */
static void sweep(struct sim *s)
{
    uint32_t n = s->arrivals.n_clients;
    bool taken = true;
    send_cancels(s);
    s->swept++;
    while (taken) {
        taken = false;
        for (uint32_t i = 0; i < n; i++)
            taken |= submit_head(s, (s->swept + i) % n);
    }
}

/* ---- the loop ---- */

static void arrive(struct sim *s)
{
    while (s->n_arrived < s->arrivals.n) {
        struct request *r = &s->arrivals.requests[s->n_arrived];
        struct ring *ring = &s->rings[r->client];
        if (s->start_ns + r->arrival_ns > s->device.now_ns)
            return;
        if (ring->head == ARRIVALS_NONE)
            ring->head = s->n_arrived;
        else
            s->arrivals.requests[ring->tail].next = s->n_arrived;
        ring->tail = s->n_arrived++;
        s->result->kinds[r->kind].requests++;
    }
}

static void step(struct sim *s)
{
    invariants_before_step(&s->invariants);
    if (engine_step(s->engine))
        invariants_broken(s->result, "a step failed");
    invariants_after_step(&s->invariants);
    histogram_add(&s->result->step, (uint64_t)s->device.step_ns);
}

static void run(struct sim *s)
{
    while (s->n_ended < s->arrivals.n && !s->result->violation[0]) {
        arrive(s);
        sweep(s);
        if (engine_has_work(s->engine))
            step(s);
        else if (s->n_arrived < s->arrivals.n)
            s->device.now_ns = s->start_ns + s->arrivals.requests[s->n_arrived].arrival_ns;
        else if (s->n_ended < s->arrivals.n)
            invariants_broken(s->result, "%u requests of %u never ended",
                              s->arrivals.n - s->n_ended, s->arrivals.n);
    }
}

static void read_figures(struct sim *s)
{
    struct sim_result *r = s->result;
    const struct llm_board *b = s->board;
    uint64_t tokens = 0;
    r->virtual_ns = s->device.now_ns - s->start_ns;
    r->steps = order_read64(&b->steps);
    r->rows = order_read64(&b->rows);
    r->mixed_steps = order_read64(&b->mixed_steps);
    r->recomputed = order_read64(&b->recomputed_tokens);
    r->preemptions = order_read64(&b->preemptions);
    r->prefix_hits = order_read64(&b->prefix_hits);
    r->prefix_queries = order_read64(&b->prefix_queries);
    for (uint32_t i = 0; i < s->config->n_kinds; i++)
        tokens += r->kinds[i].prompt_tokens + r->kinds[i].output_tokens;
    r->busy_tokens_per_s = r->virtual_ns ? (double)tokens * 1e9 / (double)r->virtual_ns : 0;
}

/* ---- opening and closing ---- */

static bool allocate(struct sim *s)
{
    uint32_t n = s->config->engine.max_requests;
    if (!arrivals_make(&s->arrivals, s->config) || !device_open(&s->device, s->config))
        return false;
    s->rings = calloc(s->arrivals.n_clients, sizeof *s->rings);
    s->flights = calloc(n, sizeof *s->flights);
    s->free_flights = calloc(n, sizeof *s->free_flights);
    s->cancels = calloc(n, sizeof *s->cancels);
    s->board = aligned_alloc(0x4000, LLM_BOARD_BYTES);
    if (!s->rings || !s->flights || !s->free_flights || !s->cancels || !s->board)
        return false;
    memset(s->board, 0, LLM_BOARD_BYTES);
    for (uint32_t i = 0; i < s->arrivals.n_clients; i++)
        s->rings[i].head = ARRIVALS_NONE;
    for (; s->n_free_flights < n; s->n_free_flights++)
        s->free_flights[s->n_free_flights] = s->n_free_flights;
    s->start_ns = s->device.now_ns;
    return true;
}

static void release(struct sim *s)
{
    engine_destroy(s->engine);
    device_close(&s->device);
    arrivals_free(&s->arrivals);
    free(s->rings);
    free(s->flights);
    free(s->free_flights);
    free(s->cancels);
    free(s->board);
}

static uint64_t wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int create_engine(struct sim *s)
{
    struct engine_config config = s->config->engine;
    struct engine_sink sink = {.context = s, .token_room = sink_room, .put = sink_put};
    struct fail f = {0};
    config.clock = device_clock;
    config.clock_context = &s->device;
    int code = engine_create(&s->engine, &config, device_ops(), device_handle(&s->device), s->board,
                             &sink, &f);
    if (code)
        invariants_broken(s->result, "%s", f.text);
    return code;
}

int sim_run(const struct sim_config *config, struct sim_result *result)
{
    struct sim s = {.config = config, .result = result};
    uint64_t start_ns = wall_ns();
    int code = -ENOMEM;
    *result = (struct sim_result){0};
    if (!allocate(&s))
        invariants_broken(result, "no memory for %u requests", s.arrivals.n);
    else
        code = create_engine(&s);
    if (!code) {
        invariants_open(&s.invariants, config, s.engine, &s.device, result);
        run(&s);
        if (!result->violation[0])
            invariants_at_end(&s.invariants);
        read_figures(&s);
        code = result->violation[0] ? -EPROTO : 0;
    }
    result->wall_ns = wall_ns() - start_ns;
    release(&s);
    return code;
}
