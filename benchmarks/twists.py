"""Which loss learns the best twist (`esscher.objectives.twist`, docs/why/twists.md).

The targets are those of `pruning`: two energies that were trained by noise contrast, and the strong tilt to a motif. Each loss
learns a twist from 4,096 sequences in four rounds, all with the same network and settings. The space is enumerated, so the true
log E[exp(-E)] after every prefix is known, and the tilted model p itself can be drawn from. From 4,000 draws of it: `kl` is the
divergence of the twist's proposal q from p, `effective` the share of draws of q that are effective, 1 / E_p[p / q], `error` the
root mean square of log psi - its true value over all unfinished prefixes, and `base` the effective share of the base, exactly.
95 % intervals are those of a normal mean over the draws; for `effective` they miss what the 4,000 did not meet.
"""

import torch
from torch import Tensor

from benchmarks._timing import Row, Table
from benchmarks.pruning import SPACE, exactly, trained, with_motif
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, empty_prompts
from esscher.core.target import Tilted
from esscher.energies.twist import LearntTwist, TwistedBase
from esscher.exact.enumeration import enumerate_points
from esscher.objectives.twist import TwistForm, TwistLoss
from esscher.samplers.scoring import log_prob, log_weight
from esscher.training.config import TwistLearningConfig
from esscher.training.twist_learning import learn_twist

REPEATS = 2  # seeds of learning
LEARNT_FROM, TRUE_DRAWS = 4096, 4000
FORMS: tuple[tuple[TwistForm, ...], ...] = (
    ("contrastive",), ("poisson",), ("relative",), ("likelihood",), ("bellman",), ("relative", "bellman"),
    ("likelihood", "relative"),
)  # fmt: skip


def true_twists(target: Tilted) -> list[Tensor]:
    """log E[exp(-E)] of every prefix of t tokens, t = 0, 1, ..., as a table with an axis for each token."""
    everything, shape = enumerate_points(SPACE), (SPACE.vocab_size,) * SPACE.max_length
    log_token = target.base.log_probs(everything).double().view(*shape, SPACE.max_length)
    tables = [log_weight(target, everything).view(shape)]
    for t in reversed(range(SPACE.max_length)):
        of_prefix = log_token[(*[slice(None)] * (t + 1), *[0] * (SPACE.max_length - t - 1), t)]
        tables.append(torch.logsumexp(of_prefix + tables[-1], -1))
    return tables[::-1]


@torch.no_grad()
def judge(target: Tilted, twist: LearntTwist, x: Sequences, log_p: Tensor, truth: list[Tensor]) -> Row:
    """The row of a twist, from exact draws of the tilted model with their log-probabilities."""
    log_base, log_twist = TwistedBase(target.base, twist).steps_over(x)
    token = x.tokens[..., None]
    log_q = torch.log_softmax(log_base + log_twist, -1).gather(2, token)[..., 0].sum(-1).double()
    log_psi = log_twist.gather(2, token)[..., 0].double() + twist.offset
    true = torch.stack([truth[t + 1][tuple(x.tokens[:, : t + 1].T)] for t in range(SPACE.max_length - 1)], 1)
    square = (log_psi[:, :-1] - true).square().mean(-1)
    chi = _mean((log_p - log_q).exp())
    return {
        "kl": _mean(log_p - log_q),
        "effective": {"median": 1 / chi["median"], "low": 1 / chi["high"], "high": 1 / max(1.0, chi["low"])},
        "error": {name: max(0.0, value) ** 0.5 for name, value in _mean(square).items()},
    }


def _mean(values: Tensor) -> dict[str, float]:
    mean, error = float(values.mean()), float(values.std()) / len(values) ** 0.5
    return {"median": mean, "low": mean - 1.96 * error, "high": mean + 1.96 * error}


def rows_of(name: str, target: Tilted, seeds: int) -> list[Row]:
    truth, everything = true_twists(target), enumerate_points(SPACE)
    log_p = log_prob(target.base, everything) + log_weight(target, everything) - truth[0]
    chosen, rows = SeededRng(5).categorical(log_p[None], TRUE_DRAWS)[0], list[Row]()
    base = 1 / (1 + exactly(target)[1])
    for forms in FORMS:
        for seed in range(seeds):
            config = TwistLearningConfig(LEARNT_FROM)
            learnt = learn_twist(target, empty_prompts(1), config, loss=TwistLoss(forms), rng=SeededRng(seed))
            judged = judge(target, learnt.twist, everything.rows(chosen), log_p[chosen], truth)
            row: Row = {"target": name, "loss": " + ".join(forms), "seed": seed, "base": base}
            rows.append(row | judged)
    return rows


def tables(repeats: int) -> list[Table]:
    cases = {f"{rule}, bidirectional": trained(rule, "bidirectional")[0] for rule in ("throughout", "end")}
    cases["motif"] = with_motif()[0]
    return [Table("twists learnt from 4,096 sequences", [row for name in cases for row in rows_of(name, cases[name], repeats)])]
