#!/usr/bin/env python3
"""Writes template_unicode_tables.h to standard output, from the Unicode data of the running Python.

The tables in the tree were made with Python 3.11 (Unicode 14.0.0), the version whose string
methods the chat templates were written against:

    python3.11 client/text/template_unicode_tables.py > client/text/template_unicode_tables.h
"""
import sys
import unicodedata

LIMIT = 0x110000


def letter(c, flags_of):
    return sum(1 << i for i, f in enumerate(flags_of) if f(c))


def ignorable_or_cased(c):
    return ("A" + c + "\u03a3").lower()[-1] == "\u03c2"


def cased(c):
    return (c + "\u03a3").lower()[-1] == "\u03c2"


FLAGS = (str.isalpha, str.isdecimal, str.isdigit, str.isnumeric, str.islower, str.isupper,
         str.isprintable, str.isidentifier, lambda c: ("a" + c).isidentifier(), cased,
         lambda c: ignorable_or_cased(c) and not cased(c))


def runs():
    out, last = [], None
    for cp in range(LIMIT):
        flags = letter(chr(cp), FLAGS)
        if flags != last:
            out.append(cp << 11 | flags)
            last = flags
    return out


def case_runs(convert):
    """(first, count, stride, delta) of one-to-one mappings, and the others whole."""
    simple, special = [], []
    for cp in range(LIMIT):
        to = convert(chr(cp))
        if to == chr(cp):
            continue
        if len(to) != 1:
            special.append((cp, [ord(x) for x in to]))
            continue
        delta = ord(to) - cp
        if simple:
            first, count, stride, d = simple[-1]
            gap = cp - (first + (count - 1) * stride)
            if d == delta and gap <= 2 and (count == 1 or gap == stride):
                simple[-1] = (first, count + 1, gap, d)
                continue
        simple.append((cp, 1, 1, delta))
    return simple, special


def write(name, ctype, rows):
    print(f"static const {ctype} {name}[] = {{")
    line = "   "
    for r in rows:
        if len(line) + len(r) + 2 > 100:
            print(line)
            line = "   "
        line += f" {r},"
    print(line)
    print("};\n")


def title(c):
    return c.title()


def fold(c):
    return c.casefold() if c.casefold() != c.lower() else c


print(f"""/* template_unicode_tables.h - made by template_unicode_tables.py; do not edit.
 *
 * Source: the Unicode Character Database {unicodedata.unidata_version} as published by the Unicode Consortium
 * (UnicodeData.txt, DerivedCoreProperties.txt, SpecialCasing.txt, CaseFolding.txt), through
 * Python {sys.version_info.major}.{sys.version_info.minor}.
 */
/* clang-format off */
""")
print("/* first code point << 11 | flags, up to the next row */")
write("tpl_runs", "uint32_t", [f"0x{x:x}" for x in runs()])
print("/* flags of ASCII */")
write("tpl_ascii", "uint16_t", [f"0x{letter(chr(c), FLAGS):x}" for c in range(128)])
for name, f in (("upper", str.upper), ("lower", str.lower), ("title", title), ("fold", fold)):
    simple, special = case_runs(f)
    print("/* {first, count, stride, delta} */")
    write(f"tpl_{name}_runs", "struct case_run",
          ["{0x%x,%d,%d,%d}" % x for x in simple] or ["{0,0,1,0}"])
    print("/* {code point, {what it becomes}} */")
    write(f"tpl_{name}_special", "struct case_special",
          ["{0x%x,{%s}}" % (c, ",".join("0x%x" % x for x in to)) for c, to in special]
          or ["{0,{0}}"])
