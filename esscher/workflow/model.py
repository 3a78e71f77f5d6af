"""The model: the object that a user holds. It loads a base, tilted or not, and has every verb as a method.

    model = esscher.load("runs/base", energy="runs/energy")
    model.sample(["Once upon"], draws=4)          texts with log-probability, energy and weight
    model.measure("test.txt")                     perplexity of base and tilted model, with intervals
    tilted = model.tilt(want=["contains:the=0.5"])
    plain = tilted.distil(out="runs/plain")

What a folder says is the default: an energy remembers how text was chunked for it, and a base that was trained on chunks how
many tokens were the prompt. Arguments of a method are the fields of its settings class, in the same words as flags and YAML
keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from esscher.bases.network import NetworkBase
from esscher.bases.seq2seq_lm import Seq2SeqLM
from esscher.core.chunking import Chunking
from esscher.core.config import load_object, takes
from esscher.core.target import Tilted, flat
from esscher.data.config import DataConfig
from esscher.data.images import load_codec
from esscher.data.tokenizers import Tokenizer
from esscher.energies.features import Decode
from esscher.energies.self_energy import SavedSelfEnergy
from esscher.energies.serialization import SavedLogLinear, SavedNetworkEnergy, load_energy
from esscher.hub import ModelCard, SavedBase, load_base, save_base
from esscher.training.collectives import init_process_group
from esscher.workflow.config.distil import DistilRun
from esscher.workflow.config.load import BaseConfig, LoadConfig
from esscher.workflow.config.measure import MeasureConfig
from esscher.workflow.config.sample import SampleConfig, ScoreConfig
from esscher.workflow.config.tilt import TiltRun
from esscher.workflow.config.train import TrainRun
from esscher.workflow.processors import DataSplits, ImageProcessor, TextProcessor, TranslationProcessor
from esscher.workflow.run_folder import train_settings_of, trained_chunking

if TYPE_CHECKING:
    from esscher.workflow.measure import MeasureResult
    from esscher.workflow.sample import SampleResult
    from esscher.workflow.score import ScoreResult

AnyProcessor = TextProcessor | TranslationProcessor | ImageProcessor
AnySavedEnergy = SavedLogLinear | SavedNetworkEnergy | SavedSelfEnergy


@dataclass(frozen=True)
class Model:
    """A base, its energy if it is tilted, and the processor of its data."""

    base: SavedBase
    target: Tilted
    processor: AnyProcessor | None  # None where the folder holds no tokenizer
    chunking: Chunking = field(default_factory=Chunking)
    folder: Path | None = None  # where the base was loaded from
    energy: AnySavedEnergy | None = None  # as loaded; None for a base, and for an energy of your own
    energy_folder: Path | None = None
    trained: TrainRun | None = None  # settings that the base was trained with here
    fsdp: bool = False  # whether the base's weights are sharded among processes

    @property
    def is_tilted(self) -> bool:
        """Whether there is an energy."""
        return self.target.energy is not flat

    @property
    def name(self) -> str:
        """What to call the model in reports and errors: its folder."""
        return "the model" if self.folder is None else str(self.folder)

    @property
    def energy_name(self) -> str | None:
        """What to call the energy in reports: its folder; None for a base."""
        if not self.is_tilted:
            return None
        if self.energy_folder is not None:
            return str(self.energy_folder)
        return "self" if isinstance(self.energy, SavedSelfEnergy) else "an energy of your own"

    @property
    def data(self) -> AnyProcessor:
        """The processor; an error where the folder has none."""
        if self.processor is None:
            raise ValueError(f"{self.name} holds no tokenizer, so text cannot be read or shown. Nothing was done.")
        return self.processor

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; an error where there is none."""
        return self.data.tokenizer

    @property
    def images(self) -> ImageProcessor:
        """The processor of images; an error where the sequences are no images."""
        if not isinstance(self.processor, ImageProcessor):
            raise ValueError(f"{self.name} is no model of images. Nothing was done; train one on images.")
        return self.processor

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt before each chunk."""
        return self.chunking.prompt_tokens or 0

    @property
    def is_translator(self) -> bool:
        """Whether prompts are sources to translate."""
        return isinstance(self.processor, TranslationProcessor)

    @property
    def streaming_base(self) -> NetworkBase:
        """The base, which must be a network with a memory to read streams."""
        if not isinstance(self.base, NetworkBase):
            raise ValueError(
                f"{self.name} is a Hugging Face model, which has no memory here. Nothing was done; read text in chunks."
            )
        self.base.init_memory(0)  # refuses a network without a memory
        return self.base

    def untilted(self) -> "Model":
        """The base alone."""
        return replace(self, target=Tilted(self.base), energy=None, energy_folder=None)

    def encode_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Prompts as tokens, as the base reads them."""
        return self.data.encode_prompts(texts)

    def decode(self) -> Decode | None:
        """The function that makes text of tokens; None for a model without text."""
        return self.processor.tokenizer.decode if isinstance(self.processor, TextProcessor) else None

    def training_splits(self, data: DataConfig | None = None) -> DataSplits:
        """The data in three splits, as sequences of this model; by default those that its base was trained on."""
        if data is None and self.trained is None:
            raise ValueError(
                f"{self.name} does not say what it was trained on, so there are no data. Nothing was done; give --data, "
                "or state "
                f"moments with --want."
            )
        return self.data.read_splits(self.trained.data if data is None and self.trained is not None else data, self.trained)  # type: ignore[arg-type]

    @takes(SampleConfig)
    def sample(self, settings: SampleConfig) -> "SampleResult":
        """Draw sequences after prompts.

        Args:
            settings: The fields of `SampleConfig`: first `prompts`, a list of texts; then `draws`, `sampler`, `temperature`,
            ...

        Returns:
            `.samples` are rows with text, log-probability under the base, energy and weight; `.texts` are the texts alone.

        Example:
            >>> model.sample(["Once upon"], draws=4).texts
        """
        from esscher.workflow.sample import sample_model

        return sample_model(self, settings)

    @takes(ScoreConfig)
    def score(self, settings: ScoreConfig) -> "ScoreResult":
        """Log-probabilities of texts.

        Args:
            settings: The fields of `ScoreConfig`: first `texts`, a list; then `prompts`, one for each text, or one for all.

        Returns:
            For each text the log-probability under the base, the energy, and the log of the unnormalised tilted probability.

        Example:
            >>> model.score(["Once upon a time."]).log_base
        """
        from esscher.workflow.score import score_model

        return score_model(self, settings)

    @takes(MeasureConfig)
    def measure(self, settings: MeasureConfig) -> "MeasureResult":
        """Perplexity or bits per dimension of the base and the tilted model on data, with intervals.

        Args:
            settings: The fields of `MeasureConfig`: first `data`, a file, a folder or a `SourceConfig`.

        Returns:
            `.nats` by model and unit, `.measurement` with all that was estimated, and `.report`.

        Example:
            >>> model.measure("test.txt", draws=1000).report
        """
        from esscher.workflow.measure import measure_model

        return measure_model(self, settings)

    @takes(TiltRun)
    def tilt(self, settings: TiltRun) -> "Model":
        """The model tilted by an energy: one of your own, features with the moments they shall have, or a network that learns.

        Args:
            settings: The fields of `TiltRun`: `energy` (a function of sequences, or the settings of a network), `want`
                (moments to reach), `feature` (features whose moments are those of the data), `data`, `out` (folder), ...

        Returns:
            The tilted model.

        Example:
            >>> tilted = model.tilt(want=["contains:the=0.5"])
        """
        from esscher.workflow.tilt import tilt_model

        return tilt_model(self, settings).model

    @takes(DistilRun)
    def distil(self, settings: DistilRun) -> "Model":
        """A plain model that approximates this tilted one.

        Args:
            settings: The fields of `DistilRun`: first `out`, the folder of the student.

        Returns:
            The student.

        Example:
            >>> plain = tilted.distil(out="runs/plain")
        """
        from esscher.workflow.distil import distil_model

        return distil_model(self, settings).model

    def explore(self, settings: Any = None) -> None:
        """Serve a page to look at the model with.

        Args:
            settings: An `esscher.explorer.config.ExploreConfig`; its defaults if None.

        Example:
            >>> model.explore()
        """
        load_object("esscher.explorer.page:explore_model")(self, settings)

    def serve(self, settings: Any = None) -> None:
        """Serve the model behind an endpoint that speaks OpenAI's completions.

        Args:
            settings: An `esscher.serving.config.ServeConfig`; its defaults if None.

        Example:
            >>> model.serve()
        """
        load_object("esscher.serving.endpoint:serve_model")(self, settings)

    def save(self, folder: str | Path) -> None:
        """Save the base as a model folder. The energy of a tilted model is not saved with it: it stays in the folder of `tilt`.

        Args:
            folder: Where to; `esscher.load(folder)` reads it back.

        Example:
            >>> model.save("runs/copy")
        """
        save_base(folder, self.base, None if self.processor is None else self.processor.artifact, ModelCard(self.name))


