"""Numeric misuse: energies, bases, prompts, draws and settings that are wrong, on spaces whose exact answers are known by
enumeration. A case passes if the library refuses with an error of its own, or, where it answers, if the answer
holds: the interval of log Z covers the truth, or the verdict on it is not "good"."""

import contextlib
import io
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch
from random_targets import random_automaton, taste
from torch import nn

from esscher.bases.network import build_base
from esscher.cli import main
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of, sequences
from esscher.core.target import BaseWrapper, Tilted, flat
from esscher.data.tokenizers import train_tokenizer
from esscher.energies.features import ConditionalLogLinear, Feature, LogLinear, Sum, contains, lacks, length
from esscher.estimators.log_z import log_z
from esscher.estimators.perplexity import cross_entropy, measure
from esscher.estimators.reliability import reliability
from esscher.exact.automaton import Automaton
from esscher.exact.enumeration import tabulate
from esscher.hub import save_base
from esscher.networks.recurrent_config import LstmConfig
from esscher.samplers.accept_reject import Metropolis, QuasiRejection, Rejection
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.particles import Particles
from esscher.samplers.sir import SIR, AdaptiveSIR
from esscher.samplers.twists import FittedParticles, ParticleSIR
from esscher.workflow.config.measure import MeasureConfig
from esscher.workflow.config.sample import SampleConfig
from faults.suite import Case, Family, Outcome

WRONG, FOREIGN = "silent wrong numbers", "tracebacks of others"
HOUSE = re.compile(r"Nothing was|No draw of|dropped|biased|No table was|were kept")  # what became of the work
SPACE = Space(3, 5, eos=0)
PROMPTS = prompts_of([[], [1], [2, 1, 1]])
SAMPLERS = {
    "importance": Importance(), "sir": SIR(32), "adaptive-sir": AdaptiveSIR(4.0, 16, 64), "metropolis": Metropolis(8),
    "rejection": Rejection(20.0, 100), "quasi-rejection": QuasiRejection(2.0), "particles": Particles(),
    "fitted-particles": FittedParticles(2), "particle-sir": ParticleSIR(16, 2), "exhaustive": Exhaustive(),
}  # fmt: skip


def refused(action: Callable[[], object], named: str = "") -> Outcome:
    """The action must end with an error of the library, which has this name in it."""
    torch.manual_seed(0)  # of energies that are random: a few rows may have the same by chance, so that it is not noticed
    try:
        answer = action()
    except Exception as error:
        checked_by_tests = type(error).__module__.startswith(("jaxtyping", "beartype"))
        house = isinstance(error, ValueError | TypeError | RuntimeError) and HOUSE.search(str(error)) and named in str(error)
        return Outcome() if house or checked_by_tests else Outcome({FOREIGN: 1}, f"{type(error).__name__}: {error}")
    return Outcome({WRONG: 1}, f"accepted: {answer!r:.300}")


def holds(
    target: Tilted, prompts: Sequences = PROMPTS, draws: int = 1000, *, good: bool | None = None, seed: int = 0
) -> Outcome:
    """log Z after each prompt is covered by its interval, or not called good; `good` says what it must be called."""
    truth = tabulate(target, prompts).log_z.tolist()
    for row, exact in enumerate(truth):
        prompt = prompts.rows(slice(row, row + 1))
        drawn = Importance()(target, prompt, draws, rng=SeededRng(seed, row))
        estimate, (entry,) = log_z(drawn), reliability(drawn, energy=target.energy)
        said = f"log Z {estimate}, truth {exact:.4g}, {entry.verdict}: {entry.advice}"
        if entry.verdict == "good" and not estimate.low - 1e-6 <= exact <= estimate.high + 1e-6:
            return Outcome({WRONG: 1}, said)
        if good is not None and good != (entry.verdict == "good"):
            return Outcome({WRONG: 1}, f"the verdict should {'' if good else 'not '}be good: {said}")
    return Outcome()


# energies


