/* control.c - the messages of the control socket: msgpack maps, one a packet.
 *
 * Invariants
 *   1. One table a message names its fields once; encoding and decoding walk the same table.
 *   2. A foreign packet is walked by scan() before msgpack-c sees it: msgpack-c allocates what an
 *      array's or map's head announces, scan() bounds what is announced by what is there.
 *   3. Descriptors that are not wanted are never installed, or closed before the call returns.
 *
 * Format: https://github.com/msgpack/msgpack/blob/master/spec.md
 */
#include <assert.h>
#include <errno.h>
#include <msgpack.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "control.h"

enum { SCAN_DEPTH = 2, SCAN_ENTRIES = 64 };

/* ---- the messages ---- */

enum field_kind { FIELD_U32, FIELD_U64, FIELD_I32, FIELD_TEXT };

struct field {
    const char *key;
    enum field_kind kind;
    size_t offset, size; /* in its struct; a TEXT includes its NUL */
};

#define FIELD(s, member, key, kind)                                                                \
    {                                                                                              \
        key, kind, offsetof(struct s, member), sizeof(((struct s *)0)->member)                     \
    }

static const struct field hello_fields[] = {
    FIELD(llm_hello, major, "major", FIELD_U32),
    FIELD(llm_hello, minor, "minor", FIELD_U32),
    FIELD(llm_hello, sqe_bytes, "sqe", FIELD_U32),
    FIELD(llm_hello, cqe_bytes, "cqe", FIELD_U32),
    FIELD(llm_hello, sq_entries, "sq", FIELD_U32),
    FIELD(llm_hello, cq_entries, "cq", FIELD_U32),
    FIELD(llm_hello, arena_bytes, "arena", FIELD_U32),
    FIELD(llm_hello, max_inflight, "inflight", FIELD_U32),
    FIELD(llm_hello, top, "top", FIELD_U32),
    FIELD(llm_hello, name, "name", FIELD_TEXT),
};
static const struct field welcome_fields[] = {
    FIELD(llm_welcome, major, "major", FIELD_U32),
    FIELD(llm_welcome, minor, "minor", FIELD_U32),
    FIELD(llm_welcome, epoch, "epoch", FIELD_U64),
    FIELD(llm_welcome, client, "client", FIELD_U32),
    FIELD(llm_welcome, generation, "generation", FIELD_U32),
    FIELD(llm_welcome, sq_entries, "sq", FIELD_U32),
    FIELD(llm_welcome, cq_entries, "cq", FIELD_U32),
    FIELD(llm_welcome, arena_bytes, "arena", FIELD_U32),
    FIELD(llm_welcome, max_inflight, "inflight", FIELD_U32),
    FIELD(llm_welcome, top, "top", FIELD_U32),
    FIELD(llm_welcome, max_len, "max_len", FIELD_U32),
    FIELD(llm_welcome, vocab, "vocab", FIELD_U32),
    FIELD(llm_welcome, numerics_id, "numerics", FIELD_U64),
    FIELD(llm_welcome, model, "model", FIELD_TEXT),
};
static const struct field reject_fields[] = {
    FIELD(llm_reject, code, "code", FIELD_I32),
    FIELD(llm_reject, text, "text", FIELD_TEXT),
};

struct message_kind {
    const char *name;
    const char *magic; /* value of the key "magic", or NULL */
    const struct field *fields;
    size_t n_fields;
};

#define COUNT(a) (sizeof(a) / sizeof *(a))
static const struct message_kind kinds[] = {
    [LLM_MSG_HELLO] = {"hello", "llmd", hello_fields, COUNT(hello_fields)},
    [LLM_MSG_WELCOME] = {"welcome", NULL, welcome_fields, COUNT(welcome_fields)},
    [LLM_MSG_REJECT] = {"reject", NULL, reject_fields, COUNT(reject_fields)},
};

/* Where the struct of any kind starts in a message. */
static const size_t body = offsetof(struct llm_message, hello);

