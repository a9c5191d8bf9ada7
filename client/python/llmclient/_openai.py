"""The OpenAI API's wire format: requests as JSON, answers as chunks.

Endpoints used: POST completions, POST chat/completions (with stream: true), GET models, below the
base address that the user gives. An Exchange is one request and its answer, without input or
output of its own: the clients bring the bytes.
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Deque, Dict, List, Mapping, Optional, Sequence
from urllib.parse import urlsplit

from ._http1 import Events, Response, request_head
from .errors import (
    DeadlineMissed,
    EngineDied,
    Error,
    InvalidRequest,
    NotSupported,
    ProtocolError,
    from_status,
)
from .types import MAX_TOKENS, Assembly, Chunk, Message, Params, Prompt, Result, Timing, Usage

BODY_MAX = 1 << 22  # of an answer that is no stream
END_S = 0.25  # how long the end of a response may take behind its last event


@dataclass
class Target:
    """Where the server is, and what every request to it carries."""

    tls: bool
    host: str
    port: int
    socket_path: Optional[str]
    base: str  # "/v1"
    headers: Dict[str, str] = field(repr=False, default_factory=dict)
    model: Optional[str] = None
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 600.0  # the longest silence in a stream

    @property
    def name(self) -> str:
        return f"unix:{self.socket_path}" if self.socket_path else f"{self.host}:{self.port}"


def target(
    address: str, api_key: Optional[str], model: Optional[str], headers: Optional[Mapping[str, str]]
) -> Target:
    """http://host:port/v1, https://host/v1, unix:/path/of/socket (then the base is /v1)."""
    common = {"Accept": "text/event-stream, application/json", "User-Agent": "llmclient"}
    if api_key:
        common["Authorization"] = f"Bearer {api_key}"
    common.update(headers or {})
    if address.startswith("unix:"):
        path = address[len("unix:") :]
        if not path.startswith("/"):
            raise InvalidRequest(f"{address}: unix: wants the absolute path of a socket")
        return Target(False, "localhost", 0, path, "/v1", {"Host": "localhost", **common}, model)
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise InvalidRequest(f"{address}: {error}") from None
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise InvalidRequest(f"{address}: the port is no number from 0 to 65535") from None
    if not parts.hostname or parts.query or parts.fragment or parts.username is not None:
        raise InvalidRequest(f"{address}: give http(s)://host[:port]/base, nothing else")
    base = parts.path.rstrip("/")
    common = {"Host": parts.netloc, **common}
    return Target(parts.scheme == "https", parts.hostname, port, None, base, common, model)


def message(where: Target, method: str, path: str, body: Optional[Mapping[str, Any]]) -> bytes:
    headers, data = dict(where.headers), b""
    if body is not None:
        try:
            data = json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"the request cannot be written as JSON: {error}") from None
        headers["Content-Type"] = "application/json"
        headers["Content-Length"] = str(len(data))
    try:
        return request_head(method, where.base + path, headers) + data
    except (ValueError, UnicodeEncodeError) as error:
        raise InvalidRequest(str(error)) from None


# ---- requests ----


def completion(where: Target, prompt: Prompt, params: Params) -> Exchange:
    if not isinstance(prompt, str):
        raise NotSupported("token ids over HTTP: the server's vocabulary is not known; give a text")
    body = {"prompt": prompt, "max_tokens": params.max_tokens or MAX_TOKENS, **_common(params)}
    if params.logprobs:
        body["logprobs"] = 1
    return Exchange(where, "/completions", body, params)


def conversation(where: Target, messages: Sequence[Message], params: Params) -> Exchange:
    body = {"messages": [dict(m) for m in messages], **_common(params)}
    if params.max_tokens:
        body["max_tokens"] = params.max_tokens
    if params.logprobs:
        body["logprobs"] = True
    return Exchange(where, "/chat/completions", body, params)


