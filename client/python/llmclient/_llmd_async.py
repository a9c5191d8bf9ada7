"""The asynchronous client of an engine on this machine: no threads, the event loop waits for the
library's descriptor.

           submit            llm_poll finds nothing, llm_arm says 0
    idle ----------> pumping --------------------------------------> armed
                        ^                                              |
                        +------- the descriptor is readable -----------+

A request that finds no room (`_pending`) is sent as soon as others have ended, in their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Deque, List, Optional, Sequence

from ._channel import Channel, Generation, Operation, Request, SessionState
from .client import AsyncClient, AsyncSession, AsyncStream, Labels
from .errors import Error, InvalidRequest, WrongThread
from .types import Chunk, Limits, Message, Options, Prompt, Result, limits_of, params

if TYPE_CHECKING:
    from typing_extensions import Unpack

_BATCH = 256  # events taken before the loop gets its turn


class Pump:
    """Moves events from the channel to the requests, for one event loop."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._loop = asyncio.get_running_loop()
        self._pending: Deque[Request] = deque()
        self._error: Optional[Error] = None
        self._fd = channel.lib.llm_fd(channel.handle)
        if self._fd < 0:
            raise channel.failure(self._fd)
        self._loop.add_reader(self._fd, self._run)
        self._run()

    def check(self) -> None:
        self.channel.check()
        if asyncio.get_running_loop() is not self._loop:
            raise WrongThread("an asynchronous client belongs to the event loop that connected it")

    def submit(self, request: Request) -> None:
        self.check()
        if self._error:
            raise self._error
        if self._pending or not self.channel.submit(request):
            self._pending.append(request)
            self._loop.call_soon(self._run)

    def drop(self, request: Request) -> None:
        if request in self._pending and self.channel.mine():
            self._pending.remove(request)
            request.ended = True
        self.channel.drop(request)

    async def wait(self, request: Request) -> None:
        """Until something happens to the request. Of two who wait one is told to go."""
        if request.wake:
            raise InvalidRequest("another task waits for this stream already")
        self.check()
        news = self._loop.create_future()

        def wake() -> None:
            if not news.done():
                news.set_result(None)

        request.wake = wake
        try:
            await news
        finally:
            request.wake = None

    async def run(self, request: Request) -> None:
        """Submits and waits for its end."""
        self.submit(request)
        try:
            while not request.ended:
                await self.wait(request)
        except asyncio.CancelledError:
            self.drop(request)
            raise
        if request.error:
            raise request.error

    def _run(self) -> None:
        if not self.channel.handle:
            return
        for _ in range(_BATCH):
            rc = self.channel.poll()
            if rc < 0:
                return self._end(self.channel.failure(rc))
            if rc == 0:
                self._send_pending()
                if not self.channel.lib.llm_arm(self.channel.handle):
                    return None
        self._loop.call_soon(self._run)

    def _send_pending(self) -> None:
        while self._pending:
            request = self._pending[0]
            try:
                if not request.dropped and not self.channel.submit(request):
                    return
            except Error as error:
                self._fail(request, error)
            self._pending.popleft()

    @staticmethod
    def _fail(request: Request, error: Error) -> None:
        request.fail(error)
        if request.wake:
            request.wake()

    def _end(self, error: Error) -> None:
        self._error = error
        self._loop.remove_reader(self._fd)
        self._fail_pending(error)

    def _fail_pending(self, error: Error) -> None:
        while self._pending:
            self._fail(self._pending.popleft(), error)

    def close(self) -> None:
        if self.channel.handle:
            self.check()
            self._loop.remove_reader(self._fd)
            self._fail_pending(Error("the client was closed"))
            self.channel.close()


class LlmdAsyncStream(AsyncStream):
    def __init__(self, pump: Pump, generation: Generation) -> None:
        self._pump, self._generation = pump, generation
        self._closed = False
        pump.submit(generation)

    async def __anext__(self) -> Chunk:
        g = self._generation
        while not g.queue:
            if g.error or g.ended or self._closed:
                return self._finish()
            try:
                await self._pump.wait(g)
            except asyncio.CancelledError:
                self._cancel()
                raise
        return g.queue.popleft()

    def _finish(self) -> Chunk:
        error, self._generation.error = self._generation.error, None
        self._closed = True
        self._pump.drop(self._generation)
        if error:
            raise error
        raise StopAsyncIteration

    def _cancel(self) -> None:
        self._closed = True
        self._generation.queue.clear()
        self._pump.drop(self._generation)

    async def aclose(self) -> None:
        self._cancel()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self._pump.drop(self._generation)

    @property
    def result(self) -> Result:
        if not self._closed and not self._generation.ended:
            raise InvalidRequest("the stream has not ended: read it, or close it")
        return self._generation.result()


class LlmdAsyncSession(AsyncSession):
    def __init__(self, pump: Pump, state: SessionState) -> None:
        self._pump, self._state = pump, state

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def length(self) -> int:
        return self._state.length

    async def _do(self, operation: Operation) -> int:
        await self._pump.run(operation)
        self._state.length = operation.position
        return operation.position

    async def aappend(self, prompt: Prompt) -> int:
        return await self._do(self._state.append(prompt))

    async def areplace(self, keep: int, prompt: Prompt) -> int:
        return await self._do(self._state.replace(keep, prompt))

    async def arewind(self, keep: int) -> int:
        return await self._do(self._state.rewind(keep))

    async def ainterrupt(self, keep: int) -> int:
        return await self._do(self._state.interrupt(keep))

    def agenerate(self, prompt: Prompt = (), **options: Unpack[Options]) -> AsyncStream:
        return LlmdAsyncStream(self._pump, self._state.generation(prompt, params(options)))

    async def afork(self, name: str) -> AsyncSession:
        other = SessionState(self._state.channel, name)
        operation = self._state.fork(other)
        await self._pump.run(operation)
        other.length = operation.position
        return LlmdAsyncSession(self._pump, other)

    async def aclose(self) -> None:
        if self._state.closed or not self._state.channel.handle:
            return
        self._state.closed = True
        await self._pump.run(self._state.end())


class LlmdAsyncClient(AsyncClient):
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pump = Pump(channel)
        self.model = channel.limits.model.decode("utf-8", "replace")
        self.max_model_len = channel.limits.max_model_len

    def agenerate(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream:
        self._pump.check()
        return LlmdAsyncStream(self._pump, self._channel.generation(prompt, params(options)))

    def achat(self, messages: Sequence[Message], **options: Unpack[Options]) -> AsyncStream:
        self._pump.check()
        return LlmdAsyncStream(self._pump, self._channel.answer(messages, params(options)))

    async def achoose(
        self, prompt: Prompt, labels: Sequence[str], **limits: Unpack[Limits]
    ) -> Labels:
        self._pump.check()
        request = self._channel.choosing(prompt, labels, limits_of(limits))
        await self._pump.run(request)
        return sorted(zip(labels, request.sums), key=lambda pair: -pair[1])

    async def asession(self, name: str, prompt: Prompt = (), *, pin: bool = False) -> AsyncSession:
        self._pump.check()
        session = LlmdAsyncSession(self._pump, SessionState(self._channel, name))
        await session._do(session._state.open(prompt, pin))
        return session

    def tokenize(self, text: str, *, add_special: bool = False, special: bool = True) -> List[int]:
        return self._channel.tokenize(text, add_special, special)

    def detokenize(self, tokens: Sequence[int], *, show_special: bool = False) -> str:
        return self._channel.detokenize(tokens, show_special)

    async def aclose(self) -> None:
        self._pump.close()
