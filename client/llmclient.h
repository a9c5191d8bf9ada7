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
 *         putchar('\n');
 *         if (e.type == LLM_EVENT_ERROR)
 *             return fprintf(stderr, "%s\n", llm_strerror(e.status)), 1;
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
 * After llm_connect, llm_submit, llm_poll, llm_wait and llm_cancel neither allocate nor lock (with
 * one exception that is asked for: llm_resume); while the engine is awake they make no system call,
 * but for the wait that the caller asked for. llm_arm empties a socket: one or two calls.
 *
 * Versions: structs that may grow begin with their size, which the INIT macros fill in; a program
 * that was built with an older header runs with a newer library, and a library with an older or a
 * newer engine of the same major version. What an older engine cannot do is refused with -ENOTSUP.
 * Marked "1.1": needs an engine that speaks 1.1 (llm_limits.abi_minor).
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

    /* 1.1 */
    uint32_t reserved;         /* the padding of 1.0: not read */
    uint32_t max_top_logprobs; /* room for so many candidates of each token (0 .. LLM_TOP_MAX):
                                * llm_request.top_logprobs up to it may be asked for */
};
#define LLM_OPTIONS_INIT                                                                           \
    {                                                                                              \
        sizeof(struct llm_options), 0, 0, 0, 0, 0, NULL, 0, 0, 0                                   \
    }

/* Connects to the engine of that instance. LLM_ENOENGINE, LLM_EPROTO, LLM_EBUSY, -EACCES,
 * -ETIMEDOUT, -ENOMEM, -EMFILE. `options` may be NULL. */
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
    uint32_t abi_minor; /* the version that both sides speak is LLM_ABI_MAJOR.abi_minor. (Here lay
                         * the padding of 1.0: the size is the same.) */
};
LLM_API void llm_get_limits(const struct llm_client *c, struct llm_limits *out);
/* What the engine granted of llm_options.max_top_logprobs; 0 where it speaks 1.0. */
LLM_API uint32_t llm_max_top_logprobs(const struct llm_client *c);
LLM_API void llm_set_spin_us(struct llm_client *c, uint32_t spin_us);

LLM_API const char *llm_strerror(int code);
LLM_API const char *llm_errmsg(const struct llm_client *c);

/* ---- requests ---- */

/* One of the continuations that LLM_OP_CHOOSE compares. */
struct llm_label {
    const int32_t *tokens;
    uint32_t n_tokens; /* at least 1 */
};

/* A generation ends where its text contains the stop string: no token that begins there or later is
 * delivered, and tokens that may turn out to belong to one are delivered only when it is certain that
 * they do not (or when the generation ends otherwise). Text is what llm_token_bytes says, from the
 * first generated token on; control tokens have none. llm_result says which one it was (`stop`), and
 * how many bytes of the last token delivered are cut off (`stop_cut`), if it began inside one. */
struct llm_stop {
    const char *text; /* any bytes */
    uint32_t bytes;   /* 1 .. LLM_STOP_BYTES_MAX */
};

/* Added to the token's logit, first of all. */
struct llm_bias {
    int32_t token;
    float bias; /* [-100, 100] */
};

struct llm_request {
    uint32_t size;         /* sizeof(struct llm_request) */
    uint32_t op;           /* enum llm_op; a cancel is llm_cancel */
    const int32_t *tokens; /* the prompt (n_tokens); copied, unless it came from llm_reserve */
    uint32_t n_tokens;
    uint32_t max_tokens; /* generate at most so many */
    uint32_t choices;   /* independent continuations of the prompt, drawn with choice = 0, 1, ... */
    uint32_t flags;     /* enum llm_sqe_flags */
    uint64_t seed;      /* with LLM_SEED_RANDOM the library draws one */
    uint64_t user_data; /* 0: the library chooses; else unique among the requests in flight */
    float temperature;  /* 0: greedy */
    float top_p, min_p; /* 1 and 0: off */
    uint32_t top_k;     /* 0: off */

