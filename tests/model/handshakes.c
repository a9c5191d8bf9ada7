/* handshakes.c - see handshakes.h; the fences' names are those of shm/order.h. */
#include "handshakes.h"

#include <stddef.h>

#define CLIENT "shm/ring_client.c"
#define ENGINE "shm/ring_engine.c"

const char *const op_name[OPS] = {
    [OP_NONE] = "",
    [OP_ACQUIRE] = "order_acquire",
    [OP_RELEASE] = "order_release",
    [OP_RELAXED] = "order_relaxed",
    [OP_SET] = "order_set",
    [OP_FENCE] = "order_fence",
    [OP_TRAP] = "",
};

const char *const word_name[WORDS] = {
    [WORD_NONE] = "",      [SQ_TAIL] = "sq_tail",         [SQ_HEAD] = "sq_head",
    [CQ_TAIL] = "cq_tail", [CQ_HEAD] = "cq_head",         [CQ_WAIT] = "cq_wait",
    [CQ_HELD] = "cq_held", [NEED_WAKEUP] = "need_wakeup", [EVICTED] = "evicted",
};

/* clang-format off */
const struct handshake_row handshake_table[HANDSHAKES] = {
    [RECLAIM] = {CLIENT, "reclaim", {{OP_ACQUIRE, SQ_HEAD}}},
    [RING_SUBMIT] = {CLIENT, "ring_submit",
                     {{OP_RELEASE, CQ_HEAD}, /* only if it was not published yet */
                      {OP_RELEASE, SQ_TAIL},
                      {OP_FENCE},            /* C1 */
                      {OP_RELAXED, NEED_WAKEUP}}},
    [RING_POLL] = {CLIENT, "ring_poll", {{OP_ACQUIRE, CQ_TAIL}}},
    [RING_DRAINED] = {CLIENT, "ring_drained",
                      {{OP_RELEASE, CQ_HEAD},
                       {OP_FENCE},           /* C3 */
                       {OP_RELAXED, CQ_HELD}}},
    [RING_WAIT_BEGIN] = {CLIENT, "ring_wait_begin",
                         {{OP_SET, CQ_WAIT},
                          {OP_FENCE},        /* C2 */
                          {OP_ACQUIRE, CQ_TAIL},
                          {OP_SET, CQ_WAIT}}}, /* only if there is something to take */
    [RING_WAIT_END] = {CLIENT, "ring_wait_end", {{OP_SET, CQ_WAIT}}},
    [RING_SWEEP] = {ENGINE, "ring_sweep", {{OP_ACQUIRE, SQ_TAIL}, {OP_ACQUIRE, CQ_HEAD}}},
    [RING_TAKEN] = {ENGINE, "ring_taken", {{OP_RELEASE, SQ_HEAD}}},
    [REFRESH_CQ_HEAD] = {ENGINE, "refresh_cq_head", {{OP_ACQUIRE, CQ_HEAD}}},
    [RING_PUBLISH] = {ENGINE, "ring_publish", {{OP_RELEASE, CQ_TAIL}}},
    [RING_AFTER_PUBLISH] = {ENGINE, "ring_after_publish", {{OP_FENCE}}}, /* E2 */
    [RING_WANTS_WAKE] = {ENGINE, "ring_wants_wake", {{OP_RELAXED, CQ_WAIT}}},
    [RING_ARM_ALL] = {ENGINE, "ring_arm_all", {{OP_SET, NEED_WAKEUP}}},
    [RING_ARM] = {ENGINE, "ring_arm", {{OP_SET, CQ_HELD}}},
    [RING_ARM_FENCE] = {ENGINE, "ring_arm_fence", {{OP_FENCE}}}, /* E1 */
    [RING_RESCAN] = {ENGINE, "ring_rescan",
                     {{OP_ACQUIRE, SQ_TAIL},
                      {OP_ACQUIRE, CQ_HEAD}}}, /* only of those whose tokens are held */
    [RING_DISARM] = {ENGINE, "ring_disarm", {{OP_SET, CQ_HELD}}},
    [RING_DISARM_ALL] = {ENGINE, "ring_disarm_all", {{OP_SET, NEED_WAKEUP}}},
    [RING_EVICT] = {ENGINE, "ring_evict", {{OP_RELEASE, EVICTED}}},
    [LOOK_AT_MEMORY] = {"client/events.c", "look_at_memory", {{OP_ACQUIRE, EVICTED}}},
};

const struct caller_row caller_table[] = {
    {"client/submit.c", "submit_publish", {"ring_commit", "ring_submit", "client_wake sq_tail"}},
    {"client/events.c", "client_release_head", {"ring_drained", "client_wake cq_head"}},
    {"client/events.c", "take", {"ring_poll", "client_release_head"}},
    {"client/events.c", "llm_poll", {"client_disarm", "take", "client_release_head", "take"}},
    {"client/events.c", "sleep_on_futex",
     {"ring_wait_begin", "futex_wait cq_tail", "ring_wait_end"}},
    {"client/events.c", "sleep_on_bell",
     {"client_bell_empty", "ring_wait_begin", "ppoll", "ring_wait_end"}},
    {"client/bell.c", "llm_arm", {"client_release_head", "client_bell_empty", "ring_wait_begin"}},
    {"client/bell.c", "client_disarm", {"ring_wait_end"}},
    {"appliance/clients.c", "take_entries", {"ring_sweep", "ring_take"}},
    {"appliance/clients.c", "submit_pending", {"ring_take_tokens", "ring_taken"}},
    {"appliance/clients.c", "clients_publish",
     {"ring_publish", "ring_after_publish", "ring_wants_wake"}},
    {"appliance/clients.c", "clients_rescan", {"ring_rescan"}},
    {"appliance/clients.c", "clients_arm", {"ring_arm", "ring_arm_fence", "clients_rescan"}},
    {"appliance/clients.c", "clients_disarm", {"ring_disarm"}},
    {"appliance/clients.c", "tell_end", {"ring_evict"}},
    {"appliance/clients.c", "clients_orphan", {"tell_end", "clients_leave"}},
    {"appliance/clients.c", "clients_evict", {"tell_end", "clients_leave"}},
    {"appliance/loop.c", "wake_client",
     {"bells_ring", "waiter_wake cq_tail", "wake cq_tail"}},
    {"appliance/bells.c", "ring", {"waiter_bell"}},
    {"appliance/bells.c", "bells_ring", {"ring"}},
    {"appliance/bells.c", "bells_tick", {"ring_wants_wake", "ring"}},
    {"appliance/loop.c", "publish_and_wake", {"clients_publish", "wake_client", "bells_tick"}},
    {"appliance/loop.c", "arm_client_futexes", {"arm_futex sq_tail", "arm_futex cq_head"}},
    {"appliance/loop.c", "sleep_armed",
     {"arm_client_futexes", "nothing_came", "clients_rescan", "nothing_came"}},
    {"appliance/loop.c", "nap",
     {"ring_arm_all", "clients_arm", "sleep_armed", "clients_disarm", "ring_disarm_all"}},
};
/* clang-format on */

const unsigned n_callers = sizeof caller_table / sizeof caller_table[0];
