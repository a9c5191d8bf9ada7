"""The synchronous client of an OpenAI-compatible server: a socket for each open stream, kept for
the next one where the server allows it."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, List, NoReturn, Optional, Sequence, Tuple

from ._http1 import Response
from ._openai import BODY_MAX, Exchange, Target, completion, conversation, message, only_model
from .client import Client, Labels, Session, Stream
from .errors import AuthError, ConnectError, EngineDied, Error, InvalidRequest, NotSupported
from .errors import Timeout, WrongThread
from .types import Chunk, Limits, Message, Options, Prompt, Result, params

if TYPE_CHECKING:
    from typing_extensions import Unpack

READ = 65536
NO_TOKENIZER = "the vocabulary is on the server's side: HTTP has no tokenize and no detokenize"
NO_SESSION = "sessions over HTTP: the API has none; send the whole conversation each time"
NO_CHOOSE = "choosing among labels over HTTP: the API gives no log-probabilities of given texts"


def connect_error(where: Target, error: Exception) -> Error:
    if isinstance(error, (socket.timeout, TimeoutError)):
        return Timeout(f"{where.name} did not answer within {where.connect_timeout_s:g} s")
    if isinstance(error, PermissionError):
        return AuthError(f"{where.name}: {error}")
    return ConnectError(f"{where.name} cannot be reached: {error}")


class Pool:
    """Connections that wait for the next request."""

    def __init__(self, where: Target, context: Optional[ssl.SSLContext]) -> None:
        self.where = where
        self._context = context or (ssl.create_default_context() if where.tls else None)
        self._idle: List[socket.socket] = []

    def open(self) -> socket.socket:
        where, s = self.where, None
        try:
            if where.socket_path:
                s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                s.settimeout(where.connect_timeout_s)
                s.connect(where.socket_path)
                return s
            s = socket.create_connection((where.host, where.port), where.connect_timeout_s)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context:
                return self._context.wrap_socket(s, server_hostname=where.host)
            return s
        except (OSError, UnicodeError) as error:  # a host that can be no name
            if s:
                s.close()
            raise connect_error(where, error) from None

    def send(self, data: bytes) -> socket.socket:
        """Over an idle connection, or a new one where the server has closed that meanwhile."""
        while self._idle:
            s = self._idle.pop()
            if not _closed(s):
                try:
                    s.settimeout(self.where.read_timeout_s)
                    s.sendall(data)
                    return s
                except OSError:
                    pass
            s.close()
        s = self.open()
        try:
            s.settimeout(self.where.read_timeout_s)
            s.sendall(data)
        except OSError as error:
            s.close()
            raise EngineDied(f"{self.where.name} broke the connection: {error}") from None
        return s

    def keep(self, s: socket.socket) -> None:
        self._idle.append(s)

    def close(self) -> None:
        for s in self._idle:
            s.close()
        self._idle.clear()


def _closed(s: socket.socket) -> bool:
    """Whether an idle connection has ended, or has something to say that nobody asked for."""
    s.settimeout(0)
    try:
        s.recv(1)
        return True
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True


def _here() -> Tuple[int, int]:
    """After a fork two processes would read the answers of one connection."""
    return os.getpid(), threading.get_ident()


class HttpStream(Stream):
    def __init__(self, client: HttpClient, exchange: Exchange) -> None:
        self._client, self._exchange = client, exchange
        exchange.sent()
        self._socket: Optional[socket.socket] = client.pool.send(exchange.request)

    def __next__(self) -> Chunk:
        self._client.check()
        x = self._exchange
        while not x.queue and not x.ended:
            self._read()
        if x.queue:
            return x.queue.popleft()
        self._leave()
        error, x.error = x.error, None
        if error:
            raise error
        raise StopIteration

    def _read(self) -> None:
        x = self._exchange
        assert self._socket
        try:
            patience = x.patience()
            if not patience:
                x.expired()
                return
            self._socket.settimeout(patience)
            x.feed(self._socket.recv(READ))
        except (socket.timeout, TimeoutError):
            x.expired()
        except OSError as error:
            x.fail(EngineDied(f"{self._client.pool.where.name} broke the connection: {error}"))

    def _leave(self) -> None:
        """A connection whose answer was read to its end may serve the next request."""
        s, self._socket = self._socket, None
        if not s:
            return
        response = self._exchange.response
        if response.complete and response.reusable:
            self._client.pool.keep(s)
        else:
            s.close()

    def close(self) -> None:
        self._exchange.queue.clear()
        self._exchange.ended = True
        self._leave()

    def __del__(self) -> None:
        s = getattr(self, "_socket", None)
        if s:
            s.close()

    @property
    def result(self) -> Result:
        if not self._exchange.ended:
            raise InvalidRequest("the stream has not ended: read it, or close it")
        return self._exchange.result()


class HttpClient(Client):
    def __init__(self, where: Target, context: Optional[ssl.SSLContext] = None) -> None:
        self._owner = _here()
        self.pool = Pool(where, context)
        self.max_model_len = None
        if where.model is None:
            where.model = self._ask_model()
        self.model = where.model

    def _ask_model(self) -> str:
        where, response, body = self.pool.where, Response(), bytearray()
        until = time.monotonic() + where.connect_timeout_s
        s = self.pool.send(message(where, "GET", "/models", None))
        try:
            while not response.complete and len(body) < BODY_MAX:
                s.settimeout(max(until - time.monotonic(), 0.001))
                data = s.recv(READ)
                body += response.feed(data)
                if not data:
                    response.eof()
                    if not response.complete:
                        raise ConnectError(f"{where.name} closed the connection without an answer")
        except OSError as error:
            raise connect_error(where, error) from None
        finally:
            s.close()
        return only_model(where, response, bytes(body))

    def check(self) -> None:
        if self._owner != _here():
            raise WrongThread(
                "a client belongs to the thread (and process) that connected it: "
                "connect once more in this one"
            )

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        self.check()
        return HttpStream(self, completion(self.pool.where, prompt, params(options)))

    def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Stream:
        self.check()
        return HttpStream(self, conversation(self.pool.where, messages, params(options)))

    def choose(
        self, prompt: Prompt, labels: Sequence[str], **limits: Unpack[Limits]
    ) -> Labels:
        raise NotSupported(NO_CHOOSE)

    def session(self, name: str, prompt: Prompt = (), *, pin: bool = False) -> Session:
        raise NotSupported(NO_SESSION)

    def tokenize(self, text: str, *, add_special: bool = False, special: bool = True) -> NoReturn:
        raise NotSupported(NO_TOKENIZER)

    def detokenize(self, tokens: Sequence[int], *, show_special: bool = False) -> NoReturn:
        raise NotSupported(NO_TOKENIZER)

    def close(self) -> None:
        self.pool.close()
