/* test_client_connect.c - finding an engine and shaking hands: what is granted, and every way in
 * which it can go wrong, each with its code, its sentence, and nothing left behind.
 */
#include "fake_engine.h"

#include "../../client/handle.h"

static struct llm_options options(void)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    return o;
}

/* Connects without an engine that would answer; the sentence must contain the text. */
static void expect_refused(const char *instance, const struct llm_options *o, int code,
                           const char *text)
{
    struct llm_client *c = (void *)1;
    int fds = fake_open_fds();
    assert_int_equal(llm_connect(&c, instance, o), code);
    assert_null(c);
    assert_int_equal(fake_open_fds(), fds);
    if (!strstr(llm_connect_error(), text))
        fail_msg("'%s' does not contain '%s'", llm_connect_error(), text);
}

static void what_was_granted_can_be_asked(void **state)
{
    struct fake *f = *state;
    struct llm_client *c;
    struct llm_limits l;
    struct llm_options o = options();
    o.name = "a phone bot";
    o.arena_bytes = 1000;
    o.max_inflight = 11;
    o.sq_entries = 12;
    o.cq_entries = 13;
    assert_int_equal(fake_connect(f, &o, &c), 0);
    assert_string_equal(f->hello.name, "a phone bot");
    assert_int_equal(f->hello.major, LLM_ABI_MAJOR);
    assert_int_equal(f->hello.sqe_bytes, 128);
    assert_int_equal(f->hello.cqe_bytes, 64);
    assert_int_equal(f->hello.arena_bytes, 1000);
    assert_int_equal(f->hello.max_inflight, 11);
    assert_int_equal(f->hello.sq_entries, 12);
    assert_int_equal(f->hello.cq_entries, 13);
    llm_get_limits(c, &l);
    assert_int_equal(l.vocab, FAKE_VOCAB);
    assert_int_equal(l.max_model_len, FAKE_MAX_LEN);
    assert_int_equal(l.max_inflight, FAKE_INFLIGHT);
    assert_int_equal(l.arena_bytes, FAKE_ARENA);
    assert_int_equal(l.sq_entries, FAKE_SQ);
    assert_int_equal(l.cq_entries, FAKE_CQ);
    assert_int_equal(l.numerics_id, 77);
    assert_int_equal(l.engine_pid, getpid());
    assert_string_equal(l.model, "a model");
    llm_close(c);
}

static void closing_gives_everything_back(void **state)
{
    struct fake *f = *state;
    int fds = fake_open_fds();
    struct llm_client *c = fake_client(f);
    char byte;
    assert_int_equal(fake_open_fds(),
                     fds + 2 + 6); /* two here; a socket, a bell and four segments there */
    llm_close(c);
    assert_int_equal(recv(f->socket, &byte, 1, 0), 0); /* the engine sees the end */
    fake_die(f);
    assert_int_equal(fake_open_fds(), fds);
    llm_close(NULL);
}

static void the_vocabulary_is_at_hand(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    const void *image;
    size_t bytes;
    assert_int_equal(client_vocabulary(c, &image, &bytes), 0);
    assert_int_equal(bytes, f->vocabulary.bytes);
    assert_memory_equal(image, f->vocabulary.at, bytes);
    llm_close(c);
}

/* ---- no engine ---- */

static void without_an_engine_the_others_are_named(void **state)
{
    struct fake *f = *state;
    char path[128];
    snprintf(path, sizeof path, "%s/nobody.sock", f->dir);
    expect_refused("nobody", NULL, LLM_ENOENGINE, path);
    expect_refused("nobody", NULL, LLM_ENOENGINE, "running here: fake");
    close(f->listener);
    expect_refused("nobody", NULL, LLM_ENOENGINE,
                   "start one with: llmd --model FILE --instance nobody");
    f->listener = dup(0);
}