def _tokens(x: Sequences) -> torch.Tensor:
    return torch.where(x.counted, x.tokens, 0).double()


class Forgetful(nn.Module):
    """Dropout that nobody switched off."""

    def forward(self, x: Sequences) -> torch.Tensor:
        return nn.functional.dropout(_tokens(x), 0.5, self.training).sum(-1)


class Counting:
    """Another energy at every call."""

    calls = 0

    def __call__(self, x: Sequences) -> torch.Tensor:
        self.calls += 1
        return _tokens(x).sum(-1) * self.calls


def _overwrite(x: Sequences) -> torch.Tensor:
    x.tokens.clamp_(max=1)
    return _tokens(x).sum(-1)


def _standardised(x: Sequences) -> torch.Tensor:
    values = _tokens(x).sum(-1)
    return (values - values.mean()) / (values.std(correction=0) + 1e-3)


def _of_some(value: float) -> Callable[[Sequences], torch.Tensor]:
    return lambda x: torch.where(x.lengths > 1, value, 0.0).double()


WRONG_ENERGIES: dict[str, Callable[[Sequences], object]] = {
    "sum_over_rows": lambda x: -_tokens(x).sum(),
    "sum_over_rows_as_one_row": lambda x: -_tokens(x).sum()[None],
    "mean_over_rows_repeated_twice": lambda x: _tokens(x).mean().expand(2),
    "a_column": lambda x: _tokens(x).sum(-1, keepdim=True),
    "a_row": lambda x: _tokens(x).sum(-1)[None],
    "tokens_not_summed": _tokens,
    "summed_over_the_wrong_axis": lambda x: _tokens(x).sum(0),
    "squeezed": lambda x: _tokens(x).sum(-1, keepdim=True).squeeze(),
    "one_row_missing": lambda x: _tokens(x).sum(-1)[1:],
    "twice_the_rows": lambda x: _tokens(x).sum(-1).repeat(2),
    "whole_numbers": lambda x: x.lengths,
    "truth_values": lambda x: x.lengths > 2,
    "complex_numbers": lambda x: _tokens(x).sum(-1).to(torch.complex64),
    "a_python_number": lambda x: 1.0,
    "a_list": lambda x: _tokens(x).sum(-1).tolist(),
    "an_array": lambda x: _tokens(x).sum(-1).numpy(),
    "nothing": lambda x: None,
    "a_pair": lambda x: (_tokens(x).sum(-1), None),
    "not_a_number": lambda x: torch.full((len(x),), torch.nan),
    "not_a_number_sometimes": _of_some(math.nan),
    "minus_infinity": lambda x: torch.full((len(x),), -torch.inf),
    "minus_infinity_sometimes": _of_some(-math.inf),
    "zero_over_zero": lambda x: (_tokens(x) * 0).sum(-1) / (_tokens(x) * 0).sum(-1),
    "infinity_minus_infinity": lambda x: torch.full((len(x),), torch.inf) - torch.inf,
    "noise": lambda x: _tokens(x).sum(-1) + torch.randn(len(x)),
    "forgotten_dropout": Forgetful(),
    "another_at_every_call": Counting(),
    "less_the_mean_of_the_batch": lambda x: _tokens(x).sum(-1) - _tokens(x).sum(-1).mean(),
    "less_the_largest_of_the_batch": lambda x: _tokens(x).sum(-1) - _tokens(x).sum(-1).max(),
    "less_the_least_of_the_batch": lambda x: _tokens(x).sum(-1) - _tokens(x).sum(-1).min(),
    "a_share_of_the_batch": lambda x: torch.log_softmax(_tokens(x).sum(-1), 0),
    "standardised_over_the_batch": _standardised,
    "the_rank_in_the_batch": lambda x: _tokens(x).sum(-1).argsort().argsort().double(),
    "the_number_of_the_row": lambda x: torch.arange(len(x)).double(),
    "the_size_of_the_batch": lambda x: torch.full((len(x),), float(len(x))),
    "sorted_rows": lambda x: _tokens(x).sum(-1).sort().values,
    "padding_counted": lambda x: (x.tokens == 0).double().sum(-1),
    "mean_over_padding": lambda x: 5 * _tokens(x).mean(-1),
    "the_width_of_the_batch": lambda x: torch.full((len(x),), float(x.tokens.shape[1])) + _tokens(x).sum(-1),
    "writes_into_the_tokens": _overwrite,
}
ASKED = ("importance", "sir", "metropolis", "particle-sir", "tabulate", "log_score")


