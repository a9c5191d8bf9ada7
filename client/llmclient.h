/* llmclient.h - libllmclient: tokens from a language model on the same machine, through shared
 * memory.
 *
 *     #include <llmclient.h>
 *     #include <stdio.h>
 *
 *     int main(void)
 *     {
 *         struct llm_client *c;
 *         int rc = llm_connect(&c, "default", NULL);
 *         if (rc < 0)
 *             return fprintf(stderr, "%s\n", llm_connect_error()), 1;
 *
 *         struct llm_tokenizer *t;
 *         struct llm_detokenizer *d;
 *         int32_t prompt[64];
 *         if (llm_tokenizer_open(&t, c) < 0 || llm_detokenizer_open(&d, t, LLM_DETOK_UTF8) < 0)
 *             return fprintf(stderr, "%s\n", llm_errmsg(c)), 1;
 *         long n = llm_tokenize(t, "The capital of France is", 24, 0, prompt, 64);
 *
 *         struct llm_request r = LLM_REQUEST_INIT;
 *         r.tokens = prompt, r.n_tokens = (uint32_t)n, r.max_tokens = 16;
 *         uint64_t id;
 *         if (n < 0 || llm_submit(c, &r, &id) < 0)
 *             return fprintf(stderr, "%s\n", llm_errmsg(c)), 1;
 *
 *         struct llm_event e;
 *         do {
 *             if (llm_wait(c, &e, -1) < 0)
 *                 return fprintf(stderr, "%s\n", llm_errmsg(c)), 1;
 *             for (unsigned i = 0; i < e.n_tokens; i++) {
 *                 char text[256];
 *                 long bytes = llm_detokenize(d, e.tokens[i], text, sizeof text);
 *                 fwrite(text, 1, (size_t)(bytes > 0 ? bytes : 0), stdout);
 *             }
 *         } while (e.type == LLM_EVENT_TOKENS);
 *
 *         llm_detokenizer_close(d);
 *         llm_tokenizer_close(t);
 *         llm_close(c);
 *     }
 *
 * Build: cc program.c $(pkg-config --cflags --libs llmclient)
 *
 * Return values: 0 or a count on success; a negative code on failure: an errno value (-EAGAIN,
 * -EINVAL, ...) or an enum llm_error. llm_strerror gives the code's meaning, llm_errmsg the
 * sentence about the last failure of a handle.
 *
 * Threads: a client handle and what hangs on it belong to one thread at a time. A tokenizer may be
 * used by many threads at once, a detokenizer by one. Handles are independent of each other.
 *
 * After llm_connect, llm_submit, llm_poll, llm_wait and llm_cancel neither allocate nor lock; while
 * the engine is awake they make no system call, but for the wait that the caller asked for. llm_arm
 * empties a socket: one or two calls.
 */
#ifndef LLMCLIENT_H
#define LLMCLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "llm_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LLM_API __attribute__((visibility("default")))

struct llm_client;
struct llm_tokenizer;
struct llm_detokenizer;

/* ---- connecting ---- */

/* Wanted sizes; 0 asks for the engine's default. The engine may grant less: llm_limits tells. */
struct llm_options {
    uint32_t size;         /* sizeof(struct llm_options) */
    uint32_t max_inflight; /* requests (choices counted each) at once */
    uint32_t arena_bytes;  /* room for prompts that the engine has not copied yet */
    uint32_t sq_entries, cq_entries;
    uint32_t spin_us; /* llm_wait spins so long before it sleeps; UINT32_MAX: for ever */
    const char
        *name; /* who this is, for the operator; at most 63 bytes; NULL: the program's name */
    uint32_t connect_timeout_ms; /* 0: 5000 */
};
#define LLM_OPTIONS_INIT                                                                           \
    {                                                                                              \
        sizeof(struct llm_options), 0, 0, 0, 0, 0, NULL, 0                                         \
    }

/* Connects to the engine of that instance. LLM_ENOENGINE, LLM_EPROTO, LLM_EBUSY, -EACCES,
 * -ETIMEDOUT, -ENOMEM. `options` may be NULL. */
LLM_API int llm_connect(struct llm_client **out, const char *instance,
                        const struct llm_options *options);
LLM_API const char *
llm_connect_error(void); /* sentence about this thread's last failed llm_connect */

/* Leaves. Requests in flight are cancelled by the engine. NULL is allowed. */
LLM_API void llm_close(struct llm_client *c);

struct llm_limits {
    uint32_t vocab;         /* token ids are 0 .. vocab - 1 */
    uint32_t max_model_len; /* prompt + generated tokens */
    uint32_t max_inflight, arena_bytes, sq_entries, cq_entries;
    uint64_t numerics_id; /* names everything that decides a token's bits */
    char model[128];
    uint32_t engine_pid;
};
LLM_API void llm_get_limits(const struct llm_client *c, struct llm_limits *out);
LLM_API void llm_set_spin_us(struct llm_client *c, uint32_t spin_us);

LLM_API const char *llm_strerror(int code);
LLM_API const char *llm_errmsg(const struct llm_client *c);

