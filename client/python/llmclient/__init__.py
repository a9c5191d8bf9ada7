"""Tokens from a language model: an engine on this machine, or a server that speaks OpenAI's API.

    import llmclient

    with llmclient.connect("llmd:default") as client:
        for chunk in client.generate("The capital of France is", max_tokens=16):
            print(chunk.text, end="", flush=True)

`connect` and `aconnect` (for asyncio) take "llmd:NAME", "http://host:port/v1", "https://...", or
"unix:/path/of/socket", and return the same interface: see llmclient.client. What one side cannot
do raises NotSupported. Errors: see llmclient.errors.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Mapping, Optional

from .client import AsyncClient, AsyncSession, AsyncStream, Client, Session, Stream
from .errors import (
    AuthError,
    ConnectError,
    DeadlineMissed,
    EngineDied,
    EngineError,
    Error,
    Evicted,
    InvalidRequest,
    NotSupported,
    ProtocolError,
    RateLimited,
    Refused,
    SessionError,
    Timeout,
    TooLong,
    Unavailable,
    WrongThread,
)
from .types import Choice, Chunk, Limits, Options, Result, Timing, Usage

if TYPE_CHECKING:
    from ._channel import Channel
    from ._openai import Target

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncSession",
    "AsyncStream",
    "AuthError",
    "Choice",
    "Chunk",
    "Client",
    "ConnectError",
    "DeadlineMissed",
    "EngineDied",
    "EngineError",
    "Error",
    "Evicted",
    "InvalidRequest",
    "Limits",
    "NotSupported",
    "Options",
    "ProtocolError",
    "RateLimited",
    "Refused",
    "Result",
    "Session",
    "SessionError",
    "Stream",
    "Timeout",
    "Timing",
    "TooLong",
    "Unavailable",
    "Usage",
    "WrongThread",
    "aconnect",
    "connect",
]

_KINDS = 'give "llmd:NAME", "http://host:port/v1", "https://host/v1" or "unix:/path/of/socket"'


def _to_engine(
    target: str,
    name: Optional[str],
    max_inflight: int,
    arena_bytes: int,
    spin_us: int,
    connect_timeout_ms: int,
    resume_ms: int,
) -> Channel:
    import ctypes

    from ._channel import Channel
    from ._library import Options as Wanted

    numbers = {
        "max_inflight": max_inflight,
        "arena_bytes": arena_bytes,
        "spin_us": spin_us,
        "connect_timeout_ms": connect_timeout_ms,
        "resume_ms": resume_ms,
    }
    for what, number in numbers.items():
        if not isinstance(number, int) or not 0 <= number < 2**32:
            raise InvalidRequest(f"{what} is {number!r}, not a whole number from 0 to 2**32 - 1")
    if "\0" in target:
        raise InvalidRequest(f"{target!r} is no name of an engine")  # C would see half of it
    wanted = Wanted(
        size=ctypes.sizeof(Wanted),
        max_inflight=max_inflight,
        arena_bytes=arena_bytes,
        spin_us=spin_us,
        name=name.encode() if name else None,
        connect_timeout_ms=connect_timeout_ms,
    )
    return Channel(target[len("llmd:") :] or "default", wanted, resume_ms)


def _to_server(
    target: str,
    api_key: Optional[str],
    model: Optional[str],
    headers: Optional[Mapping[str, str]],
    connect_timeout_ms: int,
    read_timeout_ms: int,
) -> Target:
    from . import _openai

    if not target.startswith(("http://", "https://", "unix:")):
        raise InvalidRequest(f"{target!r}: {_KINDS}")
    where = _openai.target(target, api_key, model, headers)
    where.connect_timeout_s = (connect_timeout_ms or 5000) / 1000
    where.read_timeout_s = read_timeout_ms / 1000
    return where


def connect(
    target: str,
    *,
    name: Optional[str] = None,
    max_inflight: int = 0,
    arena_bytes: int = 0,
    spin_us: int = 0,
    resume_ms: int = 0,
    api_key: Optional[str] = None,
    model: Optional[str] = None,
    headers: Optional[Mapping[str, str]] = None,
    ssl_context: Optional[ssl.SSLContext] = None,
    connect_timeout_ms: int = 5000,
    read_timeout_ms: int = 600_000,
) -> Client:
    """A client for this thread.

    Of an engine on this machine ("llmd:NAME"): `name` (who this is, for the operator),
    `max_inflight`, `arena_bytes` (0: the engine's), `spin_us` (how long a wait spins before it
    sleeps), `resume_ms` (not 0: after the engine's death streams go on if it is back within so
    long). Of a server: `api_key`, `model` (left out: the only one that it has), `headers`,
    `ssl_context`, `read_timeout_ms` (the longest silence within an answer). What concerns the other
    side is passed over, so that a target may come from a configuration."""
    if target.startswith("llmd:"):
        from ._llmd import LlmdClient

        return LlmdClient(
            _to_engine(
                target, name, max_inflight, arena_bytes, spin_us, connect_timeout_ms, resume_ms
            )
        )
    from ._http import HttpClient

    where = _to_server(target, api_key, model, headers, connect_timeout_ms, read_timeout_ms)
    return HttpClient(where, ssl_context)


async def aconnect(
    target: str,
    *,
    name: Optional[str] = None,
    max_inflight: int = 0,
    arena_bytes: int = 0,
    spin_us: int = 0,
    resume_ms: int = 0,
    api_key: Optional[str] = None,
    model: Optional[str] = None,
    headers: Optional[Mapping[str, str]] = None,
    ssl_context: Optional[ssl.SSLContext] = None,
    connect_timeout_ms: int = 5000,
    read_timeout_ms: int = 600_000,
) -> AsyncClient:
    """A client for the running event loop; the arguments are those of connect. The connecting alone
    is done in a thread, as it may take a while; streams need none."""
    if target.startswith("llmd:"):
        from ._llmd_async import LlmdAsyncClient

        channel = await asyncio.to_thread(
            _to_engine,
            target,
            name,
            max_inflight,
            arena_bytes,
            spin_us,
            connect_timeout_ms,
            resume_ms,
        )
        channel.adopt()
        return LlmdAsyncClient(channel)
    from ._http_async import HttpAsyncClient

    where = _to_server(target, api_key, model, headers, connect_timeout_ms, read_timeout_ms)
    client = HttpAsyncClient(where, ssl_context)
    await client.prepare()
    return client
