/* status.c - `status`: what the board says of an engine, without asking it; also after it died. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "board_view.h"

static void set_u64(json_t *o, const char *key, const order_u64 *v)
{
    json_object_set_new(o, key, json_integer((json_int_t)order_read64(v)));
}

static json_t *text_json(const char *text, size_t size)
{
    json_t *s = json_stringn(text, strnlen(text, size));
    return s ? s : json_string("?");
}

static void set_histogram(json_t *o, const char *key, const struct llm_histogram *figures)
{
    struct histogram h;
    histogram_between(&h, figures, NULL);
    json_object_set_new(o, key,
                        json_pack("{s:I, s:f, s:f, s:f, s:f, s:f}", "count", (json_int_t)h.count,
                                  "mean", h.count ? (double)h.sum_ns * 1e-3 / (double)h.count : 0.0,
                                  "p50", histogram_quantile_us(&h, 0.5), "p95",
                                  histogram_quantile_us(&h, 0.95), "p99",
                                  histogram_quantile_us(&h, 0.99), "max", (double)h.max_ns * 1e-3));
}

static void add_error(void *context, uint64_t t_ns, const char *text)
{
    (void)t_ns;
    json_array_append_new(context, text_json(text, strlen(text)));
}

static json_t *errors_json(const struct board_view *v)
{
    json_t *all = json_array();
    board_view_errors(v, add_error, all);
    return all;
}

static json_t *refused_json(const struct llm_board *b)
{
    json_t *o = json_object();
    for (unsigned i = 0; i < LLM_REFUSALS; i++)
        set_u64(o, board_refusal_name(i), &b->refused_for[i]);
    return o;
}

/* Microseconds since the moment; null where it did not come. */
static json_t *age_json(const struct board_view *v, const order_u64 *moment)
{
    uint64_t ns = board_view_since(v, moment);
    return ns == UINT64_MAX ? json_null() : json_integer((json_int_t)(ns / 1000));
}

static uint64_t blocks_used(const struct llm_board *b)
{
    uint64_t unused = order_read64(&b->kv_blocks_free);
    return unused < b->kv_blocks_total ? b->kv_blocks_total - unused : 0;
}

static json_t *identity_json(const struct board_view *v)
{
    const struct llm_board *b = &v->board;
    char numerics[17];
    snprintf(numerics, sizeof numerics, "%016llx", (unsigned long long)b->numerics_id);
    return json_pack(
        "{s:s, s:i, s:o, s:o, s:s, s:o, s:o, s:i, s:i, s:i, s:i}", "state", board_view_state(v),
        "pid", (int)b->pid, "model", text_json(b->model, sizeof b->model), "quantization",
        text_json(b->quantization, sizeof b->quantization), "numerics_id", numerics, "backend",
        text_json(b->backend, sizeof b->backend), "numerics",
        text_json(b->numerics, sizeof b->numerics), "max_model_len", (int)b->max_model_len,
        "max_num_seqs", (int)b->max_num_seqs, "max_num_batched_tokens",
        (int)b->max_num_batched_tokens, "threads", (int)b->threads);
}

static void set_figures(json_t *o, const struct llm_board *b)
{
    const struct {
        const char *key;
        const order_u64 *v;
    } figures[] = {{"running", &b->running},
                   {"waiting", &b->waiting},
                   {"clients", &b->clients},
                   {"kv_blocks_free", &b->kv_blocks_free},
                   {"kv_blocks_cached", &b->kv_blocks_cached},
                   {"sessions", &b->sessions},
                   {"sessions_idle", &b->sessions_idle},
                   {"pinned_blocks", &b->pinned_blocks},
                   {"backlog_tokens", &b->backlog_tokens},
                   {"backlog_us", &b->backlog_us},
                   {"prefix_query_tokens", &b->prefix_queries},
                   {"prefix_hit_tokens", &b->prefix_hits},
                   {"deadline_misses", &b->deadline_misses},
                   {"timeouts", &b->timeouts},
                   {"queue_timeouts", &b->queue_timeouts},
                   {"unread_cancels", &b->unread_cancels},
                   {"recomputed_tokens", &b->recomputed_tokens},
                   {"sessions_expired", &b->sessions_expired},
                   {"session_evictions", &b->session_evictions},
                   {"compute_threads_in_use", &b->threads_in_use},
                   {"steps", &b->steps},
                   {"mixed_steps", &b->mixed_steps},
                   {"max_rows_in_step", &b->max_rows_in_step},
                   {"max_seqs_in_step", &b->max_seqs_in_step},
                   {"rows", &b->rows},
                   {"prefill_rows", &b->prefill_rows},
                   {"decode_rows", &b->decode_rows},
                   {"requests", &b->requests},
                   {"refused", &b->refused},
                   {"finished", &b->finished},
                   {"cancelled", &b->cancelled},
                   {"preemptions", &b->preemptions},
                   {"prompt_tokens", &b->prompt_tokens},
                   {"output_tokens", &b->output_tokens},
                   {"spec_drafts", &b->spec_drafts},
                   {"spec_draft_tokens", &b->spec_draft_tokens},
                   {"spec_accepted_tokens", &b->spec_accepted_tokens},
                   {"clients_total", &b->clients_total},
                   {"evictions", &b->evictions},
                   {"wakes", &b->wakes},
                   {"sleeps", &b->sleeps},
                   {"backstop_rescues", &b->backstop_rescues},
                   {"board_lost", &b->board_lost},
                   {"heap_allocated_bytes", &b->heap_allocated},
                   {"heap_resident_bytes", &b->heap_resident}};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        set_u64(o, figures[i].key, figures[i].v);
}

