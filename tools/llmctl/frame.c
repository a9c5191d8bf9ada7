/* frame.c - see frame.h. */
#include "frame.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { HEAD = 10 /* columns of a heading */, GAP = 2 };

struct interval {
    const struct llm_board *now, *before; /* before: NULL since the start */
    double s;                             /* its length */
};

/* ---- lines ---- */

/* No control characters: names and errors of the board may hold anything. */
static void clean(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = ' ';
}

/* Takes away a character of which a part was cut off. */
static void whole_characters(char *text)
{
    size_t n = strlen(text), tail = 0;
    while (tail < n && tail < 3 && ((unsigned char)text[n - 1 - tail] & 0xc0) == 0x80)
        tail++;
    unsigned char lead = n > tail ? (unsigned char)text[n - 1 - tail] : 0;
    size_t wants = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    if (wants > tail)
        text[n - 1 - tail] = 0;
}

static char *new_line(struct frame *f)
{
    if (f->n == FRAME_LINES)
        return NULL;
    f->used = 0;
    char *line = f->lines[f->n++];
    *line = 0;
    return line;
}

static void put(struct frame *f, unsigned at, const char *text)
{
    char *line = f->lines[f->n - 1];
    size_t has = strlen(line);
    while (has < at && has < f->width)
        line[has++] = ' ';
    line[has] = 0;
    size_t room = f->width - has;
    snprintf(line + has, room + 1, "%s", text);
    whole_characters(line);
    f->used = (unsigned)strlen(line);
}

/* A new line with the group's heading. */
static void group(struct frame *f, const char *heading)
{
    if (new_line(f))
        put(f, 0, heading);
}

/* Joins the line where it fits, else begins the next one. */
__attribute__((format(printf, 2, 3))) static void item(struct frame *f, const char *format, ...)
{
    char text[FRAME_WIDTH_MAX + 1];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    clean(text);
    unsigned at = f->used < HEAD ? HEAD : f->used + GAP;
    if (f->used > HEAD && at + strlen(text) > f->width) {
        if (!new_line(f))
            return;
        at = HEAD;
    }
    put(f, at, text);
}

__attribute__((format(printf, 2, 3))) static void line(struct frame *f, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    clean(text);
    if (new_line(f))
        put(f, 0, text);
}

/* ---- numbers ---- */

static unsigned long long figure(const order_u64 *v)
{
    return (unsigned long long)order_read64(v);
}

static uint64_t counted(const struct interval *i, size_t place)
{
    const uint8_t *now = (const uint8_t *)i->now, *before = (const uint8_t *)i->before;
    uint64_t late = order_read64((const order_u64 *)(const void *)(now + place));
    uint64_t early = before ? order_read64((const order_u64 *)(const void *)(before + place)) : 0;
    return late > early ? late - early : 0;
}
#define COUNTED(i, field) counted(i, offsetof(struct llm_board, field))