def wrong_energy(name: str, asked: str) -> Outcome:
    energy = WRONG_ENERGIES[name]
    if not isinstance(energy, nn.Module | Counting):
        energy = _renamed(energy, name)
    target = Tilted(random_automaton(SPACE), energy)  # type: ignore[arg-type]
    called = type(energy).__name__ if isinstance(energy, nn.Module | Counting) else name
    actions: dict[str, Callable[[], object]] = {
        "tabulate": lambda: tabulate(target, PROMPTS).log_z.tolist(),
        "log_score": lambda: _scores(target),
    }
    sampler = SAMPLERS.get(asked)
    draw = lambda: sampler(target, PROMPTS, 8, rng=SeededRng(1)).log_weight.tolist()  # noqa: E731
    return refused(actions.get(asked, draw), called)


@torch.no_grad()
def _scores(target: Tilted) -> list[float]:
    return target.log_score(sequences([[0], [1, 0], [2, 2, 1, 0], [2, 1, 2, 2, 2], [1, 1, 1, 1, 0]])).tolist()


def _renamed(function: Callable[[Sequences], object], name: str) -> Callable[[Sequences], object]:
    def energy(x: Sequences) -> object:
        return function(x)

    energy.__qualname__ = name
    return energy


RIGHT_ENERGIES: dict[str, Callable[[Sequences], torch.Tensor]] = {
    "flat": flat,
    "taste": taste(SPACE),
    "strong": taste(SPACE, scale=2.0),
    "very_strong": taste(SPACE, scale=6.0),
    "float32": lambda x: taste(SPACE)(x).float(),
    "bfloat16": lambda x: taste(SPACE)(x).bfloat16(),
    "constant": lambda x: torch.full((len(x),), 3.0),
    "forbids": lambda x: torch.where(x.lengths > 3, torch.inf, 0.0),
    "forbids_most": lambda x: torch.where(x.lengths != 2, torch.inf, -1.0),
    "large_numbers": lambda x: taste(SPACE)(x) + 1e6,
    "very_negative": lambda x: taste(SPACE)(x) - 1e6,
    "in_evaluation": Forgetful().eval(),
    "reads_the_prompt": lambda x: _tokens(x).sum(-1) * (1 + x.start),
}


# verdicts


@cache
def _rare() -> Automaton:
    """Token 2 once in 3,000 tokens: four thousand draws never have three of them in a row."""
    share = torch.tensor([[0.2, 0.8 - 1 / 3000, 1 / 3000]], dtype=torch.float64)
    return Automaton(share.log(), torch.zeros(1, 3, dtype=torch.long), Space(3, 8, eos=0))


class _Ones(nn.Module):
    """Weights that a prompt does not change."""

    def __init__(self, weights: torch.Tensor):
        super().__init__()
        self.weights = nn.Parameter(weights)

    def forward(self, prompts: Sequences) -> torch.Tensor:
        return self.weights.expand(len(prompts), -1)


def _weighing(form: str, weight: float, spread: float) -> Tilted:
    """An energy that weighs a motif which no draw shows."""
    motif = {
        "contains": contains([2, 2, 2]), "lacks": lacks([2, 2, 2]), "without_bounds": replace(contains([2, 2, 2]), bounds=None),
    }.get(form, contains([2, 2, 2]))  # fmt: skip
    weights = torch.tensor([-weight if form == "lacks" else weight, spread], dtype=torch.float64)
    features: list[Feature] = [motif, length()]
    if form == "conditional":
        return Tilted(_rare(), ConditionalLogLinear(features, _Ones(weights)))
    linear = LogLinear(features, weights)
    if form == "sum":
        return Tilted(_rare(), Sum({"features": LogLinear([motif], weights[:1]), "taste": LogLinear([length()], weights[1:])}))
    if form == "scaled":
        return Tilted(_rare(), Sum({"features": linear}, {"features": 0.5}))
    if form == "function":
        return Tilted(_rare(), lambda x: linear(x).detach())
    return Tilted(_rare(), linear)


