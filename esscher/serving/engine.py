"""Draws for a request: pools of candidates from which the energy chooses, watched, and stopped when nobody waits any more."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from esscher.bases.shortened import shortened
from esscher.bases.truncated import truncated
from esscher.randomness import Seeded
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.pool import Pool
from esscher.samplers.watched import Tally, watched
from esscher.serving.config import ServeConfig
from esscher.serving.requests import Asked, RefusedError
from esscher.space import prompts_of
from esscher.target import Tilted, flat
from esscher.verbs.models import Model

PAUSE = 0.5  # seconds between two words on how far drawing is


class StoppedError(Exception):
    """Drawing that nobody waits for."""


class Watch(Tally):
    """Counts what is drawn, says so now and then, and ends drawing that is late or was given up."""

    def __init__(self, seconds: float, say: Callable[[str], None] = lambda text: None):
        super().__init__(say, pause=PAUSE)
        self.until, self.given_up = time.monotonic() + seconds, threading.Event()

    def add(self, *, tokens: int = 0, weighed: int = 0) -> None:
        if self.given_up.is_set():
            raise StoppedError
        if time.monotonic() > self.until:
            raise RefusedError(408, "There was no time to draw all that was asked for; ask for less (n, pool, max_tokens).")
        super().add(tokens=tokens, weighed=weighed)


@dataclass(frozen=True)
class Engine:
    """A model that is asked for draws."""

    model: Model
    config: ServeConfig

    def encode(self, asked: Asked) -> list[list[int]]:
        """The tokens of the prompts; those that are too long are refused."""
        found = self.model.prompts(list(asked.prompts))
        longest = max(map(len, found))
        if longest > self.config.prompt_tokens:
            raise RefusedError(413, f"A prompt has at most {self.config.prompt_tokens:,} tokens, not {longest:,}.")
        return found

    def target(self, asked: Asked) -> Tilted:
        """The model as the request bends its base."""
        target = self.model.target
        base = truncated(
            shortened(target.base, asked.length), top_k=asked.top_k, top_p=asked.top_p, temperature=asked.temperature
        )
        return Tilted(base, target.energy)

    @torch.no_grad()
    def draw(self, asked: Asked, watch: Watch) -> dict[str, Any]:
        """Choices in the words of OpenAI, with what the energy says of each."""
        tokens, target = self.encode(asked), watched(self.target(asked), watch)
        sampler = Ancestral() if target.energy is flat else Pool(asked.pool)
        try:
            drawn = sampler(target, prompts_of(tokens), asked.draws, rng=Seeded(asked.seed))
        except ValueError as error:  # such as a pool without any weight
            raise RefusedError(400, str(error)) from error
        points, eos = drawn.x.points(), target.space.eos
        texts = self.model.tokenizer.decode(points)
        effective = drawn.info["effective"].view(-1).tolist() if "effective" in drawn.info else [None] * len(points)
        choices = [
            {
                "index": number,
                "text": text,
                "finish_reason": "stop" if eos is not None and point[-1:] == [eos] else "length",
                "logprobs": None,
                "esscher": {"log_base": log_base, "effective_candidates": worth},
            }
            for number, (text, point, log_base, worth) in enumerate(
                zip(texts, points, drawn.log_base.view(-1).tolist(), effective, strict=True)
            )
        ]
        read, written = sum(map(len, tokens)), sum(map(len, points))
        usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        return {"choices": choices, "usage": {**usage, "drawn_tokens": watch.tokens}}