static double rate(const struct interval *i, uint64_t n)
{
    return i->s > 0 ? (double)n / i->s : 0;
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

static const char *age_text(char *out, size_t size, uint64_t ns)
{
    double s = (double)ns * 1e-9;
    if (ns == UINT64_MAX)
        snprintf(out, size, "never");
    else if (s < 1)
        snprintf(out, size, "%.0f ms ago", s * 1e3);
    else if (s < 120)
        snprintf(out, size, "%.1f s ago", s);
    else if (s < 7200)
        snprintf(out, size, "%.0f min ago", s / 60);
    else
        snprintf(out, size, "%.1f h ago", s / 3600);
    return out;
}

static const char *duration_text(char *out, size_t size, double s)
{
    if (s < 120)
        snprintf(out, size, "%.0f s", s);
    else if (s < 7200)
        snprintf(out, size, "%.0f min", s / 60);
    else
        snprintf(out, size, "%.1f h", s / 3600);
    return out;
}

/* ---- the groups ---- */

static void add_state(struct frame *f, const struct board_view *v, bool gone)
{
    const struct llm_board *b = &v->board;
    char up[32], quiet[32];
    bool dead = !strcmp(board_view_state(v), "dead");
    duration_text(up, sizeof up, board_view_uptime_s(v));
    age_text(quiet, sizeof quiet, board_view_since(v, &b->heartbeat_ns));
    group(f, "llmd");
    item(f, "%.48s", ctl_instance);
    item(f, "%s", gone ? "stopped" : board_view_state(v));
    item(f, "pid %u", b->pid);
    item(f, "%s %s", dead || gone ? "ran" : "up", up);
    item(f, "%.80s (%.31s)", b->model, b->quantization);
    item(f, "%.31s", b->backend);
    if (dead)
        line(f, "THE ENGINE HAS DIED. Last sign of life %s; its last figures:", quiet);
    else if (gone)
        line(f, "The engine has stopped in order. Its last figures:");
}

static void add_requests(struct frame *f, const struct llm_board *b)
{
    group(f, "requests");
    item(f, "running %llu", figure(&b->running));
    item(f, "waiting %llu", figure(&b->waiting));
    item(f, "clients %llu", figure(&b->clients));
    item(f, "sessions %llu", figure(&b->sessions));
    item(f, "finished %llu", figure(&b->finished));
    item(f, "cancelled %llu", figure(&b->cancelled));
}

/* |####====....|: used, cached, free */
static void bar(char *out, unsigned width, uint64_t used, uint64_t cached, uint64_t total)
{
    unsigned a = total ? (unsigned)(used * width / total) : 0;
    unsigned b = total ? (unsigned)((used + cached) * width / total) : 0;
    a += used && !a; /* a little of something is not nothing */
    b = b < a ? a : b;
    b += cached && b == a && b < width;
    for (unsigned i = 0; i < width; i++)
        out[i] = i < a ? '#' : i < b ? '=' : '.';
    out[width] = 0;
}

static void add_kv(struct frame *f, const struct llm_board *b)
{
    uint64_t total = b->kv_blocks_total, unused = order_read64(&b->kv_blocks_free);
    uint64_t cached = order_read64(&b->kv_blocks_cached);
    unused = unused > total ? total : unused;
    cached = cached > unused ? unused : cached;
    uint64_t used = total - unused, never = unused - cached;
    char text[FRAME_WIDTH_MAX];
    unsigned room = f->width > HEAD + 4 ? f->width - HEAD - 2 : 2;
    bar(text, room > 22 ? 22 : room, used, cached, total);
    group(f, "KV");
    item(f, "[%s]", text);
    item(f, "used# %.1f %%", percent(used, total));
    item(f, "cached= %.1f %%", percent(cached, total));
    item(f, "free. %.1f %%", percent(never, total));
    item(f, "of %llu blocks", (unsigned long long)total);
    item(f, "pinned %llu", figure(&b->pinned_blocks));
}

static void add_rates(struct frame *f, const struct interval *i)
{
    uint64_t queries = COUNTED(i, prefix_queries), hits = COUNTED(i, prefix_hits);
    uint64_t drafted = COUNTED(i, spec_draft_tokens), held = COUNTED(i, spec_accepted_tokens);
    uint64_t rows = COUNTED(i, decode_rows), wrong = drafted > held ? drafted - held : 0;
    group(f, "tokens/s");
    item(f, "prefill %.1f", rate(i, COUNTED(i, prefill_rows)));
    item(f, "decode %.1f", rate(i, rows > wrong ? rows - wrong : 0));
    item(f, "steps/s %.1f", rate(i, COUNTED(i, steps)));
    item(f, "rows/step %.1f",
         COUNTED(i, steps) ? (double)COUNTED(i, rows) / (double)COUNTED(i, steps) : 0);
    if (drafted) {
        group(f, "drafts");
        item(f, "accepted %.1f %%", percent(held, drafted));
        item(f, "(%llu of %llu tokens)", (unsigned long long)held, (unsigned long long)drafted);
    }
    group(f, "cache");
    item(f, "prefix hits %.1f %%", percent(hits, queries));
    item(f, "(%llu of %llu tokens)", (unsigned long long)hits, (unsigned long long)queries);
    item(f, "preemptions %llu", figure(&i->now->preemptions));
    item(f, "recomputed %llu", figure(&i->now->recomputed_tokens));
}

/* ---- the table ---- */

enum { LABEL = 13, COLUMN_MOST = 12, COLUMN_LEAST = 6 };

struct table {
    int column;  /* width of one */
    bool counts; /* there is room for a fourth */
};

static struct table table_for(unsigned width)
{
    int room = width > LABEL ? (int)width - LABEL : 0;
    struct table t = {room / 4, room / 4 >= COLUMN_LEAST + 1};
    if (!t.counts)
        t.column = room / 3;
    t.column = t.column > COLUMN_MOST ? COLUMN_MOST : t.column;
    t.column = t.column < COLUMN_LEAST ? COLUMN_LEAST : t.column;
    return t;
}

static void add_row(struct frame *f, struct table t, const char *name, double unit_us,
                    const struct llm_histogram *now, const struct llm_histogram *before)
{
    static const double q[] = {0.5, 0.95, 0.99};
    struct histogram h;
    char text[FRAME_WIDTH_MAX + 1];
    histogram_between(&h, now, before);
    int n = snprintf(text, sizeof text, "%-*s", LABEL, name), digits = t.column < 9 ? 2 : 3;
    for (size_t i = 0; i < 3; i++)
        n += h.count ? snprintf(text + n, sizeof text - (size_t)n, " %*.*f", t.column - 1, digits,
                                histogram_quantile_us(&h, q[i]) / unit_us)
                     : snprintf(text + n, sizeof text - (size_t)n, " %*s", t.column - 1, "-");
    if (t.counts)
        snprintf(text + n, sizeof text - (size_t)n, " %*llu", t.column - 1,
                 (unsigned long long)h.count);
    line(f, "%s", text);
}

static void add_table(struct frame *f, const struct interval *i)
{
    const struct llm_board *b = i->now, *a = i->before;
    struct table t = table_for(f->width);
    line(f, "%-*s%*s%*s%*s%*s", LABEL, a ? "interval" : "since start", t.column, "p50", t.column,
         "p95", t.column, "p99", t.counts ? t.column : 0, t.counts ? "count" : "");
    add_row(f, t, "TTFT ms", 1e3, &b->ttft, a ? &a->ttft : NULL);
    add_row(f, t, "token gap ms", 1e3, &b->itl, a ? &a->itl : NULL);
    add_row(f, t, "queue ms", 1e3, &b->queue, a ? &a->queue : NULL);
    add_row(f, t, "step ms", 1e3, &b->step, a ? &a->step : NULL);
    add_row(f, t, "overhead us", 1, &b->overhead, a ? &a->overhead : NULL);
}

static void add_trouble(struct frame *f, const struct llm_board *b)
{
    group(f, "refused");
    item(f, "%llu", figure(&b->refused));
    for (unsigned i = 0; i < LLM_REFUSALS; i++)
        if (order_read64(&b->refused_for[i]))
            item(f, "%s %llu", board_refusal_name(i), figure(&b->refused_for[i]));
    group(f, "late");
    item(f, "deadline misses %llu", figure(&b->deadline_misses));
    item(f, "timeouts %llu", figure(&b->timeouts));
    item(f, "queue timeouts %llu", figure(&b->queue_timeouts));
}

static void add_progress(struct frame *f, const struct board_view *v)
{
    const struct llm_board *b = &v->board;
    char step[32], beat[32];
    group(f, "progress");
    item(f, "last step %s", age_text(step, sizeof step, board_view_since(v, &b->last_step_ns)));
    item(f, "heartbeat %s", age_text(beat, sizeof beat, board_view_since(v, &b->heartbeat_ns)));
    item(f, "backlog %llu tokens, %.1f ms", figure(&b->backlog_tokens),
         (double)order_read64(&b->backlog_us) * 1e-3);
}

static void add_one_error(void *context, uint64_t t_ns, const char *text)
{
    time_t s = (time_t)(t_ns / 1000000000u);
    struct tm when;
    char at[32] = "";
    if (localtime_r(&s, &when))
        strftime(at, sizeof at, "%H:%M:%S", &when);
    line(context, "%s %s", at, text);
}

static void add_errors(struct frame *f, const struct board_view *v)
{
    if (!order_read64(&v->board.errors_written))
        return;
    line(f, "last errors:");
    board_view_errors(v, add_one_error, f);
}

/* The last lines are the errors, the oldest first: the newest stay. */
static void shorten(struct frame *f, unsigned max_lines, unsigned before_errors)
{
    if (!max_lines || f->n <= max_lines)
        return;
    unsigned extra = f->n - max_lines, first = before_errors + 1; /* behind "last errors:" */
    if (first + extra <= f->n && first < f->n) {
        memmove(f->lines[first], f->lines[first + extra],
                (f->n - first - extra) * sizeof f->lines[0]);
    }
    f->n = max_lines;
}

void frame_build(struct frame *f, unsigned width, unsigned max_lines, const struct board_view *now,
                 const struct board_view *before, bool gone)
{
    f->width = width < FRAME_WIDTH_MIN   ? FRAME_WIDTH_MIN
               : width > FRAME_WIDTH_MAX ? FRAME_WIDTH_MAX
                                         : width;
    f->n = f->used = 0;
    struct interval i = {&now->board, NULL, board_view_uptime_s(now)};
    if (before && before->board.epoch == now->board.epoch) {
        i.before = &before->board;
        i.s = (double)(now->now_ns - before->now_ns) * 1e-9;
    }
    add_state(f, now, gone);
    add_requests(f, &now->board);
    add_kv(f, &now->board);
    add_rates(f, &i);
    add_table(f, &i);
    add_trouble(f, &now->board);
    add_progress(f, now);
    unsigned before_errors = f->n;
    add_errors(f, now);
    shorten(f, max_lines, before_errors);
}
