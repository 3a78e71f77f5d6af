"""The objective that the settings of a run name, and the one that its weights are chosen by."""

from collections.abc import Callable

import torch

from esscher.data.tokenizers import Tokenizer
from esscher.objective import Objective
from esscher.objectives.combine import Ramp
from esscher.objectives.eforcing import EForcing
from esscher.objectives.likelihood import Likelihood
from esscher.objectives.permuted_likelihood import Denoising, PermutedLikelihood
from esscher.objectives.scheduled_sampling import ScheduledSampling
from esscher.objectives.spans import Spans, Words
from esscher.samplers.ancestral import Ancestral
from esscher.settings.objective import ObjectiveConfig
from esscher.settings.train import TrainRun


def build_objective(run: TrainRun, steps: Callable[[int], int], text: Tokenizer | None) -> Objective:
    """The objective; `steps` tells the updates of so many epochs, and `text` what became tokens by, if it was text."""
    config, label_smoothing = run.objective, run.training.label_smoothing
    if config.kind == "likelihood":
        return Likelihood(label_smoothing)
    if config.kind == "permuted":
        block = None if run.length.window is None else run.length.tokens
        return PermutedLikelihood(config.one_in, _spans(config, text), block, run.length.both_ways)
    if config.kind == "denoising":
        return Denoising(config.hidden, run.length.both_ways)
    begin = steps(config.after_epochs) if config.after_epochs else config.after_steps or 0
    if config.kind == "eforcing":
        weight, draws = Ramp(0.0, config.weight, begin, begin), Ancestral(config.negatives)
        return EForcing(weight, config.decay, config.inner, config.clip, label_smoothing, config.counts, sampler=draws)
    share = Ramp(0.0, config.share, begin, begin + steps(config.rise_epochs))
    return ScheduledSampling(share, config.form, label_smoothing)


def judging_objective(config: ObjectiveConfig) -> Objective:
    """What held-out data are judged by: likelihood, or, of what is trained otherwise than from left to right, its own."""
    if config.kind == "permuted":
        return PermutedLikelihood(config.one_in)
    return Denoising(config.hidden) if config.kind == "denoising" else Likelihood()


def _spans(config: ObjectiveConfig, text: Tokenizer | None) -> Spans | None:
    if config.spans == "none":
        return None
    if text is None or text.name == "word":
        return Spans(config.spans, config.longest_span)
    pieces = [text.decode([[number]])[0] or " " for number in range(text.vocab_size)]  # the end symbol parts words
    opens, closes = (torch.tensor([piece[part].isspace() for piece in pieces]) for part in (0, -1))
    return Spans(config.spans, config.longest_span, Words(opens, closes))
