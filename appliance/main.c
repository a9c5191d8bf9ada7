/* main.c - llmd: brings the parts up in order, serves, takes them down in reverse.
 *
 *   options -> limits -> signals -> lock -> model -> backend -> KV pool -> segments, board -> core,
 *   clients -> warm-up -> socket, loop -> "ready" -> serve -> drain -> everything removed
 *
 * Exit status: 0 after a stop that was asked for, 1 for a failure, 2 for a wrong command line or
 * configuration. The word "ready" is printed once, when clients may connect; what is printed before
 * does not have it. Standard output has that line and the sizing; what else is to be said goes to
 * standard error (log.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "../gpu/cpu/memory.h"
#include "../gpu/cpu/pages_trial.h"
#include "board.h"
#include "clients.h"
#include "clock.h"
#include "control_server.h"
#include "heap.h"
#include "limits.h"
#include "log.h"
#include "loop.h"
#include "model/model.h"
#include "notify.h"
#include "options.h"
#include "segments.h"
#include "signals.h"
#include "sizing.h"
#include "stats.h"
#include "token_text.h"
#include "warmup.h"

/* How long the parts of the start took, for the debug log. */
struct stopwatch {
    uint64_t start_ns, last_ns;
    char text[256];
    size_t used;
};

struct appliance {
    struct options o;
    struct stopwatch watch;
    struct pages_trial trial;
    struct notify notify;
    struct log_progress progress;
    struct control_server server;
    struct model *model;
    const struct gpu_ops *ops;
    struct gpu *gpu;
    struct gpu_memory memory;
    struct sizing sizing;
    uint32_t max_model_len, threads;
    const char *name; /* of the model, as clients see it */
    uint64_t epoch, numerics_id;
    struct segment pulse, vocab;
    struct token_text text;
    struct board board;
    struct stats stats;
    struct clients clients;
    struct engine *engine;
    struct loop *loop;
};

/* What was done since the last lap was `part`. */
static void lap(struct stopwatch *w, const char *part)
{
    uint64_t now = clock_ns();
    int n = snprintf(w->text + w->used, sizeof w->text - w->used, "%s%s %.1f", w->used ? ", " : "",
                     part, (double)(now - w->last_ns) * 1e-6);
    if (n > 0 && w->used + (size_t)n < sizeof w->text)
        w->used += (size_t)n;
    w->last_ns = now;
}

/* ---- the model and what computes it ---- */

/* Loading may take longer than the service manager gives to a start: each second of it asks for
 * more. */
static void show_progress(void *context, uint64_t done, uint64_t total)
{
    enum { MORE_SECONDS = 60 };
    struct appliance *a = context;
    uint64_t last_ns = a->progress.shown_ns;
    log_progress(&a->progress, done, total, clock_ns());
    if (a->progress.shown_ns != last_ns)
        notify_send(&a->notify, "STATUS=loading %u %%\nEXTEND_TIMEOUT_USEC=%d000000",
                    a->progress.shown, MORE_SECONDS);
}

static int open_model(struct appliance *a, struct fail *f)
{
    int rc = model_open(&a->model, a->o.model, f);
    if (rc < 0)
        return rc;
    a->name = a->o.served_model_name ? a->o.served_model_name : a->model->name;
    rc = sizing_length(&a->max_model_len, a->o.max_model_len, a->model->net.context, f);
    if (rc < 0)
        return rc;
    /* without its name, which might hold the word of announce() */
    log_info("version %s, loading a model (%s, %s, %.1f MiB)", LLMD_VERSION, a->model->architecture,
             a->model->quantization, (double)a->model->weights_bytes / (1 << 20));
    return a->o.mlock ? limits_may_lock(a->model->weights_bytes, f) : 0;
}

/* The trial of --huge-pages auto. A model of a few MiB is as fast on any pages. */
static void begin_trial(struct appliance *a)
{
    enum { WORTH_IT = 64 << 20 };
    struct stat s;
    bool hugetlb = pages_hugetlb_fit("", WORTH_IT, PAGES_HUGETLB);
    if (a->o.huge_pages == GPU_HUGE_PAGES_AUTO && !stat(a->o.model, &s) && s.st_size >= WORTH_IT &&
        (hugetlb || pages_thp_allowed("")))
        pages_trial_begin(&a->trial, hugetlb ? PAGES_HUGETLB : PAGES_THP);
}

