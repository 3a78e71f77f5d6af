"""What twists and pruning by blocks save: base sequences for the same error of Z, particles against independent draws.

Laboratory: 4 letters, 9 tokens, a bigram base, and two rules that it cannot know. `throughout`: no letter is that of two
places before, so every prefix tells something. `end`: the last letter is the first, so that a prefix tells nothing. For each
rule an energy of either kind is trained by noise contrast on 4,000 sequences. `motif`: a strong tilt, to strings of which 9 in
10 contain 3 2 2 0, as 1 in 100 of the base do. The learnt twist reads the letters with a memory of its own, because an n-gram
has no hidden vectors; `proposal` draws independently from what it proposes. Every sampler estimates Z from about 64
sequences' worth of the base's tokens, once a repeat. The space is enumerated: Z is exact, and so is the variance of
independent draws, which a sample of them underrates wherever it missed the rare heavy points. `error` is the mean square of Z
found / Z - 1 over repeats times their cost, `saved` how many times as many base sequences independent draws need for it, above
1 a saving, with the 95 % interval of a bootstrap over the repeats; the sequences that a twist is learnt from, once, are not
counted in `cost` but shown as `learnt from`. `off` is the mean of Z found / Z - 1 in standard errors: far from 0 when the
repeats missed heavy points, too. `gained` is what the energy learnt: nats a sequence over the base, on its training data; the
rules are worth 2.0 (`throughout`) and 1.4 (`end`); for the motif it is the divergence of the tilted model from the base.
"""

import math

import torch

from benchmarks._device import on_device
from benchmarks._timing import Row, Table
from esscher.bases.ngram import fit_ngram
from esscher.core.draws import Sampler
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts
from esscher.core.target import Tilted
from esscher.energies.config import EnergyConfig
from esscher.energies.features import LogLinear, contains
from esscher.energies.network import build_energy
from esscher.energies.twist import TwistedBase
from esscher.exact.enumeration import enumerate_points
from esscher.networks.transformer_config import TransformerConfig
from esscher.objectives.noise_contrastive import NoiseContrast
from esscher.samplers.importance import Importance
from esscher.samplers.particles import Particles
from esscher.samplers.scoring import log_prob, log_weight
from esscher.samplers.twists import fitted_twist, linear_twist
from esscher.training.config import TrainingConfig, TwistLearningConfig
from esscher.training.trainer import Trainer
from esscher.training.twist_learning import learn_twist

REPEATS = 400
LETTERS, LENGTH, BLOCK, DATA, COST, STEPS = 4, 9, 3, 4000, 64, 800
PILOT, LEARNT_FROM = 256, 8192
LETTER_SHARES, MOTIF, WANTED = (0.4, 0.3, 0.2, 0.1), (3, 2, 2, 0), 0.9
SPACE = Space(LETTERS, LENGTH)


def data_of(rule: str, rng: SeededRng) -> Sequences:
    """Sequences by the rule, otherwise even."""
    letters = rng.categorical(torch.zeros(DATA, LETTERS), LENGTH)
    if rule == "end":
        letters[:, -1] = letters[:, 0]
    else:
        step = 1 + rng.stream("step").categorical(torch.zeros(DATA, LETTERS - 1), LENGTH)
        for t in range(2, LENGTH):
            letters[:, t] = (letters[:, t - 2] + step[:, t]) % LETTERS
    return Sequences(letters, torch.zeros(DATA, dtype=torch.long), torch.full((DATA,), LENGTH))


def trained(rule: str, kind: str) -> tuple[Tilted, Sequences]:
    data = data_of(rule, SeededRng(0, rule))
    base = fit_ngram(data, SPACE, order=2)
    network = TransformerConfig(width=16, layers=1, heads=2, feedforward=32)
    energy = build_energy(EnergyConfig(kind, pooling="sum", network=network), base, rng=SeededRng(1))  # type: ignore[arg-type]
    target = on_device(Tilted(base, energy))
    settings = TrainingConfig(steps=STEPS, batch_size=100, learning_rate=0.01, optimizer="adam", schedule="cosine")
    Trainer(settings)(NoiseContrast(), target, data, modules=energy)
    energy.eval()
    return target, data


