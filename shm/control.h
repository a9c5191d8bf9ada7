/* control.h - the control socket: AF_UNIX SOCK_SEQPACKET at llm_socket_path(), mode 0660, msgpack
 * maps.
 *
 *   client -> engine  HELLO   {"t":"hello", "magic":"llmd", "major", "minor", "sqe":128, "cqe":64,
 *                              "sq", "cq", "arena", "inflight"   wanted sizes, 0: the
 *                              engine's default
 *                              "top"    candidates of each token, 0 .. LLM_TOP_MAX (minor 1)
 *                              "name": <= 64 bytes, who this is}
 *   engine -> client  WELCOME {"t":"welcome", "major", "minor", "epoch", "client", "generation",
 *                              "sq", "cq", "arena", "inflight", "top", "max_len", "vocab",
 *                              "numerics", "model"}  + up, down, pulse, vocabulary, bell
 *                     REJECT  {"t":"reject", "code", "text"}, then the socket closes
 *   The socket stays open; its end is the death or the leaving of a side. After WELCOME the client
 * sends nothing.
 *   The bell is one end of a pair of datagram sockets. The engine keeps the other one and sends a
 * byte through it after a publish if the client's cq_wait is LLM_WAIT_BELL. It says nothing of the
 * engine's end: that is for the control socket.
 *
 * One message a packet, at most LLM_CONTROL_MAX bytes; a longer, short or ill-formed one closes the
 * connection. The engine never installs a client's descriptors.
 */
#ifndef LLMD_CONTROL_H
#define LLMD_CONTROL_H

#include <stdbool.h>

#include "llm_abi.h"

enum {
    LLM_CONTROL_MAX = 4096,
    LLM_CONTROL_BELL = 4, /* its place among WELCOME's descriptors, behind the segments */
    LLM_CONTROL_FDS = 5,
    LLM_CONTROL_TEXT = 240
};

struct llm_hello {
    uint32_t major, minor, sqe_bytes, cqe_bytes;
    uint32_t sq_entries, cq_entries, arena_bytes, max_inflight;
    char name[64];
    uint32_t top; /* candidates of a token; 0 from minor 0 */
};
struct llm_welcome {
    uint32_t major, minor, client, generation;
    uint32_t sq_entries, cq_entries, arena_bytes, max_inflight, max_len, vocab;
    uint64_t epoch, numerics_id;
    char model[128];
    uint32_t top;
};
struct llm_reject {
    int32_t code;
    char text[LLM_CONTROL_TEXT];
};
enum llm_message_kind { LLM_MSG_HELLO = 1, LLM_MSG_WELCOME, LLM_MSG_REJECT };
struct llm_message {
    enum llm_message_kind kind;
    union {
        struct llm_hello hello;
        struct llm_welcome welcome;
        struct llm_reject reject;
    };
};

/* Writes the message into buffer; returns its length or -EMSGSIZE. */
int control_encode(const struct llm_message *m, void *buffer, size_t size);
/* Reads one message; unknown keys are skipped, missing ones are zero or "". 0, or LLM_EPROTO. No
 * pointer into `data` is kept, nothing stays allocated. */
int control_decode(const void *data, size_t bytes, struct llm_message *out);

/* Sends a packet with n descriptors (n may be 0) without blocking or SIGPIPE. 0 or -errno. */
int control_send(int socket, const void *data, size_t bytes, const int *fds, int n);
/* Receives one packet without blocking. Takes up to *n descriptors (CLOEXEC) and stores how many
 * came; with n NULL none are installed: such a packet is refused. Returns bytes (0: the other side
 * is gone) or -errno, LLM_EPROTO for a packet that was cut. */
int control_receive(int socket, void *buffer, size_t size, int *fds, int *n);

/* True for a well-formed instance name. */
bool llm_instance_ok(const char *instance);
#define LLM_SYSTEM_DIR "/run/llmd" /* root's engines, and those of the system's service */
/* Paths: directory $LLMD_RUNTIME_DIR, else LLM_SYSTEM_DIR for root, else $XDG_RUNTIME_DIR/llmd, else
 * /tmp/llmd-<uid>; in it <instance>.sock and <instance>.lock. Returns 0 or -ENAMETOOLONG / -EINVAL.
 */
int llm_runtime_dir(char *out, size_t size);
int llm_socket_path(const char *instance, char *out, size_t size);
int llm_lock_path(const char *instance, char *out, size_t size);
/* Name of the board for shm_open: "/llmd.<instance>" */
int llm_board_name(const char *instance, char *out, size_t size);

#endif