static enum gpu_huge_pages huge_pages(struct appliance *a)
{
    if (a->o.huge_pages != GPU_HUGE_PAGES_AUTO)
        return a->o.huge_pages;
    bool small = pages_trial_end(&a->trial);
    if (a->trial.times.rounds)
        log_debug("huge pages are read in %.2f of the time of small ones (%u rounds)",
                  pages_trial_ratio(&a->trial.times), a->trial.times.rounds);
    else
        log_debug("huge pages were not compared with small ones: the model is small, the system "
                  "has none, or there was no time or memory for it");
    if (small)
        log_info("small pages are read faster on this machine than huge ones, so they are taken; "
                 "--huge-pages thp insists");
    return small ? GPU_HUGE_PAGES_OFF : GPU_HUGE_PAGES_AUTO;
}

/* What was hoped for and is not there. */
static void warn_pages(const struct appliance *a, enum gpu_huge_pages wish)
{
    struct fail notice = {0};
    const char *pages = a->memory.weights_pages;
    if (!pages || wish == GPU_HUGE_PAGES_OFF)
        return;
    if (a->o.huge_pages == GPU_HUGE_PAGES_HUGETLB && strncmp(pages, "hugetlb", 7))
        log_warn("--huge-pages hugetlb: the weights need %llu free pages of 2 MiB, and there are "
                 "%llu: raise the sysctl vm.nr_hugepages (or this control group's limit); %s pages "
                 "stand in",
                 (unsigned long long)((a->memory.weights_bytes + MEMORY_HUGE - 1) / MEMORY_HUGE),
                 (unsigned long long)(pages_hugetlb_free("", PAGES_HUGETLB) / MEMORY_HUGE), pages);
    else if (strncmp(pages, "hugetlb", 7) && !limits_huge_pages("", &notice))
        log_warn("%s", notice.text);
}

static int open_backend(struct appliance *a, struct fail *f)
{
    uint32_t cpus = memory_cpus(""); /* asked before any thread is pinned */
    a->threads = a->o.threads ? a->o.threads : cpus < CPUS_MAX ? cpus : CPUS_MAX;
    struct gpu_config config = {.threads = a->threads,
                                .cpus = a->o.cpu_list.n ? a->o.cpu_list.at : NULL,
                                .max_rows = a->o.max_num_batched_tokens,
                                .max_seqs = a->o.max_num_seqs,
                                .max_outputs = a->o.max_num_batched_tokens,
                                .max_len = a->max_model_len,
                                .activations = a->o.activations,
                                .kv_type = a->o.kv_type,
                                .huge_pages = huge_pages(a),
                                .plain = a->o.plain,
                                .avx2 = a->o.avx2};
    struct gpu_source source = model_source(a->model);
    a->ops = gpu_cpu_ops();
    int rc = a->ops->open(&a->gpu, &config, f);
    if (rc < 0)
        return rc;
    model_on_progress(a->model, show_progress, a);
    log_progress_begin(&a->progress, "loading", clock_ns());
    rc = a->ops->load(a->gpu, &a->model->net, &source, f);
    log_progress_end(&a->progress);
    if (rc < 0)
        return rc;
    a->ops->memory(a->gpu, &a->memory);
    warn_pages(a, config.huge_pages);
    return 0;
}

static int size_pool(struct appliance *a, struct fail *f)
{
    struct sizing_wish wish = {.num_kv_blocks = a->o.num_kv_blocks,
                               .kv_cache_memory = a->o.kv_cache_memory,
                               .utilization = a->o.gpu_memory_utilization,
                               .max_model_len = a->max_model_len,
                               .max_num_seqs = a->o.max_num_seqs,
                               .own_bytes = sizing_own_bytes(a->model->net.vocab)};
    int rc = sizing_plan(&a->sizing, &wish, &a->memory, f);
    if (!rc)
        rc = a->ops->pool(a->gpu, a->sizing.n_blocks, f);
    if (!rc)
        a->ops->memory(a->gpu, &a->memory);
    return rc;
}

static int warm_up(struct appliance *a, struct fail *f)
{
    struct warmup w = {.max_rows = a->o.max_num_batched_tokens,
                       .max_len = a->max_model_len,
                       .n_blocks = a->sizing.n_blocks,
                       .vocab = a->model->net.vocab};
    int rc = warmup_run(a->ops, a->gpu, &w);
    return rc < 0 ? fail(f, rc, "the first step of the backend %s failed: %s", a->ops->name,
                         strerror(-rc))
                  : 0;
}

/* Names everything that decides a token's bits. */
static uint64_t numerics_id(const struct appliance *a)
{
    struct {
        char what[16];
        uint8_t model[16];
        char numerics[96];
    } key = {.what = "llmd numerics 1"};
    model_digest(a->model, key.model);
    snprintf(key.numerics, sizeof key.numerics, "%s", a->ops->numerics(a->gpu));
    return XXH3_64bits(&key, sizeof key);
}