static void a_stale_socket_is_no_engine(void **state)
{
    struct fake *f = *state;
    close(f->listener);
    expect_refused("fake", NULL, LLM_ENOENGINE, "nobody listens");
    f->listener = dup(0);
}

static void without_permission_it_says_so(void **state)
{
    struct fake *f = *state;
    bool root = geteuid() == 0;
    assert_int_equal(chmod(f->path, 0), 0);
    assert_int_equal(chmod(f->dir, 0711), 0);
    if (root)
        assert_int_equal(seteuid(65534), 0);
    struct llm_client *c;
    int rc = llm_connect(&c, "fake", NULL);
    if (root)
        assert_int_equal(seteuid(0), 0);
    assert_int_equal(rc, -EACCES);
    assert_non_null(strstr(llm_connect_error(), "permission denied"));
    assert_non_null(strstr(llm_connect_error(), f->path));
}

static void a_strangers_directory_is_not_entered_unasked(void **state)
{
    struct fake *f = *state;
    char dir[128];
    if (geteuid() != 0)
        skip(); /* only root can give a directory away */
    snprintf(dir, sizeof dir, "%s/llmd", f->dir);
    unsetenv("LLMD_RUNTIME_DIR");
    setenv("XDG_RUNTIME_DIR", f->dir, 1);
    assert_int_equal(mkdir(dir, 0755), 0);
    assert_int_equal(chmod(f->dir, 0755), 0);
    assert_int_equal(chown(dir, 1234, 1234), 0);
    assert_int_equal(seteuid(65534), 0);
    struct llm_client *c;
    int rc = llm_connect(&c, "fake", NULL);
    assert_int_equal(seteuid(0), 0);
    rmdir(dir);
    unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(rc, -EACCES);
    assert_non_null(strstr(llm_connect_error(), "another user"));
}

static void odd_wishes_are_refused(void **state)
{
    (void)state;
    struct llm_options o = options();
    char name[65];
    memset(name, 'n', sizeof name);
    name[64] = 0;
    expect_refused("a/b", NULL, -EINVAL, "a/b");
    expect_refused("", NULL, -EINVAL, "instance name");
    o.size--;
    expect_refused("fake", &o, -EINVAL, "llm_options.size");
    o = options();
    o.name = name;
    expect_refused("fake", &o, -EINVAL, "63 bytes");
    setenv("LLMD_RUNTIME_DIR",
           "/tmp/a-directory-whose-name-is-so-long/that-no-socket-address-can/"
           "hold-it-together-with-an-instance/at-all-whatever-its-name",
           1);
    expect_refused("fake", NULL, -ENAMETOOLONG, "LLMD_RUNTIME_DIR");
}

/* A struct of a later library: what this one does not know must be zero. */
static void later_options_are_understood_if_unused(void **state)
{
    struct fake *f = *state;
    struct {
        struct llm_options known;
        uint64_t later;
    } o = {LLM_OPTIONS_INIT, 0};
    struct llm_client *c;
    o.known.size = sizeof o;
    assert_int_equal(fake_connect(f, &o.known, &c), 0);
    llm_close(c);
    o.later = 1;
    expect_refused("fake", &o.known, -EINVAL, "llm_options.size");
}

/* ---- an engine that errs ---- */

