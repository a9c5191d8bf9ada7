"""HTTP/1.1 and server-sent events as far as a stream of tokens needs them, without any input or
output of its own: bytes in, bytes and events out. Shared by the two HTTP clients.

Formats: RFC 9112 (messages, chunked coding), the HTML standard's section on server-sent events.
What a server sends is checked; lengths have the limits below.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Optional

from .errors import ProtocolError

_LINE_END = re.compile(rb"\r\n|\r|\n")
HEAD_MAX = 65536
EVENT_MAX = 1 << 24


def request_head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1"]
    for name, value in headers.items():
        if any(ord(ch) < 32 or ord(ch) > 126 for ch in name + value):
            raise ValueError(f"the header {name} has characters that HTTP does not allow")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


class Response:
    """Of one response: feed() takes what came from the socket and returns the part of the body that
    it completes; eof() is to be called when the socket ends.

        head -> body (chunked | of a known length | until the end) -> complete
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: Dict[str, str] = {}
        self.complete = False
        self.reusable = False  # the connection, once the response is complete
        self._buffer = bytearray()
        self._left: Optional[int] = None  # bytes of the body or of this chunk; None: until the end
        self._chunked = False
        self._trailer = False
        self._in_chunk = False

    @property
    def started(self) -> bool:
        """Whether the final response's head has come."""
        return self.status >= 200

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        while not self.started:
            if not self._head():
                return b""
        if self.complete:
            return b""
        return self._chunks() if self._chunked else self._plain()

    def eof(self) -> None:
        if not self.complete and self.started and not self._chunked and self._left is None:
            self.complete = True

    # ---- the head ----

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_MAX:
                raise ProtocolError(f"the head of the response exceeds {HEAD_MAX} bytes")
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        parts = lines[0].split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not _is_status(parts[1]):
            raise ProtocolError(f"no HTTP/1.1 server answers there: {lines[0][:80]!r}")
        self.status = int(parts[1])
        self.headers = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise ProtocolError(f"a header without a colon: {line[:80]!r}")
            self.headers[name.strip().lower()] = value.strip()
        if self.started:
            self._body(parts[0])
        return True

    def _body(self, version: str) -> None:
        connection = self.headers.get("connection", "").lower()
        self.reusable = version == "HTTP/1.1" and "close" not in connection
        coding = self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        if coding == "chunked":
            self._chunked = True
        elif coding:
            raise ProtocolError(f"the transfer coding {coding[:40]!r} was not asked for")
        elif self.status in (204, 304):
            self._left = 0
        elif length is not None:
            if not length.isascii() or not length.isdigit() or len(length) > 18:
                raise ProtocolError(f"content-length is {length[:40]!r}")
            self._left = int(length)
        else:
            self.reusable = False
        self.complete = self._left == 0 and not self._chunked

    # ---- the body ----

    def _plain(self) -> bytes:
        n = len(self._buffer) if self._left is None else min(self._left, len(self._buffer))
        out = bytes(self._buffer[:n])
        del self._buffer[:n]
        if self._left is not None:
            self._left -= n
            self.complete = self._left == 0
        return out

    def _chunks(self) -> bytes:
        out: List[bytes] = []
        while not self.complete:
            if self._in_chunk and self._left:
                piece = self._plain_chunk()
                if not piece:
                    break
                out.append(piece)
                continue
            line = self._line()
            if line is None:
                break
            self._chunk_line(line)
        return b"".join(out)

    def _plain_chunk(self) -> bytes:
        assert self._left is not None
        n = min(self._left, len(self._buffer))
        piece = bytes(self._buffer[:n])
        del self._buffer[:n]
        self._left -= n
        return piece

    def _chunk_line(self, line: bytes) -> None:
        if self._trailer:
            self.complete = not line
        elif self._in_chunk:
            if line:
                raise ProtocolError("a chunk is longer than its size says")
            self._in_chunk = False
        else:
            digits = line.split(b";", 1)[0].strip()
            if not 0 < len(digits) <= 15 or digits.strip(b"0123456789abcdefABCDEF"):
                raise ProtocolError(f"a chunk's size is {bytes(line[:40])!r}")
            self._left = int(digits, 16)
            self._in_chunk = self._left > 0
            self._trailer = self._left == 0

    def _line(self) -> Optional[bytes]:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_MAX:
                raise ProtocolError("a line of the chunked coding does not end")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


def _is_status(text: str) -> bool:
    return len(text) == 3 and text.isascii() and text.isdigit() and text >= "100"


class Events:
    """The data of server-sent events; other fields are of no use here."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._looked = 0  # bytes of it in which no line ends
        self._data: List[bytes] = []
        self._bytes = 0

    def feed(self, piece: bytes) -> List[str]:
        """The events that this piece of the body completes."""
        events: List[str] = []
        for line in self._lines(piece):
            if line:
                self._field(line)
            elif self._data:
                events.append(b"\n".join(self._data).decode("utf-8", "replace"))
                self._data, self._bytes = [], 0
        if len(self._buffer) + self._bytes > EVENT_MAX:
            raise ProtocolError(f"an event of the stream exceeds {EVENT_MAX} bytes")
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value[1:] if value.startswith(b" ") else value
            self._data.append(value)
            self._bytes += len(value) + 1

    def _lines(self, piece: bytes) -> List[bytes]:
        """Lines end with CRLF, LF or CR; a CR at the very end may be half of a CRLF: it waits. Each
        byte is looked at once, however the pieces are cut."""
        buffer, at = self._buffer, 0
        lines: List[bytes] = []
        buffer += piece
        for start, end in [found.span() for found in _LINE_END.finditer(buffer, self._looked)]:
            if end == len(buffer) and buffer[-1] == 13:
                break
            lines.append(bytes(buffer[at:start]))
            at = end
        del buffer[:at]
        self._looked = len(buffer) - buffer.endswith(b"\r")
        return lines
