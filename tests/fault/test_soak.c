/* test_soak.c - clients come and go, most of them badly, and the engine holds no more afterwards
 * than before: descriptors, maps, threads and KV blocks exactly, its own heap and its resident
 * memory within a stated slack. Who comes:
 *
 *     leaver       connects, is served, leaves (now and then with a request in flight)
 *     crasher      a process that is killed at a random step: before HELLO, before WELCOME, connected,
 *                  submitted, reading, asleep
 *     twin         the same again with the process id of the one before
 *     heir         a crasher whose child keeps its sockets open
 *     smuggler     sends HELLO with 253 descriptors, the most that a message may have
 *     stranger     connects and says nothing, or half of it, or goes before the answer
 *
 * LLMD_EXHAUSTIVE: 20,000 of them, else 1,000 (500 with sanitizers). LLMD_SOAK_ROUNDS overrides both. The second scenario
 * takes the engine's descriptors away, and gives them back.
 * Failure test (14).
 */
#include "../../client/llmclient.h"
#include "../../shm/board.h"
#include "../../shm/control.h"
#include "../support/process.h"
#include "../support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    ROUNDS = 1000,
    ROUNDS_EXHAUSTIVE = 20000,
    WARM_UP = 60, /* rounds before the first count: slots, arenas and tables get their pages */
    DESCRIPTORS = 253,
    ENOUGH = 10, /* descriptors for one that connects */
    HEAP_SLACK_KIB = 64,
    RSS_SLACK_KIB = 1024,
    RSS_SLACK_SANITIZED_KIB = 4 << 10, /* freed memory is held back, stacks are remembered */
    PATIENCE_MS = 20000
};

static const int32_t prompt[5] = {1, 2, 3, 4, 5};
static struct engine_process engine;
static const struct llm_board *board;
static struct rnd rnd = {.state = 20000};

/* ---- what the engine holds ---- */

static bool nobody_is_there(void)
{
    return !order_read64(&board->clients) && !order_read64(&board->running) &&
           !order_read64(&board->waiting) &&
           order_read64(&board->kv_blocks_free) == board->kv_blocks_total;
}

/* Until it has noticed that all are gone. Fails the test when it does not. */
static void until_nobody_is_there(void)
{
    for (int i = 0; i < PATIENCE_MS * 5; i++) {
        if (nobody_is_there())
            return;
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    fail_msg("clients %llu, running %llu, KV blocks %llu of %u free",
             (unsigned long long)order_read64(&board->clients),
             (unsigned long long)order_read64(&board->running),
             (unsigned long long)order_read64(&board->kv_blocks_free), board->kv_blocks_total);
}

static void let_it_tick(void)
{
    uint64_t sleeps = order_read64(&board->sleeps);
    for (int i = 0; i < PATIENCE_MS && order_read64(&board->sleeps) < sleeps + 2; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
}

/* The heap's figure is of the last tick. */
static uint64_t heap_kib(void)
{
    return order_read64(&board->heap_allocated) >> 10;
}

/* With nobody there, and what the last ones had closed. */
static struct held at_rest(void)
{
    until_nobody_is_there();
    let_it_tick();
    return process_held(engine.pid);
}

/* The same as soon as so many descriptors are left. */
static struct held back_to(uint32_t descriptors)
{
    struct held h;
    until_nobody_is_there();
    for (int i = 0; i < PATIENCE_MS / 10; i++) {
        h = process_held(engine.pid);
        if (h.descriptors == descriptors)
            break;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return h;
}

/* ---- by hand, without the library ---- */

static int connect_by_hand(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (llm_socket_path(engine.instance, address.sun_path, sizeof address.sun_path))
        return -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address)) {
        close(fd);
        return -1;
    }
    return fd;
}

static int hello(uint8_t packet[LLM_CONTROL_MAX])
{
    struct llm_message m = {.kind = LLM_MSG_HELLO,
                            .hello = {.major = LLM_ABI_MAJOR,
                                      .sqe_bytes = sizeof(struct llm_sqe),
                                      .cqe_bytes = sizeof(struct llm_cqe),
                                      .sq_entries = 8,
                                      .cq_entries = 64,
                                      .arena_bytes = 4096,
                                      .max_inflight = 8,
                                      .name = "by hand"}};
    return control_encode(&m, packet, LLM_CONTROL_MAX);
}

static void say_hello(int fd)
{
    uint8_t packet[LLM_CONTROL_MAX];
    int n = hello(packet);
    (void)!send(fd, packet, (size_t)n, MSG_NOSIGNAL);
}

/* ---- by the library ---- */

static struct llm_client *join(void)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c = NULL;
    o.sq_entries = 8, o.cq_entries = 64, o.max_inflight = 8, o.arena_bytes = 4096;
    o.connect_timeout_ms = PATIENCE_MS;
    return llm_connect(&c, engine.instance, &o) ? NULL : c;
}

