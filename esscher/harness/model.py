"""A model for lm-eval, EleutherAI's harness: `--model esscher` for bases, tilted models and students.

    python -m esscher.harness --model esscher --model_args path=runs/first,energy=runs/energy --tasks lambada_openai

takes every argument of `lm_eval`, which finds models of other packages only when these are imported first. A context is a
prompt, a continuation the beginning of a point:

    log p(b | c) = log a(b | c) + log E[exp(-E)] after c and b - log E[exp(-E)] after c

by `draws` each, and draws after a context serve all its continuations (`estimators.beginnings`). End symbols are not counted,
as the harness wants it. What is longer than the model's points is scored window by window, each after as many tokens as there
is room for. Greedy continuations of a tilted model are the likeliest of a pool. Answers with their intervals go to `record`, a
file of JSON lines; the harness itself takes numbers only.
"""

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from esscher.bases.continued import rest_of
from esscher.bases.shortened import shortened
from esscher.bases.truncated import truncated
from esscher.estimate import Estimate
from esscher.estimators.beginnings import log_beginnings
from esscher.estimators.next_token import next_tokens
from esscher.randomness import Seeded
from esscher.samplers.importance import Importance
from esscher.samplers.scores import log_prob
from esscher.space import prompts_of, sequences
from esscher.target import Tilted, flat
from esscher.verbs.models import load_model

said = logging.getLogger("lm_eval.esscher")
TOP = 2  # tokens of base and joint that are compared to know the likeliest
Window = tuple[list[int], list[int]]
"""Tokens that are given, and tokens whose probability is asked."""