/* ---- requests ---- */

struct llm_request {
    uint32_t size;         /* sizeof(struct llm_request) */
    uint32_t op;           /* LLM_OP_GENERATE, LLM_OP_SCORE or LLM_OP_NOP */
    const int32_t *tokens; /* the prompt (n_tokens); copied, unless it came from llm_reserve */
    uint32_t n_tokens;
    uint32_t max_tokens; /* generate at most so many */
    uint32_t choices;   /* independent continuations of the prompt, drawn with choice = 0, 1, ... */
    uint32_t flags;     /* LLM_SQE_IGNORE_EOS, LLM_SQE_LOGPROBS */
    uint64_t seed;      /* with LLM_SEED_RANDOM the library draws one */
    uint64_t user_data; /* 0: the library chooses; else unique among the requests in flight */
    float temperature;  /* 0: greedy */
    float top_p, min_p; /* 1 and 0: off */
    uint32_t top_k;     /* 0: off */
};
#define LLM_SEED_RANDOM UINT64_MAX
#define LLM_REQUEST_INIT                                                                           \
    {                                                                                              \
        sizeof(struct llm_request), LLM_OP_GENERATE, NULL, 0, 16, 1, 0, LLM_SEED_RANDOM, 0, 0.0f,  \
            1.0f, 0.0f, 0                                                                          \
    }

/* Room for n token ids inside the shared arena, to be written in place: pass the pointer as
 * llm_request.tokens to the next llm_submit and nothing is copied on this side. NULL with -EAGAIN
 * in llm_errcode while the arena is full (take completions and retry), or -E2BIG if n can never
 * fit. A reserve that is not submitted is replaced by the next. */
LLM_API int32_t *llm_reserve(struct llm_client *c, uint32_t n);
LLM_API int llm_errcode(const struct llm_client *c); /* code of the last failure of this handle */

/* Submits. *id (may be NULL) gets the request's id, returned in every event of it. -EAGAIN while
 * the ring, the arena or max_inflight is full: take completions and retry. -EINVAL, LLM_EPARAM,
 * LLM_ETOKEN, LLM_ETOOLONG are found here, before anything is sent; the engine checks again. */
LLM_API int llm_submit(struct llm_client *c, const struct llm_request *r, uint64_t *id);

/* Asks for the end of a request; its final event comes all the same, with what was generated so
 * far. 0, -EAGAIN. The cancel's own completion is swallowed. A request that has ended already is no
 * error. */
LLM_API int llm_cancel(struct llm_client *c, uint64_t id);

/* ---- events ---- */

enum llm_event_type {
    LLM_EVENT_TOKENS = 1, /* more tokens of one choice */
    LLM_EVENT_DONE = 2,   /* the final of a choice */
    LLM_EVENT_ERROR = 3   /* the final of a choice that was refused or failed: status < 0 */
};

struct llm_event {
    uint64_t id;
    uint32_t type; /* enum llm_event_type */
    uint32_t choice;
    int32_t status;    /* ERROR: the code */
    uint32_t finish;   /* DONE: enum llm_finish */
    uint32_t position; /* TOKENS: index of tokens[0] (generated tokens from 0; scored prompt tokens
                        * from 1). ERROR: the number that would have fitted, or 0 */
    uint32_t n_tokens; /* TOKENS: 1 .. LLM_CQE_TOKENS_MAX, else 0 */
    int32_t tokens[LLM_CQE_TOKENS_MAX];
    float logprobs[LLM_CQE_TOKENS_MAX]; /* valid with LLM_SQE_LOGPROBS and for scores */
    struct llm_result result;           /* DONE and ERROR */
};

/* Takes the next event without waiting: 1, 0 if there is none, or negative (LLM_EOWNERDEAD,
 * LLM_EEVICTED, LLM_EPROTO). */
LLM_API int llm_poll(struct llm_client *c, struct llm_event *e);

/* Waits for an event: spins for spin_us, then sleeps. timeout_ms < 0: for ever. 1, 0 on timeout, or
 * negative as llm_poll, -EINTR when a signal came. With nothing in flight it returns -ENOENT rather
 * than wait for what cannot come. */
LLM_API int llm_wait(struct llm_client *c, struct llm_event *e, int timeout_ms);

LLM_API uint32_t llm_inflight(const struct llm_client *c); /* finals still owed */

/* ---- waiting in a loop of your own: epoll, poll, libuv, asyncio ----
 *
 *     struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
 *     epoll_ctl(loop, EPOLL_CTL_ADD, llm_fd(c), &ev);
 *     for (;;) {
 *         while ((rc = llm_poll(c, &e)) == 1)
 *             ...                            // use the event
 *         if (rc < 0)
 *             break;                         // the engine is gone: llm_errmsg says how
 *         if (llm_arm(c))
 *             continue;                      // something came in between
 *         epoll_wait(loop, &ev, 1, -1);
 *     }
 *
 * A whole program: client/examples/epoll.c. The descriptor belongs to the handle: wait for it to be
 * readable, neither read nor close it. It stays the same for the life of the handle; take it out of
 * your loop before llm_close. */