static bool submit(struct llm_client *c, uint32_t op, uint32_t tokens)
{
    struct llm_request r = LLM_REQUEST_INIT;
    r.op = op;
    if (op == LLM_OP_GENERATE)
        r.tokens = prompt, r.n_tokens = 5, r.flags = LLM_SQE_IGNORE_EOS;
    r.max_tokens = tokens;
    return llm_submit(c, &r, NULL) == 0;
}

/* Is served a request that does nothing. */
static bool is_served(struct llm_client *c)
{
    struct llm_event e;
    return submit(c, LLM_OP_NOP, 0) && llm_wait(c, &e, PATIENCE_MS) == 1 &&
           e.type == LLM_EVENT_DONE;
}

/* ---- who comes ---- */

static void leaver(void)
{
    struct llm_client *c = join();
    if (!c)
        fail_msg("%s", llm_connect_error());
    assert_true(is_served(c));
    if (rnd_below(&rnd, 2))
        assert_true(submit(c, LLM_OP_GENERATE, 100));
    llm_close(c);
}

enum step { SILENT, UNHEARD, CONNECTED, SUBMITTED, READING, ASLEEP, STEPS };

/* In a process of its own. Exits only where it could not come as far as it should. */
static void come_to(enum step step)
{
    struct llm_event e;
    if (step <= UNHEARD) {
        int fd = connect_by_hand();
        if (fd < 0)
            _exit(1);
        if (step == UNHEARD)
            say_hello(fd);
        return;
    }
    struct llm_client *c = join();
    if (!c || !is_served(c))
        _exit(2);
    if (step >= SUBMITTED && !(submit(c, LLM_OP_GENERATE, 200) && submit(c, LLM_OP_GENERATE, 50)))
        _exit(3);
    if (step == READING && llm_wait(c, &e, PATIENCE_MS) != 1)
        _exit(4);
    if (step == ASLEEP)
        (void)llm_arm(c);
}

static void was_killed(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        fail_msg("a client ended with status %x", status);
}

