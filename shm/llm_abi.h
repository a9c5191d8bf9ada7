/* llm_abi.h - what engine and clients agree on: versions, codes, the two ring entries.
 *
 * Layout and constants only; installed beside llmclient.h. Little endian, fixed sizes; a change of
 * any offset or meaning is a new LLM_ABI_MAJOR, an addition in reserved space a new LLM_ABI_MINOR.
 */
#ifndef LLM_ABI_H
#define LLM_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define LLM_STATIC_ASSERT static_assert
#else
#define LLM_STATIC_ASSERT _Static_assert
#endif

#define LLM_ABI_MAJOR 1
#define LLM_ABI_MINOR                                                                              \
    1 /* 1: sessions, CHOOSE, deadlines, priorities, resume, option maps, penalties, stop strings */

/* Results of calls and the `status` of completions: 0 or one of these. The common errno values keep
 * their numbers (-EAGAIN, -EINVAL, -ENOMEM, -ETIMEDOUT ...); these are llmd's own. llm_strerror()
 * knows all. */
enum llm_error {
    LLM_EOWNERDEAD = -1001, /* the engine died */
    LLM_EPROTO = -1002,     /* the other side broke the protocol, or its version does not fit */
    LLM_EEVICTED = -1003,   /* the engine has closed this client; llm_errmsg says why */
    LLM_ETOOLONG = -1004,   /* prompt + max_tokens exceed max_model_len */
    LLM_ETOKEN = -1005,     /* a token id outside the vocabulary */
    LLM_EBUSY = -1006,      /* a stated limit of the engine is reached (queue, clients) */
    LLM_EENGINE = -1007,    /* the backend failed; the request may be sent again */
    LLM_ENOENGINE = -1008,  /* no engine of that name is running */
    LLM_EPARAM = -1009,     /* a parameter out of its range */
    LLM_ESHUTDOWN = -1010,  /* the engine is stopping */
    LLM_ENOTEXT = -1011,    /* the model's tokenizer is not supported; token ids still work */
    LLM_EDEADLINE = -1012,  /* the first-token deadline cannot be met, or passed while it waited */
    LLM_EQUEUETIME = -1013, /* the queue timeout passed */
    LLM_EQUOTA = -1014,     /* a quota of this user is used up */
    LLM_ENOSESSION = -1015, /* no session of that key (it was closed, or idle for too long) */
    LLM_ESESSION = -1016,   /* the session is in use by another request, or its key is taken */
    LLM_EUNREAD = -1017,    /* cancelled: the client left too many tokens unread */
    LLM_ENUMERICS = -1018   /* resume: the new engine computes other bits */
};

enum llm_op {
    LLM_OP_NOP = 0, /* completes at once: DONE. For measuring the path */
    LLM_OP_GENERATE = 1,
    LLM_OP_SCORE = 2, /* log-probabilities of the prompt's own tokens */
    LLM_OP_CANCEL = 3,
    /* ends the request whose user_data is `target`: it gets its final CANCELLED; the cancel itself
     * gets DONE with status 0, or -ENOENT where nothing matched */

    /* minor 1. Sessions are named by a key of the client's choice and belong to its user (uid), not
     * to a connection. DONE says how many tokens the session has then (`position`). */
    LLM_OP_SESSION_OPEN = 4, /* with its first tokens, or none */
    LLM_OP_SESSION_APPEND =
        5, /* keeps `target` tokens, or all, and appends: append, replace, rewind */
    LLM_OP_SESSION_FORK = 6, /* makes session `target`, the same history */
    LLM_OP_SESSION_CLOSE = 7,
    LLM_OP_CHOOSE = 8, /* log-probabilities of several continuations ("labels" in the option map) of
                        * one prompt: choice i is label i */
    LLM_OP_LAST = 8
};

enum llm_sqe_flags {
    LLM_SQE_IGNORE_EOS = 1, /* end-of-generation tokens do not end it */
    LLM_SQE_LOGPROBS = 2,   /* completions carry log-probabilities */
    /* minor 1 */
    LLM_SQE_INTERRUPT = 4, /* of a session: what is generated on it is cancelled first */
    LLM_SQE_NO_CACHE = 8,  /* neither takes blocks from the prefix cache nor leaves any there */
    LLM_SQE_PIN = 16,      /* SESSION_OPEN: its blocks stay resident, within the quota of pins */
    /* GENERATE: whether it speculates by prompt lookup (it may, where the engine can); neither: as the
     * engine does by default. Tokens and log-probabilities are the same; more of them may come at
     * once */
    LLM_SQE_SPECULATE = 32,
    LLM_SQE_NO_SPECULATION = 64,
    LLM_SQE_FLAGS = 127 /* all flags; others must be zero */
};

