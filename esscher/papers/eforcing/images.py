"""E-Forcing (Anonymous, 2023) on images: PixelCNN, Gated PixelCNN and PixelCNN++, each by likelihood, with label smoothing, and
by E-Forcing as published and with pixels counted once.

`small` is the regime that the paper speaks of: a few hundred binarised images, which likelihood learns by heart within the run.
E-Forcing begins after a third of the updates; the strength of each objective is chosen on validation images before a test image
is scored; every seed has other initial weights and other images to learn from. A row has the weights of the lowest validation
loss and the last ones, without any averaging, and says where the former are from before E-Forcing began: these are weights of
likelihood. The weights of E-Forcing decay over positions, and a strength is their sum over infinitely many positions.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from esscher.bases.network import NetworkBase, with_prompt_tokens
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.storage import read_tensors, write_file, write_tensors
from esscher.core.target import Tilted
from esscher.data.config import DataConfig, ImageConfig
from esscher.data.splits import evenly_spaced_rows, read_image_splits
from esscher.networks.pixelcnn_config import GatedPixelCnnConfig, PixelCnnConfig, PixelCnnPlusPlusConfig
from esscher.networks.registry import NetworkConfig
from esscher.objectives.config import EForcingConfig
from esscher.papers.eforcing.choosing import SELECTION, choose, since_begin, with_strength
from esscher.papers.eforcing.laboratory_tables import conclusion, verdict
from esscher.papers.eforcing.language import FORCED, ONCE, PLAIN, SMOOTH
from esscher.papers.sources import CIFAR, MNIST, local_or_hub, missing_message
from esscher.papers.study import (
    ROW_FILE,
    Row,
    Rows,
    Study,
    StudyContext,
    cached_json,
    count_parameters,
    mean_estimate,
    means_over_seeds,
    run_with_seed,
    validation_history,
)
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import figure_from_file, save_image_grid
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.scoring import log_prob
from esscher.training.checkpoint import CheckpointManager, restore_weights
from esscher.training.config import TrainingConfig
from esscher.workflow.config.train import TrainRun
from esscher.workflow.model import load
from esscher.workflow.train import train_base

SCORES, SAMPLES, COMPLETED = "scores.safetensors", "samples.png", "completed.png"
COMPLETED_IMAGES, COMPLETIONS_EACH = 8, 6
BITS = {"method": "images as a sample", "unit": "bits per dimension"}
PIXELCNN, GATED, PLUS = "PixelCNN", "Gated PixelCNN", "PixelCNN++"
PAPER = [
    {"images": images, "model": model, "test": test, "train": train, "unit": "bits per dimension"}
    for images, rows in {
        "MNIST": (("PixelCNN", 0.17, 0.13), ("PixelCNN, E-Forcing", 0.15, 0.12), ("Gated PixelCNN", 0.14, 0.11),
                  ("Gated PixelCNN, E-Forcing", 0.12, 0.10)),
        "CIFAR-10": (("PixelCNN", 3.14, 3.08), ("PixelCNN, E-Forcing", 3.07, 2.98), ("Gated PixelCNN", 3.03, 2.90),
                     ("Gated PixelCNN, E-Forcing", 2.97, 2.87)),
    }.items()
    for model, test, train in rows
] + [
    {"images": "MNIST, binarised", "model": "PixelCNN (van den Oord et al. 2016)", "test": 81.3, "unit": "nats per image"}
]  # fmt: skip
MEANING = (
    "Bits per dimension of test images and of as many training images, with an interval for other images; saved: against "
    "likelihood, the same network and seed, image by image, with the weights of the lowest validation loss and with the last "
    "ones. Late rise: of the validation loss, from its lowest to the last."
)
EFFECTS = "What is saved against likelihood with the same seed, with intervals over seeds; a verdict needs one without 0."
LAST, RISE = "last test", "late rise"
GROUP, COLUMNS = ("images", "network", "model"), ("test", "train", "nats", LAST, "last train", RISE)


@dataclass(frozen=True, kw_only=True)
class ImageStudy(Study[TrainRun]):
    """Images, and one network that learns them by every objective; each seed has other images, as far as there are enough."""

    images: str
    network: str
    strengths: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # to choose from, by model; others are as they are
    image_sets: int | None = None  # disjoint sets of training images, which seeds take in turn; None: all have the same images
    grid_images: int = 64  # samples in the grid of a model
    test_limit: int | None = None  # test images, the first ones; None is all

    def run_of(self, model: str, seed: int, strength: float | None) -> TrainRun:
        """The training run of a model with the images of a seed and the strength of its objective; its folder is left open."""
        run = self.models[model] if strength is None else with_strength(self.models[model], strength)
        most = run.images.most
        if self.image_sets is not None and most is not None:
            run = replace(run, images=replace(run.images, skip=seed % self.image_sets * most))
        return run


def run(context: StudyContext) -> dict[str, Any]:
    """All models of the scale, with every seed; rows are kept, so that a stopped study goes on."""
    studies, missing = image_studies(context.scale)
    for study in studies:
        for model, seed in context.names(study):
            strength = chosen_strength(context, study, model)
            context.row(study.name, model, seed, partial(train_and_measure, study, model, seed, strength))
            result = summarise(context, studies)
    sections = [
        Section(
            "Results",
            MEANING,
            [
                Table("Verdicts", result["verdicts"]),
                Table("Effects", result["effects"], EFFECTS),
                Table("Models", result["rows"]),
            ],
        ),
        *(_section(context, study) for study in studies),
    ]
    about = "One network and set of images, and several training objectives."
    return context.publish("E-Forcing on images", about, sections, {**result, "paper": PAPER}, missing)


def summarise(context: StudyContext, studies: Sequence[ImageStudy]) -> dict[str, list[Row]]:
    """Tables of the rows that have been made; also written to a file, with the number of those that have not been."""
    rows: list[Row] = []
    wanted = [(study, *name) for study in studies for name in context.names(study)]
    for study, model, seed in wanted:
        run_dir = context.run_dir(study.name, model, seed)
        if (run_dir / ROW_FILE).exists():
            row = cached_json(run_dir / ROW_FILE, dict)
            rows.append({**row, "saved": _saved(context, study, row, "test"), "last saved": _saved(context, study, row, LAST)})
    over = means_over_seeds(rows, GROUP, COLUMNS)
    gains = effects(rows)
    result = {"effects": gains, "verdicts": verdicts(gains), "over seeds": over, "rows": rows}
    text = json.dumps({**result, "missing": len(wanted) - len(rows)}, indent=1, default=Estimate.to_dict)
    write_file(context.out / "images.json", text.encode())
    return result


def effects(rows: Rows) -> list[Row]:
    """For each network and objective what it saves over seeds, with the verdict; a single seed has no verdict."""
    likelihood = {(row["images"], row["network"], row["seed"]): row for row in rows if row["model"] == PLAIN}
    compared = []
    for row in rows:
        plain = likelihood.get((row["images"], row["network"], row["seed"]))
        if row["model"] != PLAIN and plain is not None:
            saved = {name: _difference(plain[part], row[part]) for name, part in (("saved", "test"), ("last saved", LAST))}
            compared.append({**row, **saved, "likelihood": plain["test"], "rise saved": _difference(plain[RISE], row[RISE])})
    table = []
    for means in means_over_seeds(compared, GROUP, ("likelihood", "saved", "last saved", "rise saved")):
        of_model = [row for row in compared if all(row[name] == means[name] for name in GROUP)]
        foreign = sum(row["weights"] == LIKELIHOOD_WEIGHTS for row in of_model)
        table.append({**means, "of likelihood": foreign, "verdict": verdict(means["saved"])})
    return table


def _difference(plain: Estimate, other: Estimate) -> Estimate:
    return Estimate.exact(plain.value - other.value, unit=plain.unit)


def verdicts(effect_rows: Rows) -> list[Row]:
    """How often each objective gains, loses or neither, over images and networks, and what this says of it."""
    table = []
    for model in dict.fromkeys(row["model"] for row in effect_rows):
        words = [row["verdict"] for row in effect_rows if row["model"] == model]
        counts = {word: words.count(word) for word in ("gains", "open", "loses")}
        table.append({"model": model, "conditions": len(words), **counts, "verdict": conclusion(**counts)})
    return table


def chosen_strength(context: StudyContext, study: ImageStudy, model: str) -> float | None:
    """The strength of a model's objective with the lowest validation loss; None: as it is."""
    if model not in study.strengths:
        return None
    candidates = {strength: study.run_of(model, SELECTION, strength) for strength in study.strengths[model]}
    return choose(context, study.name, f"strength of {model}", candidates)