/* ---- encoding ---- */

struct bounded {
    char *data;
    size_t size, used;
};

static int bounded_write(void *context, const char *data, size_t n)
{
    struct bounded *b = context;
    if (n > b->size - b->used)
        return -1;
    memcpy(b->data + b->used, data, n);
    b->used += n;
    return 0;
}

static int pack_text(msgpack_packer *p, const char *text, size_t size)
{
    size_t n = strnlen(text, size);
    return msgpack_pack_str(p, n) | msgpack_pack_str_body(p, text, n);
}

static int pack_pair(msgpack_packer *p, const char *key, const char *value)
{
    return pack_text(p, key, SIZE_MAX) | pack_text(p, value, SIZE_MAX);
}

static int pack_field(msgpack_packer *p, const struct field *f, const uint8_t *from)
{
    union {
        uint32_t u32;
        uint64_t u64;
        int32_t i32;
    } v;
    if (pack_text(p, f->key, SIZE_MAX))
        return -1;
    if (f->kind == FIELD_TEXT)
        return pack_text(p, (const char *)from, f->size - 1);
    memcpy(&v, from, f->size);
    if (f->kind == FIELD_U32)
        return msgpack_pack_uint32(p, v.u32);
    return f->kind == FIELD_U64 ? msgpack_pack_uint64(p, v.u64) : msgpack_pack_int32(p, v.i32);
}

int control_encode(const struct llm_message *m, void *buffer, size_t size)
{
    assert(m->kind >= LLM_MSG_HELLO && m->kind <= LLM_MSG_REJECT);
    const struct message_kind *kind = &kinds[m->kind];
    struct bounded out = {buffer, size, 0};
    msgpack_packer p;
    msgpack_packer_init(&p, &out, bounded_write);
    int bad = msgpack_pack_map(&p, 1 + (kind->magic != NULL) + kind->n_fields);
    bad |= pack_pair(&p, "t", kind->name);
    if (kind->magic)
        bad |= pack_pair(&p, "magic", kind->magic);
    for (size_t i = 0; i < kind->n_fields; i++)
        bad |=
            pack_field(&p, &kind->fields[i], (const uint8_t *)&m->hello + kind->fields[i].offset);
    return bad ? -EMSGSIZE : (int)out.used;
}

/* ---- looking at foreign bytes ---- */

struct scan {
    const uint8_t *at, *end;
};

static bool skip(struct scan *s, uint64_t n)
{
    if (n > (uint64_t)(s->end - s->at))
        return false;
    s->at += n;
    return true;
}

/* A big-endian number of 1, 2 or 4 bytes. */
static bool take_number(struct scan *s, unsigned bytes, uint32_t *out)
{
    const uint8_t *from = s->at;
    if (!skip(s, bytes))
        return false;
    for (*out = 0; bytes; bytes--)
        *out = *out << 8 | *from++;
    return true;
}

/* Skips the body of a str, bin or ext: its length stands in `width` bytes, then `extra` bytes. */
static bool skip_sized(struct scan *s, unsigned width, unsigned extra)
{
    uint32_t n;
    return take_number(s, width, &n) && skip(s, (uint64_t)n + extra);
}

/* What an array's or map's head announces: `objects` that follow. */
struct head {
    bool container;
    uint32_t entries, objects;
};

static bool scan_container(struct scan *s, unsigned width, bool map, struct head *h)
{
    h->container = true;
    if (!take_number(s, width, &h->entries) || h->entries > SCAN_ENTRIES)
        return false;
    h->objects = h->entries * (map ? 2 : 1);
    return true;
}