def _common(params: Params) -> Dict[str, Any]:
    """What OpenAI's servers do not know (top_k, min_p, ignore_eos: vLLM's names; speculative:
    llm-gateway's) is sent only where it was asked for."""
    if params.priority != "normal":
        raise NotSupported("priority over HTTP: the API has none")
    if params.queue_timeout_ms:
        raise NotSupported("queue_timeout_ms over HTTP: the API has none; use deadline_ms")
    if params.pieces != "token":
        raise NotSupported("pieces over HTTP: the text comes as the server cuts it")
    body: Dict[str, Any] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "n": params.n,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if params.seed is not None:
        body["seed"] = params.seed
    if params.stop:
        body["stop"] = list(params.stop)
    extra = (("top_k", 0), ("min_p", 0.0), ("ignore_eos", False), ("speculative", None))
    for name, off in extra:
        if getattr(params, name) != off:
            body[name] = getattr(params, name)
    return body


class Exchange:
    """One request and its answer. Chunks lie in `queue`; `ended`: no more come; `error`: why."""

    def __init__(self, where: Target, path: str, body: Dict[str, Any], params: Params) -> None:
        body = {"model": where.model, **body}
        self.request = message(where, "POST", path, body)
        self.response = Response()
        self.queue: Deque[Chunk] = deque()
        self.ended = False
        self.error: Optional[Exception] = None
        self._where = where
        self._assembly = Assembly(params.n)
        self._events: Optional[Events] = None
        self._plain = bytearray()
        self._usage = Usage()
        self._sent = self._first = self._last = 0.0
        self._done = 0.0  # when [DONE] came: only the end of the response is missing
        self._deadline_s = params.deadline_ms and params.deadline_ms / 1000
        self._timeout_s = params.timeout_ms and params.timeout_ms / 1000

    # ---- time ----

    def sent(self) -> None:
        self._sent = time.monotonic()

    def patience(self) -> float:
        """How long to wait for the next bytes, seconds; 0: `expired` says what then."""
        if self._done:
            return max(self._done + END_S - time.monotonic(), 0.0)
        waits = [self._where.read_timeout_s]
        waited = time.monotonic() - self._sent
        if self._timeout_s:
            waits.append(self._timeout_s - waited)
        if self._deadline_s and not self._first:
            waits.append(self._deadline_s - waited)
        return max(min(waits), 0.0)

    def expired(self) -> None:
        """The patience is over: an error, or none where the timeout ends it with what there is."""
        self.ended = True
        if self._done:
            return
        waited = time.monotonic() - self._sent
        if self._deadline_s and not self._first and waited >= self._deadline_s:
            ms = round(1000 * self._deadline_s)
            self.error = DeadlineMissed(f"no token came within deadline_ms {ms}")
        elif self._timeout_s and waited >= self._timeout_s:
            for choice in self._assembly.choices:
                choice.finish_reason = choice.finish_reason or "timeout"
        else:
            self.error = EngineDied(
                f"{self._where.name} has said nothing for {self._where.read_timeout_s:g} s"
            )

    # ---- bytes ----

    def feed(self, data: bytes) -> None:
        try:
            if data:
                self._body(self.response.feed(data))
            else:
                self.response.eof()
            self._progress(at_end=not data)
        except Error as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        self.error = self.error or error
        self.ended = True

    def _is_stream(self) -> bool:
        kind = self.response.headers.get("content-type", "").lower()
        return self.response.status == 200 and kind.startswith("text/event-stream")

    def _body(self, piece: bytes) -> None:
        if not self.response.started:
            return
        if not self._is_stream():
            self._plain += piece[: BODY_MAX - len(self._plain)]
            return
        self._events = self._events or Events()
        for event in self._events.feed(piece):
            if not self._done:
                self._event(event)

    def _progress(self, at_end: bool) -> None:
        if self.ended:
            return
        if self.response.complete and self.response.started and not self._is_stream():
            self._whole()
        elif self.response.complete or at_end:
            self._cut_off()

    def _cut_off(self) -> None:
        """The answer is over; without [DONE] that is right only if every choice has its reason."""
        if not self._done and not all(c.finish_reason for c in self._assembly.choices):
            raise EngineDied(f"{self._where.name} closed the connection within the answer")
        self.ended = True

    # ---- answers ----

    def _event(self, data: str) -> None:
        if data == "[DONE]":
            self._done = time.monotonic()
            return
        self._answer(_object(data), "delta")

    def _whole(self) -> None:
        """An answer that is no stream: an error, or of a server that does not stream."""
        text = self._plain.decode("utf-8", "replace")
        if self.response.status != 200:
            raise refusal(self.response, text)
        self._answer(_object(text), "message")
        self.ended = True

    def _answer(self, answer: Dict[str, Any], key: str) -> None:
        if answer.get("error"):
            error = answer["error"]
            text = error.get("message") if isinstance(error, dict) else error
            raise from_status(500, f"in the stream: {text}")
        choices = answer.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            self._choice(choice, key)
        usage = answer.get("usage")
        if isinstance(usage, dict):
            details = usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            self._usage = Usage(usage.get("prompt_tokens"), usage.get("completion_tokens"), cached)

    def _choice(self, choice: Any, key: str) -> None:
        index = choice.get("index", 0) if isinstance(choice, dict) else None
        if not isinstance(index, int) or not 0 <= index < len(self._assembly.choices):
            raise ProtocolError(f"{self._where.name} sent a choice that was not asked for")
        part = choice.get(key)
        text = part.get("content") if isinstance(part, dict) else choice.get("text")
        logprobs = tuple(_logprobs(choice.get("logprobs")))
        if text or logprobs:
            self._last = time.monotonic()
            self._first = self._first or self._last
            chunk = Chunk(text if isinstance(text, str) else "", (), logprobs, index)
            self._assembly.add(chunk)
            self.queue.append(chunk)
        if choice.get("finish_reason"):
            self._assembly.choices[index].finish_reason = str(choice["finish_reason"])

    def result(self) -> Result:
        timing = Timing(
            None,
            self._first - self._sent if self._first else None,
            self._last - self._sent if self._last else None,
        )
        return self._assembly.result(self._usage, timing)


