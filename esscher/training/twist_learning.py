"""Learning a twist: rounds of drawing sequences and training on all of them (docs/why/twists.md).

The first round draws from the base, each further one from the proposal that was learnt before, which finds what the base hardly
ever draws. A fifth of all draws is held out, and the weights that are best on it are kept, the ones before training among them.
In the end fresh draws of the base and of the proposal measure what the twist saves. Draws and checkpoints are kept in the
folder, so that an interrupted run resumes; the twist itself is saved by `esscher.energies.twist_folder`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from esscher.bases.hidden_states import Steps
from esscher.core.device import device_of, on_device_of, place
from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, concatenate, point_values
from esscher.core.storage import digest, local_module_tensors, module_tensors, read_tensors, write_tensors
from esscher.core.target import Base, Tilted
from esscher.energies.features import log_weight_bounds
from esscher.energies.twist import LearntTwist, TwistedBase, build_twist
from esscher.estimators.expectations import Prompts
from esscher.estimators.log_z import log_z
from esscher.objectives.twist import TwistLoss, TwistRows
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Importance
from esscher.samplers.scoring import log_weight, max_rows
from esscher.training.collectives import broadcast_object
from esscher.training.config import TwistLearningConfig
from esscher.training.evaluation import mean_loss
from esscher.training.made_with import sequences_fingerprint, target_digests
from esscher.training.resumable import ROWS_BY_PROMPTS, WorkItem, run_resumable
from esscher.training.trainer import Trainer, TrainingRecord

HELD_OUT = 5  # one of so many draws
JUDGED_IN = 4  # batches at least, for an interval of the loss on what is held out
NUMBERS_AT_ONCE = 2**24  # log-probabilities of all tokens that one update holds
NUMBERS_KEPT = 2**26  # numbers of the base's steps that are kept between updates; of more, they are computed again


@dataclass(frozen=True)
class TwistResult:
    """The twist, how its rounds went, and what fresh draws say of it. `ess` and `base_ess` are effective shares of draws, of
    the proposal and of the base; `cost` counts the sequences that were drawn to learn it."""

    twist: LearntTwist
    records: tuple[TrainingRecord, ...]
    cost: int
    ess: float
    base_ess: float
    log_z: Estimate  # by draws of the proposal
    base_log_z: Estimate

    @property
    def notes(self) -> list[str]:
        """What the twist cost, and from how many effective draws on it saves more than that; or that it does not pay."""
        shares = f"{self.ess:.1%} of its fresh draws are effective, and {self.base_ess:.1%} of the base's"
        if not self.ess > self.base_ess:
            return [
                f"The twist saves nothing: {shares}. Draw from a pool, which is the default, or learn from more draws "
                f"(--twist.draws)."
            ]
        pays = math.ceil(self.cost / (1 / self.base_ess - 1 / self.ess)) if self.base_ess > 0 else 1
        return [f"Learning the twist drew {self.cost:,} sequences: {shares}, so it pays from {pays:,} effective draws on."]


@dataclass(frozen=True)
class _Round:
    """The draws of a round: -E of each, and log a - log of the drawing law of each token."""

    x: Sequences
    log_weight: Float[Tensor, "B"]
    log_ratio: Float[Tensor, "B L"]


def learn_twist(
    target: Tilted,
    prompts: Sequences,
    config: TwistLearningConfig,
    *,
    folder: Path | None = None,
    resume: bool = False,
    loss: TwistLoss | None = None,
    rng: SeededRng,
) -> TwistResult:
    """A twist of the target after these prompts, learnt from `config.draws` sequences."""
    base, progress = target.base, current_progress()
    twist = place(build_twist(config.network, base, rng=rng.stream("network")), device_of(base) or torch.device("cpu"))
    twisted, rounds, records = TwistedBase(base, twist), list[_Round](), list[TrainingRecord]()
    for number in range(config.rounds):
        here = None if folder is None else folder / f"round-{number}"
        progress.say(f"Round {number + 1} of {config.rounds} of learning the twist.")
        rounds.append(_draw_round(target, None if number == 0 else twisted, prompts, config, here, rng.stream("round", number)))
        rows, twist.offset = _training_rows(rounds, twisted)
        records.append(_train(twisted, rows, config, here, loss or TwistLoss(), resume=resume, number=number))
    return _measure(target, twisted, prompts, config, records, sum(len(part.x) for part in rounds), rng.stream("measure"))


def _draw_round(
    target: Tilted, twisted: TwistedBase | None, prompts: Sequences, config: TwistLearningConfig, folder: Path | None, rng: Rng
) -> _Round:
    """The sequences of a round, of the base or of the proposal of the twist as it is now."""
    each = max(1, round(config.draws / config.rounds / len(prompts)))
    size = max(1, ROWS_BY_PROMPTS // len(prompts))
    counts = [min(size, each - first) for first in range(0, each, size)]
    made_with = {"prompts": sequences_fingerprint(prompts), "each": each, "rng": repr(rng)}
    if folder is not None:
        made_with |= target_digests(target)
        made_with["twist"] = "none" if twisted is None else digest(module_tensors(twisted.twist))
    parts = run_resumable(
        [
            WorkItem(f"{part:05d}", len(prompts) * count, partial(_draw, target, twisted, prompts, count, rng.stream(part)))
            for part, count in enumerate(counts)
        ],
        folder=folder, made_with=made_with, read=_read_round, write=_write_round, remake=True, say=current_progress().say,
        what="sequences: drawn",
    )  # fmt: skip
    width = max(part.log_ratio.shape[1] for part in parts)
    ratios = [pad(part.log_ratio, (0, width - part.log_ratio.shape[1])) for part in parts]
    return _Round(concatenate([part.x for part in parts]), torch.cat([part.log_weight for part in parts]), torch.cat(ratios))


def _draw(target: Tilted, twisted: TwistedBase | None, prompts: Sequences, draws: int, rng: Rng) -> _Round:
    x, _ = draw(target.base if twisted is None else twisted, prompts, draws, rng=rng)
    length = int(x.lengths.max())
    log_ratio = torch.zeros(len(x), length, dtype=torch.float64)
    if twisted is not None:
        pieces = x.split(_rows_at_once(target.base, x.tokens.shape[1]))
        log_ratio = torch.cat([_log_ratio(twisted, on_device_of(piece, target.base), length) for piece in pieces])
    return _Round(x.to("cpu"), log_weight(target, x), log_ratio)


@torch.no_grad()
def _log_ratio(twisted: TwistedBase, x: Sequences, length: int) -> Float[Tensor, "B L"]:
    """log a - log q of each token of the points, 0 after their ends."""
    log_base, log_twist = twisted.steps_over(x)
    here = log_base.shape[1]
    token = point_values(x, x.tokens, here)[..., None]
    ratio = torch.logsumexp(log_base + log_twist, -1) - log_twist.gather(2, token)[..., 0]
    inside = torch.arange(here, device=ratio.device) < x.lengths[:, None]
    return pad(torch.where(inside, ratio, 0.0), (0, length - here)).cpu().double()


def _rows_at_once(base: Base, width: int) -> int:
    return max(1, min(max_rows(width), NUMBERS_AT_ONCE // (base.space.max_length * base.space.vocab_size)))


def _training_rows(rounds: Sequence[_Round], twisted: TwistedBase) -> tuple[TwistRows, float]:
    """All draws so far, with their weights relative to the mean weight, and the log of that mean; the steps of the base over
    them, if they are few enough to be kept."""
    x = concatenate([part.x for part in rounds])
    width = max(part.log_ratio.shape[1] for part in rounds)
    log_ratio = torch.cat([pad(part.log_ratio, (0, width - part.log_ratio.shape[1])) for part in rounds])
    value = torch.cat([part.log_weight for part in rounds])
    total = value + log_ratio.sum(-1)
    offset = float(torch.logsumexp(total, 0)) - math.log(len(total))
    if offset == -math.inf:
        raise ValueError(
            f"The energy forbids all {len(total):,} sequences that were drawn, so there is nothing to learn a twist from. The "
            f"draws are kept; tilt less, or draw more (--twist.draws)."
        )
    rows = TwistRows(x, value - offset, log_ratio)
    space, hidden = twisted.space, twisted.twist.sizes.hidden or 0
    if len(x) * width * (space.vocab_size + hidden) > NUMBERS_KEPT:
        return rows, offset
    pieces = [twisted.base_steps(on_device_of(piece, twisted.base)) for piece in x.split(_rows_at_once(twisted.base, width))]
    return replace(rows, steps=_join(pieces, width)), offset


def _join(pieces: Sequence[Steps], width: int) -> Steps:
    def whole(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([pad(part.float(), (0, 0, 0, width - part.shape[1])).cpu() for part in parts])

    hidden = [piece.hidden for piece in pieces if piece.hidden is not None]
    return Steps(whole([piece.log_prob for piece in pieces]), whole(hidden) if hidden else None)


def _train(
    twisted: TwistedBase, rows: TwistRows, config: TwistLearningConfig, folder: Path | None, loss: TwistLoss, *,
    resume: bool, number: int,
) -> TrainingRecord:  # fmt: skip
    """Train on the draws that are not held out; the weights at the start stay where no evaluation is better."""
    held_out = torch.arange(len(rows)) % HELD_OUT == HELD_OUT - 1
    space, twist = twisted.space, twisted.twist
    size = min(config.training.batch_size, max(8, NUMBERS_AT_ONCE // (space.max_length * space.vocab_size)))
    settings = replace(config.training, batch_size=size, seed=config.training.seed + number)
    judge = rows.rows(held_out)

    @torch.no_grad()
    def validation() -> Estimate:
        device, pieces = next(twist.parameters()).device, judge.split(min(size, -(-len(judge) // JUDGED_IN)))
        losses = [loss(twisted, piece.to(device), rng=SeededRng(0)) for piece in pieces]
        return mean_loss([(float(part.values[None]), part.count) for part in losses], n=len(judge), counted="draws")

    first = broadcast_object(validation())
    weights = {name: weight.clone() for name, weight in local_module_tensors(twist).items()}
    record = Trainer(settings)(
        loss, twisted, rows.rows(~held_out), modules=twist, validation=validation, folder=folder, resume=resume
    )
    if record.best is None or record.best.value < first.value:
        return record
    with torch.no_grad():
        for name, weight in local_module_tensors(twist).items():
            weight.copy_(weights[name])
    return replace(record, best=first, best_step=0)


def _measure(
    target: Tilted, twisted: TwistedBase, prompts: Sequences, config: TwistLearningConfig, records: Sequence[TrainingRecord],
    cost: int, rng: Rng,
) -> TwistResult:  # fmt: skip
    """What fresh draws of the base and of the proposal say, as many of each."""
    each, which = max(2, config.evaluation_draws // len(prompts)), _over(prompts)
    plain = Importance()(target, prompts, each, rng=rng.stream("base"))
    learnt = Importance(twisted)(target, prompts, each, rng=rng.stream("twist"))
    estimates = log_z(learnt, prompts=which), log_z(plain, prompts=which, bounds=log_weight_bounds(target.energy))
    return TwistResult(twisted.twist, tuple(records), cost, _effective(learnt), _effective(plain), *estimates)


def _over(prompts: Sequences) -> Prompts:
    """What an estimate is a mean over."""
    return "same" if len(prompts) == 1 else "sample"


def _effective(draws: Draws) -> float:
    """The mean over prompts of the share of draws that are effective."""
    return float((draws.ess() / draws.log_weight.shape[1]).mean())


def _write_round(file: Path, part: _Round) -> None:
    x = part.x
    tensors = {"tokens": x.tokens, "start": x.start, "stop": x.stop, "log_weight": part.log_weight, "log_ratio": part.log_ratio}
    write_tensors(file, tensors)


def _read_round(file: Path) -> _Round:
    tensors = read_tensors(file)
    x = Sequences(tensors["tokens"], tensors["start"], tensors["stop"])
    return _Round(x, tensors["log_weight"], tensors["log_ratio"])
