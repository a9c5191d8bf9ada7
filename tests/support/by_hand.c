/* by_hand.c - see by_hand.h. */
#include "by_hand.h"
#include "support.h" /* after: cmocka has a macro named fail */

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_NS 20000000000u

/* ---- at the door ---- */

int hand_knock(const char *instance)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = -1;
    if (!llm_socket_path(instance, address.sun_path, sizeof address.sun_path))
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

struct llm_message hand_hello(void)
{
    return (struct llm_message){.kind = LLM_MSG_HELLO,
                                .hello = {.major = LLM_ABI_MAJOR,
                                          .minor = LLM_ABI_MINOR,
                                          .sqe_bytes = sizeof(struct llm_sqe),
                                          .cqe_bytes = sizeof(struct llm_cqe),
                                          .sq_entries = 8,
                                          .cq_entries = 64,
                                          .arena_bytes = 4096,
                                          .max_inflight = 8,
                                          .name = "by \x1b[31m hand"}};
}

bool hand_say(int fd, const struct llm_message *m)
{
    uint8_t packet[LLM_CONTROL_MAX];
    int n = control_encode(m, packet, sizeof packet);
    return n > 0 && send(fd, packet, (size_t)n, MSG_NOSIGNAL) == n;
}

bool hand_wait(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, PATIENCE_NS / 1000000) == 1;
}

/* ---- a channel ---- */

static bool map_all(struct hand *h)
{
    const struct llm_welcome *w = &h->welcome;
    h->up = mmap(NULL, llm_up_bytes(w->sq_entries, w->arena_bytes), PROT_READ | PROT_WRITE,
                 MAP_SHARED, h->fds[0], 0);
    h->down = mmap(NULL, llm_down_bytes(w->cq_entries), PROT_READ, MAP_SHARED, h->fds[1], 0);
    h->pulse = mmap(NULL, LLM_HEADER_BYTES, PROT_READ, MAP_SHARED, h->fds[2], 0);
    return h->up != MAP_FAILED && h->down != MAP_FAILED && h->pulse != MAP_FAILED &&
           !ring_client_init(&h->ring, h->up, h->down, h->pulse, w->sq_entries, w->cq_entries,
                             w->arena_bytes, w->max_inflight);
}

static bool greet(struct hand *h, struct llm_message *m)
{
    uint8_t packet[LLM_CONTROL_MAX];
    int n_fds = LLM_CONTROL_FDS;
    if (!hand_say(h->socket, m) || !hand_wait(h->socket))
        return false;
    int n = control_receive(h->socket, packet, sizeof packet, h->fds, &n_fds);
    if (n <= 0 || control_decode(packet, (size_t)n, m))
        return false;
    if (m->kind == LLM_MSG_REJECT)
        h->reject = m->reject;
    if (m->kind != LLM_MSG_WELCOME || n_fds != LLM_CONTROL_FDS)
        return false;
    h->welcome = m->welcome;
    return map_all(h);
}

bool hand_open(struct hand *h, const char *instance, const struct llm_message *hello)
{
    struct llm_message m = hello ? *hello : hand_hello();
    *h = (struct hand){.socket = hand_knock(instance)};
    if (h->socket >= 0 && greet(h, &m))
        return true;
    if (h->socket >= 0)
        close(h->socket);
    return false;
}

void hand_unmap(struct hand *h)
{
    munmap(h->up, llm_up_bytes(h->welcome.sq_entries, h->welcome.arena_bytes));
    munmap((void *)h->down, llm_down_bytes(h->welcome.cq_entries));
    munmap((void *)h->pulse, LLM_HEADER_BYTES);
    for (int i = 0; i < LLM_CONTROL_FDS; i++)
        close(h->fds[i]);
}

void hand_close(struct hand *h)
{
    hand_unmap(h);
    close(h->socket);
}

