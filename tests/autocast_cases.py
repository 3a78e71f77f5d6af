"""Losses of every network, head, energy and objective, small, for the tests that compute them in mixed precision.

A case is `build(root)`, which makes what learns and its loss as a function of an rng; `root` is a folder for encoders. The same
cases run under autocast of the CPU (`test_autocast.py`) and of a GPU (`device/on_device/test_autocast.py`).
"""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import causal_models
import seq2seq_models
import torch
from bases.test_with_memory import STREAMING
from energies.encoders import MAKERS
from laws.test_every_head import HEADS, hidden
from random_targets import taste
from small_networks import CONFIGS
from torch import Tensor, nn

from esscher.bases.logits import log_probs_and_logsumexp
from esscher.bases.network import build_base
from esscher.bases.wrappers import WithMemory
from esscher.core.device import device_of, place
from esscher.core.objective import Loss
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.energies.config import TaskHeadConfig
from esscher.energies.encoders import encoder_of_base
from esscher.energies.task_heads import TaskModel
from esscher.exact.enumeration import enumerate_points
from esscher.networks.gradient_checkpointing import enable_gradient_checkpointing
from esscher.networks.registry import NetworkConfig
from esscher.objectives.combine import WeightedObjective, WeightedSum
from esscher.objectives.config import EForcingConfig, MaskedLMConfig, PermutationLMConfig, ScheduledSamplingConfig
from esscher.objectives.distil import Distil, PolicyGradient, ReweightedDistil
from esscher.objectives.exposure_bias import EForcing, ScheduledSampling
from esscher.objectives.likelihood import Likelihood, TiltedLikelihood
from esscher.objectives.noise_contrastive import NoiseContrast
from esscher.objectives.permutation_lm import MaskedLM, PermutationLM
from esscher.objectives.supervised import LabelledExamples, LabelLikelihood, RankingHinge, SpanLikelihood

SPACE = Space(3, 4, eos=0)
DATA = sequences([[1, 2, 0], [2, 2, 2, 1], [0], [1, 1, 1, 2]], [[1], [2, 1], [2], [1, 1]])
CLOSE = 0.15  # largest distance of gradients, relative to the norm of float32's; bfloat16 has 8 bits, 0.4 % an operation


class Case(NamedTuple):
    """What learns, and its loss; with `random` masks or draws of its own the loss is not compared with that of float32."""

    module: nn.Module
    loss: Callable[[SeededRng], Tensor]
    random: bool = False


def without_dropout(config: NetworkConfig) -> Any:
    rates = {field.name: 0.0 for field in fields(config) if "dropout" in field.name or field.name == "jacobian_weight"}
    return replace(config, **rates)


def base_of(kind: str, *, dropout: bool = False) -> Any:
    config = CONFIGS[kind] if dropout else without_dropout(CONFIGS[kind])
    base = build_base(config, SPACE, rng=SeededRng(1)).train()
    with torch.no_grad():
        for name, weight in base.named_parameters():
            if ".input_injection_proj." in name and weight.dim() > 1:
                weight.mul_(512)  # a layer has a fixed point where what it is given is stronger than what it makes of itself
    return base


def on(base: Any) -> Sequences:
    """The data, cut to the length of the base's points."""
    stop = torch.minimum(DATA.stop, DATA.start + base.space.max_length)
    return Sequences(DATA.tokens, DATA.start, stop).to(device_of(base) or "cpu")


def trained(base: Any, objective: Any, *, random: bool = False) -> Case:
    """The base trained by an objective of its own likelihood or draws."""
    return Case(base, lambda rng: value(objective(Tilted(base), on(base), rng=rng, step=10)), random)


def value(loss: Loss) -> Tensor:
    assert isinstance(loss.value, Tensor)
    return loss.value


def of_streams(kind: str) -> Case:
    """The second segment of a stream, after the memory of the first, from which draws go on, too."""
    base = base_of(kind)

    def loss(rng: SeededRng) -> Tensor:
        tokens = torch.tensor([[1, 2, 0, 1], [0, 1, 1, 2]], device=device_of(base))
        memory = WithMemory(base, base.read(base.init_memory(2), tokens)[1])
        length = torch.full((2,), 4, device=tokens.device)
        segment = Sequences(tokens.flip(1), torch.zeros_like(length), length)
        return value(EForcing(EForcingConfig(0.7, 0.8))(Tilted(memory), segment, rng=rng))

    return Case(base, loss)


