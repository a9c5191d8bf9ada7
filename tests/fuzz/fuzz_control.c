/* fuzz_control.c - libFuzzer entry for the control messages: any packet is either refused or whole.
 *
 * Build: clang -fsanitize=fuzzer,address,undefined tests/fuzz/fuzz_control.c shm/control.c
 *        -lmsgpackc
 */
#include <stdlib.h>
#include <string.h>

#include "../../shm/control.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* What was accepted can be written again and then says the same. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t packet[LLM_CONTROL_MAX];
    struct llm_message m, back;
    if (control_decode(data, bytes, &m))
        return 0;
    int n = control_encode(&m, packet, sizeof packet);
    if (n <= 0 || control_decode(packet, (size_t)n, &back) || memcmp(&m, &back, sizeof m))
        abort();
    return 0;
}