/* ---- shared memory ---- */

static int make_pulse(struct appliance *a, struct fail *f)
{
    int rc = segment_to_client(&a->pulse, "llmd-pulse", LLM_HEADER_BYTES, f);
    if (rc < 0)
        return rc;
    struct llm_pulse *p = a->pulse.map;
    p->abi_major = LLM_ABI_MAJOR;
    p->abi_minor = LLM_ABI_MINOR;
    p->pid = (uint32_t)getpid();
    p->epoch = a->epoch;
    p->vocab = a->model->net.vocab;
    p->max_model_len = a->max_model_len;
    p->magic = LLM_MAGIC_PULSE;
    return 0;
}

static int make_vocabulary(struct appliance *a, struct fail *f)
{
    void *image;
    size_t bytes;
    int rc = model_vocab_image(a->model, &image, &bytes, f);
    if (rc < 0)
        return rc;
    rc = segment_frozen(&a->vocab, "llmd-vocab", image, bytes, f);
    if (!rc && (rc = token_text_create(&a->text, image, bytes)) < 0)
        fail(f, rc, "no memory for the text of the tokens, or the vocabulary is damaged");
    free(image);
    return rc;
}

static void describe(const struct appliance *a, struct llm_board *b)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    b->abi_major = LLM_ABI_MAJOR;
    b->abi_minor = LLM_ABI_MINOR;
    b->pid = (uint32_t)getpid();
    b->epoch = a->epoch;
    b->numerics_id = a->numerics_id;
    b->started_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    model_digest(a->model, b->model_digest);
    model_vocab_digest(a->model, b->vocab_digest);
    snprintf(b->instance, sizeof b->instance, "%s", a->o.instance);
    snprintf(b->model, sizeof b->model, "%s", a->name);
    snprintf(b->quantization, sizeof b->quantization, "%s", a->model->quantization);
    snprintf(b->backend, sizeof b->backend, "%s", a->ops->kernels(a->gpu));
    snprintf(b->numerics, sizeof b->numerics, "%s", a->ops->numerics(a->gpu));
    snprintf(b->version, sizeof b->version, "%s", LLMD_VERSION);
    b->vocab = a->model->net.vocab;
    b->max_model_len = a->max_model_len;
    b->max_num_seqs = a->o.max_num_seqs;
    b->max_num_batched_tokens = a->o.max_num_batched_tokens;
    b->prefill_chunk = a->o.prefill_chunk;
    b->threads = a->threads;
    b->kv_block_size = GPU_KV_BLOCK;
    b->kv_blocks_total = a->sizing.n_blocks;
    b->weights_bytes = a->memory.weights_bytes;
    b->kv_bytes = a->sizing.kv_bytes;
    b->workspace_bytes = a->memory.workspace_bytes;
    snprintf(b->weights_pages, sizeof b->weights_pages, "%s",
             a->memory.weights_pages ? a->memory.weights_pages : "");
    b->weights_huge_bytes = a->memory.weights_huge_bytes;
}

static int make_shared(struct appliance *a, struct fail *f)
{
    if (getrandom(&a->epoch, sizeof a->epoch, 0) != sizeof a->epoch)
        return fail(f, -EIO, "the kernel gave no random number for the epoch");
    int rc = make_pulse(a, f);
    if (!rc)
        rc = make_vocabulary(a, f);
    if (!rc)
        rc = board_create(&a->board, a->o.instance, f);
    if (!rc && (rc = stats_create(&a->stats, a->board.map)) < 0)
        fail(f, rc, "no memory for the counters");
    if (!rc)
        describe(a, a->board.map);
    return rc;
}

/* ---- the core and its clients ---- */

static int make_clients(struct appliance *a, struct fail *f)
{
    struct clients_config config = {
        .max_clients = a->o.max_clients,
        .welcome = {.major = LLM_ABI_MAJOR,
                    .minor = LLM_ABI_MINOR,
                    .max_len = a->max_model_len,
                    .vocab = a->model->net.vocab,
                    .epoch = a->epoch,
                    .numerics_id = a->numerics_id},
        .pulse_fd = a->pulse.fd,
        .vocab_fd = a->vocab.fd,
        .quota = {.clients = a->o.quota_clients, .bytes = a->o.quota_memory},
        .board = &a->board,
        .stats = &a->stats};
    snprintf(config.welcome.model, sizeof config.welcome.model, "%s", a->name);
    return clients_create(&a->clients, &config, f);
}

