/* test_config.c - the configuration file: what it may look like, what wins, and the sentence with
 * its line for each mistake.
 */
#include "../../appliance/config.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

#include <errno.h>
#include <string.h>
#include <unistd.h>

static struct options o;
static struct fail f;
static char path[512];

static void write_bytes(const void *bytes, size_t n)
{
    snprintf(path, sizeof path, "%s/a.conf", scratch_dir());
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

/* The file with that text, and a command line that names it; `more` as words. */
static int parse_file(const char *text, const char *more)
{
    static char words[1024];
    static char *argv[32];
    write_bytes(text, strlen(text));
    snprintf(words, sizeof words, "llmd --config %s %s", path, more);
    int argc = 0;
    for (char *w = strtok(words, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    memset(&o, 0xee, sizeof o);
    f = (struct fail){0};
    return options_parse(&o, argc, argv, &f);
}

static void good(const char *text, const char *more)
{
    if (parse_file(text, more) != OPTIONS_RUN)
        fail_msg("%s: refused: %s", text, f.text);
}

static void refused(const char *text, const char *sentence)
{
    char want[700];
    int rc = parse_file(text, "");
    snprintf(want, sizeof want, "%s:%s", path, sentence);
    if (rc != -EINVAL || strncmp(f.text, want, strlen(want)))
        fail_msg("%s\n  gives %d: %s\n  not:  %s", text, rc, f.text, want);
}

static void every_option_has_its_name(void **state)
{
    (void)state;
    good("model = /a b/c.gguf\ninstance = i.1\nserved-model-name = n\nbackend = cpu-plain\n"
         "threads = 1\ncpu-list = 0-1,3\nio-cpu = 3\nrt-priority = 7\nmlock = yes\n"
         "huge-pages = hugetlb\nmax-model-len = 100\nmax-num-seqs = 5\nmax-num-batched-tokens = "
         "4\nprefill-chunk = 7\n"
         "activations = f32\nkv-cache-dtype = f32\nkv-cache-memory = 2G\nmax-requests = 11\n"
         "max-clients = 12\nidle-spin-us = 0\nio = epoll\nlog-level = debug\nlog-json = on\n",
         "");
    assert_string_equal(o.model, "/a b/c.gguf");
    assert_string_equal(o.instance, "i.1");
    assert_string_equal(o.served_model_name, "n");
    assert_string_equal(o.config, path);
    assert_true(o.plain);
    assert_int_equal(o.threads, 1);
    assert_int_equal(o.cpu_list.n, 3);
    assert_int_equal(o.cpu_list.at[0], 3); /* the io thread's */
    assert_int_equal(o.cpu_list.at[1], 0);
    assert_int_equal(o.cpu_list.at[2], 1);
    assert_int_equal(o.rt_priority, 7);
    assert_true(o.mlock);
    assert_int_equal(o.huge_pages, GPU_HUGE_PAGES_HUGETLB);
    assert_int_equal(o.max_model_len, 100);
    assert_int_equal(o.max_num_seqs, 5);
    assert_int_equal(o.max_num_batched_tokens, 4);
    assert_int_equal(o.prefill_chunk, 7);
    assert_int_equal(o.activations, GPU_ACT_F32);
    assert_int_equal(o.kv_type, GPU_KV_F32);
    assert_true(o.kv_cache_memory == 2ull << 30);
    assert_int_equal(o.max_requests, 11);
    assert_int_equal(o.max_clients, 12);
    assert_int_equal(o.idle_spin_us, 0);
    assert_int_equal(o.waiter, WAITER_EPOLL);
    assert_int_equal(o.log_level, LOG_LEVEL_DEBUG);
    assert_true(o.log_json);
}

static void the_forms_of_a_line(void **state)
{
    (void)state;
    good("\xef\xbb\xbf# a comment\n; another = one\n\n[llmd]\n   model=m.gguf\n\tmax-num-seqs : "
         "3\t\r\n"
         "  threads = 2   # two of them\nmax-clients = 9 ; nine\n   # indented\nmlock=off",
         "");
    assert_string_equal(o.model, "m.gguf"); /* an indented line is a line of its own */
    assert_int_equal(o.max_num_seqs, 3);
    assert_int_equal(o.threads, 2);
    assert_int_equal(o.max_clients, 9);
    assert_false(o.mlock);
    good("model = a#b\n", ""); /* no blank before it */
    assert_string_equal(o.model, "a#b");
    good("model = a=b\n", "");
    assert_string_equal(o.model, "a=b");
    good("", "--model x");
    good("\n\n\n", "--model x");
}

static void the_command_line_wins(void **state)
{
    (void)state;
    const char *text = "model = file.gguf\nmax-num-seqs = 5\nmlock = yes\nthreads = 3\n";
    good(text, "--max-num-seqs 6 --mlock=no");
    assert_string_equal(o.model, "file.gguf");
    assert_int_equal(o.max_num_seqs, 6);
    assert_int_equal(o.threads, 3);
    assert_false(o.mlock);
    assert_int_equal(o.max_clients, 64); /* neither says it */

    static char *before[] = {"llmd", "--max-num-seqs", "6", "--model=m", "--config", path};
    assert_int_equal(options_parse(&o, 6, before, &f), OPTIONS_RUN); /* wherever it stands */
    assert_int_equal(o.max_num_seqs, 6);
    assert_string_equal(o.model, "m");
    assert_int_equal(o.threads, 3);
}

static void mistakes_have_their_line(void **state)
{
    (void)state;
    refused("model = m\n\nmax-num-seq = 3\n",
            "3: unknown option 'max-num-seq'; did you mean 'max-num-seqs'?");
    refused("--model = m\n", "1: unknown option '--model'; did you mean 'model'?");
    refused("zzzzzzzzzzzzzzzzz = 1\n", "1: unknown option 'zzzzzzzzzzzzzzzzz'; llmd --help lists");
    refused("model = m\nthreads = 0\n", "2: threads 0 is out of range: 1 to 512");
    refused("model = m\nthreads = two\n", "2: threads takes a whole number from 1 to 512");
    refused("threads =\n", "1: threads takes a whole number");
    refused("model =\n", "1: model takes a text of 1 to 4095 bytes");
    refused("mlock = perhaps\n", "1: mlock is yes or no, not 'perhaps'");
    refused("io = select\n", "1: io is one of auto|io_uring|epoll, not 'select'");
    refused("instance = a/b\n", "1: instance 'a/b' is not a name");
    refused("kv-cache-memory = 1.5G\n", "1: kv-cache-memory takes a size");
    refused("cpu-list = 3-1\n", "1: cpu-list takes CPU numbers");
    refused("cpu-list = 0,0\n", "1: cpu-list names CPU 0 twice");
    refused("log-level = loud\n", "1: log-level is one of error|warn|info|debug, not 'loud'");
    refused("rt-priority = 100\n", "1: rt-priority 100 is out of range: 1 to 99");
    refused("model = m\n# x\nmodel = n\n", "3: model was set before, in line 1");
    refused("model = m\nmax-num-seqs 16\n", "2: this is no line of the form name = value");
    refused("model = m\njunk\nthreads = 0\n", "2: this is no line"); /* the first one is told */
    refused("threads = 0\njunk\n", "1: threads 0 is out of range");
    refused("[llmd\nmodel = m\n", "1: this is no line of the form");
    refused("[engine]\nmodel = m\n", "2: there is no section [engine]");
    refused("config = x\n", "1: config belongs on the command line");
    refused("check-config = yes\n", "1: check-config belongs on the command line");
    refused("help = yes\n", "1: help belongs on the command line");
    refused("= 3\n", "1: unknown option ''");
}

static void bytes_that_are_no_text(void **state)
{
    (void)state;
    static char line[9000];
    int n = snprintf(line, sizeof line, "# fine\nmodel = ");
    memset(line + n, 'x', 4095);
    strcpy(line + n + 4095, "\n");
    good(line, ""); /* the longest path */
    assert_int_equal(strlen(o.model), 4095);
    memset(line + n, 'x', 4096);
    strcpy(line + n + 4096, "\n");
    refused(line, "2: model takes a text of 1 to 4095 bytes, not of 4096");
    memset(line + n, 'x', 8000);
    strcpy(line + n + 8000, "\n");
    refused(line, "2: the line is longer than 4397 bytes");

    char *argv[] = {"llmd", "--config", path};
    write_bytes("model = a\0b\n", 12);
    f = (struct fail){0};
    assert_int_equal(options_parse(&o, 3, argv, &f), -EINVAL);
    assert_non_null(strstr(f.text, "a.conf:1: holds a zero byte"));

    enum { MANY = 10001 };
    static char lines[MANY];
    memset(lines, '\n', sizeof lines);
    write_bytes(lines, sizeof lines);
    f = (struct fail){0};
    assert_int_equal(options_parse(&o, 3, argv, &f), -EINVAL);
    assert_non_null(strstr(f.text, "no more than 10000 lines"));
}

static void files_that_cannot_be_read(void **state)
{
    (void)state;
    char *absent[] = {"llmd", "--config", "/nonexistent/x.conf"};
    f = (struct fail){0};
    assert_int_equal(options_parse(&o, 3, absent, &f), -ENOENT);
    assert_string_equal(f.text, "the configuration /nonexistent/x.conf cannot be opened: No such "
                                "file or directory");
    char *folder[] = {"llmd", "--config", "/"};
    f = (struct fail){0};
    assert_true(options_parse(&o, 3, folder, &f) < 0);
    assert_non_null(strstr(f.text, "the configuration / cannot be read: Is a directory"));
}

/* Refused, with the line of the file in front, or (0) with none. */
static void at_odds(const char *text, const char *more, unsigned line, const char *sentence)
{
    char want[700], place[600] = "";
    int rc = parse_file(text, more);
    if (line)
        snprintf(place, sizeof place, "%.500s:%u: ", path, line);
    snprintf(want, sizeof want, "%s%s", place, sentence);
    if (rc != -EINVAL || strcmp(f.text, want))
        fail_msg("%s\n  gives %d: %s\n  not:  %s", text, rc, f.text, want);
}

/* Where the file has a part in it, the line is told. */
static void what_does_not_go_together(void **state)
{
    (void)state;
    static const char lookup[] = "--prompt-lookup-min 9 is more than --prompt-lookup-max 3: raise "
                                 "--prompt-lookup-max or lower --prompt-lookup-min";
    at_odds("model = m\nprompt-lookup-max = 3\n\nprompt-lookup-min = 9\n", "", 4, lookup);
    at_odds("model = m\nprompt-lookup-max = 3\nthreads = 2\n", "--prompt-lookup-min=9", 2, lookup);
    at_odds("model = m\nprompt-lookup-min = 9\nprompt-lookup-max = 8\n", "--prompt-lookup-max=3", 2,
            lookup);
    at_odds("model = m\nthreads = 1\nnum-kv-blocks = 3\n", "--kv-cache-memory=1G", 3,
            "--num-kv-blocks and --kv-cache-memory both size the KV pool: give one");
    at_odds("model = m\ngpu-memory-utilization = 0.5\n", "--num-kv-blocks=3", 2,
            "--gpu-memory-utilization and --num-kv-blocks both size the KV pool: give one");
    at_odds("model = m\ncpu-list = 0-1\n", "--threads=3", 2,
            "--threads 3 is more than the 2 CPUs of --cpu-list: each thread has one of its own");
    at_odds("model = m\nthreads = 1\n", "--prompt-lookup-min=9", 0,
            "--prompt-lookup-min 9 is more than --prompt-lookup-max 8: raise --prompt-lookup-max "
            "or lower --prompt-lookup-min");
}

static char *printed(void)
{
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    options_print(out, &o);
    fclose(out);
    return text;
}

/* What --check-config prints is a file that means the same. */
/* Where no blank stands before them, signs of comments belong to the value. */
static void values_like_comments_are_printed_as_values(void **state)
{
    (void)state;
    static const char *const values[] = {"#a", ";a", "a#b;c", "=a", ":a"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char text[64];
        snprintf(text, sizeof text, "model=%s\nserved-model-name=%s\n", values[i], values[i]);
        good(text, "");
        assert_string_equal(o.model, values[i]);
        char *first = printed();
        good(first, "");
        assert_string_equal(o.model, values[i]);
        assert_string_equal(o.served_model_name, values[i]);
        free(first);
    }
}

static void what_is_printed_can_be_read(void **state)
{
    (void)state;
    static const char *const files[] = {
        "model = m.gguf\n",
        "model = m\ncpu-list = 0-3,7,5,6\nio-cpu = 5\nthreads = 4\nrt-priority = 3\nmlock = yes\n"
        "activations = f32\nkv-cache-dtype = f32\nkv-cache-memory = 3M\nio = io_uring\n"
        "log-level = error\nlog-json = yes\nbackend = cpu-plain\nprefill-chunk = 9\n",
        ("model = m\nidle-spin-us = forever\ngpu-memory-utilization = 0.85\nblock-size = 16\n"
         "enable-prefix-caching = no\nmax-waiting = 5\nquota-memory = 1M\nquota-kv-blocks = 3\n")};
    for (size_t i = 0; i < 3; i++) {
        good(files[i], "");
        char *first = printed();
        good(first, "");
        char *second = printed();
        assert_string_equal(first, second);
        assert_null(strstr(first, "check-config"));
        assert_non_null(strstr(first, "max-num-seqs = 64\n"));
        if (i == 0)
            assert_non_null(strstr(first, "# threads: one for each CPU\n"));
        else if (i == 1)
            assert_non_null(strstr(first, "cpu-list = 5,0-3,7,6\n"));
        if (i == 2) {
            assert_non_null(strstr(first, "idle-spin-us = forever\n"));
            assert_non_null(strstr(first, "gpu-memory-utilization = 0.85\n"));
            assert_non_null(strstr(first, "enable-prefix-caching = no\n"));
            assert_non_null(strstr(first, "quota-memory = 1048576\nquota-requests = 0\n"));
        }
        free(first);
        free(second);
    }
}

/* etc/llmd.conf: each line in it can be taken in, and what is called a default is one. */
static void the_example_says_the_defaults(void **state)
{
    (void)state;
    char line[256], text[600], name[64];
    unsigned defaults = 0, examples = 0;
    FILE *file = fopen("etc/llmd.conf", "r");
    assert_non_null(file);
    good("model = /var/lib/llmd/model.gguf\n", "");
    char *plain = printed();
    while (fgets(line, sizeof line, file)) {
        char equals = 0;
        if (sscanf(line, "# %63[a-z0-9-] %c", name, &equals) != 2 || equals != '=')
            continue;
        snprintf(text, sizeof text, "model = /var/lib/llmd/model.gguf\n%s", line + 2);
        good(text, "");
        snprintf(text, sizeof text, "# %s: ", name);
        bool depends = strstr(plain, text); /* on the model or the machine */
        char *in_effect = printed();
        if (!depends)
            assert_string_equal(in_effect, plain);
        depends ? examples++ : defaults++;
        free(in_effect);
    }
    fclose(file);
    free(plain);
    assert_int_equal(defaults, 36);
    assert_int_equal(examples, 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_option_has_its_name),
        cmocka_unit_test(the_forms_of_a_line),
        cmocka_unit_test(the_command_line_wins),
        cmocka_unit_test(mistakes_have_their_line),
        cmocka_unit_test(bytes_that_are_no_text),
        cmocka_unit_test(files_that_cannot_be_read),
        cmocka_unit_test(what_does_not_go_together),
        cmocka_unit_test(values_like_comments_are_printed_as_values),
        cmocka_unit_test(what_is_printed_can_be_read),
        cmocka_unit_test(the_example_says_the_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