/* A class goes before the next one; within a class the earliest deadline. */
enum llm_priority { LLM_PRIORITY_NORMAL = 0, LLM_PRIORITY_HIGH = 1, LLM_PRIORITY_LOW = 2 };

#define LLM_SESSION_ALL UINT64_MAX /* `target`: keep the whole history */

enum llm_cqe_type {
    LLM_CQE_TOKENS = 1, /* `count` tokens from `position` on */
    LLM_CQE_DONE = 2,   /* the final of a choice (or of NOP, CANCEL): `finish` says how it ended */
    LLM_CQE_ERROR = 3   /* the final of a request that was refused or failed: `status` < 0 */
};

enum llm_cqe_flags {
    LLM_CQE_HAS_LOGPROBS = 1,
    LLM_CQE_HAS_TOP = 2 /* minor 1; GENERATE, with "top_logprobs": one token, and its candidates lie
                         * in the down segment (segment.h) */
};

enum llm_finish {
    LLM_FINISH_NONE = 0,
    LLM_FINISH_STOP = 1,   /* an end-of-generation token (it is the last token delivered), or a stop
                            * string: llm_result.stop */
    LLM_FINISH_LENGTH = 2, /* max_tokens */
    LLM_FINISH_CANCELLED = 3,
    LLM_FINISH_TIMEOUT = 4,
    LLM_FINISH_DEADLINE = 5,
    LLM_FINISH_REFUSED = 6,
    LLM_FINISH_ERROR = 7
};

enum {
    LLM_CQE_TOKENS_MAX = 4,
    LLM_CHOICES_MAX = 64,
    LLM_OPTIONS_MAX = 65536, /* bytes of an option map */
    LLM_STOPS_MAX = 16,
    LLM_STOP_BYTES_MAX = 256, /* of one stop string */
    LLM_BIASES_MAX = 1024,
    LLM_TOP_MAX = 20,     /* candidates of a token */
    LLM_INSTANCE_MAX = 48 /* bytes of an instance name, [A-Za-z0-9._-], not starting with a dot */
};

/* Submission entry, 128 bytes. Written by the client at up.entries[tail & mask], read once by the
 * engine. */
struct llm_sqe {
    uint64_t user_data;  /*   0  returned in every completion; unique among the client's requests in
                            flight */
    uint32_t seq;        /*   8  the free-running cursor of this entry */
    uint8_t op;          /*  12  enum llm_op */
    uint8_t flags;       /*  13  enum llm_sqe_flags */
    uint16_t priority;   /*  14  enum llm_priority */
    uint64_t session;    /*  16  key of the session, 0: none. Session operations and GENERATE: its
                          *      history, cut to `target` tokens, goes before the entry's */
    uint32_t adapter;    /*  24  must be zero */
    uint32_t tokens_off; /*  28  bytes from the arena's start, a multiple of 4; s32 token ids */
    uint32_t tokens_len; /*  32  tokens */
    uint32_t options_off;  /*  36  bytes from the arena's start: a msgpack map (options.h) */
    uint32_t options_len;  /*  40  bytes, 0: none */
    uint32_t max_tokens;   /*  44  GENERATE: at least 1, those that came before included */
    uint16_t choices;      /*  48  GENERATE: 1 .. LLM_CHOICES_MAX; CHOOSE: number of labels; others:
                            *      0 or 1 */
    uint16_t first_choice; /*  50  GENERATE: number of the first choice; resume asks for one */
    uint32_t output_from;  /*  52  GENERATE: 0, or tokens from this one on were generated before:
                            *      they count as output and are not delivered again */
    uint32_t rope_len;     /*  56  must be zero */
    uint32_t top_k;        /*  60  0: off */
    uint64_t seed;         /*  64 */
    float temperature;     /*  72  0: greedy; finite, >= 0 */
    float top_p;           /*  76  (0, 1]; 1: off */
    float min_p;           /*  80  [0, 1]; 0: off */
    float repetition;      /*  84  finite, > 0; 1: off. Minor 0: must be 1 */
    float presence;        /*  88  [-2, 2]; 0: off. Minor 0: must be 0 */
    float frequency;       /*  92  [-2, 2]; 0: off. Minor 0: must be 0 */
    uint32_t deadline_us;  /*  96  first token within so long of arrival; 0: none */
    uint32_t timeout_ms;   /* 100  ends with what there is so long after arrival; 0: none */
    uint32_t queue_timeout_ms; /* 104  out of the queue within; 0: none */
    uint32_t max_itl_us;       /* 108  promised gap between its tokens; 0: the engine's */
    uint64_t target;    /* 112  CANCEL: user_data of the request; with a session: tokens to keep, or
                      *      LLM_SESSION_ALL; SESSION_FORK: the new key; else zero */
    uint64_t reserved2; /* 120  zero */
};

