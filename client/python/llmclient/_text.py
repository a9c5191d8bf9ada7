"""Text at the edge: tokenizer, chat template, streaming detokenizers, stop texts.

Every object here owns one object of the library and frees it when it goes.
"""

from __future__ import annotations

import ctypes as c
import errno
import json
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import _library as L
from .errors import InvalidRequest, NotSupported, from_code

_ROOM = 8192


class Tokenizer:
    """Over the vocabulary of a handle, which need not live as long."""

    def __init__(self, lib: Any, handle: Any) -> None:
        self._lib = lib
        self._at = c.c_void_p()
        rc = lib.llm_tokenizer_open(c.byref(self._at), handle)
        if rc < 0:
            raise from_code(rc, lib.llm_errmsg(handle).decode("utf-8", "replace"))
        self.vocab: int = lib.llm_tokenizer_vocab(self._at)

    def encode(self, text: str, flags: int) -> List[int]:
        data = text.encode("utf-8", "replace")
        room = len(data) + 8  # a token has at least a byte, but for those around the text
        tokens = (c.c_int32 * room)()
        n = self._lib.llm_tokenize(self._at, data, len(data), flags, tokens, room)
        if n > room:
            room = n
            tokens = (c.c_int32 * room)()
            n = self._lib.llm_tokenize(self._at, data, len(data), flags, tokens, room)
        if n < 0:
            raise from_code(n, f"a text of {len(data)} bytes cannot be made into tokens")
        return tokens[:n]

    def token_text(self, token: int) -> Optional[str]:
        at = c.POINTER(c.c_char)()
        n = self._lib.llm_token_bytes(self._at, token, c.byref(at))
        return c.string_at(at, n).decode("utf-8", "replace") if n >= 0 else None

    def decode(self, tokens: Sequence[int], flags: int) -> str:
        stream = Detokenizer(self, flags)
        parts = [stream.push(token) for token in tokens]
        parts.append(stream.flush())
        return "".join(parts)

    def __del__(self) -> None:
        if getattr(self, "_at", None):
            self._lib.llm_tokenizer_close(self._at)


class Detokenizer:
    """One stream of tokens to text; never hands out a part of a character."""

    def __init__(self, tokenizer: Tokenizer, flags: int) -> None:
        self._tokenizer = tokenizer  # outlives us
        self._lib = tokenizer._lib
        self._at = c.c_void_p()
        self._room = c.create_string_buffer(_ROOM)
        rc = self._lib.llm_detokenizer_open(c.byref(self._at), tokenizer._at, flags | L.DETOK_UTF8)
        if rc < 0:
            raise MemoryError("out of memory for a detokenizer")

    def push(self, token: int) -> str:
        n = self._lib.llm_detokenize(self._at, token, self._room, len(self._room))
        return self._taken(n, f"token {token}")

    def flush(self) -> str:
        return self._taken(
            self._lib.llm_detokenize_flush(self._at, self._room, len(self._room)), "the rest"
        )

    def _taken(self, n: int, what: str) -> str:
        while n == -errno.ENOBUFS:  # nothing is lost
            self._room = c.create_string_buffer(4 * len(self._room))
            n = self._lib.llm_detokenize_flush(self._at, self._room, len(self._room))
        if n < 0:
            raise from_code(n, f"{what} cannot be made into text: {strerror(self._lib, n)}")
        return c.string_at(self._room, n).decode("utf-8", "replace") if n else ""

    def __del__(self) -> None:
        if getattr(self, "_at", None):
            self._lib.llm_detokenizer_close(self._at)


class Template:
    """A model's chat template."""

    def __init__(self, lib: Any, handle: Any, tokenizer: Tokenizer) -> None:
        self._lib = lib
        self._at = c.c_void_p()
        self._why = c.create_string_buffer(1024)
        source, size = c.POINTER(c.c_char)(), c.c_size_t()
        rc = lib.llm_chat_template(handle, c.byref(source), c.byref(size))
        if rc < 0 or not size.value:
            raise NotSupported("the model brings no chat template; use generate")
        text = c.string_at(source, size.value)
        rc = lib.llm_template_parse(c.byref(self._at), text, size.value, self._why, 1024)
        if rc < 0:
            raise NotSupported(f"the model's chat template cannot be used: {self._sentence()}")
        self._special: Dict[str, Optional[str]] = {
            name: tokenizer.token_text(token)
            for name, which in L.SPECIAL.items()
            for token in [lib.llm_special_token(handle, which)]
            if token >= 0
        }

    def _sentence(self) -> str:
        return self._why.value.decode("utf-8", "replace")

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        given = {"messages": list(messages), "add_generation_prompt": True, **self._special}
        try:
            data = json.dumps(given, ensure_ascii=False).encode("utf-8")
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"the messages cannot be written as JSON: {error}") from None
        out, size = c.POINTER(c.c_char)(), c.c_size_t()
        rc = self._lib.llm_template_render(
            self._at, data, len(data), None, c.byref(out), c.byref(size), self._why, 1024
        )
        if rc < 0:
            raise InvalidRequest(f"the chat template failed: {self._sentence()}")
        text = c.string_at(out, size.value).decode("utf-8")
        self._lib.llm_template_free_text(out)
        return text

    def __del__(self) -> None:
        if getattr(self, "_at", None):
            self._lib.llm_template_free(self._at)


class StopTexts:
    """Ends a text before the first of some texts, wherever the pieces are cut: what may be the
    beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, piece: str) -> Tuple[str, bool]:
        """The text that is safe to hand out, and whether a stop was found behind it."""
        text = self._held + piece
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        keep = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        text, self._held = self._held, ""
        return text

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """How long an end of the text is a beginning of the stop."""
        for n in range(min(len(text), len(stop) - 1), 0, -1):
            if text.endswith(stop[:n]):
                return n
        return 0


def strerror(lib: Any, code: int) -> str:
    return str(lib.llm_strerror(code).decode("utf-8", "replace"))