def load(
    folder: str | Path,
    energy: str | Path | None = None,
    device: str = "auto",
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    *,
    chunking: Chunking | None = None,
    fsdp: bool = False,
) -> Model:
    """Load a model, tilted if an energy is named.

    Args:
        folder: Folder of the base: one that `train` wrote, or any causal or encoder-decoder model of Hugging Face.
        energy: Folder of the energy; or `self`, the logsumexp of the base's own logits.
        device: Where to compute: auto, cpu, cuda, cuda:1, mps.
        dtype: Precision of the weights.
        chunking: How text is cut, where that is not as the folders say.
        fsdp: Shard the base's weights among the processes of torchrun, all of which call this.

    Returns:
        The model.

    Example:
        >>> model = esscher.load("runs/base", energy="runs/energy")
    """
    cut = Chunking() if chunking is None else chunking
    return load_model(
        LoadConfig(
            str(folder), energy=None if energy is None else str(energy), device=device, dtype=dtype, fsdp=fsdp,
            max_length=cut.max_length, eos=cut.eos, prompt_tokens=cut.prompt_tokens,
        )
    )  # fmt: skip


def load_model(settings: BaseConfig) -> Model:
    """The model of these folders; what the settings leave open is as the folders say."""
    folder = Path(settings.folder)
    energy = settings.energy if isinstance(settings, LoadConfig) else None
    saved = None if energy is None else load_energy(energy)
    trained = train_settings_of(folder)
    default = trained_chunking(trained)
    if saved is not None and not isinstance(saved, SavedSelfEnergy):
        default = saved.cut
    given = Chunking(max_length=settings.max_length, eos=settings.eos, prompt_tokens=settings.prompt_tokens)
    chunking = given.with_defaults(default)
    base, tokenizer = load_base(
        folder, max_length=chunking.max_length, eos=chunking.eos, chunks=chunking.prompt_tokens is not None
    )
    if settings.device != "auto" or settings.dtype != "auto":
        dtype = None if settings.dtype == "auto" else getattr(torch, settings.dtype)
        base.to(device=None if settings.device == "auto" else settings.device, dtype=dtype)
    target = Tilted(base)
    if saved is not None:
        saved.check_base(base)
        target = Tilted(base, saved.energy(None if tokenizer is None else tokenizer.decode, base))
    if settings.fsdp:
        from esscher.bases.fsdp import shard  # takes seconds to import

        init_process_group()
        shard(base.requires_grad_(False))
    energy_folder = Path(energy) if energy is not None and Path(energy).is_dir() else None
    processor = _processor(folder, base, tokenizer, chunking, trained)
    return Model(base, target, processor, chunking, folder, saved, energy_folder, trained, settings.fsdp)


def _processor(
    folder: Path, base: SavedBase, tokenizer: Tokenizer | None, chunking: Chunking, trained: TrainRun | None
) -> AnyProcessor | None:
    """What the model's sequences are: images where the folder holds a codec, translations where prompts are sources,
    or text."""
    codec = load_codec(folder)
    if codec is not None:
        return ImageProcessor(codec)
    if tokenizer is None:
        return None
    separate_source = isinstance(base, Seq2SeqLM) or (isinstance(base, NetworkBase) and base.config.modality == "translation")
    if separate_source or (trained is not None and trained.data.target is not None):
        return TranslationProcessor(tokenizer, base.space)
    return TextProcessor(tokenizer, base.space, chunking.prompt_tokens or 0)


def max_context(base: SavedBase) -> int:
    """The most tokens of context that a base can read before one more."""
    return 2**30 if base.max_positions is None else base.max_positions - 1
