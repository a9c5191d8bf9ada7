/* metrics.c - see metrics.h.
 *
 * One table a kind of metric: what a row says is read from the board at its offset. A dead engine's
 * board still has its last figures, but they are nobody's present: of such an instance only llmd_up
 * is written, and what watches the others sees them end.
 *
 * Format: Prometheus, "Exposition formats", text format 0.0.4. Names and labels of vllm:...: vLLM's
 * documentation, "Production metrics".
 */
#include "metrics.h"

#include <errno.h>
#include <string.h>
#include <utf8proc.h>

#include "../../shm/board.h"

enum kind { COUNTER, GAUGE };

struct figure {
    const char *name, *help;
    enum kind kind;
    size_t place;    /* of an order_u64 in the board */
    double per_unit; /* 0: written as the whole number that it is */
};

#define PLACE(field) offsetof(struct llm_board, field)

static const struct figure figures[] = {
    {"vllm:num_requests_running", "Sequences that run.", GAUGE, PLACE(running), 0},
    {"vllm:num_requests_waiting", "Sequences that wait.", GAUGE, PLACE(waiting), 0},
    {"vllm:prompt_tokens_total", "Prompt tokens of the requests that were accepted.", COUNTER,
     PLACE(prompt_tokens), 0},
    {"vllm:generation_tokens_total", "Tokens that were generated.", COUNTER, PLACE(output_tokens),
     0},
    {"vllm:num_preemptions_total", "Sequences that had to give up their KV blocks.", COUNTER,
     PLACE(preemptions), 0},
    {"vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", COUNTER,
     PLACE(prefix_queries), 0},
    {"vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", COUNTER,
     PLACE(prefix_hits), 0},
    {"vllm:spec_decode_num_drafts_total", "Drafts of prompt lookup.", COUNTER, PLACE(spec_drafts),
     0},
    {"vllm:spec_decode_num_draft_tokens_total", "Tokens of these drafts.", COUNTER,
     PLACE(spec_draft_tokens), 0},
    {"vllm:spec_decode_num_accepted_tokens_total", "Of these, the ones that were drawn.", COUNTER,
     PLACE(spec_accepted_tokens), 0},

    {"llmd_clients", "Clients that are connected.", GAUGE, PLACE(clients), 0},
    {"llmd_clients_connected_total", "Clients that ever connected.", COUNTER, PLACE(clients_total),
     0},
    {"llmd_clients_evicted_total", "Clients whose channel broke the contract.", COUNTER,
     PLACE(evictions), 0},
    {"llmd_sessions", "Sessions that are open.", GAUGE, PLACE(sessions), 0},
    {"llmd_sessions_idle", "Sessions on which nothing runs.", GAUGE, PLACE(sessions_idle), 0},
    {"llmd_sessions_expired_total", "Sessions closed because nobody used them.", COUNTER,
     PLACE(sessions_expired), 0},
    {"llmd_sessions_evicted_total", "Sessions whose KV blocks were taken for others.", COUNTER,
     PLACE(session_evictions), 0},
    {"llmd_kv_blocks_pinned", "KV blocks that sessions keep resident.", GAUGE, PLACE(pinned_blocks),
     0},
    {"llmd_prefill_backlog_tokens", "Prompt tokens that are not computed yet.", GAUGE,
     PLACE(backlog_tokens), 0},
    {"llmd_prefill_backlog_seconds", "How long these take, by the engine's own estimate.", GAUGE,
     PLACE(backlog_us), 1e-6},
    {"llmd_requests_total", "Requests that were accepted.", COUNTER, PLACE(requests), 0},
    {"llmd_requests_cancelled_total", "Sequences that their clients cancelled.", COUNTER,
     PLACE(cancelled), 0},
    {"llmd_requests_unread_total", "Sequences ended because their client read nothing.", COUNTER,
     PLACE(unread_cancels), 0},
    {"llmd_deadline_misses_total", "Deadlines that were promised and not kept.", COUNTER,
     PLACE(deadline_misses), 0},
    {"llmd_timeouts_total", "Sequences that took longer than they were allowed to.", COUNTER,
     PLACE(timeouts), 0},
    {"llmd_queue_timeouts_total", "Sequences that waited longer than they were allowed to.",
     COUNTER, PLACE(queue_timeouts), 0},
    {"llmd_recomputed_tokens_total", "Rows that a preemption or eviction made necessary again.",
     COUNTER, PLACE(recomputed_tokens), 0},
    {"llmd_steps_total", "Steps of the backend.", COUNTER, PLACE(steps), 0},
    {"llmd_compute_threads_in_use",
     "Threads that compute: fewer than there are while others' work holds some up.", GAUGE,
     PLACE(threads_in_use), 0},
    {"llmd_step_predicted_seconds", "What the cost model said of the last step.", GAUGE,
     PLACE(step_predicted_ns), 1e-9},
    {"llmd_wakes_total", "Wake-ups sent to clients that slept.", COUNTER, PLACE(wakes), 0},
    {"llmd_sleeps_total", "Times the engine slept for want of work.", COUNTER, PLACE(sleeps), 0},
    {"llmd_wake_rescues_total", "Wake-ups that only the backstop timer brought: should stay 0.",
     COUNTER, PLACE(backstop_rescues), 0},
};

