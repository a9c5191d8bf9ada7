/* test_options.c - llmd's command line: defaults, both spellings, and the sentence for each
 * mistake.
 */
#include "../../appliance/options.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

#include <errno.h>
#include <string.h>

static struct options o;
static struct fail f;

/* Parses a command line written as one string, words separated by single blanks. */
static int parse(const char *line)
{
    static char words[1024];
    static char *argv[64];
    snprintf(words, sizeof words, "llmd %s", line);
    int argc = 0;
    for (char *w = strtok(words, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    memset(&o, 0xee, sizeof o);
    f = (struct fail){0};
    return options_parse(&o, argc, argv, &f);
}

static void refused(const char *line, const char *sentence)
{
    assert_int_equal(parse(line), -EINVAL);
    if (!strstr(f.text, sentence))
        fail_msg("llmd %s\n  says: %s\n  not:  %s", line, f.text, sentence);
}

static void defaults(void **state)
{
    (void)state;
    assert_int_equal(parse("--model m.gguf"), OPTIONS_RUN);
    assert_string_equal(o.model, "m.gguf");
    assert_string_equal(o.instance, "default");
    assert_null(o.served_model_name);
    assert_false(o.plain);
    assert_int_equal(o.activations, GPU_ACT_AUTO);
    assert_int_equal(o.kv_type, GPU_KV_F16);
    assert_int_equal(o.threads, 0);
    assert_int_equal(o.max_model_len, 0);
    assert_int_equal(o.max_num_seqs, 64);
    assert_int_equal(o.max_num_batched_tokens, 512);
    assert_int_equal(o.prefill_chunk, 0);
    assert_int_equal(o.max_requests, 1024);
    assert_int_equal(o.max_clients, 64);
    assert_int_equal(o.idle_spin_us, 50);
    assert_int_equal(o.num_kv_blocks, 0);
    assert_int_equal(o.kv_cache_memory, 0);
    assert_int_equal(o.waiter, WAITER_AUTO);
}

static void every_option(void **state)
{
    (void)state;
    assert_int_equal(
        parse("--model a --instance i.1 --served-model-name n --backend cpu-plain --threads 3 "
              "--max-model-len 100 --max-num-seqs 5 --max-num-batched-tokens 4 --prefill-chunk 7 "
              "--activations f32 --kv-cache-dtype f32 --num-kv-blocks 9 --max-requests 11 "
              "--max-clients 12 --idle-spin-us 0 --io epoll"),
        OPTIONS_RUN);
    assert_string_equal(o.instance, "i.1");
    assert_string_equal(o.served_model_name, "n");
    assert_true(o.plain);
    assert_int_equal(o.threads, 3);
    assert_int_equal(o.max_model_len, 100);
    assert_int_equal(o.max_num_seqs, 5);
    assert_int_equal(o.max_num_batched_tokens, 4); /* below max_num_seqs: legal */
    assert_int_equal(o.prefill_chunk, 7);
    assert_int_equal(o.activations, GPU_ACT_F32);
    assert_int_equal(o.kv_type, GPU_KV_F32);
    assert_int_equal(o.num_kv_blocks, 9);
    assert_int_equal(o.max_requests, 11);
    assert_int_equal(o.max_clients, 12);
    assert_int_equal(o.idle_spin_us, 0);
    assert_int_equal(o.waiter, WAITER_EPOLL);
}

static void equals_sign_and_repeats(void **state)
{
    (void)state;
    assert_int_equal(parse("--model=a=b --threads=2 --threads 4 --kv-cache-memory=512M "
                           "--backend=cpu --activations=int8 --kv-cache-dtype=f16"),
                     OPTIONS_RUN);
    assert_string_equal(o.model, "a=b");
    assert_int_equal(o.threads, 4);
    assert_int_equal(o.kv_cache_memory, 512ull << 20);
    assert_false(o.plain);
    assert_int_equal(o.activations, GPU_ACT_INT8);
    assert_int_equal(o.kv_type, GPU_KV_F16);
    assert_int_equal(parse("--model a --kv-cache-dtype int8"), OPTIONS_RUN);
    assert_int_equal(o.kv_type, GPU_KV_INT8);
}

static void promises_and_quotas(void **state)
{
    (void)state;
    assert_int_equal(parse("--model m"), OPTIONS_RUN);
    assert_int_equal(o.max_itl_ms + o.queue_timeout_ms + o.timeout_ms + o.max_waiting +
                         o.max_waiting_tokens + o.quota_clients,
                     0);
    assert_int_equal(o.max_unread_tokens, 65536);
    assert_int_equal(o.max_step_ms, 100);
    assert_int_equal(o.drain_timeout_ms, 5000);
    assert_int_equal(o.max_sessions, 64);
    assert_int_equal(o.session_idle_s, 300);
    assert_true(o.prefix_caching);
    assert_int_equal(
        parse("--model a --max-itl-ms 40 --queue-timeout-ms 1 --timeout-ms 2 --max-waiting 3 "
              "--max-waiting-tokens 4 --max-unread-tokens 5 --drain-timeout-ms 6 --max-sessions 7 "
              "--session-idle-s 8 --quota-clients 9 --quota-memory 10M --quota-requests 11 "
              "--quota-prompt-tokens 12 --quota-kv-blocks 13 --quota-sessions 14 "
              "--quota-pinned-blocks 15 --max-step-ms 16"),
        OPTIONS_RUN);
    const uint32_t got[] = {
        o.max_itl_ms,         o.queue_timeout_ms,  o.timeout_ms,          o.max_waiting,
        o.max_waiting_tokens, o.max_unread_tokens, o.drain_timeout_ms,    o.max_sessions,
        o.session_idle_s,     o.quota_clients,     o.quota.requests,      o.quota.prompt_tokens,
        o.quota.kv_blocks,    o.quota.sessions,    o.quota.pinned_blocks, o.max_step_ms};
    const uint32_t wanted[] = {40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16};
    assert_memory_equal(got, wanted, sizeof got);
    assert_int_equal(o.quota_memory, 10 << 20);
}

static void speculation(void **state)
{
    (void)state;
    assert_int_equal(parse("--model a"), OPTIONS_RUN);
    assert_int_equal(o.speculative, SPECULATIVE_OFF);
    assert_int_equal(o.speculative_tokens, 8);
    assert_int_equal(o.prompt_lookup_min, 2);
    assert_int_equal(o.prompt_lookup_max, 8);
    assert_int_equal(parse("--model a --speculative ngram --num-speculative-tokens 5 "
                           "--prompt-lookup-min 3 --prompt-lookup-max 4"),
                     OPTIONS_RUN);
    assert_int_equal(o.speculative, SPECULATIVE_NGRAM);
    assert_int_equal(o.speculative_tokens, 5);
    assert_int_equal(o.prompt_lookup_min, 3);
    assert_int_equal(o.prompt_lookup_max, 4);
    assert_int_equal(parse("--model a --speculative off --speculative-tokens 0"), OPTIONS_RUN);
    refused("--model a --speculative", "--speculative needs a value: --speculative off|ngram");
    refused("--model a --speculative eagle", "--speculative is one of off|ngram, not 'eagle'");
    refused("--model a --speculative-tokens 17", "16");
    refused("--model a --prompt-lookup-min 0", "1 to 64");
    refused("--model a --prompt-lookup-max 65", "1 to 64");
    refused("--model a --prompt-lookup-min 9", "--prompt-lookup-min 9 is more than "
                                               "--prompt-lookup-max 8");
}

static void switches_in_every_form(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        bool on;
    } said[] = {{"--model m --enable-prefix-caching", true},
                {"--model m --enable-prefix-caching no", false},
                {"--enable-prefix-caching yes --model m", true},
                {"--model m --enable-prefix-caching=off", false},
                {"--model m --no-enable-prefix-caching", false},
                {"--no-enable-prefix-caching --enable-prefix-caching --model m", true}};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        assert_int_equal(parse(said[i].line), OPTIONS_RUN);
        assert_true(o.prefix_caching == said[i].on);
        assert_string_equal(o.model, "m");
    }
    refused("--model m --no-enable-prefix-caching=yes", "unknown option");
    refused("--model m --no-threads", "unknown option");
    refused("--model m --enable-prefix-caching maybe", "'maybe' is not an option");
}