static int make_core(struct appliance *a, struct fail *f)
{
    struct engine_config config = {
        .max_model_len = a->max_model_len,
        .max_num_seqs = a->o.max_num_seqs,
        .max_num_batched_tokens = a->o.max_num_batched_tokens,
        .prefill_chunk = a->o.prefill_chunk,
        .max_requests = a->o.max_requests,
        .n_blocks = a->sizing.n_blocks,
        .vocab = a->model->net.vocab,
        .eog = a->model->vocab.eog,
        .n_eog = a->model->vocab.n_eog,
        .numerics_id = a->numerics_id,
        .text = &a->text,
        .max_itl_us = a->o.max_itl_ms * 1000,
        .max_step_us = a->o.max_step_ms * 1000,
        .queue_timeout_ms = a->o.queue_timeout_ms,
        .timeout_ms = a->o.timeout_ms,
        .max_waiting = a->o.max_waiting ? a->o.max_waiting : a->o.max_requests,
        .max_waiting_tokens = a->o.max_waiting_tokens,
        .max_unread = a->o.max_unread_tokens,
        .prefix_cache = a->o.prefix_caching,
        .max_sessions = a->o.max_sessions,
        .session_idle_ms = a->o.session_idle_s * 1000,
        .speculation = {.by_default = a->o.speculative == SPECULATIVE_NGRAM,
                        .max_tokens = a->o.speculative_tokens,
                        .min_match = a->o.prompt_lookup_min,
                        .max_match = a->o.prompt_lookup_max},
        .quota = a->o.quota};
    int rc = make_clients(a, f);
    if (rc < 0)
        return rc;
    struct engine_sink sink = clients_sink(&a->clients);
    rc = engine_create(&a->engine, &config, a->ops, a->gpu, a->board.map, &sink, f);
    if (!rc)
        clients_attach(&a->clients, a->engine);
    return rc;
}

static void refresh_heap(struct appliance *a)
{
    struct heap_figures heap;
    heap_read(&heap);
    STATS_SET(&a->stats, heap_allocated, heap.allocated);
    STATS_SET(&a->stats, heap_resident, heap.resident);
}

static void on_tick(void *context, bool busy, uint64_t now_ns)
{
    struct appliance *a = context;
    notify_tick(&a->notify, engine_steps(a->engine), busy, now_ns);
    if (!busy)
        refresh_heap(a);
}

/* The service manager gives the requests their time, and the stop behind it. */
static void on_stopping(void *context)
{
    enum { STOP_MS = 10000 };
    struct appliance *a = context;
    log_info("stopping: no new requests; what runs has %llu ms to end",
             (unsigned long long)a->o.drain_timeout_ms);
    notify_send(&a->notify, "STOPPING=1\nSTATUS=stopping\nEXTEND_TIMEOUT_USEC=%llu000",
                (unsigned long long)a->o.drain_timeout_ms + STOP_MS);
}

static int make_loop(struct appliance *a, struct fail *f)
{
    struct loop_config config = {.engine = a->engine,
                                 .ops = a->ops,
                                 .gpu = a->gpu,
                                 .clients = &a->clients,
                                 .server = &a->server,
                                 .pulse = a->pulse.map,
                                 .board = &a->board,
                                 .stats = &a->stats,
                                 .idle_spin_us = a->o.idle_spin_us,
                                 .drain_timeout_ms = a->o.drain_timeout_ms,
                                 .waiter = a->o.waiter,
                                 .hooks = {.context = a,
                                           .tick_ns = notify_period_ns(&a->notify, UINT64_MAX),
                                           .tick = on_tick,
                                           .stopping = on_stopping},
                                 .stop_event = signals_serve()};
    struct fail notice = {0};
    int rc = loop_create(&a->loop, &config, &notice, f);
    if (!rc && notice.code)
        log_warn("%s", notice.text);
    return rc;
}

/* ---- life ---- */

/* What can be refused before anything is loaded. */
static int check_limits(struct appliance *a, struct fail *f)
{
    const struct cpus *list = &a->o.cpu_list;
    uint32_t threads = a->o.threads && a->o.threads < list->n ? a->o.threads : list->n;
    int rc = limits_descriptors(a->o.max_clients, f);
    if (!rc && list->n)
        rc = limits_may_run_on(list, threads, a->o.io_cpu, f);
    return !rc && a->o.rt_priority ? limits_may_run_real_time(a->o.rt_priority, f) : rc;
}

