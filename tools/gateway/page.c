/* page.c - see page.h. The path is as seen from the folder where make runs. */
#include "page.h"

__asm__(".pushsection .rodata, \"a\"\n"
        ".global page_html, page_html_end\n"
        "page_html:\n"
        ".incbin \"tools/gateway/page.html\"\n"
        "page_html_end:\n"
        ".byte 0\n"
        ".popsection\n");