static json_t *board_json(const struct board_view *v)
{
    const struct llm_board *b = &v->board;
    json_t *o = identity_json(v);
    set_figures(o, b);
    json_object_set_new(o, "refused_for", refused_json(b));
    json_object_set_new(o, "kv_blocks_total", json_integer(b->kv_blocks_total));
    json_object_set_new(o, "kv_blocks_used", json_integer((json_int_t)blocks_used(b)));
    json_object_set_new(o, "kv_block_size", json_integer(b->kv_block_size));
    json_object_set_new(o, "weights_bytes", json_integer((json_int_t)b->weights_bytes));
    json_object_set_new(o, "weights_pages", text_json(b->weights_pages, sizeof b->weights_pages));
    json_object_set_new(o, "weights_huge_bytes", json_integer((json_int_t)b->weights_huge_bytes));
    json_object_set_new(o, "kv_bytes", json_integer((json_int_t)b->kv_bytes));
    json_object_set_new(o, "workspace_bytes", json_integer((json_int_t)b->workspace_bytes));
    json_object_set_new(o, "uptime_s", json_real(board_view_uptime_s(v)));
    json_object_set_new(o, "last_step_age_us", age_json(v, &b->last_step_ns));
    json_object_set_new(o, "heartbeat_age_us", age_json(v, &b->heartbeat_ns));
    json_object_set_new(o, "step_predicted_us",
                        json_real((double)order_read64(&b->step_predicted_ns) * 1e-3));
    set_histogram(o, "step_us", &b->step);
    set_histogram(o, "step_overhead_us", &b->overhead);
    set_histogram(o, "overhead_us", &b->overhead); /* its name before it was a promise */
    set_histogram(o, "ttft_us", &b->ttft);
    set_histogram(o, "itl_us", &b->itl);
    set_histogram(o, "queue_us", &b->queue);
    json_object_set_new(o, "last_errors", errors_json(v));
    return o;
}

/* p50 and p99, or p95, of all that was counted, microseconds */
static double of_all(const struct llm_histogram *figures, double q)
{
    struct histogram h;
    histogram_between(&h, figures, NULL);
    return histogram_quantile_us(&h, q);
}

static unsigned long long figure(const order_u64 *v)
{
    return (unsigned long long)order_read64(v);
}

static void print_promises(const struct llm_board *b)
{
    printf("prefix cache: %llu of %llu prompt tokens found; %llu preemptions; %llu sessions\n",
           figure(&b->prefix_hits), figure(&b->prefix_queries), figure(&b->preemptions),
           figure(&b->sessions));
    if (figure(&b->spec_drafts))
        printf("speculation: %llu of %llu draft tokens accepted, in %llu drafts\n",
               figure(&b->spec_accepted_tokens), figure(&b->spec_draft_tokens),
               figure(&b->spec_drafts));
    printf("late: %llu deadlines missed, %llu timeouts, %llu queue timeouts\n",
           figure(&b->deadline_misses), figure(&b->timeouts), figure(&b->queue_timeouts));
}

/* Of the machine, what may explain the figures. */
static void print_machine(const struct llm_board *b)
{
    if (!b->weights_pages[0]) /* an engine that does not tell yet */
        return;
    printf("compute threads: %llu of %u in use; weights on %.15s pages, %.1f of %.1f MiB huge\n",
           figure(&b->threads_in_use), b->threads, b->weights_pages,
           (double)b->weights_huge_bytes / (1 << 20), (double)b->weights_bytes / (1 << 20));
}

static int print_for_people(const struct board_view *v)
{
    const struct llm_board *b = &v->board;
    printf("%s: %s, pid %u, %.127s (%.31s), backend %.31s\n", ctl_instance, board_view_state(v),
           b->pid, b->model, b->quantization, b->backend);
    printf("requests: %llu running, %llu waiting, %llu finished, %llu refused; %llu clients\n",
           figure(&b->running), figure(&b->waiting), figure(&b->finished), figure(&b->refused),
           figure(&b->clients));
    printf("KV blocks: %llu of %u free (%llu of them cached), %u tokens each\n",
           figure(&b->kv_blocks_free), b->kv_blocks_total, figure(&b->kv_blocks_cached),
           b->kv_block_size);
    printf("steps: %llu (%.1f us p50, %.1f us p99), engine overhead %.1f us p50, %.1f us p99\n",
           figure(&b->steps), of_all(&b->step, 0.5), of_all(&b->step, 0.99),
           of_all(&b->overhead, 0.5), of_all(&b->overhead, 0.99));
    printf("TTFT: %.1f ms p50, %.1f ms p95; between tokens: %.2f ms p50, %.2f ms p95\n",
           of_all(&b->ttft, 0.5) * 1e-3, of_all(&b->ttft, 0.95) * 1e-3, of_all(&b->itl, 0.5) * 1e-3,
           of_all(&b->itl, 0.95) * 1e-3);
    print_promises(b);
    print_machine(b);
    return fflush(stdout) ? ctl_error("cannot write to standard output") : 0;
}

int cmd_status(int argc, char **argv)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    bool json = false;
    int c;
    while ((c = ctl_getopt(argc, argv, ":h", options)) != -1)
        switch (c) {
        case 'j':
            json = true;
            break;
        case 'h':
            puts("usage: llmctl [-i INSTANCE] status [--json]");
            return 0;
        default:
            return 2;
        }
    if (optind < argc)
        return ctl_usage("unexpected \"%.40s\"", argv[optind]);
    struct board_view *v = board_view_create();
    if (!v)
        return 1;
    int rc = board_view_read(v);
    rc = rc ? rc : json ? ctl_print_json(board_json(v)) : print_for_people(v);
    free(v);
    return rc;
}