void hand_wake(order_u32 *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

struct llm_sqe *hand_entry(struct hand *h)
{
    struct llm_sqe *q = ring_next(&h->ring, 1);
    if (!q)
        return NULL;
    q->user_data = 7;
    q->op = LLM_OP_GENERATE;
    q->max_tokens = 1;
    q->choices = 1;
    q->top_p = 1;
    q->repetition = 1;
    ring_commit(&h->ring, 1);
    return q;
}

bool hand_take(struct hand *h, struct llm_cqe *cqe)
{
    struct llm_result result;
    uint64_t end = test_now_ns() + PATIENCE_NS;
    while (!ring_poll(&h->ring, cqe, &result))
        if (h->ring.broken || test_now_ns() > end)
            return false;
    if (ring_drained(&h->ring))
        hand_wake(&h->up->cq_head);
    return true;
}

void hand_generate(struct hand *h, uint32_t max_tokens)
{
    static const int32_t prompt[5] = {1, 2, 3, 4, 5};
    int32_t *to = ring_reserve(&h->ring, 5);
    struct llm_sqe *q = ring_next(&h->ring, 1);
    assert_true(to && q);
    memcpy(to, prompt, sizeof prompt);
    q->user_data = 7;
    q->op = LLM_OP_GENERATE;
    q->flags = LLM_SQE_IGNORE_EOS;
    q->tokens_off = h->ring.reserved_at % h->ring.arena_bytes;
    q->tokens_len = 5;
    q->max_tokens = max_tokens;
    q->choices = 1;
    q->top_p = 1;
    q->repetition = 1;
    ring_commit(&h->ring, 1);
    if (ring_submit(&h->ring))
        hand_wake(&h->up->sq_tail);
}

void hand_take_all(struct hand *h)
{
    struct llm_cqe cqe;
    do
        assert_true(hand_take(h, &cqe));
    while (cqe.type == LLM_CQE_TOKENS);
    assert_int_equal(cqe.type, LLM_CQE_DONE);
}

bool hand_nop(struct hand *h)
{
    struct llm_cqe cqe;
    struct llm_sqe *q = hand_entry(h);
    if (!q)
        return false;
    q->op = LLM_OP_NOP;
    if (ring_submit(&h->ring))
        hand_wake(&h->up->sq_tail);
    return hand_take(h, &cqe);
}

/* ---- the board ---- */

const struct llm_board *hand_board(const char *instance)
{
    char name[80];
    if (llm_board_name(instance, name, sizeof name))
        return NULL;
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, LLM_BOARD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return at == MAP_FAILED ? NULL : at;
}

bool hand_until(const order_u64 *figure, uint64_t value)
{
    uint64_t end = test_now_ns() + PATIENCE_NS;
    while (order_read64(figure) != value) {
        if (test_now_ns() > end)
            return false;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return true;
}

/* ---- what must come ---- */

void hand_expect_reject(int fd, int code, const char *sentence)
{
    uint8_t packet[LLM_CONTROL_MAX];
    struct llm_message m;
    assert_true(hand_wait(fd));
    int n = control_receive(fd, packet, sizeof packet, NULL, NULL);
    assert_true(n > 0);
    assert_int_equal(control_decode(packet, (size_t)n, &m), 0);
    assert_int_equal(m.kind, LLM_MSG_REJECT);
    assert_int_equal(m.reject.code, code);
    if (!strstr(m.reject.text, sentence))
        fail_msg("it says: %s", m.reject.text);
}

void hand_expect_end(int fd)
{
    char c;
    assert_true(hand_wait(fd));
    ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);
    assert_true(n == 0 || (n < 0 && errno == ECONNRESET));
    close(fd);
}

void hand_expect_eviction(struct hand *h, const char *sentence)
{
    hand_wake(&h->up->sq_tail);
    hand_expect_end(h->socket);
    assert_int_equal(order_acquire(&h->down->evicted), 1);
    assert_int_equal(h->down->evict_code, LLM_EPROTO);
    if (!strstr(h->down->evict_text, sentence))
        fail_msg("it says: %s", h->down->evict_text);
    hand_unmap(h);
}