static void every_fault_of_an_engine_is_refused(void **state)
{
    struct fake *f = *state;
    static const struct {
        int code;
        const char *text;
    } expected[FAKE_FAULTS] = {
        [FAKE_REJECT] = {LLM_EBUSY, "the house is full"},
        [FAKE_REJECT_EARLY] = {LLM_EBUSY, "the house is full"},
        [FAKE_MAJOR] = {LLM_EPROTO, "version 2.1"},
        [FAKE_MINOR] = {LLM_EPROTO, "version 1.2"},
        [FAKE_NO_VOCAB] = {LLM_EPROTO, "vocabulary of 0"},
        [FAKE_UP_UNSEALED] = {LLM_EPROTO, "'up' is not sealed"},
        [FAKE_DOWN_UNSEALED] = {LLM_EPROTO, "'down' is not sealed"},
        [FAKE_PULSE_UNSEALED] = {LLM_EPROTO, "'pulse' is not sealed"},
        [FAKE_VOCABULARY_WRITABLE] = {LLM_EPROTO, "'vocabulary' is not sealed"},
        [FAKE_VOCABULARY_DAMAGED] = {LLM_EPROTO, "damaged"},
        [FAKE_DOWN_SHORT] = {LLM_EPROTO, "'down' is smaller"},
        [FAKE_DOWN_OTHER] = {LLM_EPROTO, "do not agree"},
        [FAKE_DOWN_CLIENT] = {LLM_EPROTO, "another client"},
        [FAKE_PULSE_EPOCH] = {LLM_EPROTO, "pulse"},
        [FAKE_NOT_MEMFD] = {LLM_EPROTO, "'down' is not sealed"},
        [FAKE_THREE_FDS] = {LLM_EPROTO, "3 descriptors"},
        [FAKE_BELL_OTHER] = {LLM_EPROTO, "no datagram socket"},
        [FAKE_GARBAGE] = {LLM_EPROTO, "no answer"},
        [FAKE_HELLO] = {LLM_EPROTO, "no answer"},
        [FAKE_SILENT] = {-ETIMEDOUT, "in time"},
        [FAKE_HANG_UP] = {LLM_EPROTO, "closed the connection"},
    };
    struct llm_options o = options();
    int fds = fake_open_fds();
    for (int fault = FAKE_FINE + 1; fault < FAKE_FAULTS; fault++) {
        struct llm_client *c;
        f->fault = (enum fake_fault)fault;
        o.connect_timeout_ms = fault == FAKE_SILENT ? 20 : 0;
        f->hang_ups = fault == FAKE_HANG_UP ? CLIENT_KNOCKS - 1 : 0;
        int rc = fake_connect(f, &o, &c);
        fake_die(f);
        if (rc != expected[fault].code || !strstr(llm_connect_error(), expected[fault].text))
            fail_msg("fault %d: %d, %s", fault, rc, llm_connect_error());
        assert_null(c);
        assert_int_equal(fake_open_fds(), fds);
    }
}

/* A crowd at the door may push a client out before it was heard: it knocks again. */
static void who_was_pushed_out_knocks_again(void **state)
{
    struct fake *f = *state;
    struct llm_client *c;
    int fds = fake_open_fds();
    f->hang_ups = CLIENT_KNOCKS - 1;
    assert_int_equal(fake_connect(f, NULL, &c), 0);
    llm_close(c);
    fake_die(f);
    assert_int_equal(fake_open_fds(), fds);
}

static void codes_have_meanings(void **state)
{
    (void)state;
    for (int code = LLM_EOWNERDEAD; code >= LLM_ENOTEXT; code--)
        assert_string_not_equal(llm_strerror(code), "unknown error");
    assert_string_equal(llm_strerror(-2000), "unknown error");
    assert_string_equal(llm_strerror(0), "success");
    assert_string_equal(llm_strerror(-EAGAIN), strerror(EAGAIN));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAKE_TEST(what_was_granted_can_be_asked),
        FAKE_TEST(closing_gives_everything_back),
        FAKE_TEST(the_vocabulary_is_at_hand),
        FAKE_TEST(without_an_engine_the_others_are_named),
        FAKE_TEST(a_stale_socket_is_no_engine),
        FAKE_TEST(without_permission_it_says_so),
        FAKE_TEST(a_strangers_directory_is_not_entered_unasked),
        FAKE_TEST(odd_wishes_are_refused),
        FAKE_TEST(later_options_are_understood_if_unused),
        FAKE_TEST(every_fault_of_an_engine_is_refused),
        FAKE_TEST(who_was_pushed_out_knocks_again),
        FAKE_TEST(codes_have_meanings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
