/* fuzz_control.c - libFuzzer: any packet as a control message. It is refused or whole: what was
 * accepted can be written again and then says the same. A HELLO gets a refusal with a sentence, or
 * sizes that the rings can have, no smaller than what was asked for.
 */
#include <stdlib.h>
#include <string.h>

#include "../../appliance/control_server.h"
#include "../../shm/segment.h"
#include "tape.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static bool power_of_two(uint32_t n)
{
    return n && !(n & (n - 1));
}

static void ask_for(const struct llm_hello *h)
{
    struct control_grant g;
    struct llm_reject r = {0};
    if (!control_grant(h, &g, &r)) {
        DEMAND(r.code < 0 && *r.text && memchr(r.text, 0, sizeof r.text));
        return;
    }
    DEMAND(power_of_two(g.sq_entries) && g.sq_entries <= LLM_SQ_ENTRIES_MAX);
    DEMAND(power_of_two(g.cq_entries) && g.cq_entries <= LLM_CQ_ENTRIES_MAX);
    DEMAND(g.arena_bytes && g.arena_bytes % 4 == 0 && g.arena_bytes <= LLM_ARENA_BYTES_MAX);
    DEMAND(g.max_inflight && g.max_inflight < g.cq_entries);
    DEMAND(g.sq_entries >= h->sq_entries && g.cq_entries >= h->cq_entries);
    DEMAND(g.arena_bytes >= h->arena_bytes && g.max_inflight >= h->max_inflight);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t packet[LLM_CONTROL_MAX];
    struct llm_message m, back;
    if (control_decode(data, bytes, &m))
        return 0;
    int n = control_encode(&m, packet, sizeof packet);
    DEMAND(n > 0 && !control_decode(packet, (size_t)n, &back) && !memcmp(&m, &back, sizeof m));
    if (m.kind == LLM_MSG_HELLO)
        ask_for(&m.hello);
    return 0;
}
