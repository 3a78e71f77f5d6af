"""How well a fresh classifier tells a model's draws from data: the base's, and the joint's.

A new network learns by noise contrast, one draw for each sequence, and is tested on prompts that it never saw: once for draws
of the base and once for draws of the joint, from the same start. A joint that is the distribution of the data cannot be told
from it: accuracy 1/2. No classifier can be right more often than 1/2 + half the total variation between model and data, so
accuracy says how far a model is off at least, as good as the classifier is. Joint draws come from a finite pool, which leaves
them a little nearer the base. Data that the energy was trained on make the joint look better than it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from esscher.draws import Draws
from esscher.energies.building import build_energy, reads_both_sides
from esscher.energies.network import NetworkEnergy
from esscher.energies.reading import Decode
from esscher.estimate import Estimate
from esscher.estimators.intervals import Statistic
from esscher.estimators.populations import Name, Populations
from esscher.objectives.negatives import StoredNegatives
from esscher.objectives.noise_contrast import NoiseContrast
from esscher.randomness import Seeded
from esscher.samplers.scores import log_weight
from esscher.settings.discriminate import DiscriminateConfig
from esscher.space import Sequences
from esscher.target import Base, Tilted
from esscher.training.evaluation import HeldOut
from esscher.training.progress import choose_progress
from esscher.training.trainer import Trainer
from esscher.verbs.comparison import gather
from esscher.verbs.subsets import some_of, split_by_prompt

AGAINST: tuple[Name, ...] = ("base", "joint")


@dataclass(frozen=True)
class Discriminated:
    """By the kind of draws that were told from data; `gap` is how much more often the base's were told."""

    accuracy: Mapping[Name, Estimate]
    false_positives: Mapping[Name, Estimate]  # share of the draws taken for data
    gap: Estimate
    effective: Estimate  # draws of the joint in the pool of a prompt
    sequences: Mapping[str, int]  # learnt from, chosen by, judged by


@dataclass(frozen=True)
class Pools:
    """The same kinds of populations for the three uses, with no prompt in common."""

    learn: Populations
    choose: Populations
    judge: Populations


def discriminate(
    target: Tilted,
    x: Sequences,
    config: DiscriminateConfig,
    *,
    decode: Decode | None = None,
    level: float = 0.95,
    rng: Seeded,
    quiet: bool = True,
) -> Discriminated:
    """Train a classifier for each kind of draws and test it; an encoder of text needs the base's `decode`."""
    say = choose_progress(quiet).say
    x = some_of(x, config.sequences, rng=rng.stream("sequences"))
    classifier = config.classifier.resolve(
        both_sides=reads_both_sides(target.base), positions=int(x.start.max()) + target.space.max_length
    )
    classifiers = {  # before anything is drawn, so that a mistake in their settings costs nothing
        name: build_energy(classifier, target.base, decode=decode, rng=rng.stream("classifier")) for name in AGAINST
    }
    parts = split_by_prompt(x, (config.validation, config.test), rng=rng.stream("split"))
    names = ("learn", "choose", "judge")
    pools = Pools(
        *(
            gather(target, part, config.draws, rng=rng.stream("draws", name), say=say)
            for name, part in zip(names, parts, strict=True)
        )
    )
    judged: dict[Name, _Verdict] = {}
    for name in AGAINST:
        say(f"A classifier learns to tell data from draws of the {name}.")
        energy = classifiers[name]
        learn(energy, target.base, pools, name, config, rng=rng.stream("learn", name), quiet=quiet)
        judged[name] = judge(energy, target.base, pools.judge, name)
    sizes = {name: len(part) for name, part in zip(names, parts, strict=True)}
    return _summary(pools.judge, judged, sizes, level)


def learn(
    energy: NetworkEnergy,
    base: Base,
    pools: Pools,
    name: Name,
    config: DiscriminateConfig,
    *,
    rng: Seeded,
    quiet: bool = True,
) -> None:
    """Train the classifier in place, and leave it with the weights that were best on the prompts to choose by."""
    objective = NoiseContrast(_table(pools.learn, name, rng=rng.stream("learn")))
    held_out = HeldOut(NoiseContrast(_table(pools.choose, name, rng=rng.stream("choose"))), pools.choose.data.x)
    Trainer(config.training, quiet)(objective, Tilted(base, energy), pools.learn.data.x, modules=energy, validation=held_out)
    energy.to(pools.learn.data.x.tokens.device).eval()


@dataclass(frozen=True)
class _Verdict:
    """Shares taken for data among the data and among the draws, as functions of the replicates' counts."""

    of_data: Statistic
    of_draws: Statistic

    def accuracy(self, *counts: Tensor) -> Float[Tensor, ""]:
        return (1 + self.of_data(*counts) - self.of_draws(*counts)) / 2


def judge(energy: NetworkEnergy, base: Base, found: Populations, name: Name) -> _Verdict:
    """The classifier's verdicts: negative energy means data. All draws count, those of the joint by their weight."""
    classifier = Tilted(base, energy)
    taken = {who: (log_weight(classifier, found[who].x) > 0).double() for who in ("data", name)}
    return _Verdict(found.ratio("data", taken["data"]), found.ratio(name, taken[name]))


def accuracy_of(found: Populations, verdict: _Verdict, *, level: float = 0.95) -> Estimate:
    """How often the classifier is right when data and draws are equally many."""
    return found.share(verdict.accuracy, level=level, method="accuracy at even odds on unseen prompts")


def _summary(found: Populations, judged: Mapping[Name, _Verdict], sizes: Mapping[str, int], level: float) -> Discriminated:
    base, joint = judged["base"], judged["joint"]
    return Discriminated(
        accuracy={name: accuracy_of(found, one, level=level) for name, one in judged.items()},
        false_positives={
            name: found.share(one.of_draws, level=level, method="share of draws taken for data") for name, one in judged.items()
        },
        gap=found.estimate(
            lambda *counts: base.accuracy(*counts) - joint.accuracy(*counts), level=level, method="difference of accuracies"
        ),
        effective=found.effective(level=level),
        sequences=sizes,
    )


def _table(found: Populations, name: Name, *, rng: Seeded) -> StoredNegatives:
    """The draws to be told from data, from which noise contrast picks."""
    drawn: Draws = found.draws if name == "base" else found.joint_draws(rng=rng)
    return StoredNegatives(drawn.x, drawn.log_base)