static const struct {
    const char *name, *help;
    size_t place;
} histograms[] = {
    {"vllm:time_to_first_token_seconds", "From the arrival of a request to its first token.",
     PLACE(ttft)},
    {"vllm:inter_token_latency_seconds", "Between two tokens of a stream.", PLACE(itl)},
    {"vllm:request_queue_time_seconds", "From the arrival of a request to its first step.",
     PLACE(queue)},
    {"vllm:e2e_request_latency_seconds", "From the arrival of a request to the end of a choice.",
     PLACE(e2e)},
    {"llmd_step_duration_seconds", "One step of the backend.", PLACE(step)},
    {"llmd_host_overhead_seconds", "The engine's own part between two busy steps.",
     PLACE(overhead)},
};

/* Samples of one name that differ in one more label. */
static const struct series {
    const char *name, *help, *label;
    enum kind kind;
    struct part {
        const char *value;
        size_t place[3]; /* 0 ends it: the sum is written */
    } parts[LLM_REFUSALS];
} series[] = {
    {"vllm:request_success_total",
     "Choices that ended, by how.",
     "finished_reason",
     COUNTER,
     {{"stop", {PLACE(finished_for[LLM_FINISH_STOP])}},
      {"length", {PLACE(finished_for[LLM_FINISH_LENGTH])}},
      {"abort",
       {PLACE(finished_for[LLM_FINISH_CANCELLED]), PLACE(finished_for[LLM_FINISH_TIMEOUT]),
        PLACE(finished_for[LLM_FINISH_DEADLINE])}},
      {"error", {PLACE(finished_for[LLM_FINISH_ERROR])}}}},
    {"llmd_requests_refused_total",
     "Requests that were not accepted, by why.",
     "reason",
     COUNTER,
     {{"malformed", {PLACE(refused_for[LLM_REFUSED_MALFORMED])}},
      {"length", {PLACE(refused_for[LLM_REFUSED_LENGTH])}},
      {"queue", {PLACE(refused_for[LLM_REFUSED_QUEUE])}},
      {"quota", {PLACE(refused_for[LLM_REFUSED_QUOTA])}},
      {"deadline", {PLACE(refused_for[LLM_REFUSED_DEADLINE])}},
      {"session", {PLACE(refused_for[LLM_REFUSED_SESSION])}},
      {"shutdown", {PLACE(refused_for[LLM_REFUSED_SHUTDOWN])}}}},
    {"llmd_rows_total",
     "Rows of all steps, by what they were.",
     "kind",
     COUNTER,
     {{"prefill", {PLACE(prefill_rows)}}, {"decode", {PLACE(decode_rows)}}}},
    {"llmd_heap_bytes",
     "The engine's own heap, without weights and KV.",
     "kind",
     GAUGE,
     {{"allocated", {PLACE(heap_allocated)}}, {"resident", {PLACE(heap_resident)}}}},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct writer {
    FILE *out;
    const struct metrics_instance *instances;
    size_t n;
};

/* ---- text ---- */

/* The inside of a label's quotes. What is no UTF-8 would make the whole page unreadable. */
static void put_escaped(FILE *out, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                              (utf8proc_ssize_t)(bytes - at), &c);
        if (n <= 0)
            fputs("\xef\xbf\xbd", out);
        else if (c == '\n')
            fputs("\\n", out);
        else if (c == '\\' || c == '"')
            fprintf(out, "\\%c", (char)c);
        else
            fwrite(text + at, 1, (size_t)n, out);
        at += n > 0 ? (size_t)n : 1;
    }
}

