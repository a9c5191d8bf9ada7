"""One handle of libllmclient: requests in, events out, each event to the request that it is of.

Shared by the synchronous client (_llmd.py), which waits inside the library, and the asynchronous
one (_llmd_async.py), which waits in its event loop.

Invariants
  1. `requests` has exactly the requests whose finals are owed; a request that nobody wants any more
     (`dropped`) stays there until they have come, and swallows them.
  2. Nothing but `poll` and `wait` takes events, so that no request misses one.
  3. Only the thread that made the channel calls the library; a stream that the garbage collector
     ends elsewhere leaves its cancel in `_unwanted`.
"""

from __future__ import annotations

import ctypes as c
import errno
import os
import threading
from array import array
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

from . import _library as L
from ._text import Detokenizer, StopTexts, Template, Tokenizer, strerror
from .errors import (
    EDEADLINE,
    ConnectError,
    Error,
    InvalidRequest,
    NotSupported,
    ProtocolError,
    Timeout,
    TooLong,
    WrongThread,
    from_code,
)
from .types import MAX_TOKENS, Assembly, Chunk, Params, Prompt, Result, Timing, Usage

PIECES = {"token": 0, "word": L.DETOK_WORDS, "sentence": L.DETOK_SENTENCES}

_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class Request:
    """What is in flight. `ended`: all finals have come; `error`: how it failed, if it did."""

    def __init__(self) -> None:
        self.id = 0
        self.ended = False
        self.dropped = False
        self.error: Optional[Error] = None
        self.wake: Optional[Callable[[], None]] = None

    def send(self, lib: Any, handle: Any, id_at: Any) -> int:
        raise NotImplementedError

    def take(self, channel: Channel, event: L.Event) -> None:
        raise NotImplementedError

    def fail(self, error: Error) -> None:
        self.error = self.error or error
        self.ended = True


class Operation(Request):
    """Of a session: one final, whose position is the session's new length."""

    def __init__(self, send: Callable[[Any, Any, Any], int]) -> None:
        super().__init__()
        self._send = send
        self.position = 0

    def send(self, lib: Any, handle: Any, id_at: Any) -> int:
        return self._send(lib, handle, id_at)

    def take(self, channel: Channel, event: L.Event) -> None:
        if event.type == L.EVENT_TOKENS:
            return
        if event.type == L.EVENT_ERROR:
            self.error = channel.refusal(event)
        self.position = event.position
        self.ended = True


class Choosing(Request):
    """Log-probabilities of labels: choice i is label i."""

    def __init__(self, prompt: Any, labels: Sequence[Any], params: Params) -> None:
        super().__init__()
        self._prompt, self._tokens = prompt, labels
        self._labels = (L.Label * len(labels))(*(L.Label(t, len(t)) for t in labels))
        self._request = _request(prompt, params, MAX_TOKENS, 0)
        self._request.op = L.OP_CHOOSE
        self._request.size = c.sizeof(L.Request)
        self._request.session_keep = L.SESSION_ALL
        self._request.labels, self._request.n_labels = self._labels, len(labels)
        self._owed = len(labels)
        self.sums = [0.0] * len(labels)

    def send(self, lib: Any, handle: Any, id_at: Any) -> int:
        return int(lib.llm_submit(handle, c.byref(self._request), id_at))

    def take(self, channel: Channel, event: L.Event) -> None:
        if event.type == L.EVENT_TOKENS:
            self.sums[event.choice] += sum(event.logprobs[: event.n_tokens])
            return
        if event.type == L.EVENT_ERROR:
            self.error = self.error or channel.refusal(event)
        elif event.finish == L.FINISH_TIMEOUT:
            self.error = self.error or Timeout("the labels were not computed within timeout_ms")
        elif event.finish not in (0, 1, 2):
            finish = L.FINISH.get(event.finish, "?")
            self.error = self.error or Error(f"a label was not finished: {finish}")
        self._owed -= 1
        self.ended = self._owed == 0


