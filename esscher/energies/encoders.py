"""Encoders: modules that turn `Sequences` into one vector per position, for energies and task heads.

Encoders of tokens put a BOS symbol before each row, so that column t + 1 belongs to token t; an empty point is represented by
the column before it. A text encoder decodes prompt and point together and tokenizes them anew; it cannot see what decoding
drops, such as the end symbol, and a text that is too long loses its beginning. Letters beside those of `esscher.core.space`: U
encoded columns, W width of a vector.
"""

import inspect
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pad

from esscher.bases.causal_lm import CausalLM
from esscher.bases.logits import check_length, eval_mode
from esscher.bases.network import NetworkBase
from esscher.core.space import Sequences
from esscher.core.target import Base
from esscher.energies.features import Decode
from esscher.energies.pretrained import max_tokens_of, read_tokenizer, read_weights
from esscher.networks.network import EncoderNetwork, Network, prepend_bos


@dataclass(frozen=True)
class Encoded:
    """The vectors of a batch; `whole` is False on padding, `point` True on the columns of the point, at least one per row."""

    vectors: Float[Tensor, "B U W"]
    whole: Bool[Tensor, "B U"]
    point: Bool[Tensor, "B U"]


@runtime_checkable
class Encoder(Protocol):
    """An `nn.Module` that encodes sequences; one that embeds token ids also has `vocab_size`."""

    @property
    def width(self) -> int: ...

    def __call__(self, x: Sequences) -> Encoded: ...


def encoded_tokens(x: Sequences, vectors: Float[Tensor, "B U W"]) -> Encoded:
    """The vectors of the BOS symbol and of each token, with their masks."""
    column = torch.arange(vectors.shape[1], device=vectors.device)
    whole = column <= x.stop[:, None]
    return Encoded(vectors, whole, whole & ((column > x.start[:, None]) | (column == x.stop[:, None])))


class NetworkEncoder(nn.Module):
    """A network of this library; `bidirectional` needs one whose attention can look ahead, such as a Transformer."""

    network: Any

    def __init__(self, network: Network, vocab_size: int, width: int, *, bidirectional: bool):
        super().__init__()
        if bidirectional and not isinstance(network, EncoderNetwork):
            raise ValueError(
                f"A {type(network).__name__} reads from left to right only. Nothing was made; choose the kind unidirectional, "
                f"or give the bidirectional one a Transformer of its own (network=TransformerConfig(...))."
            )
        self.network, self.vocab_size, self.width, self.bidirectional = network, vocab_size, width, bidirectional

    def forward(self, x: Sequences) -> Encoded:
        x = x.without_padding()
        bos = int(getattr(self.network, "reads_bos", True))
        _check_length(x.tokens.shape[1] + bos, self.network.max_positions)
        if self.bidirectional:
            return encoded_tokens(x, self.network.encode(x))
        extended = Sequences(pad(x.tokens, (0, 1)), x.start, x.stop + 1)  # so that the last token is read, too
        return encoded_tokens(x, self.network.hidden(extended))


