/* status.c - `status`: what the board says of an engine, without asking it; also after it died. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../shm/board.h"
#include "../../shm/control.h"
#include "llmctl.h"

/* The board's lock is held for an engine's life: free means dead. */
static bool engine_lives(int fd)
{
    return flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

/* A private copy: the segment has a name, so somebody may truncate it under a mapping. */
static int read_board(struct llm_board *out, bool *lives)
{
    char name[128];
    if (llm_board_name(ctl_instance, name, sizeof name) < 0)
        return ctl_error("\"%.60s\" is no instance name (letters, digits, . _ -, at most %d)",
                         ctl_instance, LLM_INSTANCE_MAX);
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return errno == ENOENT
                   ? ctl_error("there is no engine \"%s\" (no board %s)", ctl_instance, name)
                   : ctl_error("cannot open the board %s: %s", name, strerror(errno));
    *lives = engine_lives(fd);
    ssize_t got = pread(fd, out, sizeof *out, 0);
    close(fd);
    if (got != (ssize_t)sizeof *out || order_acquire64(&out->magic) != LLM_MAGIC_BOARD)
        return ctl_error(
            "the board %s is not complete: the engine is starting, or it was never one of llmd",
            name);
    if (out->abi_major != LLM_ABI_MAJOR)
        return ctl_error("the engine's board has version %u, this llmctl reads %u", out->abi_major,
                         LLM_ABI_MAJOR);
    return 0;
}

static const char *state_name(const struct llm_board *b, bool lives)
{
    static const char *const names[] = {"starting", "ready", "draining", "stopped"};
    uint32_t state = order_relaxed(&b->state);
    if (state != LLM_STATE_STOPPED && !lives)
        return "dead";
    return state < 4 ? names[state] : "unknown";
}

static void set_u64(json_t *o, const char *key, const order_u64 *v)
{
    json_object_set_new(o, key, json_integer((json_int_t)order_read64(v)));
}

static json_t *text_json(const char *text, size_t size)
{
    json_t *s = json_stringn(text, strnlen(text, size));
    return s ? s : json_string("?");
}

/* Quantile from the histogram, microseconds: the upper edge of the bucket that holds it. */
static double quantile_us(const struct llm_histogram *h, double q)
{
    uint64_t total = order_read64(&h->count), seen = 0;
    for (uint32_t i = 0; total && i < LLM_HIST_BUCKETS; i++) {
        seen += order_read64(&h->bucket[i]);
        if ((double)seen >= q * (double)total)
            return (double)llm_histogram_edge(i + 1) * 1e-3;
    }
    return 0;
}

static void set_histogram(json_t *o, const char *key, const struct llm_histogram *h)
{
    uint64_t count = order_read64(&h->count);
    json_object_set_new(
        o, key,
        json_pack("{s:I, s:f, s:f, s:f, s:f, s:f}", "count", (json_int_t)count, "mean",
                  count ? (double)order_read64(&h->sum_ns) * 1e-3 / (double)count : 0.0, "p50",
                  quantile_us(h, 0.5), "p95", quantile_us(h, 0.95), "p99", quantile_us(h, 0.99),
                  "max", (double)order_read64(&h->max_ns) * 1e-3));
}

static json_t *errors_json(const struct llm_board *b)
{
    json_t *all = json_array();
    uint64_t written = order_read64(&b->errors_written);
    for (uint64_t i = written > LLM_BOARD_ERRORS ? written - LLM_BOARD_ERRORS : 0; i < written;
         i++) {
        const struct llm_board_error *e = &b->errors[i % LLM_BOARD_ERRORS];
        json_array_append_new(all, text_json(e->text, sizeof e->text));
    }
    return all;
}

static json_t *board_json(const struct llm_board *b, bool lives)
{
    char numerics[17];
    snprintf(numerics, sizeof numerics, "%016llx", (unsigned long long)b->numerics_id);
    json_t *o = json_pack(
        "{s:s, s:i, s:o, s:o, s:s, s:o, s:o, s:i, s:i, s:i, s:i}", "state", state_name(b, lives),
        "pid", (int)b->pid, "model", text_json(b->model, sizeof b->model), "quantization",
        text_json(b->quantization, sizeof b->quantization), "numerics_id", numerics, "backend",
        text_json(b->backend, sizeof b->backend), "numerics",
        text_json(b->numerics, sizeof b->numerics), "max_model_len", (int)b->max_model_len,
        "max_num_seqs", (int)b->max_num_seqs, "max_num_batched_tokens",
        (int)b->max_num_batched_tokens, "threads", (int)b->threads);
    const struct {
        const char *key;
        const order_u64 *v;
    } figures[] = {{"running", &b->running},
                   {"waiting", &b->waiting},
                   {"clients", &b->clients},
                   {"kv_blocks_free", &b->kv_blocks_free},
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
    json_object_set_new(o, "kv_blocks_total", json_integer(b->kv_blocks_total));
    json_object_set_new(o, "kv_block_size", json_integer(b->kv_block_size));
    json_object_set_new(o, "weights_bytes", json_integer((json_int_t)b->weights_bytes));
    json_object_set_new(o, "kv_bytes", json_integer((json_int_t)b->kv_bytes));
    set_histogram(o, "step_us", &b->step);
    set_histogram(o, "overhead_us", &b->overhead);
    set_histogram(o, "ttft_us", &b->ttft);
    set_histogram(o, "itl_us", &b->itl);
    set_histogram(o, "queue_us", &b->queue);
    json_object_set_new(o, "last_errors", errors_json(b));
    return o;
}

static int print_for_people(const struct llm_board *b, bool lives)
{
    uint64_t total = b->kv_blocks_total, free_blocks = order_read64(&b->kv_blocks_free);
    printf("%s: %s, pid %u, %.127s (%.31s), backend %.31s\n", ctl_instance, state_name(b, lives),
           b->pid, b->model, b->quantization, b->backend);
    printf("requests: %llu running, %llu waiting, %llu finished, %llu refused; %llu clients\n",
           (unsigned long long)order_read64(&b->running),
           (unsigned long long)order_read64(&b->waiting),
           (unsigned long long)order_read64(&b->finished),
           (unsigned long long)order_read64(&b->refused),
           (unsigned long long)order_read64(&b->clients));
    printf("KV blocks: %llu of %llu free, %u tokens each\n", (unsigned long long)free_blocks,
           (unsigned long long)total, b->kv_block_size);
    printf("steps: %llu (%.1f us p50, %.1f us p99), engine overhead %.1f us p50, %.1f us p99\n",
           (unsigned long long)order_read64(&b->steps), quantile_us(&b->step, 0.5),
           quantile_us(&b->step, 0.99), quantile_us(&b->overhead, 0.5),
           quantile_us(&b->overhead, 0.99));
    printf("TTFT: %.1f ms p50, %.1f ms p95; between tokens: %.2f ms p50, %.2f ms p95\n",
           quantile_us(&b->ttft, 0.5) * 1e-3, quantile_us(&b->ttft, 0.95) * 1e-3,
           quantile_us(&b->itl, 0.5) * 1e-3, quantile_us(&b->itl, 0.95) * 1e-3);
    return fflush(stdout) ? ctl_error("cannot write to standard output") : 0;
}

int cmd_status(int argc, char **argv)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    bool json = false;
    int c;
    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1)
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
    struct llm_board *board = aligned_alloc(_Alignof(struct llm_board), sizeof *board);
    if (!board)
        return ctl_error("out of memory");
    bool lives = false;
    int rc = read_board(board, &lives);
    rc = rc ? rc : json ? ctl_print_json(board_json(board, lives)) : print_for_people(board, lives);
    free(board);
    return rc;
}
