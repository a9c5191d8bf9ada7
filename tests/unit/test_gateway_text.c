/* test_gateway_text.c - how many bytes of a stream a text makes: the same as the detokenizer's rules say. */
#include "../../tools/gateway/buffer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void shown(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
    } texts[] = {
        {"", 0},
        {"abc", 3},
        {"\xce", 0}, /* begins a character */
        {" \xce", 1},
        {"\xce\x95", 2},
        {"\xce\x95\xe2\x80", 2},
        {"\xf0\x9f\x98", 0},
        {"\xf0\x9f\x98\x80!", 5},
        {"\x95", 3},          /* U+FFFD */
        {"\xf0\x9f\x98!", 4}, /* one for all three, and the sign */
        {"\xe2\x80\xe2\x80\x9c", 6},
        {"\xed\xa0\x80", 9}, /* a surrogate: three that are nothing */
        {"\xc0\xaf", 6},
        {"\xe0\x80", 6},
        {"\xf4\x90", 6},
        {"\xe0\xa0", 0},
        {"\xf0\x90\x80", 0},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (utf8_shown(texts[i].text, strlen(texts[i].text)) != texts[i].bytes)
            fail_msg("text %zu: %zu instead of %zu", i,
                     utf8_shown(texts[i].text, strlen(texts[i].text)), texts[i].bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