def stored_disagrees(stored: float, width: float) -> Outcome:
    """A log Z in the energy's folder, far from the draws: never good."""
    target = Tilted(random_automaton(SPACE), taste(SPACE))
    drawn = Importance()(target, empty_prompts(1), 2000, rng=SeededRng(3))
    (entry,) = reliability(drawn, stored=Estimate(stored, stored - width, stored + width, 0.95, 1000, "stored"))
    exact = float(tabulate(target).log_z[0])
    far = abs(stored - exact) > width + 0.2
    if far == (entry.verdict == "good"):
        return Outcome({WRONG: 1}, f"stored {stored}, exact {exact:.4g}: {entry}")
    return Outcome() if not far or "as stored" in entry.advice else Outcome({WRONG: 1}, entry.advice)


# requests

DRAWS = {
    "none": 0, "minus": -3, "a_fraction": 1.5, "a_float": 3.0, "text": "3", "true": True, "nothing": None, "a_list": [3],
    "not_a_number": math.nan, "infinity": math.inf, "too_many": 10**11, "far_too_many": 10**400,
}  # fmt: skip


TWO = prompts_of([[1], [2, 1]])
WRONG_PROMPTS: dict[str, Callable[[], object]] = {
    "token_above": lambda: prompts_of([[1], [3]]),
    "token_far_above": lambda: prompts_of([[10**12]]),
    "token_below": lambda: prompts_of([[-1, 2]]),
    "fractions": lambda: replace(TWO, tokens=TWO.tokens.double()),
    "small_numbers": lambda: replace(TWO, tokens=TWO.tokens.int()),
    "no_row": lambda: empty_prompts(0),
    "with_points": lambda: sequences([[1, 0], [2]], [[1], []]),
    "starts_outside": lambda: replace(TWO, start=TWO.start + 5, stop=TWO.stop + 5),
    "starts_below": lambda: replace(TWO, start=TWO.start - 5, stop=TWO.stop - 5),
    "too_few_starts": lambda: replace(TWO, start=TWO.start[:1], stop=TWO.stop[:1]),
    "lists": lambda: [[1], [2, 1]],
    "text": lambda: "1",
    "nothing": lambda: None,
    "a_tensor": lambda: TWO.tokens,
}


SETTINGS: dict[str, Callable[[], object]] = {
    **{f"{kind.__name__}({value!r})": partial(kind, value)
       for kind in (SIR, ParticleSIR, Metropolis, Ancestral) for value in (0, -2, 1.5, "8", True, math.nan)},
    **{f"Rejection({value!r})": partial(Rejection, value) for value in ("1", math.nan, None.__class__, True)},
    **{f"patience({value!r})": partial(Rejection, 1.0, value) for value in (0, 1.5, "9")},
    **{f"AdaptiveSIR{values!r}": partial(AdaptiveSIR, *values)
       for values in ((0.0,), (math.nan,), ("8",), (4.0, 0), (4.0, 1.5), (4.0, 64, 16), (99.0, 2, 4), (4.0, 2, "9"))},
    **{f"Particles({name}={value!r})": partial(Particles, **{name: value})
       for name, value in (("block", 0), ("block", 1.5), ("pruning_rounds", -1), ("pruning_rounds", "1"),
                           ("threshold", math.nan), ("threshold", "0.5"))},
    **{f"FittedParticles(pilot={value!r})": partial(FittedParticles, pilot=value) for value in (0, 2.5, "256")},
    **{f"Space{values!r}": partial(Space, *values)
       for values in ((0, 3), (3, 0), (3, 4, 3), (3, 4, -1), (2.5, 3), ("3", 3), (3, True), (3, math.inf), (3, 4, 1.5))},
    **{f"SampleConfig(draws={value!r})": partial(SampleConfig, draws=value) for value in (0, -1, 1.5, "3", True, math.nan)},
    **{f"MeasureConfig(draws={value!r})": partial(MeasureConfig, "x.txt", draws=value)
       for value in (0, 1, 1.5, "3", True, 1e11)},
    **{f"sequences({name})": partial(sequences, points)
       for name, points in {"fractions": [[1.5, 0]], "text": ["10"], "none": [[None]]}.items()},
}  # fmt: skip