@register_model("esscher")
class EsscherLM(LM):
    """A model of folders, as the verbs name it. `greedy=False` does not look whether a continuation is the likeliest one, which
    costs a tilted model draws for every token, and says no."""

    def __init__(
        self,
        path: str,
        energy: str | None = None,
        *,
        draws: int = 64,
        pool: int = 64,
        seed: int = 0,
        greedy: bool = True,
        record: str | None = None,
        batch_size: int | str = 16,
        max_batch_size: int | None = None,
        device: str | None = None,  # which the harness always gives; models are measured where they were loaded
    ):
        super().__init__()
        self.model = load_model(path, energy)
        self.draws, self.pool, self.greedy, self.rng = draws, pool, greedy, Seeded(seed)
        self.rows = int(batch_size) if str(batch_size).isdigit() else max_batch_size or 16
        self.record = None if record is None else Path(record)

    @property
    def target(self) -> Tilted:
        return self.model.target

    @property
    def tokenizer_name(self) -> str:
        return str(self.model.folder)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """log p of each continuation after its context, and whether it is the likeliest."""
        asked = [self._parted(*request.args) for request in requests]
        found = self._scored("loglikelihood", [request.args for request in requests], asked)
        if not self.greedy:
            return [(one, False) for one in found]
        return [(one, all(map(self._likeliest, asked[place]))) for place, one in enumerate(tqdm(found, desc="likeliest"))]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """log p of each whole text."""
        texts = [request.args[0] for request in requests]
        asked = [self._windows([], tokens) for tokens in self.model.tokenizer.encode(texts)]
        return self._scored("loglikelihood_rolling", [(text,) for text in texts], asked)

    @torch.no_grad()
    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """A continuation of each context, up to the first of its stopping strings."""
        return [self._continued(number, *request.args) for number, request in enumerate(tqdm(requests, desc="generating"))]

    def _parted(self, context: str, continuation: str) -> list[Window]:
        """The tokens of both, parted where the context ends; spaces at its end begin the continuation."""
        if self.model.reads_sources:
            (given,), (tokens,) = self.model.prompts([context]), self.model.tokenizer.encode([continuation])
            return self._windows(given, tokens)
        bare = context.rstrip()
        given, whole = self.model.tokenizer.encode([bare, context + continuation])
        return self._windows(given, whole[len(given) :])

    def _windows(self, given: list[int], tokens: list[int]) -> list[Window]:
        """Points one after the other, each after what was before it, as far as there is room."""
        longest, limit = self.target.space.max_length, self.model.base.max_positions
        room = max(0, (limit or len(given) + len(tokens) + longest) - longest)
        windows, before = [], list(given)
        for first in range(0, len(tokens), longest):
            some = tokens[first : first + longest]
            windows.append((before[max(0, len(before) - room) :], some))
            before = [*before, *some]
        return windows

    def _scored(self, what: str, arguments: Sequence[tuple[str, ...]], asked: Sequence[list[Window]]) -> list[float]:
        """The sum over the windows of each request."""
        found = [0.0] * len(asked)
        for here in tqdm(list(self._batches(asked)), desc=what):
            owner = [place for place in here for _ in asked[place]]
            if not owner:  # nothing but empty texts
                continue
            x = sequences(*zip(*[(point, given) for place in here for given, point in asked[place]], strict=True))
            told = log_beginnings(self.target, x, self.draws, rng=self.rng.stream(what, here[0]))
            for place, one in zip(owner, told.each, strict=True):
                found[place] += one.value
            self._keep(what, [arguments[place] for place in owner], told.each)
            if self.target.energy is not flat:
                said.info("%s of %d: %s in all, log Z %s", what, len(here), told.total, told.log_z)
        return found

    def _batches(self, asked: Sequence[list[Window]]) -> Iterator[range]:
        """Requests that go together: neighbours with one context do, so that the error of its log Z is the same for all."""
        first, contexts = 0, [windows[0][0] if windows else None for windows in asked]
        for place in range(1, len(asked) + 1):
            if place == len(asked) or (place - first >= self.rows and contexts[place] != contexts[place - 1]):
                yield range(first, place)
                first = place

    def _keep(self, what: str, arguments: Sequence[tuple[str, ...]], answers: Sequence[Estimate]) -> None:
        """A line for each window in the record, if one is kept."""
        if self.record is None:
            return
        with self.record.open("a", encoding="utf8") as file:
            for argument, answer in zip(arguments, answers, strict=True):
                file.write(json.dumps({"request": what, "arguments": argument, "nats": answer.to_dict()}) + "\n")

    @torch.no_grad()
    def _likeliest(self, window: Window) -> bool:
        """Whether every token is the likeliest one where it stands, under the model that is asked."""
        given, point = window
        if self.target.energy is flat:
            x = sequences([point], [given])
            return bool((self.model.base.logits(x).argmax(-1) == x.tokens)[x.counted].all())
        for place, token in enumerate(point):
            before, rest = [*given, *point[:place]], rest_of(self.target, place)
            rng = self.rng.stream("likeliest", *before)
            table = next_tokens(rest, prompts_of([before]), top=TOP, draws=self.draws, rng=rng)
            if max((row for row in table.rows if row.token is not None), key=lambda row: row.joint.value).token != token:
                return False
        return True

    def _continued(self, number: int, context: str, settings: Mapping[str, Any]) -> str:
        """One draw, or the likeliest of a pool where none is to be drawn by chance."""
        by_chance, length = bool(settings.get("do_sample", False)), settings.get("max_gen_toks")
        (given,) = self.model.prompts([context])
        base = shortened(self.target.base, None if length is None else int(length))
        if by_chance:
            bent = {name: settings.get(name) for name in ("top_k", "top_p")}
            base = truncated(base, temperature=float(settings.get("temperature", 1.0)), **bent)
        elif self.target.energy is flat:
            base = truncated(base, top_k=1)
        limit, space = self.model.base.max_positions, base.space
        if limit is not None:
            given = given[max(0, len(given) + space.max_length - limit) :]
        pool = 1 if self.target.energy is flat else self.pool
        rng = self.rng.stream("generate", number)
        drawn = Importance()(Tilted(base, self.target.energy), prompts_of([given]), pool, rng=rng)
        joint = drawn.log_weight[0].double() + (0 if by_chance else log_prob(base, drawn.x))
        if bool((joint == -math.inf).all()):
            raise ValueError(f"The energy forbids all {pool} continuations of {context!r}. Raise pool.")
        pick = int(rng.stream("pick").categorical(joint[None], 1)) if by_chance else int(joint.argmax())
        (text,) = self.model.tokenizer.decode([drawn.x.points()[pick]])
        return _until(text, settings.get("until", ()))


def _until(text: str, stops: str | Sequence[str]) -> str:
    """The text before the first of the strings that end it."""
    for stop in [stops] if isinstance(stops, str) else stops:
        text = text.partition(stop)[0] if stop else text
    return text
