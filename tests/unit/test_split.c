/* Each family of pre-tokenizers cuts text where its models' published expressions do. The expected
 * pieces were made by hand from these expressions; the golden token ids cover six families more
 * widely. */
#include <stdio.h>
#include <string.h>

#include "../../client/llmclient.h"
#include "../../client/text/split.h"
#include "../../client/text/utf8.h"
#include "../support/support.h"

static int append_piece(void *to, const char *at, size_t bytes)
{
    char *joined = to;
    assert_true(bytes > 0);
    if (*joined)
        strcat(joined, "|");
    strncat(joined, at, bytes);
    return 0;
}

/* The pieces with bars between. */
static void cut(const char *pre, const char *text, char *joined)
{
    struct split s;
    struct pcre2_real_match_data_8 *data = split_match_data();
    assert_int_equal(split_open(&s, pre), 0);
    *joined = 0;
    assert_int_equal(split_text(&s, data, text, strlen(text), append_piece, joined), 0);
    split_match_data_free(data);
    split_free(&s);
}

static void families_cut_where_they_should(void **state)
{
    (void)state;
    static const struct {
        const char *pre, *text, *pieces;
    } cases[] = {
        {"gpt-2", "It's  12345 o'clock!!\n\nA", "It|'s| | 12345| o|'|clock|!!|\n|\n|A"},
        {"gpt-2", "HE'S a\t\tb ", "HE|'|S| a|\t|\t|b| "},
        {"smollm", "a 123!", "a| |1|2|3|!"},
        {"starcoder", "x1 = 20", "x|1| =| |2|0"},
        {"llama-bpe", "HE'S 12345 a.b\n\n  c", "HE|'S| |123|45| a|.b|\n\n| | c"},
        {"llama-bpe", "(word) \u00a0x...\r\ny", "(word|)| |\u00a0x|...\r\n|y"},
        {"chatglm-bpe", "1234", "123|4"},
        {"dbrx", "1234x'\u017fa", "123|4|x|'\u017f|a"},
        {"qwen2", "12 ab\u00b2", "1|2| ab|\u00b2"},
        {"stablelm2", "12", "1|2"},
        {"qwen2", "e\u0301a", "e|\u0301a"},
        {"qwen35", "e\u0301a 1", "e\u0301a| |1"},
        {"gpt-4o", "HelloWorld's XMLHttp 1234/\n", "Hello|World's| XMLHttp| |123|4|/\n"},
        {"tekken", "HelloWorld's 1234/\n", "Hello|World|'s| |1|2|3|4|/\n"},
        {"youtu", "a\u4f60\u597d\uff0cb12", "a|\u4f60\u597d|\uff0c|b|1|2"},
        {"laguna", "a\n\nb 12", "a|\n\n|b| |1|2"},
        {"deepseek-coder", "a b, 12\n\u4f60", "a| b|,| |1|2|\n|\u4f60"},
        {"deepseek-llm", "a b, 123\n\u4f60x  ", "a| b|,| |123|\n|\u4f60|x|  "},
        {"deepseek-v3", "a 1234 \u4f60b.c+ \n", "a| |123|4| |\u4f60|b|.c|+| \n"},
        {"falcon", "a,b 1234=", "a|,|b| |123|4|="},
        {"bloom", "Hello world, a", "Hello| world|,| a"},
        {"viking", "ab 12", "ab| |1|2"},
        {"seed-coder", "a!\n b 12", "a|!|\n| b| |1|2"},
        {"bailingmoe", "I'LL go 12\n\n\nx", "I|'LL| go| |1|2|\n\n\n|x"},
    };
    char joined[256];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cut(cases[i].pre, cases[i].text, joined);
        if (strcmp(joined, cases[i].pieces))
            fail_msg("%s: '%s' gives\n  '%s', expected\n  '%s'", cases[i].pre, cases[i].text,
                     joined, cases[i].pieces);
    }
}

/* Unicode's White_Space is what \s means; twice one of them gives two pieces, twice another
 * character that is neither letter nor number gives one. */
static void white_space_is_unicodes(void **state)
{
    (void)state;
    static const uint32_t spaces[] = {0x09,   0x0b,   0x0c,   0x20,   0x85,
                                      0xa0,   0x1680, 0x2000, 0x2005, 0x200a,
                                      0x2028, 0x2029, 0x202f, 0x205f, 0x3000};
    static const uint32_t others[] = {0x1c, 0x1f, 0x180e, 0x200b, 0x2060, 0xfeff, 0x2800};
    char character[5], text[16], joined[32], expected[32];
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        character[utf8_encode(spaces[i], character)] = 0;
        snprintf(text, sizeof text, "!%s%s!", character, character);
        snprintf(expected, sizeof expected, "!|%s|%s%s!", character, character,
                 spaces[i] == ' ' ? "" : "|");
        cut("gpt-2", text, joined);
        assert_string_equal(joined, expected);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        character[utf8_encode(others[i], character)] = 0;
        snprintf(text, sizeof text, "a%s%sa", character, character);
        snprintf(expected, sizeof expected, "a|%s%s|a", character, character);
        cut("gpt-2", text, joined);
        assert_string_equal(joined, expected);
    }
}

static void unknown_names_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"", " ", "gpt", "pt-2", "llama-bpe ", "qwen2 megrez", "x"};
    struct split s;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(split_open(&s, names[i]), LLM_ENOTEXT);
        split_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_cut_where_they_should),
        cmocka_unit_test(white_space_is_unicodes),
        cmocka_unit_test(unknown_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