def checkpointed(kind: str) -> Case:
    base = base_of(kind)
    enable_gradient_checkpointing(base)
    return trained(base, Likelihood())


def own(kind: str, objective: Callable[[], Any]) -> Callable[[Path], Case]:
    return lambda root: trained(base_of(kind), objective())


def teacher(base: Any) -> Tilted:
    return Tilted(base, taste(SPACE))


def distilled(kind: str, make: Callable[[Tilted], Any]) -> Callable[[Path], Case]:
    """The teacher is on the device of the student."""

    def build(root: Path) -> Case:
        base = base_of(kind)
        other = build_base(without_dropout(CONFIGS[kind]), SPACE, rng=SeededRng(2)).eval()

        def loss(rng: SeededRng) -> Tensor:
            return value(make(teacher(place(other, device_of(base) or "cpu")))(Tilted(base), on(base), rng=rng))

        return Case(base, loss)

    return build


def tilted(kind: str, make: Callable[[], Any]) -> Callable[[Path], Case]:
    """An energy of this kind learns beside its base."""

    def build(root: Path) -> Case:
        base, energy = MAKERS[kind](root)
        assert isinstance(base, nn.Module)

        def loss(rng: SeededRng) -> Tensor:
            return value(make()(Tilted(base, energy), on(base), rng=rng))

        return Case(nn.ModuleList([energy, base.requires_grad_(kind.startswith("shared"))]), loss)

    return build


def with_task(kind: str, config: TaskHeadConfig, objective: Any) -> Callable[[Path], Case]:
    def build(root: Path) -> Case:
        model = TaskModel(encoder_of_base(base_of(kind)), config)

        def loss(rng: SeededRng) -> Tensor:
            label = torch.tensor([0, 1, 1, 0]) if config.kind != "span" else torch.tensor([[0, 0], [0, 1], [-1, -1], [1, 1]])
            number = torch.tensor([0, 0, 1, 1]) if config.kind == "kernels" else torch.arange(4)
            examples = LabelledExamples(DATA, label, number).to(device_of(model) or "cpu")
            return value(objective(model, examples, rng=rng))

        return Case(model, loss)

    return build


def of_head(name: str) -> Callable[[Path], Case]:
    def build(root: Path) -> Case:
        head = place(HEADS[name](), "cpu", torch.float32)

        def loss(rng: SeededRng) -> Tensor:
            vectors = hidden(head).float().to(next((weight.device for weight in head.parameters()), "cpu"))
            log_probs, logsumexp = head.log_probs_and_logsumexp(vectors, torch.arange(20, device=vectors.device) % 2)
            alone = head.log_probs(vectors, torch.arange(20, device=vectors.device) % 2)
            return (log_probs + logsumexp).mean() + alone.mean()

        return Case(head, loss)

    return build