static void put_label(FILE *out, const char *name, const char *text, size_t max)
{
    fprintf(out, ",%s=\"", name);
    put_escaped(out, text, strnlen(text, max));
    fputc('"', out);
}

static void put_head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* NAME{model_name="...",engine="..." and the caller's own labels, then '}' and the value. */
static void put_name(FILE *out, const char *name, const char *suffix,
                     const struct metrics_instance *i)
{
    fprintf(out, "%s%s{model_name=\"", name, suffix);
    put_escaped(out, i->model, strlen(i->model));
    fputc('"', out);
    put_label(out, "engine", i->instance, SIZE_MAX >> 1);
}

static void put_whole(FILE *out, uint64_t v)
{
    fprintf(out, "} %llu\n", (unsigned long long)v);
}

static void put_real(FILE *out, double v)
{
    fprintf(out, "} %.9g\n", v);
}

/* ---- what the board says ---- */

static const order_u64 *word(const struct llm_board *b, size_t place)
{
    return (const order_u64 *)(const void *)((const uint8_t *)b + place);
}

static bool has_figures(const struct metrics_instance *i)
{
    return i->board && i->lives;
}

/* Since a moment of CLOCK_MONOTONIC, seconds. */
static double age_s(const struct metrics_instance *i, const order_u64 *moment)
{
    uint64_t at = order_read64(moment);
    return i->now_ns > at ? (double)(i->now_ns - at) * 1e-9 : 0;
}

struct kv_use {
    uint64_t used, cached, unused, total;
};

/* Three figures of three moments: made to fit. */
static struct kv_use kv_use(const struct llm_board *b)
{
    uint64_t total = b->kv_blocks_total, left = order_read64(&b->kv_blocks_free);
    uint64_t cached = order_read64(&b->kv_blocks_cached);
    left = left > total ? total : left;
    cached = cached > left ? left : cached;
    return (struct kv_use){total - left, cached, left - cached, total};
}

static void write_figures(const struct writer *w)
{
    for (size_t f = 0; f < COUNT(figures); f++) {
        const struct figure *m = &figures[f];
        put_head(w->out, m->name, m->kind == COUNTER ? "counter" : "gauge", m->help);
        for (size_t i = 0; i < w->n; i++) {
            if (!has_figures(&w->instances[i]))
                continue;
            uint64_t v = order_read64(word(w->instances[i].board, m->place));
            put_name(w->out, m->name, "", &w->instances[i]);
            if (m->per_unit > 0)
                put_real(w->out, (double)v * m->per_unit);
            else
                put_whole(w->out, v);
        }
    }
}

static uint64_t sum_of(const struct llm_board *b, const struct part *p)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < COUNT(p->place) && p->place[i]; i++)
        sum += order_read64(word(b, p->place[i]));
    return sum;
}

static void write_series(const struct writer *w)
{
    for (size_t s = 0; s < COUNT(series); s++) {
        const struct series *m = &series[s];
        put_head(w->out, m->name, m->kind == COUNTER ? "counter" : "gauge", m->help);
        for (size_t i = 0; i < w->n; i++)
            for (size_t p = 0; has_figures(&w->instances[i]) && p < COUNT(m->parts); p++) {
                if (!m->parts[p].value)
                    break;
                put_name(w->out, m->name, "", &w->instances[i]);
                put_label(w->out, m->label, m->parts[p].value, 64);
                put_whole(w->out, sum_of(w->instances[i].board, &m->parts[p]));
            }
    }
}

/* ---- histograms ---- */