    /* 1.1; zero (session_keep: LLM_SESSION_ALL) is the same as 1.0 */
    uint64_t session;      /* key of a session (llm_session_key), 0: none. Of a generate: the
                            * session's history goes before the tokens, of which there may then be
                            * none, and what is generated is appended to it */
    uint64_t session_keep; /* so many tokens of the history are kept; LLM_SESSION_ALL */
    uint64_t session_to;   /* LLM_OP_SESSION_FORK: the key of the new session */
    uint32_t priority;     /* enum llm_priority */
    uint32_t deadline_us;  /* the first token so soon after arrival, or LLM_EDEADLINE; 0: none */
    uint32_t timeout_ms;   /* ends so long after arrival with what there is; 0: the engine's */
    uint32_t
        queue_timeout_ms;  /* begins so soon after arrival, or LLM_EQUEUETIME; 0: the engine's */
    uint32_t max_itl_us;   /* the promised gap between its tokens; 0: the engine's */
    uint32_t first_choice; /* the choices are drawn with choice = first_choice, ... */
    uint32_t output_from;  /* 0; or the tokens from this one on were generated before: they
                                * count for max_tokens and are not delivered again */
    uint32_t n_labels;     /* LLM_OP_CHOOSE: 1 .. LLM_CHOICES_MAX */
    const struct llm_label *labels; /* (n_labels) */

    /* 1.1, LLM_OP_GENERATE. Applied in this order: biases, repetition, presence and frequency, then
     * temperature, top_k, top_p, min_p. For the logit x of a token:
     *   repetition  where the token stands in prompt or output: x > 0 ? x / repetition
     *                                                                : x * repetition
     *   presence, frequency    x - (n > 0 ? presence : 0) - n * frequency, where the token stands n
     *               times in the output (session history and output_from as above: what lies before
     *               output_from is prompt) */
    float repetition;              /* > 0; 1 (or 0): off */
    float presence, frequency;     /* [-2, 2]; 0: off */
    uint32_t top_logprobs;         /* candidates with each token, at most llm_max_top_logprobs: see
                                * llm_event_top. Includes LLM_SQE_LOGPROBS. Who leaves more than
                                * 1,024 such tokens of a request unread gets LLM_EUNREAD */
    const struct llm_stop *stops;  /* (n_stops) */
    const struct llm_bias *biases; /* (n_biases) each token once */
    uint32_t n_stops;              /* up to LLM_STOPS_MAX */
    uint32_t n_biases;             /* up to LLM_BIASES_MAX */
};
#define LLM_SEED_RANDOM UINT64_MAX
#define LLM_REQUEST_INIT                                                                           \
    {                                                                                              \
        sizeof(struct llm_request), LLM_OP_GENERATE, NULL, 0, 16, 1, 0, LLM_SEED_RANDOM, 0, 0.0f,  \
            1.0f, 0.0f, 0, 0, LLM_SESSION_ALL, 0, LLM_PRIORITY_NORMAL, 0, 0, 0, 0, 0, 0, 0, NULL,  \
            1.0f, 0.0f, 0.0f, 0, NULL, NULL, 0, 0                                                  \
    }

/* Room for n token ids inside the shared arena, to be written in place: pass the pointer as
 * llm_request.tokens to the next llm_submit and nothing is copied on this side. NULL with -EAGAIN
 * in llm_errcode while the arena is full (take completions and retry), or -E2BIG if n can never
 * fit. A reserve that is not submitted is replaced by the next. */
LLM_API int32_t *llm_reserve(struct llm_client *c, uint32_t n);
LLM_API int llm_errcode(const struct llm_client *c); /* code of the last failure of this handle */

/* Submits. *id (may be NULL) gets the request's id, returned in every event of it. -EAGAIN while
 * the ring, the arena or max_inflight is full: take completions and retry. -EINVAL, LLM_EPARAM,
 * LLM_ETOKEN, LLM_ETOOLONG, -E2BIG, -ENOTSUP (the engine is too old) are found here, before anything
 * is sent; the engine checks again. */
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
                        * from 1; a label's from 0). DONE: how many there were; of a session's
                        * operation: tokens that the session has now. ERROR: the number that would
                        * have fitted, or 0; LLM_EDEADLINE: the estimate, microseconds */
    uint32_t n_tokens; /* TOKENS: 1 .. LLM_CQE_TOKENS_MAX, else 0 */
    int32_t tokens[LLM_CQE_TOKENS_MAX];
    float logprobs[LLM_CQE_TOKENS_MAX]; /* valid with LLM_SQE_LOGPROBS and for scores */
    struct llm_result result;           /* DONE and ERROR */
};