class _Text:
    """One choice's way from tokens to text."""

    def __init__(self, tokenizer: Optional[Tokenizer], flags: int, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer, flags) if tokenizer else None
        self._stops = StopTexts(stops) if stops else None
        self.stopped = False

    def push(self, tokens: Sequence[int]) -> str:
        if not self._detokenizer:
            return ""
        return self._filter("".join([self._detokenizer.push(token) for token in tokens]))

    def _filter(self, text: str) -> str:
        if not self._stops or not text:
            return text
        text, self.stopped = self._stops.push(text)
        return text

    def flush(self) -> str:
        if self.stopped or not self._detokenizer:
            return ""
        text = self._filter(self._detokenizer.flush())
        return text if self.stopped or not self._stops else text + self._stops.flush()


class Generation(Request):
    """Tokens of one or more choices, as chunks in `queue`."""

    def __init__(
        self,
        tokenizer: Optional[Tokenizer],
        tokens: Any,
        params: Params,
        max_tokens: int,
        detok_flags: int,
        session: int = 0,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self._request = _request(tokens, params, max_tokens, session)
        self.queue: Deque[Chunk] = deque()
        self.assembly = Assembly(params.n)
        self._logprobs = params.logprobs
        flags = detok_flags | PIECES[params.pieces]
        self._texts = [_Text(tokenizer, flags, params.stop) for _ in range(params.n)]
        self._owed = params.n
        self._figures: List[Tuple[int, ...]] = []
        self.on_done: Optional[Callable[[int], None]] = None

    def send(self, lib: Any, handle: Any, id_at: Any) -> int:
        if self._request.size > L.REQUEST_1_0 and not hasattr(lib, "llm_session_open"):
            raise NotSupported(
                "this libllmclient knows no priority, deadline_ms, timeout_ms and queue_timeout_ms: "
                "install a newer one"
            )
        return int(lib.llm_submit(handle, c.byref(self._request), id_at))

    def take(self, channel: Channel, event: L.Event) -> None:
        if event.type != L.EVENT_TOKENS:
            self._final(channel, event)
        elif not self.dropped and not self._texts[event.choice].stopped:
            self._news(channel, event)

    def _news(self, channel: Channel, event: L.Event) -> None:
        n = event.n_tokens
        tokens = tuple(event.tokens[:n])
        logprobs = tuple(event.logprobs[:n]) if self._logprobs else ()
        text = self._texts[event.choice]
        self._give(Chunk(text.push(tokens), tokens, logprobs, event.choice))
        if text.stopped and all(each.stopped for each in self._texts):
            channel.cancel(self)

    def _give(self, chunk: Chunk) -> None:
        self.assembly.add(chunk)
        self.queue.append(chunk)

    def _final(self, channel: Channel, event: L.Event) -> None:
        text, choice = self._texts[event.choice], self.assembly.choices[event.choice]
        rest = "" if self.dropped else text.flush()
        if rest:
            self._give(Chunk(rest, choice=event.choice))
        if event.type == L.EVENT_ERROR:
            self.error = self.error or channel.refusal(event)
        choice.finish_reason = "stop" if text.stopped else L.FINISH.get(event.finish, "error")
        r = event.result
        self._figures.append(
            (
                r.t_arrival,
                r.t_admit,
                r.t_first,
                r.t_last,
                r.prompt_tokens,
                r.output_tokens,
                r.cached_tokens,
                r.preemptions,
                r.numerics_id,
            )
        )
        self._owed -= 1
        self.ended = self._owed == 0
        if self.ended and self.on_done and not self.error:
            self.on_done(sum(f[5] for f in self._figures))

    def result(self) -> Result:
        if not self._figures:
            return self.assembly.result(Usage(), Timing())
        columns = list(zip(*self._figures))
        arrival, admit, first, last = (max(column) for column in columns[:4])
        first = min((t for t in columns[2] if t), default=0)
        usage = Usage(max(columns[4]), sum(columns[5]), max(columns[6]))
        timing = Timing(*(_seconds(arrival, t) for t in (admit, first, last)))
        return self.assembly.result(usage, timing, columns[8][0], sum(columns[7]))


def _seconds(since: int, until: int) -> Optional[float]:
    return (until - since) / 1e9 if since and until else None


def _request(tokens: Any, params: Params, max_tokens: int, session: int) -> L.Request:
    r = L.Request(op=L.OP_GENERATE, n_tokens=len(tokens), max_tokens=max_tokens)
    r.tokens = tokens
    r.choices = params.n
    r.flags = L.IGNORE_EOS * params.ignore_eos | L.LOGPROBS * params.logprobs
    r.flags |= L.SPECULATION[params.speculative]
    r.seed = L.SEED_RANDOM if params.seed is None else params.seed
    r.temperature, r.top_p, r.min_p = params.temperature, params.top_p, params.min_p
    r.top_k = params.top_k
    r.priority = L.PRIORITY[params.priority]
    r.deadline_us = 1000 * (params.deadline_ms or 0)
    r.timeout_ms = params.timeout_ms or 0
    r.queue_timeout_ms = params.queue_timeout_ms or 0
    r.session = session
    newer = session or r.priority or r.deadline_us or r.timeout_ms or r.queue_timeout_ms
    r.session_keep = L.SESSION_ALL if newer else 0
    r.size = c.sizeof(L.Request) if newer else L.REQUEST_1_0
    return r


class Channel:
    """A connection to an engine."""

    def __init__(self, instance: str, options: L.Options, resume_ms: int = 0) -> None:
        self.lib = L.load()
        self.handle = c.c_void_p()
        rc = self.lib.llm_connect(c.byref(self.handle), instance.encode(), c.byref(options))
        if rc < 0:
            error = from_code(rc, self.lib.llm_connect_error().decode("utf-8", "replace"))
            raise error if type(error) is not Error else ConnectError(str(error), code=rc)
        self.requests: Dict[int, Request] = {}
        self._unwanted: Deque[Request] = deque()
        self._event = L.Event()
        self._id = c.c_uint64()
        self._template: Optional[Template] = None
        self._no_text = ""
        self.adopt()
        try:
            self.limits = self._limits()
            self.tokenizer = self._open_tokenizer()
            if resume_ms:
                self._resume(resume_ms)
        except BaseException:
            self.close()
            raise

    def _limits(self) -> L.Limits:
        limits = L.Limits()
        self.lib.llm_get_limits(self.handle, c.byref(limits))
        return limits

    def _open_tokenizer(self) -> Optional[Tokenizer]:
        try:
            return Tokenizer(self.lib, self.handle)
        except NotSupported as error:
            self._no_text = str(error)
            return None

    def _resume(self, timeout_ms: int) -> None:
        self.need("llm_resume")
        rc = self.lib.llm_resume(self.handle, timeout_ms, 0)
        if rc < 0:
            raise self.failure(rc)

    # ---- whose it is ----

    def adopt(self) -> None:
        """From now on it belongs to this thread."""
        self._thread = threading.get_ident()
        self._forks = _forks

    def mine(self) -> bool:
        return self._thread == threading.get_ident() and self._forks == _forks

    def check(self) -> None:
        if not self.handle:
            raise Error("the client is closed")
        if not self.mine():
            raise WrongThread(
                "a client belongs to the thread (and process) that connected it: "
                "connect once more in this one"
            )

    def close(self) -> None:
        handle, self.handle = self.handle, c.c_void_p()
        if handle:
            self.lib.llm_close(handle)
        for request in list(self.requests.values()):
            request.fail(Error("the client was closed while the request was in flight"))
            if request.wake:
                request.wake()
        self.requests.clear()

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            handle, self.handle = self.handle, c.c_void_p()
            self.lib.llm_close(handle)

    # ---- failures ----

    def failure(self, code: int) -> Error:
        """The error of a call that has just failed."""
        if code == -errno.ENOTSUP:
            return NotSupported(self._sentence(), code=code)
        return from_code(code, self._sentence())

    def _sentence(self) -> str:
        return str(self.lib.llm_errmsg(self.handle).decode("utf-8", "replace"))

    def refusal(self, event: L.Event) -> Error:
        """The error of a final."""
        text = strerror(self.lib, event.status)
        if event.position:
            late = event.status == EDEADLINE
            meaning = "microseconds is the estimate" if late else "would have fitted"
            text += f" ({event.position} {meaning})"
        return from_code(event.status, text, event.position)

    def need(self, call: str) -> None:
        if not hasattr(self.lib, call):
            raise NotSupported(f"this libllmclient has no {call}: install a newer one")

    # ---- requests ----

    def submit(self, request: Request) -> bool:
        """False: there is no room now; take events and try again."""
        self._send_cancels()
        rc = request.send(self.lib, self.handle, c.byref(self._id))
        if rc == -errno.EAGAIN:
            return False
        if rc < 0:
            raise self.failure(rc)
        request.id = self._id.value
        self.requests[request.id] = request
        return True

    def cancel(self, request: Request) -> None:
        self._unwanted.append(request)
        if self.handle and self.mine():
            self._send_cancels()

    def drop(self, request: Request) -> None:
        """Nobody wants it any more. May be called by the garbage collector, in any thread."""
        if not request.dropped and not request.ended:
            request.dropped = True
            self.cancel(request)

    def _send_cancels(self) -> None:
        while self._unwanted:
            request = self._unwanted.popleft()
            if request.id not in self.requests:
                continue
            if self.lib.llm_cancel(self.handle, request.id) == -errno.EAGAIN:
                self._unwanted.appendleft(request)
                return

    # ---- events ----

    def poll(self) -> int:
        """Takes an event if there is one: 1, 0, or the code of the handle's end."""
        if self._unwanted:
            self._send_cancels()
        return self._took(self.lib.llm_poll(self.handle, c.byref(self._event)))

    def wait(self, timeout_ms: int = -1) -> int:
        """The same, waiting. -EINTR and -ENOENT (nothing is in flight) are no end."""
        if self._unwanted:
            self._send_cancels()
        return self._took(self.lib.llm_wait(self.handle, c.byref(self._event), timeout_ms))

    def _took(self, rc: int) -> int:
        if rc == 1:
            self._dispatch()
        elif rc == -errno.ENOENT and self.requests:
            self._end(ProtocolError("finals are owed of which the library does not know"))
        elif rc < 0 and rc not in (-errno.EINTR, -errno.ENOENT):
            self._end(self.failure(rc))
        return int(rc)

    def _dispatch(self) -> None:
        event = self._event
        request = self.requests.get(event.id)
        if request is None:
            return
        try:
            request.take(self, event)
        except Error as error:  # its text cannot be made: it has failed, its finals are still owed
            request.error = request.error or error
            self.drop(request)
        if request.ended:
            del self.requests[request.id]
        if request.wake:
            request.wake()

    def _end(self, error: Error) -> None:
        for request in list(self.requests.values()):
            request.fail(error)
            if request.wake:
                request.wake()
        self.requests.clear()

    # ---- prompts ----

    def text(self) -> Tokenizer:
        if not self.tokenizer:
            raise NotSupported(f"{self._no_text}; give token ids")
        return self.tokenizer

    def encode(self, prompt: Prompt, flags: int) -> Any:
        """A C array of token ids."""
        if isinstance(prompt, str):
            ids = array("i", self.text().encode(prompt, flags))
        else:
            try:
                ids = array("i", prompt)
            except (TypeError, OverflowError) as error:
                raise InvalidRequest(f"the prompt is no text and no list of ids: {error}") from None
        return (c.c_int32 * len(ids)).from_buffer(ids) if ids else (c.c_int32 * 0)()

    def tokenize(self, text: str, add_special: bool, special: bool) -> List[int]:
        flags = L.TOKENIZE_SPECIAL * special | L.TOKENIZE_ADD_SPECIAL * add_special
        return self.text().encode(text, flags)

    def detokenize(self, tokens: Sequence[int], show_special: bool) -> str:
        flags = L.DETOK_CONTINUE | L.DETOK_SHOW_SPECIAL * show_special
        return self.text().decode(tokens, flags)

    def generation(self, prompt: Prompt, params: Params) -> Generation:
        tokens = self.encode(prompt, L.TOKENIZE_SPECIAL | L.TOKENIZE_ADD_SPECIAL)
        room = params.max_tokens or MAX_TOKENS
        return Generation(self.tokenizer, tokens, params, room, L.DETOK_CONTINUE)

    def answer(self, messages: Sequence[Mapping[str, Any]], params: Params) -> Generation:
        tokenizer = self.text()
        if self._template is None:
            self._template = Template(self.lib, self.handle, tokenizer)
        tokens = self.encode(self._template.render(messages), L.TOKENIZE_SPECIAL)
        room = params.max_tokens or self.limits.max_model_len - len(tokens)
        if room <= 0:
            raise TooLong(
                f"the conversation has {len(tokens)} tokens, the model takes "
                f"{self.limits.max_model_len}: start a new one or leave some out"
            )
        return Generation(tokenizer, tokens, params, room, 0)

    def choosing(self, prompt: Prompt, labels: Sequence[str], params: Params) -> Choosing:
        self.need("llm_choose")
        if not labels:
            raise InvalidRequest("no labels to choose from")
        tokens = self.encode(prompt, L.TOKENIZE_SPECIAL | L.TOKENIZE_ADD_SPECIAL)
        return Choosing(tokens, [self.encode(label, 0) for label in labels], params)


def _length(keep: int) -> int:
    """ctypes would take a negative number, and for the library that is the whole history."""
    if not isinstance(keep, int) or not 0 <= keep < 2**63:
        raise InvalidRequest(f"keep is {keep!r}, no number of tokens")
    return keep


class SessionState:
    """A session of a channel: makes the requests, keeps the length that their finals tell."""

    def __init__(self, channel: Channel, name: str) -> None:
        channel.need("llm_session_open")
        self.channel = channel
        self.name = name
        self.key = L.session_key(name)
        self.length = 0
        self.pinned = False
        self.closed = False

    def _encode(self, prompt: Prompt) -> Any:
        flags = L.TOKENIZE_SPECIAL | (0 if self.length else L.TOKENIZE_ADD_SPECIAL)
        return self.channel.encode(prompt, flags)

    def _operation(self, call: str, *arguments: Any) -> Operation:
        return Operation(
            lambda lib, handle, id_at: int(getattr(lib, call)(handle, self.key, *arguments, id_at))
        )

    def open(self, prompt: Prompt, pin: bool) -> Operation:
        tokens = self._encode(prompt)
        self.pinned = pin
        return self._operation("llm_session_open", tokens, len(tokens), L.PIN * pin)

    def append(self, prompt: Prompt) -> Operation:
        tokens = self._encode(prompt)
        return self._operation("llm_session_append", tokens, len(tokens))

    def replace(self, keep: int, prompt: Prompt) -> Operation:
        flags = L.TOKENIZE_SPECIAL | (0 if keep else L.TOKENIZE_ADD_SPECIAL)
        tokens = self.channel.encode(prompt, flags)
        return self._operation("llm_session_replace", _length(keep), tokens, len(tokens))

    def rewind(self, keep: int) -> Operation:
        return self._operation("llm_session_rewind", _length(keep))

    def interrupt(self, keep: int) -> Operation:
        return self._operation("llm_session_interrupt", _length(keep))

    def fork(self, other: SessionState) -> Operation:
        return self._operation("llm_session_fork", other.key)

    def end(self) -> Operation:
        return self._operation("llm_session_close")

    def generation(self, prompt: Prompt, params: Params) -> Generation:
        if self.pinned:
            raise InvalidRequest("nothing is generated on a pinned session: fork it")
        tokens = self._encode(prompt) if prompt else self.channel.encode((), 0)
        room = params.max_tokens or MAX_TOKENS
        flags = L.DETOK_CONTINUE
        g = Generation(self.channel.tokenizer, tokens, params, room, flags, self.key)
        n = len(tokens)

        def done(generated: int) -> None:
            self.length += n + generated

        g.on_done = done
        return g
