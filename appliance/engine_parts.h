/* engine_parts.h - how the core's files call each other: engine.c (life, steps), engine_submit.c
 * (entries become sequences or refusals), engine_session.c (operations on sessions), engine_time.c
 * (timeouts, deadlines, idle sessions), engine_fetch.c (the caches), engine_options.c (what comes in option maps; stop strings). */
#ifndef LLMD_ENGINE_PARTS_H
#define LLMD_ENGINE_PARTS_H

#include "deliver.h"
#include "engine.h"
#include "option_map.h"
#include "schedule.h"
#include "sequence.h"
#include "session.h"
#include "stats.h"
#include "submission.h"

/* Slots that one client waits for: nobody else takes them meanwhile. */
struct engine_reservation {
    bool held;
    uint32_t client, slots;
};

/* How far engine_fetch is, for the step that runs. */
struct engine_fetched {
    uint32_t n;        /* pieces */
    uint32_t of_owner; /* completions of the client that the last piece was of */
    uint32_t blocks;   /* that will be taken */
};

struct engine {
    struct engine_config config; /* config.eog is ours */
    int32_t *eog;                /* (n_eog) ascending */
    const struct gpu_ops *ops;
    struct gpu *gpu;
    struct stats stats;
    struct sequence_table table;
    struct session_table sessions;
    struct schedule schedule;
    struct engine_sink sink;
    struct delivery delivery;
    struct engine_reservation reservation;
    struct option_map options;           /* of the entry that is being taken */
    uint8_t option_map[LLM_OPTIONS_MAX]; /* its bytes */
    uint64_t *biased;                    /* (vocab) bits, zero between two entries */
    bool stopping;
    bool stale; /* entries have changed figures that were not published */
    struct engine_fetched fetched;
    uint64_t overhead_ns;   /* between the last two steps */
    uint64_t step_end_ns;   /* when the last step ended, 0 if there was nothing to do after it */
    uint64_t next_timer_ns; /* nothing runs out of time before */
    uint64_t timers_looked_ns;
};

/* ---- engine.c ---- */

uint64_t engine_now(const struct engine *e);
uint32_t engine_domain(const struct engine *e, uint32_t client);
bool engine_ends_generation(const struct engine *e, int32_t token);
void engine_publish_gauges(struct engine *e);

/* At once, whatever the state; tokens that find no room are dropped. What only appends to a session
 * has had its final. */
void engine_end(struct engine *e, struct sequence *s, int32_t status, enum llm_finish finish,
                uint64_t now_ns);

/* What is generated on a session is cancelled with the tokens that were put: no more are offered. */
void engine_interrupt(struct engine *e, struct sequence *s, uint64_t now_ns);

/* ---- engine_fetch.c ---- */

/* Brings what is touched between the step that runs and the next one into the caches: of what is not
 * fetched yet one part of `left`. */
void engine_fetch(struct engine *e, uint32_t left);
void engine_soon(void *context, uint32_t left); /* the same, for struct gpu_step */

/* ---- engine_submit.c ---- */

struct engine_entry { /* what is being taken */
    uint32_t client;
    const struct llm_sqe *q;
    uint64_t now_ns;
};

void engine_refuse(struct engine *e, const struct engine_entry *in, struct submission_verdict v);
void engine_fill_sequence(struct sequence *s, const struct engine *e, const struct engine_entry *in,
                          uint32_t choice);
/* False where its deadline cannot be met: the verdict says when its first token may be expected. */
bool engine_in_time(const struct engine *e, const struct sequence *s, struct submission_verdict *v);
void engine_enqueue(struct engine *e, struct sequence *s);

/* ---- engine_options.c ---- */

/* Reads the entry's option map, if it has one, into e->options. */
struct submission_verdict engine_check_options(struct engine *e, const struct engine_entry *in);
/* Gives the sequence of that entry what e->options has; its history and n_prompt are known. Output
 * that came with it is looked at for stop strings: s->stop says whether one is complete. */
void engine_fill_options(struct sequence *s, const struct engine *e, const struct engine_entry *in);

/* The last token of the history was drawn: what may be delivered now is `ready`. True if it
 * completes a stop string: `ready` and stop_cut are final then. */
bool engine_accept(const struct engine *e, struct sequence *s);
/* The generation ends without a stop string: nothing is withheld any longer. */
void engine_release_withheld(struct sequence *s);

/* ---- engine_session.c ---- */

/* Operations on sessions, and GENERATE with one. The tokens are in sequence_next_tokens. */
void engine_session_entry(struct engine *e, const struct engine_entry *in);
void engine_close_session(struct engine *e, struct session *session, uint64_t now_ns);

/* ---- engine_time.c ---- */

void engine_watch_time(struct engine *e, const struct sequence *s);
/* Its first token did not come in time; it would take more_ns yet. The error says after how long
 * it would have come. */
void engine_miss_deadline(struct engine *e, struct sequence *s, uint64_t more_ns, uint64_t now_ns);
/* Ends what is out of time; looks only when something may be. */
void engine_check_time(struct engine *e, uint64_t now_ns);

#endif