OWN_WEIGHTS, LIKELIHOOD_WEIGHTS = "its own", "of likelihood: the lowest loss came before E-Forcing began"


def train_and_measure(study: ImageStudy, model: str, seed: int, strength: float | None, run_dir: Path) -> Row:
    """Train a model, score test and training images with the weights of the lowest validation loss and the last, draw grids."""
    made = run_with_seed(study.run_of(model, seed, strength), run_dir, seed)
    result = train_base(made)
    test = result.splits.test.rows(slice(0, study.test_limit))
    images = {"test": test, "train": evenly_spaced_rows(result.splits.train, len(test))}
    scores = {part: log_prob(result.base, x).double() for part, x in images.items()}
    _draw_grids(study, made, seed)
    checkpoints = CheckpointManager(run_dir / "checkpoints")
    last = checkpoints.last()
    assert last is not None
    restore_weights(checkpoints.read(last), {"model": result.base}, last)
    scores |= {f"last {part}": log_prob(result.base, x).double() for part, x in images.items()}
    write_tensors(run_dir / SCORES, scores)
    nats_per_bit, history = result.base.space.max_length * math.log(2), validation_history(run_dir)
    step, least = min(history, key=lambda evaluation: evaluation[1])
    own = step in {at for at, _ in since_begin(made, history)}
    return {
        "images": study.images, "network": study.network, "model": model, "seed": seed,
        "parameters": count_parameters(result.base), "steps": result.record.steps, "strength": strength,
        "at step": step, "weights": OWN_WEIGHTS if own else LIKELIHOOD_WEIGHTS,
        **{part: mean_estimate(-score / nats_per_bit, **BITS) for part, score in scores.items()},
        "nats": mean_estimate(-scores["test"], method=BITS["method"], unit="nats per image"),
        "late rise": Estimate.exact((history[-1][1] - least) / math.log(2), unit=BITS["unit"]),
    }  # fmt: skip