static void names_of_others(void **state)
{
    (void)state;
    assert_int_equal(parse("--model m --drain-timeout 30"), OPTIONS_RUN);
    assert_int_equal(o.drain_timeout_ms, 30000);
    assert_int_equal(parse("--model m --num-gpu-blocks-override 12 --block-size 16"), OPTIONS_RUN);
    assert_int_equal(o.num_kv_blocks, 12);
    refused("--model m --block-size 32", "KV blocks of this engine have 16 tokens");
    refused("--model m --block-size x", "--block-size takes a whole number");
    assert_int_equal(parse("--model m --gpu-memory-utilization 0.9"), OPTIONS_RUN);
    assert_true(o.gpu_memory_utilization == 0.9);
    static const char *const shares[] = {"0",   "1.01", "90",   "-0.5", "nan",
                                         "0x1", "1e-1", "0.5x", ".",    "1..0"};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        char line[80];
        snprintf(line, sizeof line, "--model m --gpu-memory-utilization=%s", shares[i]);
        refused(line, "takes a share above 0 and up to 1");
    }
    refused("--model m --gpu-memory-utilization 0.5 --num-gpu-blocks-override 3",
            "--gpu-memory-utilization and --num-kv-blocks both size the KV pool");
}

static void spinning_for_ever(void **state)
{
    (void)state;
    static const char *const lines[] = {"--model m --idle-spin-us forever",
                                        "--model m --idle-spin-us -1",
                                        "--model m --idle-spin-us=-1"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        assert_int_equal(parse(lines[i]), OPTIONS_RUN);
        assert_int_equal(o.idle_spin_us, OPTIONS_FOREVER);
    }
    refused("--model m --idle-spin-us -2", "takes a whole number");
}

