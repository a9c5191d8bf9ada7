/* options_check.c - what must hold of llmd's options together, once all of them are known.
 *
 * A fault that a configuration file has a part in is told with the line of it where it stands.
 */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "options_table.h"

/* The last line of the file in which one of the two options stands; 0: both are the command line's,
 * or nobody's. */
static unsigned line_of(const struct options *o, const char *a, const char *b)
{
    unsigned line = 0;
    for (size_t i = 0; i < n_options; i++) {
        const char *name = options_table[i].name;
        if (o->line[i] > line && (!strcmp(name, a) || !strcmp(name, b)))
            line = o->line[i];
    }
    return line;
}

/* Two options, by their names, that do not go together. */
__attribute__((format(printf, 5, 6))) static int conflict(const struct options *o, struct fail *f,
                                                          const char *a, const char *b,
                                                          const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    unsigned line = line_of(o, a, b);
    return line ? fail(f, -EINVAL, "%.100s:%u: %s", o->config, line, text)
                : fail(f, -EINVAL, "%s", text);
}

/* The CPU of the thread that talks to clients is the first of the list. */
static void place_io_cpu(struct options *o)
{
    if (o->io_cpu == OPTIONS_NO_CPU)
        return;
    if (!o->cpu_list.n)
        cpus_allowed(&o->cpu_list);
    cpus_put_first(&o->cpu_list, o->io_cpu);
}

static int check_cpus(struct options *o, struct fail *f)
{
    if (!o->threads)
        o->threads = o->cpu_list.n;
    place_io_cpu(o);
    if (!o->cpu_list.n)
        return 0;
    if (o->threads > o->cpu_list.n)
        return conflict(
            o, f, "threads", "cpu-list",
            "--threads %u is more than the %u CPUs of --cpu-list: each thread has one of "
            "its own",
            o->threads, o->cpu_list.n);
    return 0;
}

int options_check(struct options *o, struct fail *f)
{
    const char *other = o->num_kv_blocks ? "num-kv-blocks" : "kv-cache-memory";
    if (!o->model)
        return fail(f, -EINVAL, "--model FILE is required: the GGUF file to serve");
    if (o->num_kv_blocks && o->kv_cache_memory)
        return conflict(o, f, "num-kv-blocks", "kv-cache-memory",
                        "--num-kv-blocks and --kv-cache-memory both size the KV pool: give one");
    if (o->gpu_memory_utilization > 0 && (o->num_kv_blocks || o->kv_cache_memory))
        return conflict(o, f, "gpu-memory-utilization", other,
                        "--gpu-memory-utilization and --%s both size the KV pool: give one", other);
    if (o->prompt_lookup_min > o->prompt_lookup_max)
        return conflict(o, f, "prompt-lookup-min", "prompt-lookup-max",
                        "--prompt-lookup-min %u is more than --prompt-lookup-max %u: raise "
                        "--prompt-lookup-max or lower --prompt-lookup-min",
                        o->prompt_lookup_min, o->prompt_lookup_max);
    return check_cpus(o, f);
}