/* Completion entry, 64 bytes: one cache line carries a step's news of one choice. */
struct llm_cqe {
    uint64_t user_data; /*  0 */
    uint32_t seq;       /*  8  the free-running cursor of this entry */
    int32_t status;     /* 12  0 or enum llm_error */
    uint16_t type;      /* 16  enum llm_cqe_type */
    uint16_t flags;     /* 18  enum llm_cqe_flags */
    uint16_t count;     /* 20  TOKENS: 1 .. LLM_CQE_TOKENS_MAX */
    uint16_t finish;    /* 22  DONE: enum llm_finish */
    uint32_t position;  /* 24  TOKENS: GENERATE: index among the generated tokens; SCORE:
                         *     index in the prompt (the first is 1); CHOOSE: index in the label.
                         *     DONE: how many there were; a session's: tokens it has.
                         *     ERROR: the number that would have fitted, 0 where there is none;
                         *     LLM_EDEADLINE: the estimate, microseconds */
    uint32_t choice;    /* 28 */
    int32_t tokens[LLM_CQE_TOKENS_MAX]; /* 32 */
    float
        logprobs[LLM_CQE_TOKENS_MAX]; /* 48  natural logarithm, under the unmodified distribution */
};

/* A token that might have been drawn. Log-probabilities, of the drawn token and of candidates, are
 * those of the model's own distribution: before logit_bias, penalties, temperature and filters.
 * (vLLM's default, "raw_logprobs"; and what OpenAI's API shows: there neither temperature nor
 * logit_bias changes the log-probabilities.) So a token that logit_bias forced has a low one, and the
 * drawn token may be none of its candidates. */
struct llm_candidate {
    int32_t token;
    float logprob; /* natural logarithm */
};

/* Result record, 64 bytes, beside every DONE and ERROR: down.results[cursor & mask]. Times are
 * CLOCK_MONOTONIC nanoseconds, 0 where the moment did not come. */
struct llm_result {
    uint64_t t_arrival;     /*  0  the engine copied the entry */
    uint64_t t_admit;       /*  8  it left the queue */
    uint64_t t_first;       /* 16  its first token was published */
    uint64_t t_last;        /* 24  its last token was published */
    uint64_t numerics_id;   /* 32 */
    uint32_t prompt_tokens; /* 40 */
    uint32_t output_tokens; /* 44 */
    uint32_t cached_tokens; /* 48  of the prompt, taken from the prefix cache */
    uint32_t preemptions;   /* 52 */
    uint16_t stop;          /* 56  which stop string ended it, from 1; 0: none of them */
    uint16_t reserved;      /* 58 */
    uint32_t stop_cut;      /* 60  bytes at the end of the delivered tokens' text that do not belong
                             *     to the answer: the stop string began inside a token */
};

LLM_STATIC_ASSERT(sizeof(struct llm_sqe) == 128, "submission entry");
LLM_STATIC_ASSERT(offsetof(struct llm_sqe, tokens_off) == 28 &&
                      offsetof(struct llm_sqe, choices) == 48 &&
                      offsetof(struct llm_sqe, seed) == 64 &&
                      offsetof(struct llm_sqe, frequency) == 92 &&
                      offsetof(struct llm_sqe, target) == 112,
                  "submission entry offsets");
LLM_STATIC_ASSERT(sizeof(struct llm_cqe) == 64 && offsetof(struct llm_cqe, tokens) == 32 &&
                      offsetof(struct llm_cqe, logprobs) == 48,
                  "completion entry");
LLM_STATIC_ASSERT(sizeof(struct llm_result) == 64 &&
                      offsetof(struct llm_result, numerics_id) == 32 &&
                      offsetof(struct llm_result, stop) == 56 &&
                      offsetof(struct llm_result, stop_cut) == 60,
                  "result record");
LLM_STATIC_ASSERT(sizeof(struct llm_candidate) == 8, "candidate");

#endif
