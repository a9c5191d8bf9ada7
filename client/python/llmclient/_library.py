"""libllmclient through ctypes: where it is found, its structs and its calls.

The structs follow client/llmclient.h and shm/llm_abi.h; tests/test_layout.py compares every size
and offset with what the C compiler says. Structs that begin with their size are passed with the
size of ABI 1.0 where a request needs no more: so an older library takes them too.

Where it is looked for, in this order:
  1. LLMCLIENT_LIBRARY, a path: that one or none
  2. build/ of the source tree that this file lies in, if it lies in one
  3. where the dynamic linker looks, then /usr/local/lib, ~/.local/lib
"""

from __future__ import annotations

import ctypes as c
import os
from pathlib import Path
from typing import Any, Iterator, List, Optional

from .errors import ConnectError

SONAME = "libllmclient.so.1"

SEED_RANDOM = 2**64 - 1
SESSION_ALL = 2**64 - 1

OP_GENERATE, OP_CHOOSE = 1, 8
IGNORE_EOS, LOGPROBS, PIN = 1, 2, 16
SPECULATION = {None: 0, "ngram": 32, "off": 64}
PRIORITY = {"normal": 0, "high": 1, "low": 2}

EVENT_TOKENS, EVENT_DONE, EVENT_ERROR = 1, 2, 3
FINISH_TIMEOUT = 4
FINISH = {
    1: "stop",
    2: "length",
    3: "cancelled",
    FINISH_TIMEOUT: "timeout",
    5: "deadline",
    6: "refused",
    7: "error",
}

TOKENIZE_SPECIAL, TOKENIZE_ADD_SPECIAL = 1, 2
DETOK_UTF8, DETOK_SHOW_SPECIAL, DETOK_WORDS, DETOK_SENTENCES, DETOK_CONTINUE = 1, 2, 4, 8, 16
SPECIAL = {"bos_token": 0, "eos_token": 1, "unk_token": 3, "pad_token": 4}

TOKENS_MAX = 4


class Options(c.Structure):
    """struct llm_options"""

    _fields_ = [
        ("size", c.c_uint32),
        ("max_inflight", c.c_uint32),
        ("arena_bytes", c.c_uint32),
        ("sq_entries", c.c_uint32),
        ("cq_entries", c.c_uint32),
        ("spin_us", c.c_uint32),
        ("name", c.c_char_p),
        ("connect_timeout_ms", c.c_uint32),
        ("reserved", c.c_uint32),
        ("max_top_logprobs", c.c_uint32),
    ]


class Limits(c.Structure):
    """struct llm_limits"""

    _fields_ = [
        ("vocab", c.c_uint32),
        ("max_model_len", c.c_uint32),
        ("max_inflight", c.c_uint32),
        ("arena_bytes", c.c_uint32),
        ("sq_entries", c.c_uint32),
        ("cq_entries", c.c_uint32),
        ("numerics_id", c.c_uint64),
        ("model", c.c_char * 128),
        ("engine_pid", c.c_uint32),
        ("abi_minor", c.c_uint32),
    ]


class Label(c.Structure):
    """struct llm_label"""

    _fields_ = [("tokens", c.POINTER(c.c_int32)), ("n_tokens", c.c_uint32)]


class Stop(c.Structure):
    """struct llm_stop"""

    _fields_ = [("text", c.c_char_p), ("bytes", c.c_uint32)]


class Bias(c.Structure):
    """struct llm_bias"""

    _fields_ = [("token", c.c_int32), ("bias", c.c_float)]