def _saved(context: StudyContext, study: ImageStudy, row: Mapping[str, Any], part: str) -> Estimate | None:
    """Bits per dimension that a model saves against likelihood with the same seed, image by image; None where a folder does not
    have the scores of images (`tests/kept_rows.py` restores rows alone)."""
    files = [context.run_dir(study.name, model, row["seed"]) / SCORES for model in (row["model"], PLAIN)]
    if row["model"] == PLAIN or not all(file.exists() for file in files):
        return None
    scores, baseline_scores = (read_tensors(file)[part] for file in files)
    nats_per_bit = row["nats"].value / row["test"].value
    return mean_estimate((scores - baseline_scores) / nats_per_bit, **BITS)


def _draw_grids(study: ImageStudy, made: TrainRun, seed: int) -> None:
    """Save a grid of samples and one of completed halves."""
    model, rng, run_dir = load(made.out), SeededRng(seed).stream("grids"), Path(made.out)
    assert isinstance(model.base, NetworkBase)
    images = model.images
    samples = Ancestral()(model.target, images.class_prompts().x, study.grid_images, rng=rng.stream("samples"))
    save_image_grid(run_dir / SAMPLES, images.codec.decode(samples.x))
    test = read_image_splits(made.data, made.images)[2].rows(slice(0, COMPLETED_IMAGES))
    halves = images.completion_prompts(images.encode(test))
    assert halves.prompt_tokens is not None
    rest = Tilted(with_prompt_tokens(model.base, halves.prompt_tokens))
    completed = Ancestral()(rest, halves.x, COMPLETIONS_EACH, rng=rng.stream("completed"))
    grid = images.grid(completed.x, halves)
    save_image_grid(run_dir / COMPLETED, grid.reshape(-1, *images.codec.image), grid.shape[1])


