"""A model for lm-eval, EleutherAI's harness: `--model esscher` for bases, tilted models and students.

    python -m esscher.harness --model esscher --model_args path=runs/first,energy=runs/energy --tasks lambada_openai

takes every argument of `lm_eval`. The context c is the prompt, the continuation b a prefix of the point:

    log p(b | c) = log a(b | c) + log E[exp(-E)] after c and b - log E[exp(-E)] after c

Each expectation is estimated from `draws` draws (`esscher.estimators.continuations`). End symbols are not counted. Text longer
than `max_length` is scored window by window, each after as many preceding tokens as fit. The greedy continuation of a tilted
model is the likeliest of `num_candidates` draws. Estimates with intervals go to the JSON lines file `record`.
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
from lm_eval.utils import simple_parse_args_string
from tqdm import tqdm

from esscher.bases.truncated import truncated
from esscher.bases.wrappers import tilted_continuation, with_max_length
from esscher.core.config import DtypeName
from esscher.core.device import device_of, on_device_of
from esscher.core.randomness import SeededRng
from esscher.core.space import prompts_of, sequences
from esscher.core.target import Tilted, flat
from esscher.estimators.continuations import next_tokens, prefix_log_probs
from esscher.samplers.importance import Importance
from esscher.samplers.scoring import log_prob
from esscher.workflow.model import load

logger = logging.getLogger("lm_eval.esscher")
TOP_TOKENS = 2  # of base and tilted model each, among which the likeliest next token is sought
Window = tuple[list[int], list[int]]
"""The tokens of the prompt, and the tokens to score after it."""


@register_model("esscher")
class EsscherLM(LM):
    """A base folder, with an energy folder to tilt it. `greedy=False` reports every continuation as not greedy, because the
    check needs draws at every token of a tilted model. `device` (the harness's `--device`, or an argument of the model) and
    `dtype` are those of `esscher.load`."""

    def __init__(
        self,
        path: str,
        energy: str | None = None,
        *,
        draws: int = 64,
        num_candidates: int = 64,
        seed: int = 0,
        greedy: bool = True,
        record: str | None = None,
        batch_size: int | str = 16,
        max_batch_size: int | None = None,
        device: str | None = None,
        dtype: DtypeName = "auto",
    ):
        super().__init__()
        self.model = load(path, energy, device=device or "auto", dtype=dtype)
        self._device = device_of(self.model.base)
        self.draws, self.num_candidates, self.greedy, self.rng = draws, num_candidates, greedy, SeededRng(seed)
        self.rows = int(batch_size) if str(batch_size).isdigit() else max_batch_size or 16
        self.record = None if record is None else Path(record)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> "EsscherLM":
        """The model of `--model_args`; what the harness adds must not contradict it."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> "EsscherLM":
        """The same from a dictionary."""
        added = {name: value for name, value in (additional_config or {}).items() if value is not None}
        for name in arg_dict.keys() & added.keys():
            if str(arg_dict[name]) != str(added[name]):
                raise ValueError(
                    f"The arguments of the model say {name}={arg_dict[name]}, and the harness says {name}={added[name]}. "
                    f"Nothing was loaded; give {name} once."
                )
        return cls(**{**arg_dict, **added})

    @property
    def target(self) -> Tilted:
        return self.model.target

    @property
    def tokenizer_name(self) -> str:
        return self.model.name

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """log p of each continuation after its context, and whether it is the greedy one."""
        request_windows = [self._split_context(*request.args) for request in requests]
        log_probs = self._loglikelihoods("loglikelihood", [request.args for request in requests], request_windows)
        if not self.greedy:
            return [(log_prob, False) for log_prob in log_probs]
        greedy = (all(map(self._is_greedy, windows)) for windows in tqdm(request_windows, desc="likeliest"))
        return list(zip(log_probs, greedy, strict=True))

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        texts = [request.args[0] for request in requests]
        request_windows = [self._windows([], tokens) for tokens in self.model.tokenizer.encode(texts)]
        return self._loglikelihoods("loglikelihood_rolling", [(text,) for text in texts], request_windows)

    @torch.no_grad()
    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """A continuation of each context, up to the first of its stop strings."""
        return [self._generate(number, *request.args) for number, request in enumerate(tqdm(requests, desc="generating"))]

    def _split_context(self, context: str, continuation: str) -> list[Window]:
        """The windows of a request; spaces at the end of the context belong to the continuation."""
        if self.model.is_translator:
            (prompt,), (tokens,) = self.model.data.encode_prompts([context]), self.model.tokenizer.encode([continuation])
            return self._windows(prompt, tokens)
        prompt, tokens = self.model.tokenizer.encode([context.rstrip(), context + continuation])
        return self._windows(prompt, tokens[len(prompt) :])

    def _windows(self, prompt: list[int], tokens: list[int]) -> list[Window]:
        """The tokens in windows of the space's `max_length`, each after as many preceding tokens as the base has positions."""
        size, limit = self.target.space.max_length, self.model.base.max_positions
        row = [*prompt, *tokens]
        context = len(row) if limit is None else max(0, limit - size)
        firsts = range(len(prompt), len(row), size)
        return [(row[max(0, first - context) : first], row[first : first + size]) for first in firsts]

    def _loglikelihoods(
        self, what: str, arguments: Sequence[tuple[str, ...]], request_windows: Sequence[list[Window]]
    ) -> list[float]:
        """log p of each request, summed over its windows; a line for each window in the record, if one is kept."""
        log_probs = [0.0] * len(request_windows)
        for batch in tqdm(list(self._batches(request_windows)), desc=what):
            request_of_row = [request for request in batch for _ in request_windows[request]]
            if not request_of_row:  # only empty texts
                continue
            rows = [(point, prompt) for request in batch for prompt, point in request_windows[request]]
            x = sequences(*zip(*rows, strict=True))
            estimates = prefix_log_probs(self.target, x, self.draws, rng=self.rng.stream(what, batch[0]))
            for request, estimate in zip(request_of_row, estimates.each, strict=True):
                log_probs[request] += estimate.value
                if self.record is not None:
                    line = {"request": what, "arguments": arguments[request], "nats": estimate.to_dict()}
                    with self.record.open("a", encoding="utf8") as file:
                        file.write(json.dumps(line) + "\n")
            if self.target.energy is not flat:
                logger.info("%s of %d: %s in all, log Z %s", what, len(batch), estimates.total, estimates.log_z)
        return log_probs

    def _batches(self, request_windows: Sequence[list[Window]]) -> Iterator[range]:
        """Batches of requests; neighbours with the same context share one, so that the error of its log Z is common to them."""
        first, contexts = 0, [windows[0][0] if windows else None for windows in request_windows]
        for stop in range(1, len(request_windows) + 1):
            if stop == len(request_windows) or (stop - first >= self.rows and contexts[stop] != contexts[stop - 1]):
                yield range(first, stop)
                first = stop

    @torch.no_grad()
    def _is_greedy(self, window: Window) -> bool:
        """Whether each token is the likeliest one after those before it."""
        prompt, point = window
        if self.target.energy is flat:
            x = on_device_of(sequences([point], [prompt]), self.model.base)
            return bool((self.model.base.logits(x).argmax(-1) == x.tokens)[x.counted].all())
        for position, token in enumerate(point):
            prefix, rest = [*prompt, *point[:position]], tilted_continuation(self.target, position)
            rng = self.rng.stream("likeliest", *prefix)
            table = next_tokens(rest, prompts_of([prefix]), top=TOP_TOKENS, draws=self.draws, rng=rng)
            if max((row for row in table.rows if row.token is not None), key=lambda row: row.joint.value).token != token:
                return False
        return True

    def _generate(self, number: int, context: str, settings: Mapping[str, Any]) -> str:
        """One draw with `do_sample`, otherwise the likeliest of the candidates."""
        do_sample, length = bool(settings.get("do_sample", False)), settings.get("max_gen_toks")
        (prompt,) = self.model.data.encode_prompts([context])
        base = with_max_length(self.target.base, None if length is None else int(length))
        if do_sample:
            truncation = {name: settings.get(name) for name in ("top_k", "top_p")}
            base = truncated(base, temperature=float(settings.get("temperature", 1.0)), **truncation)
        elif self.target.energy is flat:
            base = truncated(base, top_k=1)
        limit, space = self.model.base.max_positions, base.space
        if limit is not None:
            prompt = prompt[max(0, len(prompt) + space.max_length - limit) :]
        num_candidates = 1 if self.target.energy is flat else self.num_candidates
        rng = self.rng.stream("generate", number)
        drawn = Importance()(Tilted(base, self.target.energy), prompts_of([prompt]), num_candidates, rng=rng)
        joint = drawn.log_weight[0].double() + (0 if do_sample else log_prob(base, drawn.x))
        if bool((joint == -math.inf).all()):
            raise ValueError(f"All {num_candidates} candidates after {context!r} have weight 0. Raise num_candidates.")
        pick = int(rng.stream("pick").categorical(joint[None], 1)) if do_sample else int(joint.argmax())
        (text,) = self.model.tokenizer.decode([drawn.x.points()[pick]])
        stops = settings.get("until", ())
        for stop in [stops] if isinstance(stops, str) else stops:
            text = text.partition(stop)[0] if stop else text
        return text