/* Every second edge of the board, four an octave, from 49.152 us to 2^37 ns: edges of the board's
 * own buckets, so no count is divided by guess. (The board's buckets are half open: a duration of
 * just an edge, to the nanosecond, is counted above it.) */
enum { FIRST_EDGE_LOG2 = 15, FIRST_EDGE_SUB = 4, EDGE_STRIDE = 2 };
enum {
    FIRST_EDGE = 1 + (FIRST_EDGE_LOG2 - LLM_HIST_MIN_LOG2) * LLM_HIST_SUB + FIRST_EDGE_SUB,
    LAST_EDGE = LLM_HIST_BUCKETS - 1
};
_Static_assert((LAST_EDGE - FIRST_EDGE) % EDGE_STRIDE == 0, "the last edge is one of ours");

static void write_histogram(FILE *out, const char *name, const struct metrics_instance *i,
                            const struct llm_histogram *h)
{
    uint64_t seen = 0;
    uint32_t bucket = 0;
    for (uint32_t edge = FIRST_EDGE; edge <= LAST_EDGE; edge += EDGE_STRIDE) {
        while (bucket < edge)
            seen += order_read64(&h->bucket[bucket++]);
        put_name(out, name, "_bucket", i);
        fprintf(out, ",le=\"%.12g\"", (double)llm_histogram_edge(edge) * 1e-9);
        put_whole(out, seen);
    }
    seen += order_read64(&h->bucket[LLM_HIST_BUCKETS - 1]);
    put_name(out, name, "_bucket", i);
    fputs(",le=\"+Inf\"", out);
    put_whole(out, seen);
    put_name(out, name, "_sum", i);
    put_real(out, (double)order_read64(&h->sum_ns) * 1e-9);
    put_name(out, name, "_count", i);
    put_whole(out, seen); /* not the board's count, which is of another moment */
}

static void write_histograms(const struct writer *w)
{
    for (size_t h = 0; h < COUNT(histograms); h++) {
        put_head(w->out, histograms[h].name, "histogram", histograms[h].help);
        for (size_t i = 0; i < w->n; i++)
            if (has_figures(&w->instances[i]))
                write_histogram(w->out, histograms[h].name, &w->instances[i],
                                (const void *)word(w->instances[i].board, histograms[h].place));
    }
}

/* ---- what is computed ---- */

static void write_kv(const struct writer *w)
{
    put_head(w->out, "vllm:kv_cache_usage_perc", "gauge",
             "Share of the KV blocks that sequences and sessions hold: 1 is all.");
    for (size_t i = 0; i < w->n; i++)
        if (has_figures(&w->instances[i])) {
            struct kv_use u = kv_use(w->instances[i].board);
            put_name(w->out, "vllm:kv_cache_usage_perc", "", &w->instances[i]);
            put_real(w->out, u.total ? (double)u.used / (double)u.total : 0);
        }
    put_head(w->out, "llmd_kv_blocks", "gauge",
             "KV blocks: used, cached (free, but findable as a prefix), free.");
    for (size_t i = 0; i < w->n; i++) {
        if (!has_figures(&w->instances[i]))
            continue;
        struct kv_use u = kv_use(w->instances[i].board);
        const struct {
            const char *state;
            uint64_t blocks;
        } parts[] = {{"used", u.used}, {"cached", u.cached}, {"free", u.unused}};
        for (size_t p = 0; p < COUNT(parts); p++) {
            put_name(w->out, "llmd_kv_blocks", "", &w->instances[i]);
            put_label(w->out, "state", parts[p].state, 64);
            put_whole(w->out, parts[p].blocks);
        }
    }
}

static void write_life(const struct writer *w)
{
    put_head(w->out, "llmd_up", "gauge", "1: the engine lives. 0: there is none, or it died.");
    for (size_t i = 0; i < w->n; i++) {
        put_name(w->out, "llmd_up", "", &w->instances[i]);
        put_whole(w->out, has_figures(&w->instances[i]));
    }
    put_head(w->out, "llmd_ready", "gauge", "1: it takes requests; 0: it starts or drains.");
    for (size_t i = 0; i < w->n; i++)
        if (has_figures(&w->instances[i])) {
            put_name(w->out, "llmd_ready", "", &w->instances[i]);
            put_whole(w->out, order_relaxed(&w->instances[i].board->state) == LLM_STATE_READY);
        }
}