class PretrainedEncoder(nn.Module):
    """A Hugging Face model that reads the base's tokens after a BOS token. With `bidirectional` an encoder is used as it is,
    and a decoder gets a mask that lets it look ahead."""

    model: Any

    def __init__(self, model: nn.Module, bos: int, *, bidirectional: bool):
        super().__init__()
        self.model, self.bos, self.bidirectional = model, bos, bidirectional
        self.vocab_size, self.width = (int(getattr(_config(model), name)) for name in ("vocab_size", "hidden_size"))
        ahead = self._looks_ahead(masked=False)
        if ahead and not bidirectional:
            raise ValueError(f"{type(model).__name__} looks ahead. Nothing was made; choose the kind bidirectional or encoder.")
        self._masked = bidirectional and not ahead
        if self._masked and not self._looks_ahead(masked=True):
            raise ValueError(
                f"{type(model).__name__} cannot be made to look ahead: its attention ignores a mask given to it. Nothing was "
                f"made; choose the kind unidirectional, or another model."
            )

    def forward(self, x: Sequences) -> Encoded:
        x = x.without_padding()
        _check_length(x.tokens.shape[1] + 1, getattr(_config(self.model), "max_position_embeddings", None))
        ids = prepend_bos(x, self.bos)
        inside = torch.arange(ids.shape[1], device=ids.device) <= x.stop[:, None]
        padding = getattr(_config(self.model), "pad_token_id", None)
        ids = ids if padding is None else torch.where(inside, ids, padding)
        return encoded_tokens(x, self._vectors(ids, inside, masked=self._masked))

    def _vectors(self, ids: Tensor, inside: Bool[Tensor, "B U"], *, masked: bool) -> Float[Tensor, "B U W"]:
        optional: dict[str, Any] = {"use_cache": False}
        mask = inside.long()
        if masked:  # added to the attention logits of every position
            dtype = next(self.model.parameters()).dtype
            bias = torch.zeros(inside.shape, dtype=dtype, device=ids.device).masked_fill(~inside, torch.finfo(dtype).min)
            mask = bias[:, None, None].expand(-1, 1, ids.shape[1], -1)
            optional["position_ids"] = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        parameters = inspect.signature(self.model.forward).parameters
        accepted = {name: value for name, value in optional.items() if name in parameters}
        return self.model(input_ids=ids, attention_mask=mask, **accepted).last_hidden_state

    @torch.no_grad()
    def _looks_ahead(self, *, masked: bool) -> bool:
        """Whether the first vector changes with the second token."""
        padding = getattr(_config(self.model), "pad_token_id", None)
        token, other = [token for token in range(3) if token != padding][:2]
        ids = torch.tensor([[token, token], [token, other]], device=next(self.model.parameters()).device)
        with eval_mode(self.model):
            first = self._vectors(ids, torch.ones_like(ids, dtype=torch.bool), masked=masked)[:, 0]
        return not torch.allclose(first[0], first[1], atol=1e-6, rtol=1e-5)


class SharedEncoder(nn.Module):
    """The hidden states of the base, which is no submodule: it is neither trained nor saved with this module."""

    def __init__(self, base: Base):
        super().__init__()
        encoder = encoder_of_base(base)
        self._held = (encoder,)  # a tuple, so that its parameters are not registered here
        self.vocab_size, self.width = encoder.vocab_size, encoder.width

    @torch.no_grad()
    def forward(self, x: Sequences) -> Encoded:
        (encoder,) = self._held
        with eval_mode(encoder):
            return encoder(x)


def encoder_of_base(base: Base) -> NetworkEncoder | PretrainedEncoder:
    """A causal encoder around the network of a base, which is not copied."""
    if isinstance(base, NetworkBase):
        return NetworkEncoder(base.network, base.space.vocab_size, base.config.width, bidirectional=False)
    if isinstance(base, CausalLM):
        return PretrainedEncoder(base.model.base_model, base.bos, bidirectional=False)
    raise ValueError(
        f"A {type(base).__name__} has no network with hidden states. Nothing was made; give the energy a network of its own "
        f"(network=TransformerConfig(...)), or an encoder."
    )


def _config(model: nn.Module) -> Any:
    config: Any = model.config
    return config.get_text_config()


def _check_length(length: int, limit: int | None) -> None:
    what = f"{length - 1} tokens, which need {length} with the BOS symbol"
    check_length(limit, length, what, "build the energy with more max_positions")


