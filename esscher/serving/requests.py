"""What a request asks for, in the words of OpenAI's completions; what a tilted model cannot do is refused, by its name.

A request that is refused has a status: 400 what is wrong in it, 401 who may not ask, 404 what is not here, 408 too late,
413 too large, 429 too many at once.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from esscher.serving.config import ServeConfig

KNOWN = ("model", "prompt", "max_tokens", "n", "temperature", "top_p", "top_k", "seed", "pool", "stream", "user")
NOTHING: Mapping[str, tuple[Any, ...]] = {  # fields of OpenAI that ask for nothing with these values
    "echo": (False, None), "logprobs": (None,), "stop": (None, []), "suffix": (None,), "best_of": (None, 1),
    "presence_penalty": (0, None), "frequency_penalty": (0, None), "logit_bias": (None, {}), "stream_options": (None,),
}  # fmt: skip


class RefusedError(Exception):
    """A request that is not answered, and why."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True)
class Asked:
    """Draws after prompts."""

    prompts: tuple[str, ...]
    length: int | None = None
    draws: int = 1
    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int = 0
    pool: int = 64
    stream: bool = False


def read_request(content: bytes, config: ServeConfig) -> Asked:
    """The request that these bytes are."""
    try:
        told = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"The request is not JSON: {error}.") from error
    if not isinstance(told, dict):
        raise RefusedError(400, f"The request must be an object of JSON, not {type(told).__name__}.")
    for name, value in told.items():
        if name in NOTHING and value not in NOTHING[name]:
            raise RefusedError(400, f"{name!r} is not possible with a tilted model; leave it out.")
        if name not in KNOWN and name not in NOTHING:
            raise RefusedError(400, f"{name!r} is not known; known are {', '.join(KNOWN)}.")
    stream = told.get("stream") or False
    if not isinstance(stream, bool):
        raise RefusedError(400, f"'stream' must be true or false, not {stream!r}.")
    top_p = _number(told, "top_p", None, 0, 1, whole=False)
    return Asked(
        prompts=_prompts(told.get("prompt", ""), config),
        length=_number(told, "max_tokens", None, 1, math.inf, whole=True),
        draws=_number(told, "n", 1, 1, config.draws, whole=True),
        temperature=_number(told, "temperature", 1.0, 0, 100, whole=False),
        top_p=None if top_p == 1 else top_p,
        top_k=_number(told, "top_k", None, 1, math.inf, whole=True),
        seed=_number(told, "seed", 0, -math.inf, math.inf, whole=True),
        pool=_number(told, "pool", config.pool, 1, 4 * config.pool, whole=True),
        stream=stream,
    )


def _prompts(told: Any, config: ServeConfig) -> tuple[str, ...]:
    prompts = [told] if isinstance(told, str) else told
    if not isinstance(prompts, list) or not prompts or not all(isinstance(one, str) for one in prompts):
        raise RefusedError(400, "'prompt' must be a text or a list of texts; lists of tokens are not read.")
    if len(prompts) > config.prompts:
        raise RefusedError(413, f"A request has at most {config.prompts} prompts, not {len(prompts)}.")
    return tuple(prompts)


def _number(told: Mapping[str, Any], name: str, usual: Any, low: float, high: float, *, whole: bool) -> Any:
    """A number in bounds; of fractions the lower bound is not among them."""
    value = told.get(name)
    if value is None:
        return usual
    kind = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not abs(value) < math.inf:
        raise RefusedError(400, f"{name!r} must be {kind}, not {value!r}.")
    if not (low <= value <= high) or (not whole and value == low):
        bounds = f"from {low} to {high}" if whole else f"above {low} and up to {high}"
        raise RefusedError(400, f"{name!r} must be {kind} {bounds}, not {value!r}.")
    return value