static void help_and_version(void **state)
{
    (void)state;
    assert_int_equal(parse("--help"), OPTIONS_HELP);
    assert_int_equal(parse("--model x --version"), OPTIONS_VERSION);
    refused("--help=yes", "--help takes no value");

    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    options_help(out);
    fclose(out);
    assert_non_null(strstr(text, "--max-num-batched-tokens N"));
    assert_non_null(strstr(text, "--kv-cache-memory SIZE"));
    assert_non_null(strstr(text, "4 GiB, a quarter of what is available, and what max-num-seqs "));
    free(text);
}

static void unknown_options(void **state)
{
    (void)state;
    refused("--model a --max-num-seq 3",
            "unknown option --max-num-seq; did you mean --max-num-seqs?");
    refused("--modle=a", "unknown option --modle; did you mean --model?");
    refused("--zzzzzzzzzzzzzz", "unknown option --zzzzzzzzzzzzzz; --help lists");
    refused("--", "unknown option --;");
    refused("model.gguf", "'model.gguf' is not an option");
    refused("-m a", "'-m' is not an option");
    char line[600] = "--";
    memset(line + 2, 'x', 500);
    refused(line, "unknown option --xxx");
}

static void missing(void **state)
{
    (void)state;
    refused("--threads 2", "--model FILE is required");
    refused("--model", "--model needs a value: --model FILE");
    refused("--model a --threads", "--threads needs a value");
    refused("--model=", "--model takes a text");
}