/* A new process; with `wanted` not 0 it has that id, where it may choose. */
static pid_t new_process(pid_t wanted)
{
    fflush(NULL);
    if (!wanted)
        return fork();
    struct clone_args args = {
        .exit_signal = SIGCHLD, .set_tid = (uintptr_t)&wanted, .set_tid_size = 1};
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

static pid_t crasher(enum step step, pid_t wanted)
{
    pid_t pid = new_process(wanted);
    if (pid < 0)
        return -1;
    if (!pid) {
        come_to(step);
        kill(getpid(), SIGKILL);
    }
    was_killed(pid);
    return pid;
}

static uint32_t n_twins;

/* The engine may still be busy with the first when the second says its name. */
static void twin(void)
{
    static bool told;
    pid_t first = crasher(rnd_below(&rnd, STEPS), 0);
    assert_true(first > 0);
    if (crasher(CONNECTED + rnd_below(&rnd, STEPS - CONNECTED), first) == first)
        n_twins++;
    else if (!told) {
        print_message("process ids cannot be chosen here (%s): no twins\n", strerror(errno));
        told = true;
    }
}

/* The child holds the sockets until the pipe closes. The test adopts it. */
static void heir(void)
{
    int hold[2], ready[2];
    char x;
    assert_int_equal(pipe(hold) | pipe(ready), 0);
    pid_t pid = new_process(0);
    assert_true(pid >= 0);
    if (!pid) {
        close(hold[1]);
        come_to(CONNECTED + rnd_below(&rnd, STEPS - CONNECTED));
        if (fork() == 0) {
            (void)!write(ready[1], "x", 1);
            (void)!read(hold[0], &x, 1);
            _exit(0);
        }
        (void)!read(ready[0], &x, 1);
        kill(getpid(), SIGKILL);
    }
    was_killed(pid);
    until_nobody_is_there(); /* although its sockets are open */
    close(hold[0]), close(hold[1]), close(ready[0]), close(ready[1]);
    assert_true(waitpid(-1, NULL, 0) > 0);
}

static void smuggler(void)
{
    uint8_t packet[LLM_CONTROL_MAX];
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(DESCRIPTORS * sizeof(int))];
    } control = {0};
    int fd = connect_by_hand(), null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && null >= 0);
    struct iovec io = {.iov_base = packet, .iov_len = (size_t)hello(packet)};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(DESCRIPTORS * sizeof(int)),
                                      .cmsg_level = SOL_SOCKET,
                                      .cmsg_type = SCM_RIGHTS};
    for (int i = 0; i < DESCRIPTORS; i++)
        memcpy(CMSG_DATA(&control.header) + (size_t)i * sizeof null, &null, sizeof null);
    assert_true(sendmsg(fd, &m, MSG_NOSIGNAL) > 0);
    assert_true(recv(fd, packet, sizeof packet, 0) <= 0); /* shut out, no answer */
    close(null);
    close(fd);
}

static void stranger(void)
{
    static const char noise[] = "\x85\xa1t\xa5hello\xa5magic";
    int fd = connect_by_hand();
    assert_true(fd >= 0);
    switch (rnd_below(&rnd, 3)) {
    case 0:
        break;
    case 1:
        (void)!send(fd, noise, 1 + rnd_below(&rnd, sizeof noise - 1), MSG_NOSIGNAL);
        break;
    default:
        say_hello(fd);
    }
    close(fd);
}

static void next_visitor(uint32_t round)
{
    switch (round % 10) {
    case 0:
    case 1:
        leaver();
        break;
    case 2:
        twin();
        break;
    case 3:
        heir();
        break;
    case 4:
        smuggler();
        break;
    case 5:
    case 6:
        stranger();
        break;
    default:
        assert_true(crasher(rnd_below(&rnd, STEPS), 0) > 0);
    }
}

/* ---- scenarios ---- */

static uint32_t rounds(void)
{
    const char *text = getenv("LLMD_SOAK_ROUNDS");
    long n = text ? strtol(text, NULL, 10) : 0;
    return n > 0               ? (uint32_t)n
           : test_exhaustive() ? ROUNDS_EXHAUSTIVE
           : test_sanitized()  ? ROUNDS / 2
                               : ROUNDS;
}

static void visit(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        next_visitor(i);
}

