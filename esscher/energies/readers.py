"""How networks read sequences for an energy: a vector for each position, and which positions belong to what.

A reader is a module that turns `Sequences` into a `Read`. Readers of tokens put an opening symbol before each row, so that
column t + 1 belongs to token t; a point of no tokens is represented by what stands before it. Padding is never read.
What it leaves out: readers of text (`esscher.energies.encoder`), and how a `Read` becomes a number (`network`).

Letters beside those of `esscher.space`: U columns that were read, W width of a vector.
"""

import inspect
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pad

from esscher.bases.causal_lm import CausalLM
from esscher.bases.network import NetworkBase
from esscher.networks.network import EncoderNetwork, Network
from esscher.networks.opening import opened
from esscher.space import Sequences
from esscher.target import Base


@dataclass(frozen=True)
class Read:
    """The vectors of a batch; `whole` is False on padding, `point` True on the point's columns, at least one in each row."""

    vectors: Float[Tensor, "B U W"]
    whole: Bool[Tensor, "B U"]
    point: Bool[Tensor, "B U"]


@runtime_checkable
class Reader(Protocol):
    """An `nn.Module` that reads; one that looks tokens up by their number also states `vocab_size`."""

    @property
    def width(self) -> int: ...

    def __call__(self, x: Sequences) -> Read: ...


def read_tokens(x: Sequences, vectors: Float[Tensor, "B U W"]) -> Read:
    """Vectors of the opening symbol and of every token, with the columns of whole and point."""
    column = torch.arange(vectors.shape[1], device=vectors.device)
    whole = column <= x.stop[:, None]
    return Read(vectors, whole, whole & ((column > x.start[:, None]) | (column == x.stop[:, None])))


def cropped(x: Sequences) -> Sequences:
    """The same rows without the columns that are padding in all of them."""
    longest = int(x.stop.max()) if len(x) else 0
    return Sequences(x.tokens[:, :longest], x.start, x.stop)


class NetworkReader(nn.Module):
    """One of our own networks; `both_sides` is for Transformers, whose attention can look ahead."""

    network: Any

    def __init__(self, network: Network, vocab_size: int, width: int, *, both_sides: bool):
        super().__init__()
        if both_sides and not isinstance(network, EncoderNetwork):
            raise ValueError(
                f"A {type(network).__name__} reads from left to right only. Nothing was made; choose the unidirectional "
                f"reader, or give the bidirectional one a Transformer of its own (network=TransformerConfig(...))."
            )
        self.network, self.vocab_size, self.width, self.both_sides = network, vocab_size, width, both_sides

    def forward(self, x: Sequences) -> Read:
        x = cropped(x)
        opening = int(getattr(self.network, "reads_opening", True))
        _check_length(x.tokens.shape[1] + opening, self.network.max_positions)
        if self.both_sides:
            return read_tokens(x, self.network.surveyed(x))
        further = Sequences(pad(x.tokens, (0, 1)), x.start, x.stop + 1)  # so that the last token is read, too
        return read_tokens(x, self.network.hidden(further))


class PretrainedReader(nn.Module):
    """A model of `transformers` that reads the base's tokens after an opening token.

    With `both_sides` an encoder reads as it does, and a decoder is given a mask that lets it look ahead.
    """

    model: Any

    def __init__(self, model: nn.Module, opening: int, *, both_sides: bool):
        super().__init__()
        self.model, self.opening, self.both_sides = model, opening, both_sides
        self.vocab_size, self.width = (int(getattr(_config(model), name)) for name in ("vocab_size", "hidden_size"))
        ahead = self._looks_ahead(masked=False)
        if ahead and not both_sides:
            raise ValueError(
                f"{type(model).__name__} looks ahead, so it cannot read from left to right. Nothing was made; choose the "
                f"bidirectional reader or the encoder."
            )
        self._masked = both_sides and not ahead
        if self._masked and not self._looks_ahead(masked=True):
            raise ValueError(
                f"{type(model).__name__} cannot be made to look ahead: its attention ignores a mask given to it. Nothing was "
                f"made; choose the unidirectional reader, or another model."
            )

    def forward(self, x: Sequences) -> Read:
        x = cropped(x)
        _check_length(x.tokens.shape[1] + 1, getattr(_config(self.model), "max_position_embeddings", None))
        ids = opened(x, self.opening)
        inside = torch.arange(ids.shape[1], device=ids.device) <= x.stop[:, None]
        padding = getattr(_config(self.model), "pad_token_id", None)
        ids = ids if padding is None else torch.where(inside, ids, padding)
        return read_tokens(x, self._vectors(ids, inside, masked=self._masked))

    def _vectors(self, ids: Tensor, inside: Bool[Tensor, "B U"], *, masked: bool) -> Float[Tensor, "B U W"]:
        optional: dict[str, Any] = {"use_cache": False}
        mask = inside.long()
        if masked:  # added to the attention's logits, for every place that asks
            dtype = next(self.model.parameters()).dtype
            shut = torch.zeros(inside.shape, dtype=dtype, device=ids.device).masked_fill(~inside, torch.finfo(dtype).min)
            mask = shut[:, None, None].expand(-1, 1, ids.shape[1], -1)
            optional["position_ids"] = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        takes = inspect.signature(self.model.forward).parameters
        given = {name: value for name, value in optional.items() if name in takes}
        return self.model(input_ids=ids, attention_mask=mask, **given).last_hidden_state

    @torch.no_grad()
    def _looks_ahead(self, *, masked: bool) -> bool:
        """Whether the first vector changes with the second token."""
        padding = getattr(_config(self.model), "pad_token_id", None)
        one, other = [token for token in range(3) if token != padding][:2]
        training = self.model.training
        self.model.eval()
        ids = torch.tensor([[one, one], [one, other]], device=next(self.model.parameters()).device)
        first = self._vectors(ids, torch.ones_like(ids, dtype=torch.bool), masked=masked)[:, 0]
        self.model.train(training)
        return not torch.allclose(first[0], first[1], atol=1e-6, rtol=1e-5)


class SharedReader(nn.Module):
    """The states of the base itself, which is no part of this module: it does not learn and is not saved with it."""

    def __init__(self, base: Base):
        super().__init__()
        reader = reader_of_base(base)
        self._held = (reader,)  # a tuple, so that its weights are not registered here
        self.vocab_size, self.width = reader.vocab_size, reader.width

    @torch.no_grad()
    def forward(self, x: Sequences) -> Read:
        (reader,) = self._held
        states = [(module, module.training) for module in reader.modules()]
        reader.eval()
        found = reader(x)
        for module, training in states:
            module.training = training
        return found


def reader_of_base(base: Base) -> NetworkReader | PretrainedReader:
    """A reader from left to right around the very network of a base, which it does not copy."""
    if isinstance(base, NetworkBase):
        return NetworkReader(base.network, base.space.vocab_size, base.config.width, both_sides=False)
    if isinstance(base, CausalLM):
        return PretrainedReader(base.model.base_model, base.opening, both_sides=False)
    raise ValueError(
        f"A {type(base).__name__} has no network whose states could be read. Nothing was made; give the energy a network of "
        f"its own (network=TransformerConfig(...)), or an encoder."
    )


def _config(model: nn.Module) -> Any:
    found: Any = model.config
    return found.get_text_config()


def _check_length(length: int, limit: int | None) -> None:
    if limit is not None and length > limit:
        raise ValueError(
            f"The energy's network has {limit} positions and was given {length - 1} tokens, which need {length} with the "
            f"opening symbol. Nothing was computed; shorten the sequences, or build the energy with more max_positions."
        )
