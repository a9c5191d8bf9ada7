/* page.h - the status page, tools/gateway/page.html, as it is built into the gateway. */
#ifndef LLMD_GATEWAY_PAGE_H
#define LLMD_GATEWAY_PAGE_H

#define PAGE_CONTENT_TYPE "text/html; charset=utf-8"

/* (page_html_end - page_html) bytes. It asks for `metrics` and `v1/chat/completions` beside itself,
 * with the key that its user typed in, if any. */
extern const char page_html[], page_html_end[];

#endif
