"""A model as the verbs name it: the folder of a base, perhaps the folder of an energy, and how text is cut for it.

What a folder says is the default: an energy remembers how text was cut for it, and a base that was trained on chunks how
many tokens were given. In place of an energy's folder the word `own` names the level of the base's own logits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esscher.bases.config import TRANSLATE, name
from esscher.bases.network import NetworkBase
from esscher.bases.seq2seq_lm import Seq2SeqLM
from esscher.cut import Cut
from esscher.data.images import Codec, load_codec
from esscher.data.parallel import Pairs, pair_points, prompts_of_sources
from esscher.data.text import TextSet, cut_texts
from esscher.data.tokenizers import Tokenizer
from esscher.energies.saved import SavedEnergy, SavedLevel, SavedNetwork, load_energy
from esscher.hub import SavedBase, load_base
from esscher.target import Tilted
from esscher.training.processes import join
from esscher.verbs.run_folder import TRAIN_SETTINGS, read_settings


@dataclass(frozen=True)
class Model:
    """A base, tilted if an energy is named, and its tokenizer, which is there when there is text."""

    base: SavedBase
    target: Tilted
    text: Tokenizer | None
    cut: Cut
    folder: Path
    energy: SavedEnergy | SavedNetwork | SavedLevel | None = None
    learnt_pairs: bool = False
    codec: Codec | None = None

    @property
    def pictures(self) -> Codec:
        """How the base's points are images; an error where they are none."""
        if self.codec is None:
            raise ValueError(f"{self.folder} holds no model of images. Nothing was done; train one on images.")
        return self.codec

    @property
    def tokenizer(self) -> Tokenizer:
        """The base's tokenizer; an error where it has none."""
        if self.text is None:
            raise ValueError(
                f"{self.folder} holds no tokenizer{' but images' * (self.codec is not None)}, so text cannot be read or shown. "
                f"Nothing was done; use it from Python."
            )
        return self.text

    @property
    def given(self) -> int:
        """Tokens of the prompt that stands before each chunk."""
        return self.cut.given or 0

    @property
    def streaming(self) -> NetworkBase:
        """The base, which must be a network with a memory to read streams."""
        if not isinstance(self.base, NetworkBase):
            raise ValueError(
                f"{self.folder} holds a model of Hugging Face, which has no memory here. Nothing was done; read text in chunks."
            )
        self.base.open(0)
        return self.base

    @property
    def reads_sources(self) -> bool:
        """Whether prompts are sources: the base reads them apart from what it writes, or it learnt from pairs."""
        apart = isinstance(self.base, Seq2SeqLM) or (isinstance(self.base, NetworkBase) and name(self.base.config) in TRANSLATE)
        return apart or self.learnt_pairs

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of prompts, as the base reads them."""
        return prompts_of_sources(texts, self.tokenizer) if self.reads_sources else self.tokenizer.encode(texts)

    def read(self, texts: Sequence[str]) -> TextSet:
        """Texts as points of this model's space."""
        if self.reads_sources:
            raise ValueError(
                f"{self.folder} translates, so its data are pairs of texts. Nothing was done; name the translations, too "
                f"(--target), or leave the data out where those that it learnt from will do."
            )
        return cut_texts(texts, self.tokenizer, self.base.space, given=self.given)

    def read_pairs(self, pairs: Pairs) -> TextSet:
        """Targets as points of this model's space, after their sources."""
        return pair_points(pairs, self.tokenizer, longest=self.base.space.max_length)


def load_model(folder: str | Path, energy: str | Path | None = None, cut: Cut | None = None, *, sharded: bool = False) -> Model:
    """The model of these folders; settings in `cut` replace what the folders say. The weights of a `sharded` base are shared
    out among the processes, all of which call this; they do not learn."""
    model = _loaded(Path(folder), energy, cut)
    if sharded:
        from esscher.bases.sharding import shard  # which takes seconds to load

        join()
        shard(model.base.requires_grad_(False))
    return model


def _loaded(folder: Path, energy: str | Path | None, cut: Cut | None) -> Model:
    saved = None if energy is None else load_energy(energy)
    settings = read_settings(folder / TRAIN_SETTINGS)
    told = _trained_cut(settings) if saved is None or isinstance(saved, SavedLevel) else saved.cut
    cut = (Cut() if cut is None else cut).over(told)
    base, tokenizer = load_base(folder, max_length=cut.max_length, eos=cut.eos, chunks=cut.given is not None)
    pairs = bool(settings.get("data", {}).get("target"))
    if saved is None:
        return Model(base, Tilted(base), tokenizer, cut, folder, learnt_pairs=pairs, codec=load_codec(folder))
    saved.check_base(base)
    tilted = Tilted(base, saved.energy(None if tokenizer is None else tokenizer.decode, base))
    return Model(base, tilted, tokenizer, cut, folder, saved, pairs, load_codec(folder))


def room_of(base: SavedBase) -> int:
    """The most tokens of context that a base can read before one more."""
    return 2**30 if base.max_positions is None else base.max_positions - 1


def _trained_cut(settings: Mapping[str, Any]) -> Cut:
    """How text was cut for a base that was trained here; nothing is known of others."""
    length = settings.get("length", {})
    return Cut(given=length.get("given", 0) if length.get("chunks") else None)
