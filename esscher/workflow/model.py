"""The model: a base, tilted or not, with every verb as a method.

    model = esscher.load("runs/base", energy="runs/energy")
    tilted = model.tilt(want=["contains:the=0.5"])
    plain = tilted.distil(out="runs/plain")

Arguments are the fields of a settings class, named as flags and YAML keys. Defaults come from the folders: an energy keeps how
text was chunked for it, and a base that was trained on chunks keeps the number of prompt tokens.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from esscher.bases.network import NetworkBase, compile_steps, with_attention_span
from esscher.bases.seq2seq_lm import Seq2SeqLM
from esscher.bases.truncated import truncated
from esscher.core.chunking import Chunking
from esscher.core.config import DtypeName, check_choices, load_object, takes
from esscher.core.device import place, resolve_device, resolve_dtype
from esscher.core.distributed import world_size
from esscher.core.estimate import Estimate
from esscher.core.target import Tilted, flat
from esscher.data.config import DataConfig, SourceConfig
from esscher.data.images import load_codec
from esscher.data.splits import read_stream
from esscher.data.text import TextStream
from esscher.data.tokenizers import Tokenizer
from esscher.energies.features import Decode
from esscher.energies.network import NetworkEnergy
from esscher.energies.self_energy import SavedSelfEnergy
from esscher.energies.serialization import (
    Origin,
    SavedLogLinear,
    SavedNetworkEnergy,
    base_digest,
    load_energy,
    save_energy,
    save_network_energy,
)
from esscher.energies.twist_folder import SavedTwist, has_twist, load_twist, save_twist
from esscher.estimators.reliability import StoredEstimates
from esscher.hub import ModelCard, SavedBase, read_base, save_base
from esscher.hub.packaged_models import is_packaged, resolve_model_folder
from esscher.training.collectives import init_process_group
from esscher.training.config import TwistLearningConfig
from esscher.training.made_with import energy_fingerprint
from esscher.workflow.config.distil import DistilRun
from esscher.workflow.config.load import BaseConfig, LoadConfig
from esscher.workflow.config.measure import MeasureConfig
from esscher.workflow.config.risk import RiskConfig
from esscher.workflow.config.sample import SampleConfig, ScoreConfig
from esscher.workflow.config.tilt import TiltRun
from esscher.workflow.config.train import TrainRun
from esscher.workflow.config.translate import TranslateConfig
from esscher.workflow.processors import DataSplits, ImageProcessor, TextProcessor, TranslationProcessor
from esscher.workflow.run_folder import TRAIN_SETTINGS, read_settings, stream_settings, trained_chunking

if TYPE_CHECKING:
    from esscher.workflow.measure import MeasureResult
    from esscher.workflow.risk import RiskResult
    from esscher.workflow.sample import SampleResult, ScoreResult
    from esscher.workflow.translate import TranslateResult

SavedEnergy = SavedLogLinear | SavedNetworkEnergy | SavedSelfEnergy


@dataclass(frozen=True)
class Model:
    """A base, its energy if it is tilted, and the processor of its data."""

    base: SavedBase
    target: Tilted
    processor: TextProcessor | ImageProcessor | None  # None where the folder holds no tokenizer
    chunking: Chunking = field(default_factory=Chunking)
    folder: Path | None = None  # where the base was loaded from
    energy: SavedEnergy | Origin | None = None  # what `save` needs; None for a base, and for an energy of your own
    energy_folder: Path | None = None
    trained: TrainRun | None = None  # settings that the base was trained with here
    fsdp: bool = False  # whether the base's weights are sharded among processes
    digest_as_saved: str | None = None  # of the base's weights before they were rounded to another dtype
    packaged_name: str | None = None  # of a base that came as a package, or from the hub
    twist: SavedTwist | None = None  # of the energy, if one was learnt

    @property
    def device(self) -> torch.device:
        """Where the base's weights are, and where everything is drawn and scored."""
        return next(self.base.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the base's weights."""
        return next(self.base.parameters()).dtype

    @property
    def placement(self) -> str:
        """Device and dtype, for reports."""
        return f"{self.device}, {str(self.dtype).removeprefix('torch.')}"

    @property
    def facts(self) -> dict[str, Any]:
        """What every report says of the model."""
        return {"model": self.name, "energy": self.energy_name, "device": self.placement}

    @property
    def base_digest(self) -> str:
        """The digest of the base as it was saved, on whatever device and in whatever dtype it is now."""
        return base_digest(self.base) if self.digest_as_saved is None else self.digest_as_saved

    @property
    def is_tilted(self) -> bool:
        """Whether there is an energy."""
        return self.target.energy is not flat

    @property
    def name(self) -> str:
        """What to call the model in reports and errors, and to load it by: its folder, or the name of a packaged model."""
        return self.packaged_name or ("the model" if self.folder is None else str(self.folder))

    @property
    def report_folder(self) -> Path | None:
        """Where reports go if no folder is named: the energy's folder, or the base's, unless that is a shared cache."""
        return self.energy_folder or (None if self.packaged_name else self.folder)

    @property
    def stored_prompt(self) -> str | None:
        """The prompt after which the weights of the energy were fitted; None where it was none."""
        return self.energy.prompt if isinstance(self.energy, SavedLogLinear) else None

    def stored_log_z(self, prompt: Sequence[int]) -> Estimate | None:
        """log Z after this prompt, as the folder of the energy holds it; None where it holds that of another prompt, or a mean
        over prompts."""
        if list(prompt) != ([] if self.stored_prompt is None else self.data.encode_prompts([self.stored_prompt])[0]):
            return None
        if isinstance(self.energy, SavedLogLinear):
            return self.energy.log_z
        without_prompts = isinstance(self.processor, TextProcessor) and not self.is_translator and not self.prompt_tokens
        return self.energy.log_z if isinstance(self.energy, SavedNetworkEnergy | Origin) and without_prompts else None

    def stored_estimates(self, prompt: Sequence[int]) -> StoredEstimates | None:
        """All that the folder of the energy holds of what follows this prompt: log Z, the means of features, and whether these
        were reliable; None as in `stored_log_z`."""
        log_z = self.stored_log_z(prompt)
        if log_z is None or not isinstance(self.energy, SavedLogLinear | SavedNetworkEnergy | Origin):
            return None
        origin = self.energy.origin if isinstance(self.energy, SavedNetworkEnergy) else self.energy
        moments: dict[str, Estimate] = {}
        if isinstance(origin, SavedLogLinear) and origin.moments:
            moments = dict(zip([spec.title for spec in origin.features], origin.moments, strict=True))
        return StoredEstimates(log_z, moments, reliable=origin.verdict != "unreliable")

    @property
    def energy_name(self) -> str | None:
        """What to call the energy in reports: its folder; None for a base."""
        if not self.is_tilted:
            return None
        if self.energy_folder is not None:
            return str(self.energy_folder)
        return "self" if isinstance(self.energy, SavedSelfEnergy) else "an energy of your own"

    @property
    def data(self) -> TextProcessor | ImageProcessor:
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

    def streaming_base(self, attention_span: int | None = None, clamp_len: int | None = None) -> NetworkBase:
        """The base, which must be a network with a memory to read streams; with another attention span it is a copy."""
        if not isinstance(self.base, NetworkBase):
            raise ValueError(
                f"{self.name} is a Hugging Face model, which has no memory here. Nothing was done; read text in chunks."
            )
        self.base.init_memory(0)  # refuses a network without a memory
        if attention_span is None and clamp_len is None:
            return self.base
        return with_attention_span(deepcopy(self.base), attention_span=attention_span, clamp_len=clamp_len)

    def untilted(self) -> "Model":
        """The base alone."""
        return replace(self, target=Tilted(self.base), energy=None, energy_folder=None, twist=None)

    def decode(self) -> Decode | None:
        """The function that makes text of tokens; None for a model without text."""
        return self.processor.tokenizer.decode if isinstance(self.processor, TextProcessor) else None

    def training_splits(self, data: DataConfig | None = None) -> DataSplits:
        """The data in three splits, as sequences of this model; by default those that its base was trained on."""
        if data is None:
            if self.trained is None:
                raise ValueError(
                    f"{self.name} does not say what it was trained on, so there are no data. Nothing was done; give --data, or "
                    f"state moments with --want."
                )
            data = self.trained.data
        return self.data.read_splits(data, self.trained)

    def read_stream(self, data: SourceConfig) -> TextStream:
        """A source as one stream, as in the training of the base, if that was on a stream."""
        trained, length = stream_settings(self.trained)
        return read_stream(data.with_defaults(trained), self.tokenizer, raw=trained.split == "raw", ends=length.ends)

    @takes(SampleConfig)
    def sample(self, settings: SampleConfig) -> "SampleResult":
        """Draw sequences after prompts.

        Args:
            settings: The fields of `SampleConfig`: first `prompts`, a list of texts; then `draws`, `sampler`, `top_k`, ...

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
        from esscher.workflow.sample import score_model

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

    @takes(RiskConfig)
    def risk(self, settings: RiskConfig) -> "RiskResult":
        """How likely the model produces a text with an event, however rare; the model must not be tilted.

        Args:
            settings: The fields of `RiskConfig`: first `event`, such as `contains:dragon`, `count:the>=12`, or a function of a
                text; then `prompt` (a list of texts) or `prompts` (a file), `draws`, `out`, ...

        Returns:
            `.probability` with its interval, `.verdict` and `.advice` on it, `.texts` that show the event, and `.report`.

        Example:
            >>> model.risk("contains:dragon", prompt=["Once upon a time"]).probability
        """
        from esscher.workflow.risk import risk_model

        return risk_model(self, settings)

    @takes(TiltRun)
    def tilt(self, settings: TiltRun) -> "Model":
        """The model tilted by an energy: one of your own, features with stated means, or a network that learns.

        Args:
            settings: The fields of `TiltRun`: `energy` (a function of sequences, or the settings of a network), `want`
                (moments to reach), `feature` (features whose moments are those of the data), `prompt` (text to continue),
                `data`, `out` (folder), ...

        Example:
            >>> tilted = model.tilt(want={"contains:the": 0.5}, prompt="Once upon a time")
        """
        from esscher.workflow.tilt import tilt_model

        return tilt_model(self, settings).model

    @takes(TwistLearningConfig)
    def learn_twist(self, settings: TwistLearningConfig) -> "Model":
        """This tilted model with a twist of its energy, which the sampler `ParticleSIR` draws with. It is saved in the
        energy's folder, if there is one.

        Args:
            settings: The fields of `TwistLearningConfig`: first `draws`, the sequences to learn from; then `rounds`, ...

        Example:
            >>> tilted = tilted.learn_twist(8192)
            >>> tilted.sample(sampler=ParticleSIR()).texts
        """
        from esscher.workflow.twist import learn_model_twist

        return learn_model_twist(self, settings)[0]

    @takes(DistilRun)
    def distil(self, settings: DistilRun) -> "Model":
        """A plain model that approximates this tilted one.

        Args:
            settings: The fields of `DistilRun`: first `out`, the folder of the student.

        Example:
            >>> plain = tilted.distil(out="runs/plain")
        """
        from esscher.workflow.distil import distil_model

        return distil_model(self, settings).model

    @takes(TranslateConfig)
    def translate(self, settings: TranslateConfig) -> "TranslateResult":
        """Translate sentences or the lines of a file, if the model's prompts are sources.

        Args:
            settings: The fields of `TranslateConfig`: first `sentences`, a list; or `file`; then `decoder`, `out`, ...

        Returns:
            `.texts` are the translations in order, `.report` has notes on the lines.

        Example:
            >>> model.translate(["Il pleut."], decoder=BeamSearch(5)).texts
        """
        from esscher.workflow.translate import translate_model

        return translate_model(self, settings)

    def explore(self, **settings: Any) -> None:
        """Serve a page to look at the model with, until Ctrl-C.

        Args:
            **settings: The fields of `esscher.explorer.config.ExploreConfig`: `prompts`, `student`, `port`, ...

        Example:
            >>> model.explore(prompts=["Once upon"])
        """
        config = load_object("esscher.explorer.config:ExploreConfig")
        takes(config)(load_object("esscher.explorer.page:explore_model"))(self, **settings)

    def serve(self, **settings: Any) -> None:
        """Serve the model behind an endpoint that speaks OpenAI's completions, until Ctrl-C.

        Args:
            **settings: The fields of `esscher.serving.config.ServeConfig`: `port`, `max_draws`, `timeout`, ...

        Example:
            >>> model.serve(port=8000)
        """
        config = load_object("esscher.serving.config:ServeConfig")
        takes(config)(load_object("esscher.serving.engine:serve_model"))(self, **settings)

    def save(self, folder: str | Path) -> None:
        """Save the base as a model folder, and the energy of a tilted model in the folder `energy` inside.

        Args:
            folder: Where to; `esscher.load(folder)` reads the base back, `esscher.load(folder, energy=f"{folder}/energy")` the
                tilted model. The energy `self` is the base's own and needs no folder.

        Example:
            >>> model.save("runs/copy")
        """
        energy, inside, saved = self.target.energy, Path(folder) / "energy", self.energy
        origin = saved.origin if isinstance(saved, SavedNetworkEnergy) else saved
        if isinstance(energy, NetworkEnergy) and isinstance(origin, Origin):
            save_network_energy(inside, energy, replace(origin, base=str(folder), base_digest=base_digest(self.base)))
        elif isinstance(saved, SavedLogLinear):
            save_energy(inside, replace(saved, base=str(folder), base_digest=base_digest(self.base)))
        elif self.is_tilted and not isinstance(saved, SavedSelfEnergy):
            raise ValueError(
                f"The energy, a {type(energy).__name__}, is your own, and only energies that `tilt` made can be saved. Nothing "
                f"was saved; save the base by `model.untilted().save(...)`, and give the energy to `tilt` again."
            )
        if self.twist is not None and inside.is_dir():
            save_twist(inside, replace(self.twist, origin=replace(self.twist.origin, base_digest=base_digest(self.base))))
        save_base(folder, self.base, None if self.processor is None else self.processor.artifact, ModelCard(self.name))


def load(
    folder: str | Path, energy: str | Path | None = None, device: str = "auto", dtype: DtypeName = "auto", **settings: Any
) -> Model:
    """Load a model, tilted if an energy is named.

    Args:
        folder: Folder of the base: one that `train` wrote, or any causal or encoder-decoder model of Hugging Face; the name of
            a model that comes as a package, such as smollm2 (`esscher.hub.packaged_models`); or the id of one on the hub,
            owner/name or owner/name@revision, which is downloaded if it is not in the cache.
        energy: Folder of the energy; or `self`, the logsumexp of the base's own logits.
        device: Where the model computes: cpu, cuda, cuda:1, mps; auto takes a GPU if there is one.
        dtype: Precision of the base's weights: float32, bfloat16, float16; auto is float32 on a CPU, elsewhere that of the
            files.
        **settings: More fields of `LoadConfig`: `compile`; `fsdp`; `max_length`, `eos`, `prompt_tokens` where text is cut
            differently.

    Example:
        >>> model = esscher.load("runs/base", energy="runs/energy")
    """
    energy_name = None if energy is None else str(energy)
    return load_model(LoadConfig(str(folder), energy=energy_name, device=device, dtype=dtype, **settings))


def load_model(settings: BaseConfig) -> Model:
    """The model of these folders; what the settings leave open is as the folders say."""
    check_choices(settings)
    folder = resolve_model_folder(settings.folder)
    device = resolve_device(settings.device)
    if world_size() > 1:
        init_process_group(device)
    energy = settings.energy if isinstance(settings, LoadConfig) else None
    saved = None if energy is None else load_energy(energy)
    trained = read_settings(folder / TRAIN_SETTINGS, TrainRun)
    default = trained_chunking(trained) if saved is None or isinstance(saved, SavedSelfEnergy) else saved.chunking
    chunking = Chunking(max_length=settings.max_length, eos=settings.eos, prompt_tokens=settings.prompt_tokens)
    chunking = chunking.with_defaults(default)
    base, tokenizer = read_base(
        folder, max_length=chunking.max_length, eos=chunking.eos, chunks=chunking.prompt_tokens is not None
    )
    if saved is not None:
        saved.check_base(base)
    dtype = resolve_dtype(settings.dtype, device)
    rounded = dtype in (torch.bfloat16, torch.float16) and dtype != next(base.parameters()).dtype
    digest_as_saved = base_digest(base) if rounded else None
    place(base, "cpu" if settings.fsdp else device, dtype)  # a sharded base moves to the device a layer at a time
    target = Tilted(base)
    if saved is not None:
        energy_part = place(saved.energy(None if tokenizer is None else tokenizer.decode, base), device)
        truncation = vars(saved.truncation) if isinstance(saved, SavedLogLinear) else {}
        target = Tilted(truncated(base, **truncation), energy_part)
    if settings.fsdp:
        from esscher.bases.fsdp import shard  # takes seconds to import

        shard(base.requires_grad_(False), device)
    else:
        compile_steps(base, settings.compile)
    energy_folder = Path(energy) if energy is not None and Path(energy).is_dir() else None
    twist = None
    if energy_folder is not None and has_twist(energy_folder) and not settings.fsdp:
        digests = {"base_digest": digest_as_saved or base_digest(base), "energy_digest": energy_fingerprint(target.energy)}
        twist = load_twist(energy_folder, target.base, **digests)
        place(twist.twist, device)
    processor = _processor(folder, base, tokenizer, chunking, trained)
    packaged = settings.folder if is_packaged(settings.folder) else None
    return Model(
        base,
        target,
        processor,
        chunking,
        folder,
        saved,
        energy_folder,
        trained,
        settings.fsdp,
        digest_as_saved,
        packaged,
        twist,
    )


def _processor(
    folder: Path, base: SavedBase, tokenizer: Tokenizer | None, chunking: Chunking, trained: TrainRun | None
) -> TextProcessor | ImageProcessor | None:
    """The processor of images where the folder holds a codec, of translations where prompts are sources, or of text."""
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