static int load(struct appliance *a, struct fail *f)
{
    begin_trial(a);
    int rc = open_model(a, f);
    if (rc < 0)
        return rc;
    lap(&a->watch, "description");
    if ((rc = open_backend(a, f)) < 0)
        return rc;
    lap(&a->watch, "weights");
    if ((rc = size_pool(a, f)) < 0)
        return rc;
    lap(&a->watch, "KV pool");
    a->numerics_id = numerics_id(a);
    return 0;
}

static int make_engine(struct appliance *a, struct fail *f)
{
    signals_serve(); /* from here on there is more to remove than the lock */
    int rc = make_shared(a, f);
    if (!rc)
        rc = make_core(a, f);
    if (rc < 0)
        return rc;
    lap(&a->watch, "engine");
    if ((rc = warm_up(a, f)) < 0)
        return rc;
    lap(&a->watch, "warm-up");
    rc = make_loop(a, f);
    return rc ? rc : control_listen(&a->server, f);
}

/* What holds for everything that was made. */
static int take_privileges(struct appliance *a, struct fail *f)
{
    int rc = a->o.mlock ? limits_lock(f) : 0;
    if (!rc && a->o.rt_priority)
        rc = limits_run_real_time(a->o.rt_priority, f);
    return rc;
}

static int start(struct appliance *a, struct fail *f)
{
    struct fail notice = {0};
    if (notify_open(&a->notify, &notice) < 0)
        log_warn("%s", notice.text); /* the variable may be somebody else's, left over */
    int rc = check_limits(a, f);
    if (!rc)
        rc = control_lock(&a->server, a->o.instance, f);
    if (rc < 0)
        return rc;
    signals_remove_on_exit(a->server.lock_path);
    lap(&a->watch, "limits");
    rc = load(a, f);
    if (!rc)
        rc = make_engine(a, f);
    if (!rc)
        rc = take_privileges(a, f);
    lap(&a->watch, "door");
    return rc;
}

static void announce(struct appliance *a)
{
    refresh_heap(a);
    loop_open(a->loop);
    board_publish(&a->board);
    sizing_print(stdout, &a->sizing, &a->memory, a->max_model_len);
    printf("llmd: %s kernels, %u threads, numerics %s, their id %016llx\n", a->ops->kernels(a->gpu),
           a->threads, a->ops->numerics(a->gpu), (unsigned long long)a->numerics_id);
    log_debug("start-up took %.1f ms: %s", (double)(a->watch.last_ns - a->watch.start_ns) * 1e-6,
              a->watch.text);
    printf("llmd: ready: instance '%s' serves '%s' on %s\n", a->o.instance, a->name,
           a->server.socket_path);
    fflush(stdout);
    notify_begin(&a->notify, clock_ns());
    notify_send(&a->notify, "READY=1\nSTATUS=serving %s", a->name);
}

/* Undoes whatever start did; every part takes being absent. */
static void stop(struct appliance *a)
{
    pages_trial_end(&a->trial);
    control_close(&a->server);
    loop_destroy(a->loop);
    clients_destroy(&a->clients);
    engine_destroy(a->engine);
    board_remove(&a->board);
    stats_destroy(&a->stats);
    segment_free(&a->vocab);
    token_text_destroy(&a->text);
    segment_free(&a->pulse);
    if (a->ops)
        a->ops->close(a->gpu);
    model_close(a->model);
    control_unlock(&a->server);
    notify_close(&a->notify);
}

static int say(const struct fail *f, int status)
{
    log_error("%s", f->text);
    return status;
}

static int serve(struct appliance *a, struct fail *f)
{
    int rc = signals_install(f);
    if (!rc)
        rc = start(a, f);
    if (!rc) {
        announce(a);
        rc = loop_run(a->loop, f);
    }
    stop(a);
    return rc;
}

int main(int argc, char **argv)
{
    static struct appliance a = {.pulse.fd = -1, .vocab.fd = -1, .notify.fd = -1};
    struct fail f = {0};
    a.watch.start_ns = a.watch.last_ns = clock_ns();
    control_server_init(&a.server);
    int rc = options_parse(&a.o, argc, argv, &f);
    if (rc == OPTIONS_HELP)
        return options_help(stdout), 0;
    if (rc == OPTIONS_VERSION)
        return printf("llmd %s\n", LLMD_VERSION), 0;
    if (rc == OPTIONS_CHECK)
        return options_print(stdout, &a.o), 0;
    if (rc < 0)
        return say(&f, 2);
    log_setup(a.o.log_level, a.o.log_json);
    rc = serve(&a, &f);
    return rc < 0 ? say(&f, rc == -EDOM ? 2 : 1) : 0;
}