EVERY_PASS = WeightedSum(  # over log-probabilities, logits, logsumexps and draws
    (
        WeightedObjective("likelihood", Likelihood(), 0.5),
        WeightedObjective("smoothed", Likelihood(0.1), 0.8),
        WeightedObjective("eforcing", EForcing(EForcingConfig(0.7, 0.8))),
    )
)
SAMPLED: dict[str, Callable[[], Any]] = {
    "scheduled sampling, passes": lambda: ScheduledSampling(ScheduledSamplingConfig(0.5, "passes")),
    "scheduled sampling, steps": lambda: ScheduledSampling(ScheduledSamplingConfig(0.5, "steps")),
}
SOME = ("gru, tied", "enas", "transformer-xl", "encoder-decoder")
DISTILLATIONS: dict[str, Callable[[Tilted], Any]] = {
    "distil": lambda teacher: Distil(teacher, draws=4),
    "policy gradient": lambda teacher: PolicyGradient(teacher, draws=4),
    "reweighted": lambda teacher: ReweightedDistil(teacher, 0.1),
}
TASKS = {
    "label": (TaskHeadConfig("sequence", 2, dropout=0.0), LabelLikelihood()),
    "span": (TaskHeadConfig("span", dropout=0.0), SpanLikelihood(2)),
    "kernels": (TaskHeadConfig("kernels"), RankingHinge()),
}
BASES: dict[str, Callable[[], Any]] = {
    **{kind: lambda k=kind: base_of(k) for kind in CONFIGS},
    **{f"CausalLM, {family}": lambda f=family: causal_models.tiny_base(f) for family in causal_models.FAMILIES},
    **{f"Seq2SeqLM, {family}": lambda f=family: seq2seq_models.tiny_base(f) for family in seq2seq_models.FAMILIES},
}
CASES: dict[str, Callable[[Path], Case]] = {
    **{base: lambda root, b=build: trained(b(), EVERY_PASS) for base, build in BASES.items()},
    **{
        f"{kind}, dropout": lambda root, k=kind: trained(base_of(k, dropout=True), Likelihood(), random=True)
        for kind, config in CONFIGS.items()
        if without_dropout(config) != config
    },
    **{f"{kind}, {name}": own(kind, objective) for kind in SOME for name, objective in SAMPLED.items()},
    **{f"{kind}, stream": lambda root, k=kind: of_streams(k) for kind in STREAMING},
    **{
        f"{kind}, checkpointed": lambda root, k=kind: checkpointed(k)
        for kind in ("transformer, rotary", "transformer-xl", "xlnet")
    },
    **{
        f"{kind}, permutation-lm": own(kind, lambda: PermutationLM(PermutationLMConfig(2.0)))
        for kind in ("xlnet", "xlnet, local")
    },
    **{f"{kind}, masked-lm": own(kind, lambda: MaskedLM(MaskedLMConfig(0.5))) for kind in ("xlnet", "xlnet, local")},
    **{f"{kind}, {name}": distilled(kind, make) for kind in SOME for name, make in DISTILLATIONS.items()},
    **{f"energy {kind}, noise contrast": tilted(kind, lambda: NoiseContrast(negatives=2)) for kind in MAKERS},
    **{
        f"energy {kind}, tilted likelihood": tilted(kind, lambda: TiltedLikelihood(draws=4))
        for kind in ("bidirectional, own", "shared with gru", "bidirectional from gpt2")
    },
    "energy bidirectional, own, ranking": tilted("bidirectional, own", lambda: NoiseContrast(negatives=2, form="ranking")),
    **{
        f"{kind}, {task}": with_task(kind, *TASKS[task])
        for kind in ("gru, tied", "xlnet", "transformer, rotary")
        for task in TASKS
    },
    **{f"head, {name}": of_head(name) for name in HEADS},
}


def check_case(name: str, device: torch.device, root: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """The loss under autocast is a finite float32 number with finite gradients, near those of float32."""
    module, loss, random = CASES[name](root)
    place(module, device)
    weights = [weight for weight in module.parameters() if weight.requires_grad]

    def run(enabled: bool) -> tuple[Tensor, Tensor]:
        rng = SeededRng(3)
        with rng.fork_torch_rng():
            with torch.autocast(device.type, dtype, enabled=enabled):
                result = loss(rng)
            if not weights:
                return result.detach(), result.new_zeros(1)
            gradients = torch.autograd.grad(result, weights, allow_unused=True, materialize_grads=True)
        return result.detach(), torch.cat([gradient.flatten().float() for gradient in gradients])

    result, gradient = run(True)
    assert result.dtype in (torch.float32, torch.float64), f"a loss in {result.dtype}"
    assert bool(result.isfinite()) and bool(gradient.isfinite().all())
    if not random:
        expected, exact = run(False)
        distance = float((gradient - exact).norm() / exact.norm().clamp(min=1e-3))
        assert abs(float(result - expected)) < 0.03 * (1 + abs(float(expected))) and distance < CLOSE, (
            float(result),
            float(expected),
            distance,
        )


@torch.no_grad()
def check_scores(base: Any, device: torch.device, prompts: list[list[int]], dtype: torch.dtype = torch.bfloat16) -> None:
    """Scores under autocast leave in float32, and steps and scored sequences are normalised."""
    base = place(base, device).eval()
    x = enumerate_points(SPACE if base.space.vocab_size == 3 else base.space, prompts_of(prompts)).to(device)
    with torch.autocast(device.type, dtype):
        score, (beside, logsumexp), steps = base.log_probs(x), log_probs_and_logsumexp(base, x), base.begin(x.prompts())[0]
    assert {part.dtype for part in (score, beside, logsumexp, steps)} == {torch.float32}
    total = score.double().cpu().sum(-1).exp().view(len(prompts), -1).sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), atol=1e-4, rtol=0)
    torch.testing.assert_close(steps.double().exp().sum(-1).cpu(), torch.ones(len(x)).double(), atol=1e-6, rtol=0)