class TextEncoder(nn.Module):
    """A Hugging Face encoder with its own tokenizer, on the text that `decode` makes of the base's tokens."""

    model: Any

    def __init__(self, model: nn.Module, tokenizer: Any, decode: Decode):
        super().__init__()
        if not tokenizer.is_fast or tokenizer.pad_token_id is None:
            raise ValueError(
                f"{type(tokenizer).__name__} has no character offsets of its tokens, or no padding symbol. Nothing was made; "
                f"use an encoder with a fast tokenizer (a tokenizer.json)."
            )
        self.model, self.tokenizer, self.decode = model, tokenizer, decode
        self.width = int(self.model.config.hidden_size)
        self.max_length = max_tokens_of(model, tokenizer)

    def forward(self, x: Sequences) -> Encoded:
        rows = zip(x.tokens.tolist(), x.start.tolist(), x.stop.tolist(), strict=True)
        pairs = [(tuple(row[:start]), row[:stop]) for row, start, stop in rows]
        prompts = list(dict.fromkeys(prompt for prompt, _ in pairs))
        prompt_texts = dict(zip(prompts, self.decode([list(prompt) for prompt in prompts]), strict=True))
        texts = self.decode([whole for _, whole in pairs])
        # the point begins after the text of the prompt, or earlier if a character is split between both
        known = [prompt_texts[prompt] for prompt, _ in pairs]
        prompt_ends = [len(commonprefix(pair)) for pair in zip(known, texts, strict=True)]  # noqa: RUF071 (of characters)
        self.tokenizer.truncation_side = "left"
        tokenized = self.tokenizer(
            texts, padding=True, truncation=self.max_length is not None, max_length=self.max_length, return_tensors="pt",
            return_offsets_mapping=True, return_special_tokens_mask=True,
        )  # fmt: skip
        device = next(self.model.parameters()).device
        ids, inside = tokenized["input_ids"].to(device), tokenized["attention_mask"].to(device)
        vectors = self.model(input_ids=ids, attention_mask=inside).last_hidden_state
        special, stops = tokenized["special_tokens_mask"].bool(), tokenized["offset_mapping"][..., 1]
        column = torch.arange(special.shape[1])
        last = torch.where(special, -1, column).amax(-1, keepdim=True)
        # columns whose text ends after the prompt's, and the special tokens after the last token; never none
        point = torch.where(special, column > last, stops > torch.tensor(prompt_ends)[:, None])
        point = torch.where(point.any(-1, keepdim=True), point, column == last.clamp(min=0)).to(device)
        return Encoded(vectors, inside.bool(), point & inside.bool())


def load_encoder(folder: str | Path) -> nn.Module:
    """The encoder of a folder (`AutoModel`), in float32."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no encoder folder {folder}. Nothing was loaded or fetched; check the path.")
    model, missing = read_weights(folder, "AutoModel", "encoder")
    missing = [name for name in missing if not name.startswith("pooler.")]
    if missing:
        raise ValueError(
            f"The weights in {folder} do not fill the encoder: {len(missing)} tensors are missing, the first is {missing[0]}. "
            f"Nothing was loaded; restore the files, or the config they came with."
        )
    return model


def with_dropout(model: nn.Module, rate: float | None) -> nn.Module:
    """A Hugging Face model with this rate in all dropout of layers and attention; None leaves its own."""
    for module in model.modules() if rate is not None else ():
        if isinstance(module, nn.Dropout):
            module.p = float(rate or 0)
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = rate  # type: ignore[assignment]
    return model


def token_encoder(model: nn.Module, folder: str | Path, vocab_size: int) -> PretrainedEncoder:
    """An encoder that reads the base's token ids, after its own first symbol."""
    reads = getattr(model.config, "vocab_size", None)
    if reads != vocab_size:
        raise ValueError(
            f"The encoder in {folder} has {reads} tokens and the base has {vocab_size}. Nothing was made; let it read text."
        )
    tokenizer = read_tokenizer(Path(folder), "encoder")
    bos = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    if bos is None:
        raise ValueError(f"The tokenizer in {folder} has no first symbol (cls or bos). Nothing was made; let it read text.")
    return PretrainedEncoder(model, int(bos), bidirectional=True)
