/* listing.h - the contract in numbers: sizes and offsets of every struct that crosses a process
 * boundary or the library's, and every constant. A line each:
 *
 *     size STRUCT BYTES             field STRUCT.MEMBER OFFSET BYTES      value NAME NUMBER
 *     grows STRUCT BYTES            a struct that states its own size: may become longer
 *     limit NAME NUMBER             a count of what is known: may become more
 *
 * `make abi-check` compares them with abi.txt, tests/unit/test_abi.c also with what each earlier
 * minor version had (abi-1.0.txt). What a minor version added stands below an #if, so that the
 * listing can be made of that version's headers, too.
 */
#ifndef LLMD_TESTS_ABI_LISTING_H
#define LLMD_TESTS_ABI_LISTING_H

#include <stdio.h>

#include "../../client/llm_template.h"
#include "../../client/llmclient.h"
#include "../../shm/board.h"
#include "../../shm/control.h"
#include "../../shm/segment.h"
#include "../../shm/vocab.h"

#define MEMBER_BYTES(s, f) sizeof(((struct s *)0)->f)
#define SIZE(s)            fprintf(out, "size %s %zu\n", #s, sizeof(struct s))
#define GROWS(s)           fprintf(out, "grows %s %zu\n", #s, sizeof(struct s))
#define FIELD(s, f)                                                                                \
    fprintf(out, "field %s.%s %zu %zu\n", #s, #f, offsetof(struct s, f), MEMBER_BYTES(s, f))
#define OPEN_END(s, f) fprintf(out, "field %s.%s %zu 0\n", #s, #f, offsetof(struct s, f))
#define VALUE(v)       fprintf(out, "value %s %lld\n", #v, (long long)(v))
#define LIMIT(v)       fprintf(out, "limit %s %lld\n", #v, (long long)(v))

/* shm/llm_abi.h */
static void list_abi(FILE *out)
{
    VALUE(LLM_ABI_MAJOR);
    LIMIT(LLM_ABI_MINOR);
#if LLM_ABI_MINOR >= 1
    VALUE(LLM_SESSION_ALL);
#endif
    VALUE(LLM_EOWNERDEAD);
    VALUE(LLM_EPROTO);
    VALUE(LLM_EEVICTED);
    VALUE(LLM_ETOOLONG);
    VALUE(LLM_ETOKEN);
    VALUE(LLM_EBUSY);
    VALUE(LLM_EENGINE);
    VALUE(LLM_ENOENGINE);
    VALUE(LLM_EPARAM);
    VALUE(LLM_ESHUTDOWN);
    VALUE(LLM_ENOTEXT);
#if LLM_ABI_MINOR >= 1
    VALUE(LLM_EDEADLINE);
    VALUE(LLM_EQUEUETIME);
    VALUE(LLM_EQUOTA);
    VALUE(LLM_ENOSESSION);
    VALUE(LLM_ESESSION);
    VALUE(LLM_EUNREAD);
    VALUE(LLM_ENUMERICS);
#endif
    VALUE(LLM_OP_NOP);
    VALUE(LLM_OP_GENERATE);
    VALUE(LLM_OP_SCORE);
    VALUE(LLM_OP_CANCEL);
#if LLM_ABI_MINOR >= 1
    VALUE(LLM_OP_SESSION_OPEN);
    VALUE(LLM_OP_SESSION_APPEND);
    VALUE(LLM_OP_SESSION_FORK);
    VALUE(LLM_OP_SESSION_CLOSE);
    VALUE(LLM_OP_CHOOSE);
    LIMIT(LLM_OP_LAST);
#endif
    VALUE(LLM_SQE_IGNORE_EOS);
    VALUE(LLM_SQE_LOGPROBS);
#if LLM_ABI_MINOR >= 1
    VALUE(LLM_SQE_INTERRUPT);
    VALUE(LLM_SQE_NO_CACHE);
    VALUE(LLM_SQE_PIN);
    VALUE(LLM_SQE_SPECULATE);
    VALUE(LLM_SQE_NO_SPECULATION);
#endif
    LIMIT(LLM_SQE_FLAGS);
#if LLM_ABI_MINOR >= 1
    VALUE(LLM_PRIORITY_NORMAL);
    VALUE(LLM_PRIORITY_HIGH);
    VALUE(LLM_PRIORITY_LOW);
#endif
    VALUE(LLM_CQE_TOKENS);
    VALUE(LLM_CQE_DONE);
    VALUE(LLM_CQE_ERROR);
    VALUE(LLM_CQE_HAS_LOGPROBS);
#if LLM_ABI_MINOR >= 1
    VALUE(LLM_CQE_HAS_TOP);
#endif
    VALUE(LLM_FINISH_NONE);
    VALUE(LLM_FINISH_STOP);
    VALUE(LLM_FINISH_LENGTH);
    VALUE(LLM_FINISH_CANCELLED);
    VALUE(LLM_FINISH_TIMEOUT);
    VALUE(LLM_FINISH_DEADLINE);
    VALUE(LLM_FINISH_REFUSED);
    VALUE(LLM_FINISH_ERROR);
    VALUE(LLM_CQE_TOKENS_MAX);
    VALUE(LLM_CHOICES_MAX);
#if LLM_ABI_MINOR >= 1
    VALUE(LLM_OPTIONS_MAX);
    VALUE(LLM_STOPS_MAX);
    VALUE(LLM_STOP_BYTES_MAX);
    VALUE(LLM_BIASES_MAX);
    VALUE(LLM_TOP_MAX);
#endif
    VALUE(LLM_INSTANCE_MAX);
    SIZE(llm_sqe);
    FIELD(llm_sqe, user_data);
    FIELD(llm_sqe, seq);
    FIELD(llm_sqe, op);
    FIELD(llm_sqe, flags);
    FIELD(llm_sqe, priority);
    FIELD(llm_sqe, session);
    FIELD(llm_sqe, adapter);
    FIELD(llm_sqe, tokens_off);
    FIELD(llm_sqe, tokens_len);
    FIELD(llm_sqe, options_off);
    FIELD(llm_sqe, options_len);
    FIELD(llm_sqe, max_tokens);
    FIELD(llm_sqe, choices);
#if LLM_ABI_MINOR >= 1
    FIELD(llm_sqe, first_choice);
#endif
    FIELD(llm_sqe, output_from);
    FIELD(llm_sqe, rope_len);
    FIELD(llm_sqe, top_k);
    FIELD(llm_sqe, seed);
    FIELD(llm_sqe, temperature);
    FIELD(llm_sqe, top_p);
    FIELD(llm_sqe, min_p);
    FIELD(llm_sqe, repetition);
    FIELD(llm_sqe, presence);
    FIELD(llm_sqe, frequency);
    FIELD(llm_sqe, deadline_us);
    FIELD(llm_sqe, timeout_ms);
    FIELD(llm_sqe, queue_timeout_ms);
#if LLM_ABI_MINOR >= 1
    FIELD(llm_sqe, max_itl_us);
#endif
    FIELD(llm_sqe, target);
    FIELD(llm_sqe, reserved2);
    SIZE(llm_cqe);
    FIELD(llm_cqe, user_data);
    FIELD(llm_cqe, seq);
    FIELD(llm_cqe, status);
    FIELD(llm_cqe, type);
    FIELD(llm_cqe, flags);
    FIELD(llm_cqe, count);
    FIELD(llm_cqe, finish);
    FIELD(llm_cqe, position);
    FIELD(llm_cqe, choice);
    FIELD(llm_cqe, tokens);
    FIELD(llm_cqe, logprobs);
    SIZE(llm_result);
    FIELD(llm_result, t_arrival);
    FIELD(llm_result, t_admit);
    FIELD(llm_result, t_first);
    FIELD(llm_result, t_last);
    FIELD(llm_result, numerics_id);
    FIELD(llm_result, prompt_tokens);
    FIELD(llm_result, output_tokens);
    FIELD(llm_result, cached_tokens);
    FIELD(llm_result, preemptions);
    FIELD(llm_result, reserved);
#if LLM_ABI_MINOR >= 1
    FIELD(llm_result, stop);
    FIELD(llm_result, stop_cut);
    SIZE(llm_candidate);
    FIELD(llm_candidate, token);
    FIELD(llm_candidate, logprob);
#endif
}

/* shm/segment.h */
static void list_segments(FILE *out)
{
    VALUE(LLM_MAGIC_DOWN);
    VALUE(LLM_MAGIC_PULSE);
    VALUE(LLM_LINE);
    VALUE(LLM_HEADER_BYTES);
    VALUE(LLM_SQ_ENTRIES_MAX);
    VALUE(LLM_CQ_ENTRIES_MAX);
    VALUE(LLM_ARENA_BYTES_MAX);
    VALUE(LLM_EVICT_TEXT);
    VALUE(LLM_STATE_STARTING);
    VALUE(LLM_STATE_READY);
    VALUE(LLM_STATE_DRAINING);
    VALUE(LLM_STATE_STOPPED);
    VALUE(LLM_WAIT_NONE);
    VALUE(LLM_WAIT_FUTEX);
    VALUE(LLM_WAIT_BELL);
    SIZE(llm_up);
    FIELD(llm_up, header);
    FIELD(llm_up, sq_tail);
    FIELD(llm_up, cq_head);
    FIELD(llm_up, cq_wait);
    OPEN_END(llm_up, entries);
    SIZE(llm_down);
    FIELD(llm_down, magic);
    FIELD(llm_down, abi_major);
    FIELD(llm_down, abi_minor);
    FIELD(llm_down, client);
    FIELD(llm_down, generation);
    FIELD(llm_down, sq_entries);
    FIELD(llm_down, cq_entries);
    FIELD(llm_down, max_inflight);
    FIELD(llm_down, arena_bytes);
#if LLM_ABI_MINOR >= 1
    FIELD(llm_down, top);
#endif
    FIELD(llm_down, epoch);
    FIELD(llm_down, sq_head);
    FIELD(llm_down, cq_tail);
    FIELD(llm_down, cq_held);
    FIELD(llm_down, evicted);
    FIELD(llm_down, evict_code);
    FIELD(llm_down, evict_text);
    OPEN_END(llm_down, entries);
    SIZE(llm_pulse);
    FIELD(llm_pulse, magic);
    FIELD(llm_pulse, abi_major);
    FIELD(llm_pulse, abi_minor);
    FIELD(llm_pulse, pid);
    FIELD(llm_pulse, epoch);
    FIELD(llm_pulse, vocab);
    FIELD(llm_pulse, max_model_len);
    FIELD(llm_pulse, state);
    FIELD(llm_pulse, need_wakeup);
    FIELD(llm_pulse, heartbeat_ns);
}

/* shm/board.h */
static void list_board(FILE *out)
{
    VALUE(LLM_MAGIC_BOARD);
    VALUE(LLM_BOARD_BYTES);
    VALUE(LLM_BOARD_ERRORS);
    VALUE(LLM_BOARD_ERROR_TEXT);
    VALUE(LLM_HIST_SUB);
    VALUE(LLM_HIST_MIN_LOG2);
    VALUE(LLM_HIST_MAX_LOG2);
    VALUE(LLM_HIST_BUCKETS);
#if LLM_ABI_MINOR >= 1
    VALUE(LLM_REFUSED_MALFORMED);
    VALUE(LLM_REFUSED_LENGTH);
    VALUE(LLM_REFUSED_QUEUE);
    VALUE(LLM_REFUSED_QUOTA);
    VALUE(LLM_REFUSED_DEADLINE);
    VALUE(LLM_REFUSED_SESSION);
    VALUE(LLM_REFUSED_SHUTDOWN);
    LIMIT(LLM_REFUSALS);
#endif
    SIZE(llm_histogram);
    FIELD(llm_histogram, count);
    FIELD(llm_histogram, sum_ns);
    FIELD(llm_histogram, max_ns);
    FIELD(llm_histogram, bucket);
    SIZE(llm_board_error);
    FIELD(llm_board_error, t_ns);
    FIELD(llm_board_error, code);
    FIELD(llm_board_error, text);
    SIZE(llm_board);
    FIELD(llm_board, magic);
    FIELD(llm_board, abi_major);
    FIELD(llm_board, abi_minor);
    FIELD(llm_board, pid);
    FIELD(llm_board, epoch);
    FIELD(llm_board, numerics_id);
    FIELD(llm_board, started_ns);
    FIELD(llm_board, model_digest);
    FIELD(llm_board, vocab_digest);
    FIELD(llm_board, instance);
    FIELD(llm_board, model);
    FIELD(llm_board, quantization);
    FIELD(llm_board, backend);
    FIELD(llm_board, numerics);
    FIELD(llm_board, version);
    FIELD(llm_board, vocab);
    FIELD(llm_board, max_model_len);
    FIELD(llm_board, max_num_seqs);
    FIELD(llm_board, max_num_batched_tokens);
    FIELD(llm_board, prefill_chunk);
    FIELD(llm_board, threads);
    FIELD(llm_board, kv_block_size);
    FIELD(llm_board, kv_blocks_total);
    FIELD(llm_board, weights_bytes);
    FIELD(llm_board, kv_bytes);
    FIELD(llm_board, workspace_bytes);
#if LLM_ABI_MINOR >= 1
    FIELD(llm_board, weights_pages);
    FIELD(llm_board, weights_huge_bytes);
#endif
    FIELD(llm_board, state);
    FIELD(llm_board, reserved);
    FIELD(llm_board, heartbeat_ns);
    FIELD(llm_board, last_step_ns);
    FIELD(llm_board, running);
    FIELD(llm_board, waiting);
    FIELD(llm_board, clients);
    FIELD(llm_board, kv_blocks_free);
    FIELD(llm_board, steps);
    FIELD(llm_board, mixed_steps);
    FIELD(llm_board, rows);
    FIELD(llm_board, prefill_rows);
    FIELD(llm_board, decode_rows);
    FIELD(llm_board, max_rows_in_step);
    FIELD(llm_board, max_seqs_in_step);
    FIELD(llm_board, requests);
    FIELD(llm_board, refused);
    FIELD(llm_board, finished);
    FIELD(llm_board, cancelled);
    FIELD(llm_board, preemptions);
    FIELD(llm_board, prompt_tokens);
    FIELD(llm_board, output_tokens);
    FIELD(llm_board, clients_total);
    FIELD(llm_board, evictions);
    FIELD(llm_board, wakes);
    FIELD(llm_board, sleeps);
    FIELD(llm_board, backstop_rescues);
    FIELD(llm_board, board_lost);
    FIELD(llm_board, heap_allocated);
    FIELD(llm_board, heap_resident);
#if LLM_ABI_MINOR >= 1
    FIELD(llm_board, kv_blocks_cached);
    FIELD(llm_board, sessions);
    FIELD(llm_board, sessions_idle);
    FIELD(llm_board, pinned_blocks);
    FIELD(llm_board, backlog_tokens);
    FIELD(llm_board, backlog_us);
    FIELD(llm_board, prefix_queries);
    FIELD(llm_board, prefix_hits);
    FIELD(llm_board, deadline_misses);
    FIELD(llm_board, timeouts);
    FIELD(llm_board, queue_timeouts);
    FIELD(llm_board, unread_cancels);
    FIELD(llm_board, recomputed_tokens);
    FIELD(llm_board, sessions_expired);
    FIELD(llm_board, session_evictions);
    FIELD(llm_board, step_predicted_ns);
    FIELD(llm_board, refused_for);
    FIELD(llm_board, finished_for);
    FIELD(llm_board, threads_in_use);
    FIELD(llm_board, spec_drafts);
    FIELD(llm_board, spec_draft_tokens);
    FIELD(llm_board, spec_accepted_tokens);
#endif
    FIELD(llm_board, step);
    FIELD(llm_board, overhead);
    FIELD(llm_board, ttft);
    FIELD(llm_board, itl);
    FIELD(llm_board, queue);
#if LLM_ABI_MINOR >= 1
    FIELD(llm_board, e2e);
#endif
    FIELD(llm_board, reserved1);
    FIELD(llm_board, errors_written);
    FIELD(llm_board, errors);
}

/* shm/vocab.h */
static void list_vocabulary(FILE *out)
{
    VALUE(LLM_MAGIC_VOCAB);
    VALUE(LLM_VOCAB_BPE);
    VALUE(LLM_VOCAB_SPM);
    VALUE(LLM_VOCAB_ADD_BOS);
    VALUE(LLM_VOCAB_ADD_EOS);
    VALUE(LLM_VOCAB_SPACE_PREFIX);
    SIZE(llm_vocab);
    FIELD(llm_vocab, magic);
    FIELD(llm_vocab, version);
    FIELD(llm_vocab, kind);
    FIELD(llm_vocab, bytes);
    FIELD(llm_vocab, n_tokens);
    FIELD(llm_vocab, n_merges);
    FIELD(llm_vocab, n_eog);
    FIELD(llm_vocab, flags);
    FIELD(llm_vocab, bos);
    FIELD(llm_vocab, eos);
    FIELD(llm_vocab, eot);
    FIELD(llm_vocab, eom);
    FIELD(llm_vocab, unk);
    FIELD(llm_vocab, pad);
    FIELD(llm_vocab, pre);
    FIELD(llm_vocab, model);
    FIELD(llm_vocab, text_end_off);
    FIELD(llm_vocab, types_off);
    FIELD(llm_vocab, scores_off);
    FIELD(llm_vocab, merge_end_off);
    FIELD(llm_vocab, eog_off);
    FIELD(llm_vocab, strings_off);
    FIELD(llm_vocab, strings_bytes);
    FIELD(llm_vocab, merge_strings_off);
    FIELD(llm_vocab, merge_strings_bytes);
    FIELD(llm_vocab, template_off);
    FIELD(llm_vocab, template_bytes);
}

/* shm/control.h */
static void list_control(FILE *out)
{
    VALUE(LLM_CONTROL_MAX);
    VALUE(LLM_CONTROL_BELL);
    VALUE(LLM_CONTROL_FDS);
    VALUE(LLM_CONTROL_TEXT);
    VALUE(LLM_MSG_HELLO);
    VALUE(LLM_MSG_WELCOME);
    VALUE(LLM_MSG_REJECT);
    GROWS(llm_hello);
    FIELD(llm_hello, major);
    FIELD(llm_hello, minor);
    FIELD(llm_hello, sqe_bytes);
    FIELD(llm_hello, cqe_bytes);
    FIELD(llm_hello, sq_entries);
    FIELD(llm_hello, cq_entries);
    FIELD(llm_hello, arena_bytes);
    FIELD(llm_hello, max_inflight);
    FIELD(llm_hello, name);
#if LLM_ABI_MINOR >= 1
    FIELD(llm_hello, top);
#endif
    GROWS(llm_welcome);
    FIELD(llm_welcome, major);
    FIELD(llm_welcome, minor);
    FIELD(llm_welcome, client);
    FIELD(llm_welcome, generation);
    FIELD(llm_welcome, sq_entries);
    FIELD(llm_welcome, cq_entries);
    FIELD(llm_welcome, arena_bytes);
    FIELD(llm_welcome, max_inflight);
    FIELD(llm_welcome, max_len);
    FIELD(llm_welcome, vocab);
    FIELD(llm_welcome, epoch);
    FIELD(llm_welcome, numerics_id);
    FIELD(llm_welcome, model);
#if LLM_ABI_MINOR >= 1
    FIELD(llm_welcome, top);
#endif
    SIZE(llm_reject);
    FIELD(llm_reject, code);
    FIELD(llm_reject, text);
    SIZE(llm_message);
    FIELD(llm_message, kind);
    FIELD(llm_message, hello);
    FIELD(llm_message, welcome);
    FIELD(llm_message, reject);
}

/* client/llmclient.h */
static void list_client(FILE *out)
{
    VALUE(LLM_SEED_RANDOM);
    VALUE(LLM_EVENT_TOKENS);
    VALUE(LLM_EVENT_DONE);
    VALUE(LLM_EVENT_ERROR);
#if LLM_ABI_MINOR >= 1
    VALUE(LLM_RESUME_ANY_NUMERICS);
#endif
    VALUE(LLM_TOKENIZE_SPECIAL);
    VALUE(LLM_TOKENIZE_ADD_SPECIAL);
    VALUE(LLM_DETOK_UTF8);
    VALUE(LLM_DETOK_SHOW_SPECIAL);
    VALUE(LLM_DETOK_WORDS);
    VALUE(LLM_DETOK_SENTENCES);
    VALUE(LLM_DETOK_CONTINUE);
    VALUE(LLM_BOS);
    VALUE(LLM_EOS);
    VALUE(LLM_EOT);
    VALUE(LLM_UNK);
    VALUE(LLM_PAD);
    GROWS(llm_options);
    FIELD(llm_options, size);
    FIELD(llm_options, max_inflight);
    FIELD(llm_options, arena_bytes);
    FIELD(llm_options, sq_entries);
    FIELD(llm_options, cq_entries);
    FIELD(llm_options, spin_us);
    FIELD(llm_options, name);
    FIELD(llm_options, connect_timeout_ms);
#if LLM_ABI_MINOR >= 1
    FIELD(llm_options, max_top_logprobs);
#endif
    SIZE(llm_limits);
    FIELD(llm_limits, vocab);
    FIELD(llm_limits, max_model_len);
    FIELD(llm_limits, max_inflight);
    FIELD(llm_limits, arena_bytes);
    FIELD(llm_limits, sq_entries);
    FIELD(llm_limits, cq_entries);
    FIELD(llm_limits, numerics_id);
    FIELD(llm_limits, model);
    FIELD(llm_limits, engine_pid);
#if LLM_ABI_MINOR >= 1
    FIELD(llm_limits, abi_minor);
    SIZE(llm_label);
    FIELD(llm_label, tokens);
    FIELD(llm_label, n_tokens);
    SIZE(llm_stop);
    FIELD(llm_stop, text);
    FIELD(llm_stop, bytes);
    SIZE(llm_bias);
    FIELD(llm_bias, token);
    FIELD(llm_bias, bias);
#endif
    GROWS(llm_request);
    FIELD(llm_request, size);
    FIELD(llm_request, op);
    FIELD(llm_request, tokens);
    FIELD(llm_request, n_tokens);
    FIELD(llm_request, max_tokens);
    FIELD(llm_request, choices);
    FIELD(llm_request, flags);
    FIELD(llm_request, seed);
    FIELD(llm_request, user_data);
    FIELD(llm_request, temperature);
    FIELD(llm_request, top_p);
    FIELD(llm_request, min_p);
    FIELD(llm_request, top_k);
#if LLM_ABI_MINOR >= 1
    FIELD(llm_request, session);
    FIELD(llm_request, session_keep);
    FIELD(llm_request, session_to);
    FIELD(llm_request, priority);
    FIELD(llm_request, deadline_us);
    FIELD(llm_request, timeout_ms);
    FIELD(llm_request, queue_timeout_ms);
    FIELD(llm_request, max_itl_us);
    FIELD(llm_request, first_choice);
    FIELD(llm_request, output_from);
    FIELD(llm_request, n_labels);
    FIELD(llm_request, labels);
    FIELD(llm_request, repetition);
    FIELD(llm_request, presence);
    FIELD(llm_request, frequency);
    FIELD(llm_request, top_logprobs);
    FIELD(llm_request, stops);
    FIELD(llm_request, biases);
    FIELD(llm_request, n_stops);
    FIELD(llm_request, n_biases);
#endif
    SIZE(llm_event);
    FIELD(llm_event, id);
    FIELD(llm_event, type);
    FIELD(llm_event, choice);
    FIELD(llm_event, status);
    FIELD(llm_event, finish);
    FIELD(llm_event, position);
    FIELD(llm_event, n_tokens);
    FIELD(llm_event, tokens);
    FIELD(llm_event, logprobs);
    FIELD(llm_event, result);
#if LLM_ABI_MINOR >= 1
    SIZE(llm_choose_result);
    FIELD(llm_choose_result, id);
    FIELD(llm_choose_result, owed);
    FIELD(llm_choose_result, n_labels);
    FIELD(llm_choose_result, status);
    FIELD(llm_choose_result, logprob);
    FIELD(llm_choose_result, n_tokens);
#endif
}

/* client/llm_template.h */
static void list_templates(FILE *out)
{
    VALUE(LLM_TEMPLATE_ESYNTAX);
    VALUE(LLM_TEMPLATE_EINPUT);
    VALUE(LLM_TEMPLATE_ERAISED);
    VALUE(LLM_TEMPLATE_EFAILED);
    VALUE(LLM_TEMPLATE_ELIMIT);
    GROWS(llm_template_limits);
    FIELD(llm_template_limits, size);
    FIELD(llm_template_limits, max_depth);
    FIELD(llm_template_limits, max_steps);
    FIELD(llm_template_limits, max_memory_bytes);
    FIELD(llm_template_limits, max_output_bytes);
}

static void abi_list(FILE *out)
{
    list_templates(out);
    list_abi(out);
    list_segments(out);
    list_board(out);
    list_vocabulary(out);
    list_control(out);
    list_client(out);
}

#endif