def many_candidates() -> dict[str, object]:
    return {
        "SIR": SIR(10**11), "Metropolis": Metropolis(10**11), "AdaptiveSIR": AdaptiveSIR(4.0, 10**11, 10**12),
        "Particles": Particles(pruning_rounds=60), "FittedParticles": FittedParticles(pilot=10**12),
        "ParticleSIR": ParticleSIR(10**11),
    }  # fmt: skip


TEST_SEQUENCES = {
    "too_long": [[1, 1, 1, 1, 1, 1, 0]], "without_an_end": [[1, 2]], "two_ends": [[1, 0, 1, 0]], "empty": [[]],
    "token_above": [[1, 3, 0]], "token_below": [[-1, 0]], "one_of_many": [[1, 0], [2, 0], [7, 0]],
}  # fmt: skip
LARGE = {
    "words": Space(50_000, 1024, eos=0), "bytes": Space(256, 64), "bits": Space(2, 10**6), "long": Space(3, 21, eos=0),
    "wide": Space(10**9, 2), "endless": Space(1000, 10**9),
}  # fmt: skip


def large_space(name: str, asked: str) -> Outcome:
    """The base is never asked: only its space is known."""
    target = Tilted(_Sized(random_automaton(SPACE), LARGE[name]))
    if asked == "tabulate":
        return refused(lambda: tabulate(target), "sequences")
    return refused(lambda: Exhaustive()(target, empty_prompts(2), 1, rng=SeededRng(0)), "sequences")


class _Sized(BaseWrapper):
    def __init__(self, base: Automaton, space: Space):
        super().__init__(base)
        object.__setattr__(self, "_space", space)

    @property
    def space(self) -> Space:
        return self._space  # type: ignore[attr-defined, no-any-return]


