"""Draws for the requests of a server: candidates of the base, chosen among by the energy; `serve_model` serves a model."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from esscher.bases.truncated import truncated
from esscher.bases.wrappers import with_max_length
from esscher.core.device import device_of
from esscher.core.progress import current_progress
from esscher.core.randomness import SeededRng
from esscher.core.space import prompts_of
from esscher.core.target import Tilted, flat, unwrapped
from esscher.energies.text_scorers import PatternTimeoutError
from esscher.estimators.expectations import per_prompt
from esscher.estimators.reliability import reliability
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.progress import ProgressCounter, with_progress
from esscher.samplers.sir import SIR, CandidateSelection, selected_draws
from esscher.serving.config import ServeConfig
from esscher.serving.requests import CompletionRequest, RefusedError
from esscher.workflow.model import Model

PROGRESS_SECONDS = 0.5  # between two progress messages
LATE = "The time limit was reached before all was drawn; lower n, num_candidates or max_tokens."


class GenerationCancelledError(Exception):
    """The client is gone, so drawing stops."""


class RequestMonitor(ProgressCounter):
    """Reports progress, and stops drawing after `seconds` or once `cancelled` is set."""

    def __init__(self, seconds: float, say: Callable[[str], None] = lambda text: None):
        super().__init__(say, pause=PROGRESS_SECONDS)
        self.deadline, self.cancelled = time.monotonic() + seconds, threading.Event()

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def add(self, *, tokens: int = 0, weighed: int = 0) -> None:
        if self.cancelled.is_set():
            raise GenerationCancelledError
        if self.seconds_left <= 0:
            raise RefusedError(408, LATE)
        super().add(tokens=tokens, weighed=weighed)


@dataclass(frozen=True)
class Engine:
    """Answers requests with draws of one model."""

    model: Model
    config: ServeConfig

    def target(self, request: CompletionRequest) -> Tilted:
        """The model, its base shortened and truncated as the request says."""
        temperature, top_k, top_p = request.temperature, request.top_k, request.top_p
        base = truncated(self.model.target.base, top_k=top_k, top_p=top_p, temperature=temperature)
        return Tilted(with_max_length(base, request.max_tokens), self.model.target.energy)

    @torch.no_grad()
    def draw(self, request: CompletionRequest, monitor: RequestMonitor) -> dict[str, Any]:
        """Choices and usage in the format of OpenAI, with the base's log-probability and the ESS of the candidates."""
        monitor.add()  # a request that waited too long is not begun
        try:
            tokens = self.model.data.encode_prompts(list(request.prompts))
            target = with_progress(self.target(request), monitor)
        except ValueError as error:  # a letter outside the alphabet; a temperature where the energy has one
            raise RefusedError(400, str(error)) from error
        longest = max(map(len, tokens))
        if longest > self.config.max_prompt_tokens:
            raise RefusedError(413, f"A prompt has at most {self.config.max_prompt_tokens:,} tokens, not {longest:,}.")
        rng, verdicts = SeededRng(request.seed), list[str | None]([None] * len(tokens))
        try:
            if target.energy is flat:
                drawn = Ancestral()(target, prompts_of(tokens), request.draws, rng=rng)
            else:
                selections = SIR(request.num_candidates, shared=False).choose(
                    target, prompts_of(tokens), request.draws, rng=rng
                )
                drawn, verdicts = selected_draws(selections), self._verdicts(target, selections)
        except PatternTimeoutError as error:
            raise RefusedError(408, str(error)) from error
        except ValueError as error:  # for example, all candidates have weight 0
            raise RefusedError(400, str(error)) from error
        points, eos = drawn.x.points(), target.space.eos
        texts = self.model.tokenizer.decode(points)
        ess = drawn.info["ess"].view(-1).tolist() if "ess" in drawn.info else [None] * len(points)
        of_draw = [verdict for verdict in verdicts for _ in range(request.draws)]
        columns = zip(texts, points, drawn.log_base.view(-1).tolist(), ess, of_draw, strict=True)
        choices = [
            {
                "index": index,
                "text": text,
                "finish_reason": "stop" if eos is not None and point[-1:] == [eos] else "length",
                "logprobs": None,
                "esscher": {"log_base": log_base, "ess": ess_of_draw, "verdict": verdict},
            }
            for index, (text, point, log_base, ess_of_draw, verdict) in enumerate(columns)
        ]
        read, written = sum(map(len, tokens)), sum(map(len, points))
        usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        return {"choices": choices, "usage": {**usage, "drawn_tokens": monitor.tokens}, "seed": request.seed}

    def _verdicts(self, target: Tilted, selections: list[CandidateSelection]) -> list[str | None]:
        """The verdict on the candidates after each prompt, compared with what the energy's folder holds of the model itself."""
        (group,) = selections
        stored = self.model.stored_estimates if unwrapped(target.base) is self.model.target.base else None
        verdicts: list[str | None] = []
        for row in per_prompt(group.candidates):
            known = None if stored is None else stored(row.x.tokens[0, : int(row.x.start[0])].tolist())
            verdicts.append(reliability(row, energy=target.energy, stored=known)[0].verdict)
        return verdicts


def serve_model(model: Model, config: ServeConfig) -> None:
    """Serve a model of text, tilted or not; one without a tokenizer is refused."""
    try:
        from esscher.core.http_server import address_of, listen, run
        from esscher.serving.server import create_app
    except ImportError as error:
        raise ImportError("Serving needs uvicorn and starlette. Nothing is served; pip install 'esscher[serve]'.") from error
    model.tokenizer  # noqa: B018 (refuses a model without text)
    listener = listen(config.host, range(config.port, config.port + 1))
    current_progress().say(
        f"{model.name} on {device_of(model.base)} at {address_of(listener, config)}/v1/completions; Ctrl-C ends it."
    )
    run(create_app(Engine(model, config)), config, listener)
