/* bounds.c - the rules of bounds.h. */
#include "bounds.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "utf8.h"

/* ---- kinds of characters ---- */

static bool is_space(int32_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* Han, kana and their punctuation: scripts without spaces. */
static bool is_unspaced(int32_t c)
{
    return (c >= 0x3001 && c <= 0x30ff) || (c >= 0x3400 && c <= 0x4dbf) ||
           (c >= 0x4e00 && c <= 0x9fff) || (c >= 0xf900 && c <= 0xfaff) ||
           (c >= 0xff01 && c <= 0xff9f) || (c >= 0x20000 && c <= 0x3ffff);
}

/* 。 ！ ？ ｡ */
static bool is_wide_stop(int32_t c)
{
    return c == 0x3002 || c == 0xff01 || c == 0xff1f || c == 0xff61;
}

/* . ! ? … and the Arabic, Urdu and Devanagari ones */
static bool is_stop(int32_t c)
{
    return c == '.' || c == '!' || c == '?' || c == 0x2026 || c == 0x61f || c == 0x6d4 ||
           c == 0x964 || is_wide_stop(c);
}

/* What closes behind a stop; * and _ are Markdown's emphasis. */
static bool is_closer(int32_t c)
{
    static const int32_t wide[] = {0xbb,   0x201d, 0x2019, 0x3009, 0x300b,
                                   0x300d, 0x300f, 0x3011, 0xff09}; /* »”’〉》」』】） */
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (wide[i] == c)
            return true;
    return c > 0 && c < 0x80 && strchr("\"')]}*_", c);
}

static int32_t next_point(const char *text, size_t bytes, size_t *at)
{
    unsigned used;
    int32_t point = utf8_decode(text + *at, bytes - *at, &used);
    *at += used;
    return point;
}

/* ---- words ---- */

size_t bounds_words(const char *text, size_t bytes)
{
    size_t end = 0;
    for (size_t i = 0; i < bytes;) {
        int32_t c = next_point(text, bytes, &i);
        if (is_unspaced(c) || is_space(c))
            end = i;
    }
    return end;
}

/* ---- sentences ---- */

static const char *const abbreviations[] = {
    "mr",   "mrs",  "ms",  "dr",  "prof", "st",  "jr",   "sr",     "rev", "gen",
    "col",  "capt", "lt",  "sgt", "gov",  "sen", "rep",  "hon",    "inc", "ltd",
    "co",   "corp", "vs",  "etc", "cf",   "ca",  "fig",  "vol",    "pp",  "nr",
    "mt",   "ft",   "al",  "bzw", "vgl",  "usw", "dept", "approx", "est", "mme",
    "mlle", "sra",  "ing", "jan", "feb",  "aug", "sept", "oct",    "nov", "dec",
};

static bool is_listed(const char *word, size_t bytes)
{
    for (size_t i = 0; i < sizeof abbreviations / sizeof *abbreviations; i++)
        if (strlen(abbreviations[i]) == bytes && strncasecmp(abbreviations[i], word, bytes) == 0)
            return true;
    return false;
}

static bool all_digits(const char *word, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (word[i] < '0' || word[i] > '9')
            return false;
    return bytes > 0;
}

/* "e.g", "U.S", "Ph.D": parts of one or two characters between points, two parts at least; or one
 * character alone ("J" of "J. Bach"; not "I", which ends sentences). */
static bool is_initials(const char *word, size_t bytes)
{
    unsigned parts = 1, length = 0;
    if (bytes == 1 && *word == 'I')
        return false;
    for (size_t i = 0; i < bytes;) {
        int32_t c = next_point(word, bytes, &i);
        if (c >= '0' && c <= '9')
            return false;
        if (c == '.') {
            if (length == 0)
                return false;
            parts++, length = 0;
        } else if (++length > 2) {
            return false;
        }
    }
    return parts > 1 ? length > 0 : length == 1;
}

/* Whether the point at text[point] belongs to the word before it. `begin`: of the sentence. */
static bool is_abbreviation(const char *text, size_t begin, size_t point)
{
    size_t from = point;
    while (from > begin && text[from - 1] && !strchr(" \t\r\n([\"'*_-", text[from - 1]))
        from--;
    const char *word = text + from;
    size_t bytes = point - from;
    if (all_digits(word, bytes))
        return from == begin && bytes <= 3;
    return is_initials(word, bytes) || is_listed(word, bytes);
}

/* A run of stops and closers. */
struct stop {
    size_t begin, end;
    unsigned stops;
    bool wide;
};

static struct stop read_stop(const char *text, size_t bytes, size_t at)
{
    struct stop s = {.begin = at, .end = at};
    for (size_t i = at; i < bytes; s.end = i) {
        int32_t c = next_point(text, bytes, &i);
        if (!is_stop(c) && !is_closer(c))
            break;
        s.stops += is_stop(c);
        s.wide |= is_wide_stop(c);
    }
    return s;
}

static size_t skip_spaces(const char *text, size_t bytes, size_t at)
{
    for (size_t i = at; i < bytes; at = i)
        if (!is_space(next_point(text, bytes, &i)))
            break;
    return at;
}

/* Where the sentence ends that began at `begin` and has this stop, white space included; 0: it does
 * not end here, or that is not certain yet. */
static size_t sentence_end(const char *text, size_t bytes, size_t begin, struct stop stop)
{
    if (stop.end == bytes)
        return 0;
    size_t end = skip_spaces(text, bytes, stop.end);
    if (end == stop.end && !stop.wide)
        return 0;
    if (text[stop.begin] == '.' && stop.stops == 1 && is_abbreviation(text, begin, stop.begin))
        return 0;
    return end;
}

size_t bounds_sentences(const char *text, size_t bytes)
{
    size_t begin = 0;
    for (size_t i = 0; i < bytes;) {
        size_t at = i;
        int32_t c = next_point(text, bytes, &i);
        if (c == '\n') {
            begin = i = skip_spaces(text, bytes, at);
        } else if (is_stop(c)) {
            struct stop stop = read_stop(text, bytes, at);
            size_t end = sentence_end(text, bytes, begin, stop);
            i = stop.end;
            if (end)
                begin = i = end;
        }
    }
    return begin;
}