class Request(c.Structure):
    """struct llm_request"""

    _fields_ = [
        ("size", c.c_uint32),
        ("op", c.c_uint32),
        ("tokens", c.POINTER(c.c_int32)),
        ("n_tokens", c.c_uint32),
        ("max_tokens", c.c_uint32),
        ("choices", c.c_uint32),
        ("flags", c.c_uint32),
        ("seed", c.c_uint64),
        ("user_data", c.c_uint64),
        ("temperature", c.c_float),
        ("top_p", c.c_float),
        ("min_p", c.c_float),
        ("top_k", c.c_uint32),
        # 1.1
        ("session", c.c_uint64),
        ("session_keep", c.c_uint64),
        ("session_to", c.c_uint64),
        ("priority", c.c_uint32),
        ("deadline_us", c.c_uint32),
        ("timeout_ms", c.c_uint32),
        ("queue_timeout_ms", c.c_uint32),
        ("max_itl_us", c.c_uint32),
        ("first_choice", c.c_uint32),
        ("output_from", c.c_uint32),
        ("n_labels", c.c_uint32),
        ("labels", c.POINTER(Label)),
        ("repetition", c.c_float),
        ("presence", c.c_float),
        ("frequency", c.c_float),
        ("top_logprobs", c.c_uint32),
        ("stops", c.POINTER(Stop)),
        ("biases", c.POINTER(Bias)),
        ("n_stops", c.c_uint32),
        ("n_biases", c.c_uint32),
    ]


REQUEST_1_0 = 64  # bytes of llm_request in ABI 1.0


class Result(c.Structure):
    """struct llm_result"""

    _fields_ = [
        ("t_arrival", c.c_uint64),
        ("t_admit", c.c_uint64),
        ("t_first", c.c_uint64),
        ("t_last", c.c_uint64),
        ("numerics_id", c.c_uint64),
        ("prompt_tokens", c.c_uint32),
        ("output_tokens", c.c_uint32),
        ("cached_tokens", c.c_uint32),
        ("preemptions", c.c_uint32),
        ("stop", c.c_uint16),
        ("reserved", c.c_uint16),
        ("stop_cut", c.c_uint32),
    ]


class Event(c.Structure):
    """struct llm_event"""

    _fields_ = [
        ("id", c.c_uint64),
        ("type", c.c_uint32),
        ("choice", c.c_uint32),
        ("status", c.c_int32),
        ("finish", c.c_uint32),
        ("position", c.c_uint32),
        ("n_tokens", c.c_uint32),
        ("tokens", c.c_int32 * TOKENS_MAX),
        ("logprobs", c.c_float * TOKENS_MAX),
        ("result", Result),
    ]


STRUCTS = {
    "llm_options": Options,
    "llm_limits": Limits,
    "llm_label": Label,
    "llm_stop": Stop,
    "llm_bias": Bias,
    "llm_request": Request,
    "llm_result": Result,
    "llm_event": Event,
}

_handle = c.c_void_p
_tokens = c.POINTER(c.c_int32)
_id = c.POINTER(c.c_uint64)
_text = c.POINTER(c.c_char)

_CALLS = {
    "llm_connect": (c.c_int, [c.POINTER(_handle), c.c_char_p, c.POINTER(Options)]),
    "llm_connect_error": (c.c_char_p, []),
    "llm_close": (None, [_handle]),
    "llm_get_limits": (None, [_handle, c.POINTER(Limits)]),
    "llm_strerror": (c.c_char_p, [c.c_int]),
    "llm_errmsg": (c.c_char_p, [_handle]),
    "llm_submit": (c.c_int, [_handle, c.POINTER(Request), _id]),
    "llm_cancel": (c.c_int, [_handle, c.c_uint64]),
    "llm_poll": (c.c_int, [_handle, c.POINTER(Event)]),
    "llm_wait": (c.c_int, [_handle, c.POINTER(Event), c.c_int]),
    "llm_fd": (c.c_int, [_handle]),
    "llm_arm": (c.c_int, [_handle]),
    "llm_tokenizer_open": (c.c_int, [c.POINTER(_handle), _handle]),
    "llm_tokenizer_close": (None, [_handle]),
    "llm_tokenize": (
        c.c_long,
        [_handle, c.c_char_p, c.c_size_t, c.c_uint, _tokens, c.c_size_t],
    ),
    "llm_token_bytes": (c.c_long, [_handle, c.c_int32, c.POINTER(_text)]),
    "llm_tokenizer_vocab": (c.c_uint32, [_handle]),
    "llm_chat_template": (c.c_int, [_handle, c.POINTER(_text), c.POINTER(c.c_size_t)]),
    "llm_special_token": (c.c_int32, [_handle, c.c_int]),
    "llm_detokenizer_open": (c.c_int, [c.POINTER(_handle), _handle, c.c_uint]),
    "llm_detokenizer_close": (None, [_handle]),
    "llm_detokenize": (c.c_long, [_handle, c.c_int32, _text, c.c_size_t]),
    "llm_detokenize_flush": (c.c_long, [_handle, _text, c.c_size_t]),
    "llm_template_parse": (
        c.c_int,
        [c.POINTER(_handle), c.c_char_p, c.c_size_t, _text, c.c_size_t],
    ),
    "llm_template_render": (
        c.c_int,
        [
            _handle,
            c.c_char_p,
            c.c_size_t,
            c.c_void_p,
            c.POINTER(_text),
            c.POINTER(c.c_size_t),
            _text,
            c.c_size_t,
        ],
    ),
    "llm_template_free_text": (None, [_text]),
    "llm_template_free": (None, [_handle]),
}

