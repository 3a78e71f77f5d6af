"""Settings of network energies and of task heads, without torch. The kinds of network energies:

    unidirectional   a causal network reads the sequence from left to right (UniT)
    bidirectional    a network reads the sequence with attention to both sides (BiT)
    encoder          a pretrained Hugging Face encoder reads the text, or the tokens (BiT*)
    shared           the hidden states of the base, frozen; only the head above them is trained

`esscher.core.config` reads and writes them as plain values.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from esscher.core.config import check_at_least, check_choices
from esscher.networks.registry import NETWORKS

EncoderKind = Literal["unidirectional", "bidirectional", "encoder", "shared"]
Pooling = Literal["mean", "sum", "last", "whole", "first"]
TaskHeadKind = Literal["sequence", "span", "kernels"]
TaskPooling = Literal["last", "first", "whole"]


@dataclass(frozen=True)
class EnergyConfig:
    """A network energy: which encoder reads the sequence, and how its hidden vectors become one number."""

    kind: EncoderKind | None = None
    """unidirectional, bidirectional, encoder or shared; by default encoder if one is named, else bidirectional if it can be."""
    pooling: Pooling = "mean"
    """Which hidden vectors are pooled: mean or sum over the point, last token, whole (mean with the prompt), or first token."""
    network: Annotated[Any, NETWORKS] | None = None
    """A network of its own, initialised at random; by default the energy starts from the weights of the base."""
    dropout: float | None = None
    """Dropout of an encoder that starts from the base or a pretrained encoder; by default theirs."""
    encoder: str = ""
    """Folder of a pretrained Hugging Face encoder, or minilm, which comes as a package."""
    on: Literal["text", "tokens"] = "text"
    """What a pretrained encoder reads; tokens need an encoder with the vocabulary of the base."""
    lora: int | None = None
    """Rank of LoRA adapters that are trained in place of pretrained weights (needs peft)."""
    window: int | None = None
    """Read only so many last tokens of the prompt; by default all."""
    hidden: int | None = None
    """Width of a hidden layer in the head; by default the head is linear."""
    bound: float | None = None
    """Keep the energy within plus and minus this, which allows guarantees and rejection sampling; by default unbounded."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.pooling == "first" and self.kind in ("unidirectional", "shared"):
            raise ValueError("A causal network sees only the first token there; choose pooling mean or last.")
        if self.bound is not None and not self.bound > 0:
            raise ValueError(f"The bound of an energy is more than 0, not {self.bound}.")
        _check_dropout(self.dropout)
        check_at_least(self, 0, "window", note=" None reads the whole prompt.")
        check_at_least(self, 1, "hidden", "lora", note=" None means none.")
        self._check_unused()

    @property
    def initialised_from_base(self) -> bool:
        """Whether the initial weights are a copy of a base's."""
        return self.network is None and not self.encoder and self.kind not in ("encoder", "shared")

    def _check_unused(self) -> None:
        """Refuse settings that this kind of energy would ignore."""
        pretrained = self.kind == "encoder" or (self.kind is None and bool(self.encoder))
        fixed = self.kind == "shared" or self.network is not None
        unused = {
            "network": self.network is not None and (pretrained or self.kind == "shared"),
            "dropout": self.dropout is not None and fixed,
            "encoder": bool(self.encoder) and not pretrained,
            "lora": self.lora is not None and fixed,
        }
        for name, is_unused in unused.items():
            if is_unused:
                what = f"of kind {self.kind!r}" if self.network is None or name == "network" else "with a network of its own"
                raise ValueError(f"The setting {name} has no effect on an energy {what}; leave it out.")


@dataclass(frozen=True)
class TwistConfig:
    """The network of a learnt twist."""

    width: int = 64
    """Units of its hidden layers; a token costs one product of so many numbers with the vocabulary."""
    memory: int | None = None
    """Width of a recurrent network that reads the tokens beside the hidden vectors of the base; by default 0, which is none, or
    64 if the base has no hidden vectors (an n-gram, an automaton)."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "width")
        check_at_least(self, 0, "memory")


@dataclass(frozen=True)
class TaskHeadConfig:
    """A task head on the hidden vectors of an encoder."""

    kind: TaskHeadKind = "sequence"
    """Scores of the whole sequence, of spans of its prompt, or of the similarity of prompt and completion (kernel pooling)."""
    outputs: int = 1
    """Scores of a sequence."""
    pooling: TaskPooling = "last"
    """Which hidden vector represents the sequence: of its last token, of its first, or the mean of the whole."""
    dropout: float = 0.1
    """Dropout before the scores."""
    frozen: bool = False
    """Train the head only, not the encoder."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "outputs")
        _check_dropout(self.dropout)


def _check_dropout(rate: float | None) -> None:
    if rate is not None and not 0 <= rate < 1:
        raise ValueError(f"A dropout rate lies in [0, 1), not {rate}.")