/* 0xC0 .. 0xDF */
static bool scan_typed(struct scan *s, uint8_t code, struct head *h)
{
    if (code == 0xC1) /* never used */
        return false;
    if (code <= 0xC3) /* nil, false, true */
        return true;
    if (code <= 0xC6) /* bin 8, 16, 32 */
        return skip_sized(s, 1u << (code - 0xC4), 0);
    if (code <= 0xC9) /* ext 8, 16, 32: a type byte follows the length */
        return skip_sized(s, 1u << (code - 0xC7), 1);
    if (code <= 0xCB) /* float 32, 64 */
        return skip(s, 4u << (code - 0xCA));
    if (code <= 0xCF) /* uint 8, 16, 32, 64 */
        return skip(s, 1u << (code - 0xCC));
    if (code <= 0xD3) /* int 8, 16, 32, 64 */
        return skip(s, 1u << (code - 0xD0));
    if (code <= 0xD8) /* fixext 1, 2, 4, 8, 16 */
        return skip(s, 1 + (1u << (code - 0xD4)));
    if (code <= 0xDB) /* str 8, 16, 32 */
        return skip_sized(s, 1u << (code - 0xD9), 0);
    if (code <= 0xDD) /* array 16, 32 */
        return scan_container(s, 2u << (code - 0xDC), false, h);
    return scan_container(s, 2u << (code - 0xDE), true, h);
}

static bool scan_head(struct scan *s, struct head *h)
{
    uint32_t code;
    *h = (struct head){0};
    if (!take_number(s, 1, &code))
        return false;
    if (code < 0x80 || code >= 0xE0) /* fixint */
        return true;
    if (code >= 0xC0)
        return scan_typed(s, (uint8_t)code, h);
    if (code >= 0xA0) /* fixstr */
        return skip(s, code & 31);
    *h = (struct head){true, code & 15, (code & 15) * (code < 0x90 ? 2 : 1)}; /* fixmap, fixarray */
    return true;
}

/* True if one whole object starts at s->at, with nothing deeper or wider than the limits. */
static bool scan_object(struct scan *s, int depth)
{
    struct head h;
    if (!scan_head(s, &h))
        return false;
    if (!h.container)
        return true;
    if (depth == SCAN_DEPTH)
        return false;
    while (h.objects--)
        if (!scan_object(s, depth + 1))
            return false;
    return true;
}

/* ---- decoding ---- */

static bool is_text(const msgpack_object *o, const char *text)
{
    size_t n = strlen(text);
    return o->type == MSGPACK_OBJECT_STR && o->via.str.size == n &&
           !memcmp(o->via.str.ptr, text, n);
}

static const msgpack_object *find(const msgpack_object_map *map, const char *key)
{
    for (uint32_t i = 0; i < map->size; i++)
        if (is_text(&map->ptr[i].key, key))
            return &map->ptr[i].val;
    return NULL;
}

static int read_text(const msgpack_object *o, char *to, size_t size)
{
    if (o->type != MSGPACK_OBJECT_STR || o->via.str.size >= size ||
        memchr(o->via.str.ptr, 0, o->via.str.size))
        return LLM_EPROTO;
    memcpy(to, o->via.str.ptr, o->via.str.size);
    to[o->via.str.size] = 0;
    return 0;
}

static int read_signed(const msgpack_object *o, int32_t *to)
{
    bool negative = o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER;
    if (negative ? o->via.i64 < INT32_MIN
                 : o->type != MSGPACK_OBJECT_POSITIVE_INTEGER || o->via.u64 > INT32_MAX)
        return LLM_EPROTO;
    *to = (int32_t)o->via.i64;
    return 0;
}

static int read_unsigned(const msgpack_object *o, void *to, size_t size)
{
    if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return LLM_EPROTO;
    if (size == sizeof(uint32_t) && o->via.u64 > UINT32_MAX)
        return LLM_EPROTO;
    memcpy(to, &o->via.u64, size); /* little endian */
    return 0;
}

static int read_field(const msgpack_object *o, const struct field *f, uint8_t *to)
{
    if (f->kind == FIELD_TEXT)
        return read_text(o, (char *)to, f->size);
    if (f->kind == FIELD_I32)
        return read_signed(o, (int32_t *)(void *)to);
    return read_unsigned(o, to, f->size);
}