def _object(text: str) -> Dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # of depths that nobody means
        value = None
    if not isinstance(value, dict):
        raise ProtocolError(f"no JSON object came, but {text[:80]!r}")
    return value


def _logprobs(given: Any) -> List[float]:
    """Completions have token_logprobs, chats a list of objects."""
    if not isinstance(given, dict):
        return []
    values = given.get("token_logprobs")
    if not isinstance(values, list):
        content = given.get("content")
        content = content if isinstance(content, list) else []
        values = [t.get("logprob") for t in content if isinstance(t, dict)]
    return [float(v) for v in values if isinstance(v, (int, float)) and -1e9 < v < 1e9]


def refusal(response: Response, text: str) -> Error:
    """The error of a status other than 200."""
    if 300 <= response.status < 400:
        where = response.headers.get("location", "?")
        return ProtocolError(
            f"HTTP {response.status}: moved to {where[:200]}; connect to that",
            status=response.status,
        )
    reason, sentence = "", text.strip()[:400]
    try:
        error = json.loads(text)
        error = error.get("error", error)
        sentence = str(error.get("message") or error.get("detail") or sentence)
        reason = str(error.get("code") or "")
    except (ValueError, AttributeError, RecursionError):
        pass
    after = response.headers.get("retry-after", "")
    wait = float(after) if after.isascii() and after.isdigit() else None
    return from_status(response.status, sentence or "no reason given", reason, wait)


def only_model(where: Target, response: Response, body: bytes) -> str:
    """The one model of an answer to GET models."""
    text = body.decode("utf-8", "replace")
    if response.status != 200:
        raise refusal(response, text)
    data = _object(text).get("data")
    data = data if isinstance(data, list) else []
    names = [str(m.get("id")) for m in data if isinstance(m, dict) and m.get("id")]
    if len(names) == 1:
        return names[0]
    listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise InvalidRequest(
        f"{where.name} has {len(names)} models ({listed}): say which one with model="
    )
