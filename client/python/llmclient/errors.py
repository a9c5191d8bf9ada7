"""What can go wrong, in the same classes for an engine on this machine and for an HTTP server.

    Error
      ConnectError      nobody answers there
      AuthError         not allowed: permissions of the socket, or the API key
      EngineDied        the engine or the connection ended under a request
      Evicted           the engine has closed this client; the sentence says why
      ProtocolError     the other side does not speak what it should
      EngineError       the model's computation failed; the request may be sent again
      Timeout           no answer in time (also a TimeoutError)
      Refused           not now, or not so: `fits` is the number that would have fitted
        RateLimited     too many at once, or a quota is used up: `retry_after_s`
        DeadlineMissed  the first token cannot come, or did not come, in time
        Unavailable     it is stopping or starting
        TooLong         prompt and max_tokens exceed the model's length
        SessionError    no session of that name, or it is in use
      InvalidRequest    a parameter out of its range (also a ValueError)
      NotSupported      this side cannot do that at all
      WrongThread       a client belongs to the thread that connected it

Every error has `code` (a negative code of llm_abi.h or of errno, or None) and `status` (the HTTP
status, or None).
"""

from __future__ import annotations

import errno
from typing import Dict, Optional, Type

# enum llm_error of llm_abi.h
EOWNERDEAD = -1001
EPROTO = -1002
EEVICTED = -1003
ETOOLONG = -1004
ETOKEN = -1005
EBUSY = -1006
EENGINE = -1007
ENOENGINE = -1008
EPARAM = -1009
ESHUTDOWN = -1010
ENOTEXT = -1011
EDEADLINE = -1012
EQUEUETIME = -1013
EQUOTA = -1014
ENOSESSION = -1015
ESESSION = -1016
EUNREAD = -1017
ENUMERICS = -1018


class Error(Exception):
    """The base of all errors of this package."""

    def __init__(
        self,
        message: str,
        *,
        code: Optional[int] = None,
        status: Optional[int] = None,
        fits: Optional[int] = None,
        retry_after_s: Optional[float] = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.fits = fits
        self.retry_after_s = retry_after_s


class ConnectError(Error):
    pass


class AuthError(Error):
    pass


class EngineDied(Error):
    pass


class Evicted(Error):
    pass


class ProtocolError(Error):
    pass


class EngineError(Error):
    pass


class Timeout(Error, TimeoutError):
    pass


class Refused(Error):
    pass


class RateLimited(Refused):
    pass


class DeadlineMissed(Refused):
    """`fits`: the engine's estimate of the time to the first token in microseconds, if it made one."""


class Unavailable(Refused):
    pass


class TooLong(Refused):
    pass


class SessionError(Refused):
    pass


class InvalidRequest(Error, ValueError):
    pass


class NotSupported(Error):
    pass


class WrongThread(Error, RuntimeError):
    pass


_BY_CODE: Dict[int, Type[Error]] = {
    EOWNERDEAD: EngineDied,
    EPROTO: ProtocolError,
    EEVICTED: Evicted,
    ETOOLONG: TooLong,
    ETOKEN: InvalidRequest,
    EBUSY: RateLimited,
    EENGINE: EngineError,
    ENOENGINE: ConnectError,
    EPARAM: InvalidRequest,
    ESHUTDOWN: Unavailable,
    ENOTEXT: NotSupported,
    EDEADLINE: DeadlineMissed,
    EQUEUETIME: DeadlineMissed,
    EQUOTA: RateLimited,
    ENOSESSION: SessionError,
    ESESSION: SessionError,
    EUNREAD: Evicted,
    ENUMERICS: EngineDied,
    -errno.EACCES: AuthError,
    -errno.EPERM: AuthError,
    -errno.ETIMEDOUT: Timeout,
    -errno.EINVAL: InvalidRequest,
    -errno.E2BIG: TooLong,
    -errno.EAGAIN: RateLimited,
}

_BY_STATUS: Dict[int, Type[Error]] = {
    401: AuthError,
    403: AuthError,
    408: Timeout,
    429: RateLimited,
    503: Unavailable,
    504: Timeout,
    529: Unavailable,
}


def from_code(code: int, message: str, fits: Optional[int] = None) -> Error:
    """The error for a code of the library."""
    return _BY_CODE.get(code, Error)(message, code=code, fits=fits or None)


def from_status(
    status: int, message: str, reason: str = "", retry_after_s: Optional[float] = None
) -> Error:
    """The error for an HTTP status; `reason` is the `code` of an OpenAI error object."""
    kind = _BY_STATUS.get(status)
    if reason == "context_length_exceeded" or status == 413:
        kind = TooLong
    elif kind is None:
        kind = EngineError if status >= 500 else InvalidRequest if status >= 400 else ProtocolError
    return kind(f"HTTP {status}: {message}", status=status, retry_after_s=retry_after_s)
