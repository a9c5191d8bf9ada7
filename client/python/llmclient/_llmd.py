"""The synchronous client of an engine on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, List, Sequence

from ._channel import Channel, Generation, Operation, Request, SessionState
from .client import Client, Labels, Session, Stream
from .errors import Error, InvalidRequest
from .types import Chunk, Limits, Message, Options, Prompt, Result, limits_of, params

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _take(channel: Channel) -> None:
    """Waits for an event, and takes what came with it."""
    rc = channel.wait()
    if rc == 0 or not channel.requests and rc < 0:
        time.sleep(0.001)  # only our own cancels are in flight: nothing to wait for
    while rc == 1:
        rc = channel.poll()


def _submit(channel: Channel, request: Request) -> None:
    channel.check()
    while not channel.submit(request):
        _take(channel)


def _run(channel: Channel, request: Request) -> None:
    """Submits and waits for its end."""
    _submit(channel, request)
    while not request.ended:
        _take(channel)
    if request.error:
        raise request.error


class LlmdStream(Stream):
    def __init__(self, channel: Channel, generation: Generation) -> None:
        self._channel, self._generation = channel, generation
        self._closed = False
        _submit(channel, generation)

    def __next__(self) -> Chunk:
        g = self._generation
        while not g.queue:
            if g.error or g.ended or self._closed:
                return self._finish()
            self._channel.check()
            _take(self._channel)
        return g.queue.popleft()

    def _finish(self) -> Chunk:
        error, self._generation.error = self._generation.error, None
        self._closed = True
        self._channel.drop(self._generation)
        if error:
            raise error
        raise StopIteration

    def close(self) -> None:
        self._closed = True
        self._generation.queue.clear()
        self._channel.drop(self._generation)

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self._channel.drop(self._generation)

    @property
    def result(self) -> Result:
        if not self._closed and not self._generation.ended:
            raise InvalidRequest("the stream has not ended: read it, or close it")
        return self._generation.result()


class LlmdSession(Session):
    def __init__(self, state: SessionState) -> None:
        self._state = state

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def length(self) -> int:
        return self._state.length

    def _do(self, operation: Operation) -> int:
        _run(self._state.channel, operation)
        self._state.length = operation.position
        return operation.position

    def append(self, prompt: Prompt) -> int:
        return self._do(self._state.append(prompt))

    def replace(self, keep: int, prompt: Prompt) -> int:
        return self._do(self._state.replace(keep, prompt))

    def rewind(self, keep: int) -> int:
        return self._do(self._state.rewind(keep))

    def interrupt(self, keep: int) -> int:
        return self._do(self._state.interrupt(keep))

    def generate(self, prompt: Prompt = (), **options: Unpack[Options]) -> Stream:
        generation = self._state.generation(prompt, params(options))
        return LlmdStream(self._state.channel, generation)

    def fork(self, name: str) -> Session:
        other = SessionState(self._state.channel, name)
        operation = self._state.fork(other)
        _run(self._state.channel, operation)
        other.length = operation.position
        return LlmdSession(other)

    def close(self) -> None:
        if self._state.closed or not self._state.channel.handle:
            return
        self._state.closed = True
        _run(self._state.channel, self._state.end())


class LlmdClient(Client):
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.model = channel.limits.model.decode("utf-8", "replace")
        self.max_model_len = channel.limits.max_model_len

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        self._channel.check()
        return LlmdStream(self._channel, self._channel.generation(prompt, params(options)))

    def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Stream:
        self._channel.check()
        return LlmdStream(self._channel, self._channel.answer(messages, params(options)))

    def choose(
        self, prompt: Prompt, labels: Sequence[str], **limits: Unpack[Limits]
    ) -> Labels:
        self._channel.check()
        request = self._channel.choosing(prompt, labels, limits_of(limits))
        _run(self._channel, request)
        return sorted(zip(labels, request.sums), key=lambda pair: -pair[1])

    def session(self, name: str, prompt: Prompt = (), *, pin: bool = False) -> Session:
        self._channel.check()
        session = LlmdSession(SessionState(self._channel, name))
        session._do(session._state.open(prompt, pin))
        return session

    def tokenize(self, text: str, *, add_special: bool = False, special: bool = True) -> List[int]:
        return self._channel.tokenize(text, add_special, special)

    def detokenize(self, tokens: Sequence[int], *, show_special: bool = False) -> str:
        return self._channel.detokenize(tokens, show_special)

    def close(self) -> None:
        if self._channel.handle:
            self._channel.check()
            self._channel.close()