static int decode_kind(const msgpack_object_map *map)
{
    const msgpack_object *t = find(map, "t"), *magic = find(map, "magic");
    for (int k = LLM_MSG_HELLO; t && k <= LLM_MSG_REJECT; k++)
        if (is_text(t, kinds[k].name) &&
            (!kinds[k].magic || (magic && is_text(magic, kinds[k].magic))))
            return k;
    return LLM_EPROTO;
}

static int decode_map(const msgpack_object_map *map, struct llm_message *out)
{
    int kind = decode_kind(map);
    if (kind < 0)
        return kind;
    out->kind = (enum llm_message_kind)kind;
    for (size_t i = 0; i < kinds[kind].n_fields; i++) {
        const struct field *f = &kinds[kind].fields[i];
        const msgpack_object *o = find(map, f->key);
        int rc = o ? read_field(o, f, (uint8_t *)out + body + f->offset) : 0;
        if (rc < 0)
            return rc;
    }
    return 0;
}

int control_decode(const void *data, size_t bytes, struct llm_message *out)
{
    struct scan s = {data, (const uint8_t *)data + bytes};
    memset(out, 0, sizeof *out);
    if (bytes > LLM_CONTROL_MAX || !scan_object(&s, 0) || s.at != s.end)
        return LLM_EPROTO;
    size_t offset = 0;
    int rc = LLM_EPROTO;
    msgpack_unpacked m;
    msgpack_unpacked_init(&m);
    if (msgpack_unpack_next(&m, data, bytes, &offset) == MSGPACK_UNPACK_SUCCESS &&
        offset == bytes && m.data.type == MSGPACK_OBJECT_MAP)
        rc = decode_map(&m.data.via.map, out);
    msgpack_unpacked_destroy(&m);
    return rc;
}

/* ---- packets ---- */

union descriptor_space {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(int) * LLM_CONTROL_FDS)];
};

int control_send(int socket, const void *data, size_t bytes, const int *fds, int n)
{
    union descriptor_space control = {0};
    struct iovec iov = {(void *)data, bytes};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n < 0 || n > LLM_CONTROL_FDS)
        return -EINVAL;
    if (n) {
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)n);
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(sizeof(int) * (size_t)n);
        memcpy(CMSG_DATA(&control.head), fds, sizeof(int) * (size_t)n);
    }
    ssize_t sent;
    do
        sent = sendmsg(socket, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : (size_t)sent == bytes ? 0 : -EMSGSIZE;
}

/* Moves the descriptors of a received packet into fds; returns how many there are. */
static int installed(struct msghdr *m, int fds[static LLM_CONTROL_FDS])
{
    int n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count && n < LLM_CONTROL_FDS; i++)
            memcpy(&fds[n++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
    return n;
}

int control_receive(int socket, void *buffer, size_t size, int *fds, int *n)
{
    union descriptor_space control;
    struct iovec iov = {buffer, size};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    int came[LLM_CONTROL_FDS], wanted = n ? *n : 0, got = 0;
    if (n) {
        *n = 0;
        m.msg_control = &control;
        /* not CMSG_SPACE: the kernel would fill its padding with one more descriptor */
        m.msg_controllen = CMSG_LEN(sizeof(int) * LLM_CONTROL_FDS);
    }
    ssize_t bytes;
    do
        bytes = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (bytes < 0 && errno == EINTR);
    if (bytes < 0)
        return -errno;
    if (n)
        got = installed(&m, came);
    if (bytes > 0 && !(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && got <= wanted) {
        if (n)
            memcpy(fds, came, sizeof(int) * (size_t)got), *n = got;
        return (int)bytes;
    }
    for (int i = 0; i < got; i++)
        close(came[i]);
    return bytes || got || m.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? LLM_EPROTO : 0;
}