static void nothing_stays_behind(void **state)
{
    (void)state;
    visit(WARM_UP);
    struct held before = at_rest();
    uint64_t heap_before = heap_kib();
    n_twins = 0;
    visit(rounds());
    struct held after = at_rest();
    uint64_t heap_after = heap_kib();
    print_message("%u rounds (%u twins): descriptors %u -> %u, maps %u -> %u, threads %u -> %u, "
                  "KV blocks free %llu of %u, RSS %llu -> %llu KiB, heap %llu -> %llu KiB\n",
                  rounds(), n_twins, before.descriptors, after.descriptors, before.maps, after.maps,
                  before.threads, after.threads,
                  (unsigned long long)order_read64(&board->kv_blocks_free), board->kv_blocks_total,
                  (unsigned long long)before.rss_kib, (unsigned long long)after.rss_kib,
                  (unsigned long long)heap_before, (unsigned long long)heap_after);
    assert_int_equal(after.descriptors, before.descriptors);
    assert_int_equal(after.threads, before.threads);
    if (!test_sanitized()) /* their allocator maps as it likes */
        assert_int_equal(after.maps, before.maps);
    assert_in_range(after.rss_kib, 0,
                    before.rss_kib + (test_sanitized() ? RSS_SLACK_SANITIZED_KIB : RSS_SLACK_KIB));
    assert_in_range(heap_after, 0, heap_before + HEAP_SLACK_KIB);
    leaver(); /* and it serves */
}

static void may_open(uint64_t descriptors)
{
    struct rlimit now, limit;
    assert_int_equal(prlimit(engine.pid, RLIMIT_NOFILE, NULL, &now), 0);
    limit = (struct rlimit){.rlim_cur = descriptors, .rlim_max = now.rlim_max};
    assert_int_equal(prlimit(engine.pid, RLIMIT_NOFILE, &limit, NULL), 0);
}

/* With that many descriptors more a client is served, or told that it is not. */
static bool is_taken(uint32_t more, uint64_t used)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    o.connect_timeout_ms = more < ENOUGH ? 50 : PATIENCE_MS;
    may_open(used + more);
    int rc = llm_connect(&c, engine.instance, &o);
    if (!rc) {
        assert_true(is_served(c));
        llm_close(c);
        return true;
    }
    if (rc != -ETIMEDOUT && !strstr(llm_connect_error(), strerror(EMFILE)))
        fail_msg("%u descriptors more: %d, %s", more, rc, llm_connect_error());
    return false;
}

static void descriptors_run_out(void **state)
{
    (void)state;
    struct rlimit whole;
    assert_int_equal(prlimit(engine.pid, RLIMIT_NOFILE, NULL, &whole), 0);
    struct held before = at_rest();
    uint32_t refused = 0;
    for (uint32_t more = 0; more <= ENOUGH; more++) {
        bool taken = is_taken(more, before.descriptors);
        refused += !taken;
        assert_true(more < ENOUGH || taken);
        assert_int_equal(back_to(before.descriptors).descriptors, before.descriptors);
    }
    assert_in_range(refused, 3, ENOUGH);
    may_open(whole.rlim_cur);
    leaver();
    assert_int_equal(back_to(before.descriptors).descriptors, before.descriptors);
}

/* ---- the engine ---- */

static int start(void **state)
{
    (void)state;
    char name[80], asan[600];
    const char *given = getenv("ASAN_OPTIONS");
    /* what was freed is not held back for long: else memory says nothing here */
    snprintf(asan, sizeof asan, "%.500s:quarantine_size_mb=1:thread_local_quarantine_size_kb=64",
             given ? given : "");
    setenv("ASAN_OPTIONS", asan, 1);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* heirs */
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1", NULL);
    assert_int_equal(llm_board_name(engine.instance, name, sizeof name), 0);
    int fd = shm_open(name, O_RDONLY, 0);
    assert_true(fd >= 0);
    board = mmap(NULL, LLM_BOARD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(board, MAP_FAILED);
    close(fd);
    return 0;
}

/* A sanitizer's finding is the engine's exit status. */
static int finish(void **state)
{
    (void)state;
    assert_int_equal(order_read64(&board->backstop_rescues), 0);
    assert_int_equal(order_read64(&board->evictions), 0);
    munmap((void *)board, LLM_BOARD_BYTES);
    assert_int_equal(engine_stop(&engine), 0);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_stays_behind),
                                       cmocka_unit_test(descriptors_run_out)};
    return cmocka_run_group_tests(tests, start, finish);
}
