"""Plain values: what goes into a request, and what comes out of a stream."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypedDict, Union

from .errors import InvalidRequest

Prompt = Union[str, Sequence[int]]
Message = Mapping[str, Any]

MAX_TOKENS = 16  # of `generate`, where the caller says nothing


class Options(TypedDict, total=False):
    """The keyword arguments of `generate` and `chat`; all may be left out."""

    # at most so many tokens; generate: 16, chat: as many as there is room for
    max_tokens: Optional[int]
    # 0 (the default): always the likeliest token
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    # the same seed draws the same tokens; left out: a new one each time
    seed: Optional[int]
    # independent continuations; Chunk.choice tells them apart
    n: int
    # ends before the first of these texts
    stop: Union[str, Sequence[str]]
    # Chunk.logprobs gets the natural logarithm of each token's probability
    logprobs: bool
    # "normal", "high" or "low"
    priority: str
    # first token within so long, or DeadlineMissed
    deadline_ms: Optional[int]
    # ends with what there is so long after its arrival: finish_reason "timeout"
    timeout_ms: Optional[int]
    # out of the engine's queue within so long, or DeadlineMissed
    queue_timeout_ms: Optional[int]
    # goes on behind the model's own end of text
    ignore_eos: bool
    # "ngram" or "off": speculation by prompt lookup, whatever the engine does by default
    speculative: Optional[str]
    # how much text comes at once: "token" (the default), "word" or "sentence" (for speech)
    pieces: str


class Limits(TypedDict, total=False):
    """The keyword arguments of `choose`; all may be left out. As for `generate`."""

    priority: str
    timeout_ms: Optional[int]
    queue_timeout_ms: Optional[int]


@dataclass(frozen=True)
class Params:
    """Options with their defaults, checked as far as no model is needed."""

    max_tokens: Optional[int] = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: Optional[int] = None
    n: int = 1
    stop: Tuple[str, ...] = ()
    logprobs: bool = False
    priority: str = "normal"
    deadline_ms: Optional[int] = None
    timeout_ms: Optional[int] = None
    queue_timeout_ms: Optional[int] = None
    ignore_eos: bool = False
    speculative: Optional[str] = None
    pieces: str = "token"

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, 1, 2**32 - 1)
        _whole("top_k", self.top_k, 0, 2**32 - 1)
        _whole("seed", self.seed, 0, 2**64 - 2)
        _whole("n", self.n, 1, 64)
        for name in ("deadline_ms", "timeout_ms", "queue_timeout_ms"):
            _whole(name, getattr(self, name), 1, 4_000_000)
        for name in ("temperature", "top_p", "min_p"):
            _finite(name, getattr(self, name))
        if self.priority not in ("normal", "high", "low"):
            raise InvalidRequest(f'priority is {self.priority!r}, none of "normal", "high", "low"')
        if self.pieces not in ("token", "word", "sentence"):
            raise InvalidRequest(f'pieces is {self.pieces!r}, none of "token", "word", "sentence"')
        if self.speculative not in (None, "ngram", "off"):
            raise InvalidRequest(f'speculative is {self.speculative!r}, neither "ngram" nor "off"')
        if not all(isinstance(text, str) and text for text in self.stop):
            raise InvalidRequest("stop must be a text or a list of texts, none of them empty")


def _whole(name: str, value: object, low: int, high: int) -> None:
    if value is None and name != "n" and name != "top_k":
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequest(f"{name} is {value!r}, not a whole number from {low} to {high}")


def _finite(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidRequest(f"{name} is {value!r}, not a finite number")


def params(options: Options) -> Params:
    """Raises TypeError for a name that is none, as a call does."""
    given = dict(options)
    stop = given.pop("stop", ())
    texts = (stop,) if isinstance(stop, str) else tuple(stop)  # type: ignore[arg-type]
    _known(given, Options)
    return Params(stop=texts, **given)  # type: ignore[arg-type]


def limits_of(limits: Limits) -> Params:
    _known(limits, Limits)
    return Params(**limits)


def _known(given: Mapping[str, object], options: Any) -> None:
    for name in given:
        if name not in options.__annotations__:
            known = ", ".join(options.__annotations__)
            raise TypeError(f"there is no option {name!r}; there are: {known}")


class Chunk(NamedTuple):
    """News of one choice. `text` may be empty while a character or a word is not complete, `tokens`
    is empty where the other side sends none (HTTP), or where only held back text comes."""

    text: str
    tokens: Tuple[int, ...] = ()
    logprobs: Tuple[float, ...] = ()
    choice: int = 0


@dataclass(frozen=True)
class Usage:
    prompt_tokens: Optional[int] = None
    completion_tokens: Optional[int] = None
    cached_tokens: Optional[int] = None  # of the prompt, that needed no computing


@dataclass(frozen=True)
class Timing:
    """Seconds since the request's arrival: at the engine, or for HTTP since it was sent."""

    queue_s: Optional[float] = None
    first_token_s: Optional[float] = None
    total_s: Optional[float] = None


@dataclass
class Choice:
    """One continuation as a whole. finish_reason: "stop", "length", "cancelled", "timeout", ..."""

    index: int
    text: str = ""
    tokens: List[int] = field(default_factory=list)
    logprobs: List[float] = field(default_factory=list)
    finish_reason: Optional[str] = None


@dataclass(frozen=True)
class Result:
    """What a stream was, at its end."""

    choices: Tuple[Choice, ...]
    usage: Usage
    timing: Timing
    numerics_id: Optional[int] = None  # names everything that decides a token's bits
    preemptions: int = 0

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def tokens(self) -> List[int]:
        return self.choices[0].tokens

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason or "cancelled"


class Assembly:
    """Puts the chunks of a stream together again."""

    def __init__(self, n: int) -> None:
        self._texts: List[List[str]] = [[] for _ in range(n)]
        self.choices = [Choice(i) for i in range(n)]

    def add(self, chunk: Chunk) -> None:
        choice = self.choices[chunk.choice]
        self._texts[chunk.choice].append(chunk.text)
        choice.tokens.extend(chunk.tokens)
        choice.logprobs.extend(chunk.logprobs)

    def result(
        self,
        usage: Usage,
        timing: Timing,
        numerics_id: Optional[int] = None,
        preemptions: int = 0,
    ) -> Result:
        for choice, texts in zip(self.choices, self._texts):
            choice.text = "".join(texts)
            choice.finish_reason = choice.finish_reason or "cancelled"
        return Result(tuple(self.choices), usage, timing, numerics_id, preemptions)