/* Takes the next event without waiting: 1, 0 if there is none, or negative (LLM_EOWNERDEAD,
 * LLM_EEVICTED, LLM_EPROTO). */
LLM_API int llm_poll(struct llm_client *c, struct llm_event *e);

/* The candidates of token i of the event that the last call of llm_poll or llm_wait returned, the
 * likeliest first (of equal ones the lower id first). Stores up to `max` of them (out may be NULL with max 0) and
 * returns how many there are: top_logprobs of the request, or 0 where the event has no token i or
 * none were asked for. An event of such a request has one token. 1.1 */
LLM_API uint32_t llm_event_top(const struct llm_client *c, uint32_t i, struct llm_candidate *out,
                               uint32_t max);

/* Waits for an event: spins for spin_us, then sleeps. timeout_ms < 0: for ever. 1, 0 on timeout, or
 * negative as llm_poll, -EINTR when a signal came. With nothing in flight it returns -ENOENT rather
 * than wait for what cannot come. */
LLM_API int llm_wait(struct llm_client *c, struct llm_event *e, int timeout_ms);

LLM_API uint32_t llm_inflight(const struct llm_client *c); /* finals still owed */

/* ---- sessions (1.1) ----
 *
 * A session is a token history that the engine keeps, with its computed state for as long as memory
 * allows: a turn costs what it adds. It is named by a key that the program chooses, belongs to the
 * user (uid), outlives the connection, and is closed after the engine's idle time. What refers to
 * one that is not there ends with LLM_ENOSESSION.
 *
 *     uint64_t call = llm_session_key("call-4711");
 *     llm_session_open(c, call, system_prompt, n, 0, NULL);
 *     llm_session_append(c, call, words, n, NULL);          // while the caller speaks
 *     llm_session_replace(c, call, keep, words, n, NULL);   // the recognizer thought again
 *     r.session = call, llm_submit(c, &r, &id);             // generate; r.n_tokens may be 0
 *     llm_session_interrupt(c, call, spoken, NULL);         // the caller interrupts
 *
 * Each call is one request, submitted as by llm_submit: its id (may be NULL) comes back in one final
 * event, whose `position` is the number of tokens that the session has then. They may be sent one
 * behind the other without waiting: the engine takes them in order. LLM_ESESSION: another request
 * generates on the session (LLM_SQE_INTERRUPT ends it), or the key is taken. All calls: -EAGAIN as
 * llm_submit, LLM_EPARAM for key 0. */

/* A key from a name: FNV-1a with 64 bits over its bytes (h = 0xCBF29CE484222325; for each byte
 * h = (h ^ byte) * 0x100000001B3), and 1 where that gives 0. The same everywhere, so that programs
 * in any language agree. */
LLM_API uint64_t llm_session_key(const char *name);

/* flags: LLM_SQE_PIN (stays resident, within the quota of pins), LLM_SQE_NO_CACHE. */
LLM_API int llm_session_open(struct llm_client *c, uint64_t key, const int32_t *tokens, uint32_t n,
                             uint32_t flags, uint64_t *id);
LLM_API int llm_session_append(struct llm_client *c, uint64_t key, const int32_t *tokens,
                               uint32_t n, uint64_t *id);
/* Keeps the first `keep` tokens of the history, then appends. */
LLM_API int llm_session_replace(struct llm_client *c, uint64_t key, uint64_t keep,
                                const int32_t *tokens, uint32_t n, uint64_t *id);
LLM_API int llm_session_rewind(struct llm_client *c, uint64_t key, uint64_t keep, uint64_t *id);
/* Barge-in, in one request: what is generated on the session is cancelled (it gets its final
 * CANCELLED), then the session is rewound. */
LLM_API int llm_session_interrupt(struct llm_client *c, uint64_t key, uint64_t keep, uint64_t *id);
/* A second session with the same history; what both share is stored once. */
LLM_API int llm_session_fork(struct llm_client *c, uint64_t key, uint64_t new_key, uint64_t *id);
LLM_API int llm_session_close(struct llm_client *c, uint64_t key, uint64_t *id);

