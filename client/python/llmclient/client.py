"""The one interface: what `connect` and `aconnect` return, whoever computes the tokens.

The asynchronous classes have the same names with an "a" in front of every call that waits.

Threads: a client, its streams and sessions belong to the thread that connected it, the asynchronous
ones to their event loop. Another thread connects for itself; WrongThread is raised otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    AsyncIterator,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
    Type,
)

from .types import Chunk, Limits, Message, Options, Prompt, Result

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

Labels = List[Tuple[str, float]]


class _Closing(ABC):
    """Leaves at the end of a `with`."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()


class _AsyncClosing(ABC):
    """Leaves at the end of an `async with`."""

    @abstractmethod
    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.aclose()


class Stream(_Closing, Iterator[Chunk]):
    """The chunks of a request as they come. Closing it early, or dropping it, cancels the request.
    Many may be open at once; while one is waited for, the others' chunks are kept for them."""

    @property
    @abstractmethod
    def result(self) -> Result:
        """What it was: after the last chunk or after close(). Raises InvalidRequest before."""

    def read(self) -> Result:
        """Everything at once."""
        for _ in self:
            pass
        return self.result


class AsyncStream(_AsyncClosing, AsyncIterator[Chunk]):
    """As Stream. A task that is cancelled while it waits for a chunk cancels the request."""

    @property
    @abstractmethod
    def result(self) -> Result: ...

    async def aread(self) -> Result:
        async for _ in self:
            pass
        return self.result


class Session(_Closing):
    """A history that the engine keeps ready: text appended to it is computed while the program goes
    on, so that only one step stands before the first token of an answer. Left with `with` it is closed; an error
    leaves it as it was before that call.

    `length` is how many tokens the history has, as far as this program knows; generated tokens
    belong to it."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def length(self) -> int: ...

    @abstractmethod
    def append(self, prompt: Prompt) -> int:
        """Adds text or tokens. All calls return the new length."""

    @abstractmethod
    def replace(self, keep: int, prompt: Prompt) -> int:
        """Keeps the first `keep` tokens and puts these behind: the recognizer revised its tail."""

    @abstractmethod
    def rewind(self, keep: int) -> int:
        """Keeps the first `keep` tokens."""

    @abstractmethod
    def interrupt(self, keep: int) -> int:
        """Barge-in: cancels what is generated on it and keeps the first `keep` tokens."""

    @abstractmethod
    def generate(self, prompt: Prompt = (), **options: Unpack[Options]) -> Stream:
        """Continues the history, with `prompt` behind it."""

    @abstractmethod
    def fork(self, name: str) -> Session:
        """A second session with the same history; they share memory until they differ."""


class AsyncSession(_AsyncClosing):
    """As Session."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def length(self) -> int: ...

    @abstractmethod
    async def aappend(self, prompt: Prompt) -> int: ...

    @abstractmethod
    async def areplace(self, keep: int, prompt: Prompt) -> int: ...

    @abstractmethod
    async def arewind(self, keep: int) -> int: ...

    @abstractmethod
    async def ainterrupt(self, keep: int) -> int: ...

    @abstractmethod
    def agenerate(self, prompt: Prompt = (), **options: Unpack[Options]) -> AsyncStream: ...

    @abstractmethod
    async def afork(self, name: str) -> AsyncSession: ...


class _Model(ABC):
    """What both kinds of client tell of the model."""

    model: str
    max_model_len: Optional[int]  # prompt + generated tokens; None: unknown

    @abstractmethod
    def tokenize(self, text: str, *, add_special: bool = False, special: bool = True) -> List[int]:
        """Token ids of a text. `special`: spellings of special tokens become those tokens.
        `add_special`: adds what the model puts around a text, as generate does."""

    @abstractmethod
    def detokenize(self, tokens: Sequence[int], *, show_special: bool = False) -> str:
        """The text of token ids."""


class Client(_Model, _Closing):
    """A connection, synchronous."""

    @abstractmethod
    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Continues a text, or token ids. See Options for the keyword arguments."""

    @abstractmethod
    def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Stream:
        """Answers a conversation: messages with "role" and "content"."""

    @abstractmethod
    def choose(
        self, prompt: Prompt, labels: Sequence[str], **limits: Unpack[Limits]
    ) -> Labels:
        """How likely each label is as the continuation, in one pass over the prompt: the sums of
        their tokens' log-probabilities, best first. `priority`, `timeout_ms` (or Timeout) and
        `queue_timeout_ms` (or DeadlineMissed) are as for generate."""

    @abstractmethod
    def session(self, name: str, prompt: Prompt = (), *, pin: bool = False) -> Session:
        """Opens a session, with its first text or tokens. `pin`: its blocks stay resident, within
        the engine's quota; requests without a session that begin alike are served from them.
        Nothing is generated on a pinned session itself: fork it."""


class AsyncClient(_Model, _AsyncClosing):
    """A connection for one asyncio event loop."""

    @abstractmethod
    def agenerate(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream: ...

    @abstractmethod
    def achat(self, messages: Sequence[Message], **options: Unpack[Options]) -> AsyncStream: ...

    @abstractmethod
    async def achoose(
        self, prompt: Prompt, labels: Sequence[str], **limits: Unpack[Limits]
    ) -> Labels: ...

    @abstractmethod
    async def asession(
        self, name: str, prompt: Prompt = (), *, pin: bool = False
    ) -> AsyncSession: ...
