"""Requests in the format of OpenAI's completions API, without torch. A field that a tilted model cannot honour is refused by
name. Status: 400 invalid, 401 wrong token, 404 unknown route or model, 408 timeout, 413 too large, 415 not JSON, 429 too many
at once."""

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from esscher.serving.config import ServeConfig

SUPPORTED_FIELDS = (
    "model", "prompt", "max_tokens", "n", "temperature", "top_p", "top_k", "seed", "num_candidates", "stream",
    "stream_options", "user",
)  # fmt: skip
NO_OP_FIELDS: Mapping[str, tuple[Any, ...]] = {  # fields of OpenAI's API, and their values that have no effect
    "echo": (False, None), "logprobs": (None,), "stop": (None, []), "suffix": (None,), "best_of": (None, 1),
    "presence_penalty": (0, None), "frequency_penalty": (0, None), "logit_bias": (None, {}),
}  # fmt: skip


MIN_TEMPERATURE = 0.01  # below, quotients of log-probabilities overflow
MAX_SEED = 2**63 - 1
FRESH_SEED_BITS = 53  # whole numbers that every reader of JSON keeps


class RefusedError(Exception):
    """A request that is refused, with the HTTP status, the reason, and the code of OpenAI if there is one."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(frozen=True)
class CompletionRequest:
    """A valid request: how many draws after which prompts, and how the base is truncated."""

    prompts: tuple[str, ...]
    max_tokens: int | None = None
    draws: int = 1
    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int = 0
    num_candidates: int = 64
    stream: bool = False
    include_usage: bool = False


def parse_request(content: bytes, config: ServeConfig, model: str | None = None) -> CompletionRequest:
    """Parse the body of a request to this model; anything invalid or beyond the limits raises `RefusedError`. A request without
    a seed gets a fresh one."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"The request is not JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise RefusedError(400, f"The request must be a JSON object, not {type(fields).__name__}.")
    for name, value in fields.items():
        if name in NO_OP_FIELDS and not any(_equal(value, no_op) for no_op in NO_OP_FIELDS[name]):
            raise RefusedError(400, f"{name!r} is not possible with a tilted model; leave it out.")
        if name not in SUPPORTED_FIELDS and name not in NO_OP_FIELDS:
            raise RefusedError(400, f"{_shown(name)} is not a known field; known are {', '.join(SUPPORTED_FIELDS)}.")
    for name in ("model", "user"):
        if not isinstance(fields.get(name), str | None):
            raise RefusedError(400, f"{name!r} must be a text, not {_shown(fields[name])}.")
    if model is not None and fields.get("model") not in (None, model):
        message = f"There is no model {_shown(fields['model'])} here; there is {model!r}."
        raise RefusedError(404, message, "model_not_found")
    prompt = fields.get("prompt", "")
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(prompts, list) or not prompts or not all(isinstance(text, str) for text in prompts):
        raise RefusedError(400, "'prompt' must be a text or a list of texts; lists of tokens are not supported.")
    if any("\ud800" <= character <= "\udfff" for text in prompts for character in text):
        raise RefusedError(400, "'prompt' has half of a surrogate pair, which is no character.")
    if len(prompts) > config.max_prompts:
        raise RefusedError(413, f"A request has at most {config.max_prompts} prompts, not {len(prompts)}.")
    stream = fields.get("stream") or False
    if not isinstance(stream, bool):
        raise RefusedError(400, f"'stream' must be true or false, not {_shown(stream)}.")
    options = fields.get("stream_options")
    if options is not None and not (
        stream and isinstance(options, dict) and set(options) <= {"include_usage"}
        and isinstance(options.get("include_usage", False), bool)
    ):  # fmt: skip
        raise RefusedError(400, "'stream_options' must be {'include_usage': true or false}, of a stream.")
    seed = _parse_number(fields, "seed", None, -MAX_SEED - 1, MAX_SEED, whole=True)
    top_p = _parse_number(fields, "top_p", None, 0, 1, whole=False)
    return CompletionRequest(
        prompts=tuple(prompts),
        max_tokens=_parse_number(fields, "max_tokens", None, 1, math.inf, whole=True),
        draws=_parse_number(fields, "n", 1, 1, config.max_draws, whole=True),
        temperature=_parse_number(fields, "temperature", 1.0, MIN_TEMPERATURE, 100, whole=False),
        top_p=None if top_p == 1 else top_p,
        top_k=_parse_number(fields, "top_k", None, 1, math.inf, whole=True),
        seed=secrets.randbits(FRESH_SEED_BITS) if seed is None else seed,
        num_candidates=_parse_number(fields, "num_candidates", config.num_candidates, 1, 4 * config.num_candidates, whole=True),
        stream=stream,
        include_usage=bool(options and options.get("include_usage")),
    )


def _equal(value: Any, other: Any) -> bool:
    """Whether two values of JSON are equal; true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _shown(value: Any) -> str:
    """A value for a message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _parse_number(fields: Mapping[str, Any], name: str, default: Any, low: float, high: float, *, whole: bool) -> Any:
    """A number from `low` to `high`; for fractions `low` itself is excluded."""
    value = fields.get(name)
    if value is None:
        return default
    kind = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not abs(value) < math.inf:
        raise RefusedError(400, f"{name!r} must be {kind}, not {_shown(value)}.")
    if not (low <= value <= high) or (not whole and value == low):
        bounds = f"from {low} to {high}" if whole else f"above {low} and up to {high}"
        raise RefusedError(400, f"{name!r} must be {kind} {bounds}, not {_shown(value)}.")
    return value