# of a library that knows ABI 1.1
_CALLS_1_1 = {
    "llm_session_open": (
        c.c_int,
        [_handle, c.c_uint64, _tokens, c.c_uint32, c.c_uint32, _id],
    ),
    "llm_session_append": (c.c_int, [_handle, c.c_uint64, _tokens, c.c_uint32, _id]),
    "llm_session_replace": (
        c.c_int,
        [_handle, c.c_uint64, c.c_uint64, _tokens, c.c_uint32, _id],
    ),
    "llm_session_rewind": (c.c_int, [_handle, c.c_uint64, c.c_uint64, _id]),
    "llm_session_interrupt": (c.c_int, [_handle, c.c_uint64, c.c_uint64, _id]),
    "llm_session_fork": (c.c_int, [_handle, c.c_uint64, c.c_uint64, _id]),
    "llm_session_close": (c.c_int, [_handle, c.c_uint64, _id]),
    "llm_choose": (
        c.c_int,
        [_handle, _tokens, c.c_uint32, c.POINTER(Label), c.c_uint32, _id],
    ),
    "llm_resume": (c.c_int, [_handle, c.c_uint32, c.c_uint]),
}


def session_key(name: str) -> int:
    """The key of a session's name, as llm_session_key makes it: 64-bit FNV-1a."""
    h = 0xCBF29CE484222325
    for byte in name.encode("utf-8"):
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h or 1


def _candidates() -> Iterator[str]:
    for tree in list(Path(__file__).resolve().parents)[3:4]:
        if (tree / "client" / "llmclient.h").is_file():
            yield str(tree / "build" / "libllmclient.so")
    yield SONAME
    yield "/usr/local/lib/" + SONAME
    yield str(Path.home() / ".local" / "lib" / SONAME)


def _open(path: str) -> c.CDLL:
    library = c.CDLL(path)
    for name, (result, arguments) in _CALLS.items():
        call = getattr(library, name)
        call.restype, call.argtypes = result, arguments
    for name, (result, arguments) in _CALLS_1_1.items():
        call = getattr(library, name, None)
        if call is not None:
            call.restype, call.argtypes = result, arguments
    return library


_loaded: Optional[c.CDLL] = None


def load() -> Any:
    """The library, loaded at the first call. Raises ConnectError with what was tried."""
    global _loaded
    if _loaded is not None:
        return _loaded
    wanted = os.environ.get("LLMCLIENT_LIBRARY")
    tried: List[str] = []
    for path in [wanted] if wanted else _candidates():
        try:
            _loaded = _open(path)
            return _loaded
        except (OSError, AttributeError) as error:
            said = str(error)
            tried.append(said if path in said else f"{path}: {said}")
    raise ConnectError(
        "libllmclient cannot be loaded; install it (make install), or name it in "
        "LLMCLIENT_LIBRARY. Tried: " + "; ".join(tried)
    )
