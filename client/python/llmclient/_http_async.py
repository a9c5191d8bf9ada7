"""The asynchronous client of an OpenAI-compatible server, over asyncio's own streams."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, List, NoReturn, Optional, Sequence, Tuple

from ._http import NO_CHOOSE, NO_SESSION, NO_TOKENIZER, READ, connect_error
from ._http1 import Response
from ._openai import BODY_MAX, Exchange, Target, completion, conversation, message, only_model
from .client import AsyncClient, AsyncSession, AsyncStream, Labels
from .errors import ConnectError, EngineDied, InvalidRequest, NotSupported, WrongThread
from .types import Chunk, Limits, Message, Options, Prompt, Result, params

if TYPE_CHECKING:
    from typing_extensions import Unpack

Connection = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncPool:
    """Connections that wait for the next request."""

    def __init__(self, where: Target, context: Optional[ssl.SSLContext]) -> None:
        self.where = where
        self._context = context or (ssl.create_default_context() if where.tls else None)
        self._idle: List[Connection] = []

    async def _open(self) -> Connection:
        where = self.where
        opening = (
            asyncio.open_unix_connection(where.socket_path)
            if where.socket_path
            else asyncio.open_connection(where.host, where.port, ssl=self._context)
        )
        try:
            return await asyncio.wait_for(opening, where.connect_timeout_s)
        except asyncio.TimeoutError:
            raise connect_error(where, TimeoutError()) from None
        except (OSError, UnicodeError) as error:
            raise connect_error(where, error) from None

    async def send(self, data: bytes) -> Connection:
        """Over an idle connection, or a new one where the server has closed that meanwhile."""
        connection = None
        while self._idle and not connection:
            connection = self._idle.pop()
            if connection[0].at_eof() or connection[1].is_closing():
                connection[1].close()
                connection = None
        connection = connection or await self._open()
        try:
            connection[1].write(data)
            await connection[1].drain()
        except OSError as error:
            connection[1].close()
            raise EngineDied(f"{self.where.name} broke the connection: {error}") from None
        return connection

    def keep(self, connection: Connection) -> None:
        self._idle.append(connection)

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


class _Fetch:
    """Brings an exchange's bytes, as a task of its own: it ends with the exchange."""

    def __init__(self, pool: AsyncPool, exchange: Exchange) -> None:
        self._pool, self._exchange = pool, exchange
        self.news: Optional[asyncio.Future[None]] = None

    async def run(self) -> None:
        x, connection = self._exchange, None
        x.sent()
        try:
            connection = await self._pool.send(x.request)
            while not x.ended:
                await self._read(connection[0])
                self._tell()
        except Exception as error:  # whoever waits for the stream is told, whatever it is
            x.fail(error)
        finally:
            x.ended = True
            self._leave(connection)
            self._tell()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        x = self._exchange
        try:
            x.feed(await asyncio.wait_for(reader.read(READ), x.patience()))
        except asyncio.TimeoutError:
            x.expired()
        except OSError as error:
            x.fail(EngineDied(f"{self._pool.where.name} broke the connection: {error}"))

    def _leave(self, connection: Optional[Connection]) -> None:
        """A connection whose answer was read to its end may serve the next request."""
        response = self._exchange.response
        if not connection:
            return
        if response.complete and response.reusable:
            self._pool.keep(connection)
        else:
            connection[1].close()

    def _tell(self) -> None:
        if self.news and not self.news.done():
            self.news.set_result(None)

    async def wait(self) -> None:
        """Until something has come."""
        if self.news:
            raise InvalidRequest("another task waits for this stream already")
        self.news = asyncio.get_running_loop().create_future()
        try:
            await self.news
        finally:
            self.news = None


class HttpAsyncStream(AsyncStream):
    def __init__(self, pool: AsyncPool, exchange: Exchange) -> None:
        self._exchange = exchange
        self._fetch = _Fetch(pool, exchange)
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._fetch.run())

    async def __anext__(self) -> Chunk:
        x = self._exchange
        while not x.queue:
            if x.ended:
                return self._finish()
            try:
                await self._fetch.wait()
            except asyncio.CancelledError:
                self._cancel()
                raise
        return x.queue.popleft()

    def _finish(self) -> Chunk:
        error, self._exchange.error = self._exchange.error, None
        if error:
            raise error
        raise StopAsyncIteration

    def _cancel(self) -> None:
        self._exchange.queue.clear()
        self._exchange.ended = True
        self._task.cancel()

    async def aclose(self) -> None:
        self._cancel()
        await asyncio.wait([self._task])

    def __del__(self) -> None:
        if hasattr(self, "_task") and not self._loop.is_closed():
            self._exchange.ended = True  # before Python 3.12 wait_for may swallow a cancel
            self._loop.call_soon_threadsafe(self._task.cancel)

    @property
    def result(self) -> Result:
        if not self._exchange.ended:
            raise InvalidRequest("the stream has not ended: read it, or close it")
        return self._exchange.result()


class HttpAsyncClient(AsyncClient):
    def __init__(self, where: Target, context: Optional[ssl.SSLContext] = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = AsyncPool(where, context)
        self.max_model_len = None
        self.model = where.model or ""

    async def prepare(self) -> None:
        """Asks for the model's name where the user gave none."""
        if self._pool.where.model is None:
            self.model = self._pool.where.model = await self._ask_model()

    async def _ask_model(self) -> str:
        where = self._pool.where
        try:
            response, body = await asyncio.wait_for(self._get_models(), where.connect_timeout_s)
        except asyncio.TimeoutError:
            raise connect_error(where, TimeoutError()) from None
        except OSError as error:
            raise connect_error(where, error) from None
        return only_model(where, response, body)

    async def _get_models(self) -> Tuple[Response, bytes]:
        where, response, body = self._pool.where, Response(), bytearray()
        reader, writer = await self._pool.send(message(where, "GET", "/models", None))
        try:
            while not response.complete and len(body) < BODY_MAX:
                data = await reader.read(READ)
                body += response.feed(data)
                if not data:
                    response.eof()
                    if not response.complete:
                        raise ConnectError(f"{where.name} closed the connection without an answer")
        finally:
            writer.close()
        return response, bytes(body)

    def _check(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise WrongThread("an asynchronous client belongs to the event loop that connected it")

    def agenerate(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream:
        self._check()
        return HttpAsyncStream(self._pool, completion(self._pool.where, prompt, params(options)))

    def achat(self, messages: Sequence[Message], **options: Unpack[Options]) -> AsyncStream:
        self._check()
        return HttpAsyncStream(
            self._pool, conversation(self._pool.where, messages, params(options))
        )

    async def achoose(
        self, prompt: Prompt, labels: Sequence[str], **limits: Unpack[Limits]
    ) -> Labels:
        raise NotSupported(NO_CHOOSE)

    async def asession(self, name: str, prompt: Prompt = (), *, pin: bool = False) -> AsyncSession:
        raise NotSupported(NO_SESSION)

    def tokenize(self, text: str, *, add_special: bool = False, special: bool = True) -> NoReturn:
        raise NotSupported(NO_TOKENIZER)

    def detokenize(self, tokens: Sequence[int], *, show_special: bool = False) -> NoReturn:
        raise NotSupported(NO_TOKENIZER)

    async def aclose(self) -> None:
        self._pool.close()