class _Odd(BaseWrapper):
    """A base whose log-probabilities are changed by a function."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__(random_automaton(SPACE))
        object.__setattr__(self, "change", change)

    def log_probs(self, x: Sequences) -> torch.Tensor:
        return self.change(self.base.log_probs(x))  # type: ignore[attr-defined, no-any-return]

    def begin(self, prompts: Sequences) -> tuple[torch.Tensor, object]:
        log_prob, state = self.base.begin(prompts)
        return self.change(log_prob), state  # type: ignore[attr-defined]

    def advance(self, state: object, token: torch.Tensor) -> tuple[torch.Tensor, object]:
        log_prob, state = self.base.advance(state, token)
        return self.change(log_prob), state  # type: ignore[attr-defined]


ODD_BASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "probabilities": torch.exp,
    "not_normalised": lambda log_prob: log_prob + 1,
    "halved": lambda log_prob: log_prob / 2,
    "one_token_less": lambda log_prob: log_prob[:, :-1],
    "one_row": lambda log_prob: log_prob[:1],
    "whole_numbers": lambda log_prob: log_prob.long(),
    "not_a_number": lambda log_prob: log_prob * math.nan,
}


def odd_base(name: str, asked: str) -> Outcome:
    target = Tilted(_Odd(ODD_BASES[name]), taste(SPACE))
    if asked == "cross_entropy":
        x = sequences([[0], [1, 0], [2, 2, 1, 0]] * 4)
        return refused(lambda: cross_entropy(Tilted(target.base), x))
    return refused(lambda: SAMPLERS[asked](target, PROMPTS, 16, rng=SeededRng(0)).log_weight.tolist())


# the command line


@cache
def _folder() -> str:
    """A small base of text, untrained."""
    kept = tempfile.TemporaryDirectory(prefix="esscher-numbers-")
    _KEPT.append(kept)
    texts = ["the cat sat on the mat", "a rat ate the hat of a cat"] * 4
    tokenizer = train_tokenizer("character", texts)
    base = build_base(LstmConfig(width=8, layers=1), Space(tokenizer.vocab_size, 30, eos=tokenizer.eos), rng=SeededRng(0))
    save_base(Path(kept.name) / "base", base, tokenizer)
    (Path(kept.name) / "test.txt").write_text("\n".join(texts))
    return kept.name


_KEPT: list[tempfile.TemporaryDirectory] = []

COMMANDS = {
    **{f"sample --draws {value}": ["sample", "base", "--draws", value]
       for value in ("0", "-1", "1.5", "1e11", "100000000000", "three", "nan", "")},
    "exhaustive": ["sample", "base", "--sampler.kind", "exhaustive"],
    "sir of many": ["sample", "base", "--sampler.kind", "sir", "--sampler.num-candidates", "100000000000"],
    "sir of none": ["sample", "base", "--sampler.kind", "sir", "--sampler.num-candidates", "0"],
    "temperature 0": ["sample", "base", "--temperature", "0"],
    "temperature nan": ["sample", "base", "--temperature", "nan"],
    "top-k 0": ["sample", "base", "--top-k", "0"],
    "top-p 2": ["sample", "base", "--top-p", "2"],
    "confidence 1": ["measure", "base", "--data", "test.txt", "--confidence", "1"],
    "confidence 2": ["measure", "base", "--data", "test.txt", "--confidence", "2"],
    "one draw": ["measure", "base", "--data", "test.txt", "--draws", "1"],
    "self by many": ["measure", "base", "--energy", "self", "--data", "test.txt", "--draws", "100000000000"],
    "a long text": ["score", "base", "--text", "the cat " * 40],
}  # fmt: skip


def command(name: str) -> Outcome:
    """Ends with 1 or 2 and a message, without a traceback."""
    folder, said = _folder(), io.StringIO()
    arguments = [f"{folder}/{word}" if word in ("base", "test.txt") else word for word in COMMANDS[name]]
    code = 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main([*arguments, "--quiet"])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException as error:
            return Outcome({FOREIGN: 1}, f"{type(error).__name__}: {error}")
    text = said.getvalue()
    if "Traceback" in text:
        return Outcome({FOREIGN: 1}, text)
    return Outcome() if code in (1, 2) and text.strip() else Outcome({WRONG: 1}, f"exit code {code}: {text[-500:]}")


def cases() -> Iterator[Case]:
    def case(name: str, run: Callable[[], Outcome]) -> Case:
        return Case(name, lambda folder: run())

    for name in WRONG_ENERGIES:
        for asked in ASKED:
            yield case(f"energy {name} by {asked}", partial(wrong_energy, name, asked))
    for name, energy in RIGHT_ENERGIES.items():
        for seed in range(3):
            yield case(
                f"energy {name} is right, seed {seed}", partial(holds, Tilted(random_automaton(SPACE), energy), seed=seed)
            )
    yield case("no energy is good", partial(holds, Tilted(random_automaton(SPACE)), good=True))
    zero = LogLinear([contains([2, 2, 2]), length()])
    yield case("weights of 0 are good", partial(holds, Tilted(random_automaton(SPACE), zero), good=True))
    for form in ("contains", "lacks", "without_bounds", "conditional", "sum", "scaled"):
        for weight in (5.0, 10.0, 40.0, -40.0):
            for spread in (0.0, 0.2):
                known = None if weight < 0 and form == "lacks" else False
                yield case(
                    f"unseen feature, {form}, weight {weight:g}, spread {spread:g}",
                    partial(_unseen, form, weight, spread, known),
                )
    yield case("unseen feature of a function, all weights alike", partial(_unseen, "function", 40.0, 0.0, False))
    for stored, width in ((-20.0, 0.1), (20.0, 0.1), (5.0, 0.5), (math.nan, 0.1), (-3.0, 0.0)):
        if not math.isnan(stored):
            yield case(f"stored log Z {stored:g}", partial(stored_disagrees, stored, width))
    for name, draws in DRAWS.items():
        for asked in ("importance", "sir", "adaptive-sir", "metropolis", "rejection", "particles", "particle-sir"):
            yield case(f"draws {name} by {asked}", partial(_draws, asked, draws))
    for name in WRONG_PROMPTS:
        for asked in ("importance", "sir", "metropolis", "particle-sir", "exhaustive"):
            yield case(f"prompts {name} by {asked}", partial(_prompts, asked, name))
    for name, make in SETTINGS.items():
        yield case(f"setting {name}", partial(refused, make))
    for name in many_candidates():
        yield case(f"too many candidates of {name}", partial(_many, name))
    for name, points in TEST_SEQUENCES.items():
        for asked in ("base", "tilted"):
            yield case(f"test sequences {name} under the {asked}", partial(_test_sequences, points, asked))
    for name in LARGE:
        for asked in ("tabulate", "exhaustive"):
            yield case(f"{asked} {name}", partial(large_space, name, asked))
    for name in ODD_BASES:
        for asked in ("importance", "sir", *(["cross_entropy"] if name != "halved" else [])):  # scores do not show their sum
            yield case(f"base {name} by {asked}", partial(odd_base, name, asked))
    for space in (Space(4, 5, eos=0), Space(3, 6, eos=0), Space(3, 5), Space(3, 5, eos=1)):
        yield case(f"proposal over {space}", partial(_proposal, space))
    for confidence in (0.0, 1.0, -1.0, 95.0, math.nan):
        yield case(f"confidence {confidence}", partial(_confidence, confidence))
    for name in COMMANDS:
        yield case(f"esscher {name}", partial(command, name))


def _unseen(form: str, weight: float, spread: float, good: bool | None) -> Outcome:
    return holds(_weighing(form, weight, spread), empty_prompts(1), 4000, good=good)


def _draws(asked: str, draws: object) -> Outcome:
    target = Tilted(random_automaton(SPACE), taste(SPACE))
    return refused(lambda: SAMPLERS[asked](target, PROMPTS, draws, rng=SeededRng(0)))


def _prompts(asked: str, name: str) -> Outcome:
    target = Tilted(random_automaton(SPACE), taste(SPACE))
    return refused(lambda: SAMPLERS[asked](target, WRONG_PROMPTS[name](), 4, rng=SeededRng(0)))


def _many(name: str) -> Outcome:
    target = Tilted(random_automaton(SPACE), taste(SPACE))
    return refused(lambda: many_candidates()[name](target, PROMPTS, 4, rng=SeededRng(0)), "GB")


def _test_sequences(points: list[list[int]], asked: str) -> Outcome:
    target = Tilted(random_automaton(SPACE), *([taste(SPACE)] if asked == "tilted" else []))
    return refused(lambda: measure(target, sequences(points), Importance(), 64, rng=SeededRng(0)))


def _proposal(space: Space) -> Outcome:
    target = Tilted(random_automaton(SPACE), taste(SPACE))
    return refused(lambda: Importance(random_automaton(space))(target, empty_prompts(1), 16, rng=SeededRng(0)))


def _confidence(confidence: float) -> Outcome:
    drawn = Importance()(Tilted(random_automaton(SPACE), taste(SPACE)), empty_prompts(1), 64, rng=SeededRng(0))
    return refused(lambda: log_z(drawn, confidence=confidence))


FAMILY = Family(
    name="numbers",
    what="Numeric misuse",
    faults=(WRONG, FOREIGN),
    fewest=150,
    cases=cases,
    sample=60,
)