static void out_of_range(void **state)
{
    (void)state;
    refused("--model a --threads 0", "--threads 0 is out of range: 1 to 512");
    assert_int_equal(parse("--model a --threads 512"),
                     OPTIONS_RUN); /* as many as a backend takes */
    refused("--model a --threads 513", "out of range: 1 to 512");
    refused("--model a --max-num-seqs=99999999999999999999999", "out of range: 1 to 4096");
    refused("--model a --threads -1", "takes a whole number from 1 to 512, not '-1'");
    refused("--model a --threads 2x", "takes a whole number");
    refused("--model a --threads 0x2", "takes a whole number");
    refused("--model a --threads=", "takes a whole number");
    refused("--model a --max-model-len 1", "out of range: 2 to");
    refused("--model a --kv-cache-memory 12Q", "takes a size such as 512M or 4G, not '12Q'");
    refused("--model a --kv-cache-memory 0", "out of range");
    refused("--model a --kv-cache-memory 99999999T", "out of range");
    refused("--model a --kv-cache-memory 1G --num-kv-blocks 3", "give one");
    refused(
        "--model a --prompt-lookup-min 9 --prompt-lookup-max 3",
        "--prompt-lookup-min 9 is more than --prompt-lookup-max 3: raise --prompt-lookup-max or "
        "lower --prompt-lookup-min");
    assert_int_equal(strncmp(f.text, "--prompt", 8), 0); /* no file has a part in it */
    refused("--model a --idle-spin-us never",
            "--idle-spin-us takes a whole number from 0 to 1000000, or forever, not 'never'");
    refused("--model m --idle-spin-us 1000001", "out of range: 0 to 1000000, or forever");
    refused("--model a --backend cuda", "--backend is one of cpu|cpu-avx2|cpu-plain, not 'cuda'");
    refused("--model a --activations int", "--activations is one of int8|f32");
    refused("--model a --kv-cache-dtype int4", "--kv-cache-dtype is one of f16|f32|int8");
    refused("--model a --instance ../x", "'../x' is not a name");
    refused("--model a --instance .x", "not starting with a dot");
}

static void switches(void **state)
{
    (void)state;
    assert_int_equal(parse("--mlock --model m --log-json"), OPTIONS_RUN); /* takes no word */
    assert_string_equal(o.model, "m");
    assert_true(o.mlock);
    assert_true(o.log_json);
    assert_int_equal(parse("--model m --mlock=yes --mlock=no --log-json=1 --log-json=false"),
                     OPTIONS_RUN);
    assert_false(o.mlock);
    assert_false(o.log_json);
    refused("--model m --mlock=maybe", "--mlock is yes or no, not 'maybe'");
    refused("--model m --mlock maybe", "'maybe' is not an option");
    assert_int_equal(parse("--check-config --model m"), OPTIONS_CHECK);
    refused("--check-config", "--model FILE is required");
}

static void cpus(void **state)
{
    (void)state;
    assert_int_equal(parse("--model m --cpu-list 4,0-2"), OPTIONS_RUN);
    assert_int_equal(o.cpu_list.n, 4);
    assert_int_equal(o.cpu_list.at[0], 4);
    assert_int_equal(o.cpu_list.at[3], 2);
    assert_int_equal(o.threads, 4); /* one for each of them */
    assert_int_equal(parse("--model m --cpu-list 4,0-2 --threads 2 --io-cpu 1"), OPTIONS_RUN);
    assert_int_equal(o.threads, 2);
    assert_int_equal(o.cpu_list.n, 4);
    assert_int_equal(o.cpu_list.at[0], 1);
    assert_int_equal(o.cpu_list.at[1], 4);
    assert_int_equal(o.cpu_list.at[3], 2);
    assert_int_equal(parse("--model m --cpu-list 0-1 --io-cpu 5"), OPTIONS_RUN);
    assert_int_equal(o.cpu_list.n, 3); /* one more place, for as many threads */
    assert_int_equal(o.cpu_list.at[0], 5);
    assert_int_equal(o.threads, 2);
    assert_int_equal(parse("--model m --io-cpu 0"), OPTIONS_RUN);
    assert_int_equal(o.cpu_list.at[0], 0);
    assert_int_equal(o.threads, 0);
    refused("--model m --cpu-list 0-1 --threads 3", "--threads 3 is more than the 2 CPUs");
    refused("--model m --cpu-list 0,0", "--cpu-list names CPU 0 twice");
    refused("--model m --cpu-list 2-4,3", "--cpu-list names CPU 3 twice");
    static const char *const bad[] = {"a", "1-", "-1", "2-1", "1,,2", "1,", "0-3x", "1024", "0x1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[64], sentence[128];
        snprintf(line, sizeof line, "--model m --cpu-list %s", bad[i]);
        snprintf(sentence, sizeof sentence, "as 0-3,8, not '%s'", bad[i]);
        refused(line, sentence);
    }
    refused("--model m --cpu-list 0-1023", "names more than 512 CPUs");
    refused("--model m --io-cpu 1024", "--io-cpu 1024 is out of range: 0 to 1023");
    refused("--model m --rt-priority 0", "--rt-priority 0 is out of range: 1 to 99");
    static const char *const pages[] = {"auto", "hugetlb", "thp", "off"};
    for (int i = 0; i < 4; i++) {
        char line[64];
        snprintf(line, sizeof line, "--model m --huge-pages %s", pages[i]);
        assert_int_equal(parse(line), OPTIONS_RUN);
        assert_int_equal(o.huge_pages, GPU_HUGE_PAGES_AUTO + i);
    }
    assert_int_equal(parse("--model m"), OPTIONS_RUN);
    assert_int_equal(o.huge_pages, GPU_HUGE_PAGES_AUTO);
    refused("--model m --huge-pages yes", "--huge-pages is one of auto|hugetlb|thp|off, not 'yes'");
    refused("--model m --huge-pages", "--huge-pages needs a value");
    refused("--model m --log-level verbose", "--log-level is one of error|warn|info|debug");
}