def _section(context: StudyContext, study: ImageStudy) -> Section:
    """Validation losses, samples and completed halves of the first seed."""
    captions = {SAMPLES: "draws.", COMPLETED: "an image, its upper half, and what was drawn after that."}
    grids = [
        Picture(figure_from_file(context.run_dir(study.name, model) / file), f"{model}: {caption}")
        for model in study.models
        for file, caption in captions.items()
        if (context.run_dir(study.name, model) / file).exists()
    ]
    trained = [model for model in study.models if (context.run_dir(study.name, model) / "history.jsonl").exists()]
    losses = context.learning_curves(study.name, trained, "validation, nats per dimension")
    return Section(study.name, "", [*losses, *grids])


def image_studies(scale: str) -> tuple[list[ImageStudy], list[str]]:
    """The studies of a scale, and a message if MNIST was not found."""
    if scale == "smoke":
        return _smoke(), []
    if scale == "paper":
        return _published(), []
    few = [_few_digits(network) for network in (PIXELCNN, GATED)]
    if not MNIST.exists():
        return few, [missing_message(MNIST)]
    return few + [_few_mnist(network) for network in (PIXELCNN, GATED)], []


def forcing(decay: float, *, after: int, draws: int = 1) -> EForcingConfig:
    """E-Forcing whose weights sum to 3 over infinitely many positions."""
    return EForcingConfig(after_steps=after, weight=round(3.0 * (1 - decay), 6), decay=decay, draws=draws)


def objectives(run: TrainRun, forced: EForcingConfig, *, once: float = 1.0) -> dict[str, TrainRun]:
    """One network by likelihood, with label smoothing, by E-Forcing, and by E-Forcing with pixels counted once, whose weight is
    `once` times as large."""
    return {
        PLAIN: run,
        SMOOTH: replace(run, training=replace(run.training, label_smoothing=0.1)),
        FORCED: replace(run, objective=forced),
        ONCE: replace(run, objective=replace(forced, weight=round(once * forced.weight, 6), counts="once")),
    }


STRENGTHS = {SMOOTH: (0.01, 0.03, 0.1), FORCED: (1.0, 3.0, 10.0), ONCE: (1.0, 3.0, 10.0)}
DRAWS = 4  # after each of 32 images: as many as the published batch has of 32 tokens
FEW: Mapping[str, NetworkConfig] = {
    PIXELCNN: PixelCnnConfig(width=32, layers=4, first_kernel_size=5),
    GATED: GatedPixelCnnConfig(width=16, layers=3, first_kernel_size=5),
}
FEW_TRAINING = TrainingConfig(batch_size=32, learning_rate=5e-3, warmup_steps=20, log_every=100)
"""With a rate of 2e-3, likelihood has not begun to overfit to 250 digits when 400 updates are over (validation images)."""


def _few_digits(network: str) -> ImageStudy:
    """240 binarised digits of 8 x 8 pixels, five sets of them."""
    data, images = DataConfig("digits", held_out=0.15), ImageConfig(binarize="threshold", most=240)
    run = TrainRun("", data=data, images=images, training=replace(FEW_TRAINING, steps=400, evaluate_every=20))
    return _few("digits, 8 x 8, binarised, 240", network, run, decay=0.97, image_sets=5)


MNIST_IMAGES = {PIXELCNN: 200, GATED: 100}  # so many that likelihood overfits after E-Forcing has begun (validation images)