static void write_ages(const struct writer *w)
{
    put_head(w->out, "llmd_start_time_seconds", "gauge", "When the engine started, Unix time.");
    for (size_t i = 0; i < w->n; i++)
        if (has_figures(&w->instances[i])) {
            put_name(w->out, "llmd_start_time_seconds", "", &w->instances[i]);
            fprintf(w->out, "} %.3f\n", (double)w->instances[i].board->started_ns * 1e-9);
        }
    static const struct {
        const char *name, *help;
        size_t place;
    } ages[] = {
        {"llmd_last_step_age_seconds", "Time since the end of the last step.", PLACE(last_step_ns)},
        {"llmd_heartbeat_age_seconds", "Time since the engine's last sign of life.",
         PLACE(heartbeat_ns)}};
    for (size_t a = 0; a < COUNT(ages); a++) {
        put_head(w->out, ages[a].name, "gauge", ages[a].help);
        for (size_t i = 0; i < w->n; i++) {
            const struct metrics_instance *in = &w->instances[i];
            if (!has_figures(in) || !order_read64(word(in->board, ages[a].place)))
                continue; /* there was none yet */
            put_name(w->out, ages[a].name, "", in);
            put_real(w->out, age_s(in, word(in->board, ages[a].place)));
        }
    }
}

static void put_number_label(FILE *out, const char *name, uint64_t v)
{
    fprintf(out, ",%s=\"%llu\"", name, (unsigned long long)v);
}

/* Constant figures, as labels of a 1. */
static void write_infos(const struct writer *w)
{
    put_head(w->out, "vllm:cache_config_info", "gauge", "The KV pool.");
    for (size_t i = 0; i < w->n; i++) {
        const struct llm_board *b = w->instances[i].board;
        if (!has_figures(&w->instances[i]))
            continue;
        put_name(w->out, "vllm:cache_config_info", "", &w->instances[i]);
        put_number_label(w->out, "block_size", b->kv_block_size);
        put_number_label(w->out, "num_gpu_blocks", b->kv_blocks_total);
        put_number_label(w->out, "kv_bytes", b->kv_bytes);
        put_whole(w->out, 1);
    }
    put_head(w->out, "llmd_info", "gauge", "The engine and its model.");
    for (size_t i = 0; i < w->n; i++) {
        const struct llm_board *b = w->instances[i].board;
        if (!has_figures(&w->instances[i]))
            continue;
        put_name(w->out, "llmd_info", "", &w->instances[i]);
        put_label(w->out, "version", b->version, sizeof b->version);
        put_label(w->out, "model", b->model, sizeof b->model);
        put_label(w->out, "quantization", b->quantization, sizeof b->quantization);
        put_label(w->out, "backend", b->backend, sizeof b->backend);
        put_number_label(w->out, "threads", b->threads);
        put_number_label(w->out, "max_model_len", b->max_model_len);
        put_number_label(w->out, "max_num_seqs", b->max_num_seqs);
        put_number_label(w->out, "max_num_batched_tokens", b->max_num_batched_tokens);
        put_whole(w->out, 1);
    }
}

/* As vLLM has it: the value is the time, the lists are labels. The engine has no adapters. */
static void write_adapters(const struct writer *w)
{
    put_head(w->out, "vllm:lora_requests_info", "gauge", "Adapters in use, Unix time.");
    for (size_t i = 0; i < w->n; i++)
        if (has_figures(&w->instances[i])) {
            put_name(w->out, "vllm:lora_requests_info", "", &w->instances[i]);
            fprintf(w->out,
                    ",max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} %.3f\n",
                    (double)w->instances[i].real_ns * 1e-9);
        }
}

int metrics_write(FILE *out, const struct metrics_instance *instances, size_t n)
{
    const struct writer w = {out, instances, n};
    write_life(&w);
    write_infos(&w);
    write_figures(&w);
    write_series(&w);
    write_kv(&w);
    write_histograms(&w);
    write_ages(&w);
    write_adapters(&w);
    return ferror(out) ? -EIO : 0;
}