/* A descriptor that, once armed, becomes readable when there may be an event, and at once when the
 * engine dies or closes this client. It is made by the first call. Negative: -EMFILE, -ENFILE,
 * -ENOMEM. */
LLM_API int llm_fd(struct llm_client *c);

/* To be called each time before waiting for the descriptor, after llm_poll has returned 0. 0: wait.
 * 1: do not wait, llm_poll has something to say. The next llm_poll or llm_wait disarms. Who waits
 * without arming sleeps through events; who is woken for nothing (it may happen) arms again. */
LLM_API int llm_arm(struct llm_client *c);

/* ---- text ---- */

enum llm_tokenize_flags {
    LLM_TOKENIZE_SPECIAL = 1,    /* spellings of special tokens in the text become those tokens */
    LLM_TOKENIZE_ADD_SPECIAL = 2 /* add what the model adds around a text (bos, eos), if it does */
};
enum llm_detok_flags {
    LLM_DETOK_UTF8 = 1,         /* never hand out a part of a UTF-8 character */
    LLM_DETOK_SHOW_SPECIAL = 2, /* control tokens are spelled out; without it they are silent */
    LLM_DETOK_WORDS = 4,        /* hand out whole words (with the white space behind them) */
    LLM_DETOK_SENTENCES = 8,    /* hand out whole sentences: for speech synthesis */
    LLM_DETOK_CONTINUE = 16     /* the stream continues a text (a prompt without a chat template):
                                 * keep the space that it may begin with. Without it the space that
                                 * a SentencePiece tokenizer puts before every text is taken away */
};

/* Over the client's vocabulary: independent of the handle afterwards (it keeps its own mapping).
 * LLM_ENOTEXT for a tokenizer that is not supported, by name in llm_errmsg. */
LLM_API int llm_tokenizer_open(struct llm_tokenizer **out, struct llm_client *c);
/* Over a vocabulary image of shm/vocab.h (copied). `why` (may be NULL) gets a sentence on failure.
 */
LLM_API int llm_tokenizer_open_image(struct llm_tokenizer **out, const void *image, size_t bytes,
                                     char *why, size_t why_size);
LLM_API void llm_tokenizer_close(struct llm_tokenizer *t);

/* Token ids of the text. Returns how many there are; at most `max` are stored (NULL and 0: just
 * count). Any bytes are accepted, NUL as well; ill-formed UTF-8 is read as U+FFFD, one for each
 * maximal ill-formed part. Where the model's own tokenizer composes characters (NFC: qwen2), so
 * does this. -ENOMEM, -E2BIG (over 2^30 bytes). */
LLM_API long llm_tokenize(const struct llm_tokenizer *t, const char *text, size_t bytes,
                          unsigned flags, int32_t *tokens, size_t max);

/* Bytes of one token, as they stand in text, by itself. Returns the number of bytes and sets
 * *bytes; negative for an id out of range. */
LLM_API long llm_token_bytes(const struct llm_tokenizer *t, int32_t token, const char **bytes);
LLM_API bool llm_token_is_control(const struct llm_tokenizer *t, int32_t token);
LLM_API uint32_t llm_tokenizer_vocab(const struct llm_tokenizer *t);

/* What the model brings for conversations: its chat template (llm_template.h renders it; *bytes is
 * 0 where it has none) and the ids of special tokens (-1: none). Both live as long as the handle.
 */
enum llm_special { LLM_BOS, LLM_EOS, LLM_EOT, LLM_UNK, LLM_PAD };
LLM_API int llm_chat_template(const struct llm_client *c, const char **source, size_t *bytes);
LLM_API int32_t llm_special_token(const struct llm_client *c, enum llm_special which);

/* Streaming: push one token, get the bytes that are ready (not NUL-terminated). -ENOBUFS if `size`
 * is too small (nothing is lost: push no token, call llm_detokenize_flush with more room: it then
 * hands out just that). llm_detokenize_flush hands out what waits for its rest, at the end of a
 * stream; -ENOBUFS as above. LLM_ETOKEN, -ENOMEM: nothing has changed.
 * With LLM_DETOK_UTF8, _WORDS or _SENTENCES ill-formed UTF-8 becomes U+FFFD as soon as it is
 * certain. At most 256 bytes wait for the end of a word, 1024 for that of a sentence; more is
 * handed out in pieces. Several detokenizers may hang on one tokenizer, which outlives them. */
LLM_API int llm_detokenizer_open(struct llm_detokenizer **out, const struct llm_tokenizer *t,
                                 unsigned flags);
LLM_API void llm_detokenizer_reset(struct llm_detokenizer *d);
LLM_API long llm_detokenize(struct llm_detokenizer *d, int32_t token, char *out, size_t size);
LLM_API long llm_detokenize_flush(struct llm_detokenizer *d, char *out, size_t size);
LLM_API void llm_detokenizer_close(struct llm_detokenizer *d);

#ifdef __cplusplus
}
#endif

#endif