def _few_mnist(network: str) -> ImageStudy:
    """Binarised images of MNIST, shrunk to 7 x 7 pixels: at 14 x 14 a row takes ten minutes of a core."""
    most = MNIST_IMAGES[network]
    data, images = DataConfig(str(MNIST), held_out=0.02), ImageConfig(binarize="threshold", shrink=4, most=most)
    run = TrainRun("", data=data, images=images, training=replace(FEW_TRAINING, steps=400, evaluate_every=20))
    return _few(f"MNIST, 7 x 7, binarised, {most}", network, run, decay=0.96, image_sets=100)


def _few(name: str, network: str, run: TrainRun, *, decay: float, image_sets: int) -> ImageStudy:
    """A study of images that likelihood learns by heart; E-Forcing begins after a third of the updates."""
    forced = forcing(decay, after=(run.training.steps or 0) // 3, draws=DRAWS)
    return ImageStudy(
        name=f"{name}, {network}", images=name, network=network, image_sets=image_sets, test_limit=2_000,
        models=objectives(replace(run, base=FEW[network]), forced), strengths=STRENGTHS,
    )  # fmt: skip


def _smoke() -> list[ImageStudy]:
    training = TrainingConfig(steps=10, batch_size=16, learning_rate=1e-2, evaluate_every=5, log_every=5)
    images, data = ImageConfig(binarize="threshold", most=400), DataConfig("digits", held_out=0.1)
    bases: dict[str, NetworkConfig] = {
        PIXELCNN: PixelCnnConfig(width=8, layers=1, first_kernel_size=3),
        GATED: GatedPixelCnnConfig(width=8, layers=1, first_kernel_size=3),
        PLUS: PixelCnnPlusPlusConfig(width=4, layers=1, dropout=0.0, scales=2, mixtures=2),
    }
    run = TrainRun("", data=data, training=training, images=images)
    return [
        ImageStudy(
            name=f"digits, binarised, {network}", images="digits, binarised", network=network,
            models=objectives(replace(run, base=base), forcing(0.97, after=5), once=10.0), image_sets=2,
            strengths={SMOOTH: (0.03, 0.1)} if network == PIXELCNN else {}, grid_images=9, test_limit=40,
        )
        for network, base in bases.items()
    ]  # fmt: skip


def _published() -> list[ImageStudy]:
    """MNIST and CIFAR-10 with 256 levels. Batches of 4,096 values, Adam and a patience of 20 evaluations are those of the paper
    on E-Forcing; networks are those of their own papers, whose sizes on MNIST were not published."""
    adam = TrainingConfig(epochs=200, optimizer="adam", learning_rate=1e-3, max_grad_norm=None)
    training, plus = replace(adam, batch_tokens=4_096, patience=20), replace(adam, batch_size=16, swa_start=0.9)
    small = {PIXELCNN: PixelCnnConfig(width=128, layers=7), GATED: GatedPixelCnnConfig(width=64, layers=7)}
    large = {
        PIXELCNN: PixelCnnConfig(width=86, layers=15),  # about 256 features in all
        GATED: GatedPixelCnnConfig(width=128, layers=15, kernel_size=5),
        PLUS: PixelCnnPlusPlusConfig(upsampling="2x3"),
    }
    studies = []
    for name, folder, bases, size in (("MNIST", MNIST, small, 784), ("CIFAR-10", CIFAR, large, 3_072)):
        forced = replace(forcing(round(1 - 2 / size, 5), after=0), after_steps=None, after_epochs=15)
        for network, base in bases.items():
            run = TrainRun(
                "", data=DataConfig(local_or_hub(folder)), training=plus if network == PLUS else training, base=base,
                images=ImageConfig(256),
            )  # fmt: skip
            models = objectives(run, forced, once=10.0)
            studies.append(ImageStudy(name=f"{name}, {network}", images=name, network=network, models=models))
    return studies
