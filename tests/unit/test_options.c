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
    refused("--model a --threads 0", "--threads 0 is out of range: 1 to 1024");
    refused("--model a --threads 1025", "out of range: 1 to 1024");
    refused("--model a --max-num-seqs=99999999999999999999999", "out of range: 1 to 4096");
    refused("--model a --threads -1", "takes a whole number from 1 to 1024, not '-1'");
    refused("--model a --threads 2x", "takes a whole number");
    refused("--model a --threads 0x2", "takes a whole number");
    refused("--model a --threads=", "takes a whole number");
    refused("--model a --max-model-len 1", "out of range: 2 to");
    refused("--model a --kv-cache-memory 12Q", "takes a size such as 512M or 4G, not '12Q'");
    refused("--model a --kv-cache-memory 0", "out of range");
    refused("--model a --kv-cache-memory 99999999T", "out of range");
    refused("--model a --kv-cache-memory 1G --num-kv-blocks 3", "give one");
    refused("--model a --backend cuda", "--backend is one of cpu|cpu-plain, not 'cuda'");
    refused("--model a --activations int", "--activations is one of int8|f32");
    refused("--model a --kv-cache-dtype int8", "--kv-cache-dtype is one of f16|f32");
    refused("--model a --instance ../x", "'../x' is not a name");
    refused("--model a --instance .x", "not starting with a dot");
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
                                       cmocka_unit_test(help_and_version),
                                       cmocka_unit_test(unknown_options),
                                       cmocka_unit_test(missing),
                                       cmocka_unit_test(out_of_range),
                                       cmocka_unit_test(sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