def with_motif() -> tuple[Tilted, Sequences]:
    """A base of uneven letters, tilted to a motif; and draws of the tilted model."""
    letters = SeededRng(0, "motif").categorical(torch.tensor([LETTER_SHARES]).log().expand(DATA, -1), LENGTH)
    base = fit_ngram(Sequences(letters, torch.zeros(DATA, dtype=torch.long), torch.full((DATA,), LENGTH)), SPACE, order=2)
    feature, everything = contains(MOTIF), enumerate_points(SPACE)
    share = float(log_prob(base, everything)[feature.of(everything) > 0].logsumexp(0).exp())
    weight = math.log(WANTED / (1 - WANTED) * (1 - share) / share)
    target = on_device(Tilted(base, LogLinear([feature], torch.tensor([weight], dtype=torch.float64))))
    tilted = (log_prob(base, everything) + log_weight(target, everything))[None]
    return target, everything.rows(SeededRng(1, "motif").categorical(tilted, DATA)[0])


def samplers(target: Tilted) -> dict[str, tuple[Sampler, int, int]]:
    """Each with the draws that cost about the same, and the sequences that its twist is learnt from."""
    fitted = fitted_twist(target, empty_prompts(1), block=BLOCK, draws=PILOT, rng=SeededRng(2))
    learnt = learn_twist(target, empty_prompts(1), TwistLearningConfig(LEARNT_FROM), rng=SeededRng(2))
    proposal = Importance(TwistedBase(target.base, learnt.twist))
    return {
        "independent": (Importance(), COST, 0),
        "linear twist": (Particles(linear_twist(target), block=BLOCK), COST, 0),
        "fitted twist": (Particles(fitted, block=BLOCK), COST, PILOT),
        "fitted twist, halved once": (Particles(fitted, block=BLOCK, pruning_rounds=1), COST * 3 // 4, PILOT),
        "learnt twist": (Particles(learnt.twist, block=BLOCK), COST, learnt.cost),
        "learnt twist, proposal": (proposal, COST, learnt.cost),
    }


def exactly(target: Tilted) -> tuple[float, float]:
    """log Z, and the relative variance of one weight under the base."""
    everything = enumerate_points(SPACE)
    log_base, log_tilt = log_prob(target.base, everything), log_weight(target, everything)
    log_z = torch.logsumexp(log_base + log_tilt, 0)
    return float(log_z), float((torch.logsumexp(log_base + 2 * log_tilt, 0) - 2 * log_z).exp()) - 1


def rows_of(rule: str, kind: str, repeats: int) -> list[Row]:
    target, data = with_motif() if rule == "motif" else trained(rule, kind)
    log_z, variance = exactly(target)
    gained = float(log_weight(target, data).mean()) - log_z
    again = SeededRng(3).categorical(torch.zeros(400, repeats), repeats)
    rows = []
    for name, (sampler, draws, learnt_from) in samplers(target).items():
        actual = sampler(target, empty_prompts(repeats), draws, rng=SeededRng(4))
        gap, cost = (actual.log_z() - log_z).exp() - 1, actual.cost / repeats
        low, high = torch.quantile(variance / (gap[again].square().mean(-1) * cost), gap.new_tensor([0.025, 0.975])).tolist()
        error = float(gap.square().mean()) * cost
        row: Row = {"rule": rule, "energy": kind, "gained, nats": gained, "exact error": variance, "sampler": name}
        row |= {
            "learnt from": learnt_from,
            "cost": cost,
            "ess": float(actual.ess().mean()),
            "off": float(gap.mean() / gap.std()) * repeats**0.5,
        }
        rows.append(row | {"error": error, "saved": {"median": variance / error, "low": low, "high": high}})
    return rows


def tables(repeats: int) -> list[Table]:
    cases = [(rule, kind) for rule in ("throughout", "end") for kind in ("unidirectional", "bidirectional")]
    cases.append(("motif", "log-linear"))
    return [Table("base sequences for the same error of Z", [row for case in cases for row in rows_of(*case, repeats)])]