static void cpu_lists_are_printed_short(void **state)
{
    (void)state;
    static const char *const lists[] = {"0", "0-1", "3,2,1", "0-3,8,10-11", "5,0-3,7,6"};
    char out[64];
    struct cpus list;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        assert_int_equal(cpus_parse(&list, "x", lists[i], &f), 0);
        cpus_print(&list, out, sizeof out);
        assert_string_equal(out, lists[i]);
    }
    cpus_print(&list, out, 4); /* cut, not overrun */
    assert_string_equal(out, "5,0");
    cpus_allowed(&list);
    assert_true(list.n >= 1);
    while (list.n < CPUS_MAX)
        list.at[list.n] = 600 + list.n, list.n++;
    cpus_put_first(&list, 1); /* full, with or without it */
    assert_int_equal(list.n, CPUS_MAX);
    assert_int_equal(list.at[0], 1);
}

static void sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"1", 1},
                {"4096B", 4096},
                {"2K", 2048},
                {"2k", 2048},
                {"512M", 512ull << 20},
                {"4GiB", 4ull << 30},
                {"4GB", 4ull << 30},
                {"1T", 1ull << 40},
                {"18446744073709551615", UINT64_MAX}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t v = 0;
        assert_int_equal(options_size(good[i].text, &v), 0);
        assert_true(v == good[i].bytes);
    }
    static const char *const bad[] = {"", "M", "-1", "1.5G", "1 G", "1Gi", "1GG", "0x10", "1iB"};
    uint64_t v;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (options_size(bad[i], &v) != -EINVAL)
            fail_msg("'%s' was taken for a size", bad[i]);
    assert_int_equal(options_size("18446744073709551616", &v), -ERANGE);
    assert_int_equal(options_size("16777216T", &v), -ERANGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(defaults),
                                       cmocka_unit_test(every_option),
                                       cmocka_unit_test(equals_sign_and_repeats),
                                       cmocka_unit_test(promises_and_quotas),
                                       cmocka_unit_test(speculation),
                                       cmocka_unit_test(switches_in_every_form),
                                       cmocka_unit_test(names_of_others),
                                       cmocka_unit_test(spinning_for_ever),
                                       cmocka_unit_test(help_and_version),
                                       cmocka_unit_test(unknown_options),
                                       cmocka_unit_test(missing),
                                       cmocka_unit_test(out_of_range),
                                       cmocka_unit_test(switches),
                                       cmocka_unit_test(cpus),
                                       cmocka_unit_test(cpu_lists_are_printed_short),
                                       cmocka_unit_test(sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