/* A prefix that stays resident: a pinned session of that key, which requests without a session hit
 * through the prefix cache. Nothing is generated on a pinned session itself: fork it. */
LLM_API int llm_prefix_pin(struct llm_client *c, uint64_t key, const int32_t *tokens, uint32_t n,
                           uint64_t *id);
LLM_API int llm_prefix_unpin(struct llm_client *c, uint64_t key, uint64_t *id);

/* ---- choosing among labels (1.1) ----
 *
 *     struct llm_choose_result which;
 *     llm_choose(c, prompt, n, labels, n_labels, &id);
 *     llm_choose_begin(&which, id, n_labels);
 *     do
 *         rc = llm_wait(c, &e, -1) == 1 ? llm_choose_add(&which, &e) : -EIO;
 *     while (rc == 0);
 *     if (rc == 1)
 *         printf("label %u, log-probability %f\n", llm_choose_best(&which), ...);
 */

/* Log-probabilities of the labels as continuations of the prompt, in one pass. Choice i is label i:
 * TOKENS events carry its tokens with their log-probabilities, then comes its final. An llm_submit
 * with LLM_OP_CHOOSE, for which the prompt may have come from llm_reserve, too; who wants a timeout_ms
 * or a priority calls that. */
LLM_API int llm_choose(struct llm_client *c, const int32_t *tokens, uint32_t n,
                       const struct llm_label *labels, uint32_t n_labels, uint64_t *id);

struct llm_choose_result {
    uint64_t id;
    uint64_t owed; /* bit i: the final of label i has not come */
    uint32_t n_labels;
    int32_t status;                     /* 0, or the code of the first label that failed */
    double logprob[LLM_CHOICES_MAX];    /* sum over the label's tokens, natural logarithm */
    uint32_t n_tokens[LLM_CHOICES_MAX]; /* of the label: for those who compare means */
};
LLM_API void llm_choose_begin(struct llm_choose_result *r, uint64_t id, uint32_t n_labels);
/* Adds an event up; those of other requests are passed over. 1: all labels are there; 0: more is to
 * come; negative: all finals have come, but a label failed or was cancelled. */
LLM_API int llm_choose_add(struct llm_choose_result *r, const struct llm_event *e);
/* The label with the highest sum (of equal ones the first). */
LLM_API uint32_t llm_choose_best(const struct llm_choose_result *r);

/* ---- going on after the engine's death (1.1) ---- */

enum llm_resume_flags { LLM_RESUME_ANY_NUMERICS = 1 };

/* From now on the death of the engine does not end this handle: the library reconnects to the
 * instance as soon as it is back, within timeout_ms of the death (0: 30,000), and continues each
 * request with exactly the tokens that would have come. The caller sees the same ids and choices, no
 * gap and no duplicate. This works inside llm_poll, llm_wait and llm_arm, without blocking the ones
 * that do not block; the descriptor of llm_fd stays the same; llm_get_limits may change, and what no
 * longer fits ends with an error event. What is submitted while the engine is away is sent when it
 * is back. When the time is over, the handle ends with LLM_EOWNERDEAD as without llm_resume; who looks
 * again only after that asks for the engine once more before.
 *
 * An engine that computes other bits (another numerics_id) is refused: the handle ends with
 * LLM_ENUMERICS. With LLM_RESUME_ANY_NUMERICS streams go on with its tokens, if its vocabulary is
 * the same. Sessions die with the engine: a request on one ends with LLM_EOWNERDEAD. A cancelled
 * request ends with what it has. What an engine ends in order before it stops (CANCELLED,
 * LLM_ESHUTDOWN) has ended.
 *
 * The price: llm_submit allocates what a request needs to be continued (4 bytes a token of prompt
 * and max_tokens, for each choice), and a reconnect allocates. -ENOMEM is then a result of
 * llm_submit. To be called with nothing in flight, once: -EBUSY, -EALREADY. -ENOTSUP: the engine
 * speaks 1.0. -ENOMEM, -EMFILE. */
LLM_API int llm_resume(struct llm_client *c, uint32_t timeout_ms, unsigned flags);

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
