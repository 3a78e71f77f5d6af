"""Conversion of XLNet models from and to `transformers`: the same outputs for the same weights.

`transformers` has one segment vector for pairs of positions in the same segment and one for pairs in different segments;
esscher has their difference, on which alone outputs depend. The special symbols of esscher
(`esscher.networks.xlnet.SPECIAL_SYMBOLS`) are further tokens of probability 0 in `transformers`; for a pretrained model they
are initialised with <s>, <sep>, <cls> and <mask>. Left out: local attention and mixtures, which `transformers` does not have.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import XLNetConfig as TheirConfig
from transformers import XLNetLMHeadModel

from esscher.bases.causal_lm import DEFAULT_MAX_LENGTH
from esscher.bases.network import NetworkBase, build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.data.tokenizers import Tokenizer
from esscher.hub.folder import ModelCard, generation_settings
from esscher.hub.transformers_folder import load_pretrained_model, load_space_and_tokenizer, write_transformers_folder
from esscher.networks.transformer_config import XLNetConfig
from esscher.networks.xlnet import SPECIAL_SYMBOLS, XLNetNetwork

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new"}
THEIR_SYMBOLS = (1, 4, 3, 6)  # <s>, <sep>, <cls> and <mask> of the published vocabulary
LOG_ZERO = -1e30


def load_xlnet(folder: Path, config: dict[str, Any], *, eos: str | None) -> tuple[NetworkBase, Tokenizer | None]:
    """The base of a folder of `transformers`, and its tokenizer, if it has one; `eos` names another EOS token."""
    model = load_pretrained_model(folder, config, "causal")
    vocab_size, eos_id = int(model.config.vocab_size), model.config.eos_token_id
    sidecar, tokenizer = load_space_and_tokenizer(folder, vocab_size, [] if eos_id is None else [eos_id], eos)
    eos_id = eos_id if tokenizer is None else tokenizer.eos
    space = Space(vocab_size, DEFAULT_MAX_LENGTH, eos_id) if sidecar is None else sidecar[0]
    return from_transformers(model, space), tokenizer


def save_xlnet(
    folder: str | Path, base: NetworkBase, tokenizer: Tokenizer | None = None, card: ModelCard | None = None
) -> Path:
    """Write a base as a folder of `transformers`, which `load_base` reads, too."""
    folder, model, bos = Path(folder), to_transformers(base), base.space.vocab_size
    card = ModelCard("A base model") if card is None else card
    generation = generation_settings(base.space, bos=bos, pad=bos)
    write_transformers_folder(folder, base, model, bos, tokenizer, generation, card, "AutoModelForCausalLM")
    return folder


@torch.no_grad()
def from_transformers(model: XLNetLMHeadModel, space: Space) -> NetworkBase:
    """A base with the weights of a model; the tokens of the space are all tokens of the model, or its first ones."""
    base = build_base(_to_esscher_config(model.config), space, rng=SeededRng(0))
    network, theirs = cast(Any, base.network), cast(Any, model.transformer)
    table, size = theirs.word_embedding.weight, space.vocab_size
    if len(table) not in (size, size + len(SPECIAL_SYMBOLS)):
        raise ValueError(
            f"The model has {len(table)} tokens and the space {size}. Nothing was made; give the space of its tokenizer."
        )
    symbols = table[size:] if len(table) > size else table[[min(number, size - 1) for number in THEIR_SYMBOLS]]
    network.embedding.weight.copy_(torch.cat([table[:size], symbols]))
    for mine, other in _weight_pairs(network, model, size):
        mine.copy_(other)
    for biases, layer in zip(network.biases, theirs.layer, strict=True):
        same, different = layer.rel_attn.seg_embed
        biases[3].copy_(different - same)
    return base.eval()


@torch.no_grad()
def to_transformers(base: NetworkBase) -> XLNetLMHeadModel:
    """A model of `transformers` with the weights of a base."""
    network = base.network
    if not isinstance(network, XLNetNetwork):
        raise ValueError(f"A {type(network).__name__} is no XLNet. Nothing was made; use a base of kind xlnet.")
    model: Any = XLNetLMHeadModel(_to_transformers_config(base, network.config))  # type: ignore[no-untyped-call]
    theirs = model.eval().transformer
    theirs.word_embedding.weight.copy_(network.embedding.weight)
    model.lm_loss.bias.fill_(LOG_ZERO)
    for mine, other in _weight_pairs(network, model, base.space.vocab_size):
        other.copy_(mine)
    for biases, layer in zip(network.biases, theirs.layer, strict=True):
        layer.rel_attn.seg_embed.copy_(torch.stack([torch.zeros_like(biases[3]), biases[3]]))
    return cast(XLNetLMHeadModel, model)


def _weight_pairs(network: Any, model: Any, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The weights that esscher and `transformers` share, as pairs of views of the same shapes; `size` is the vocabulary."""
    head = network.head.state_dict(keep_vars=True)
    yield network.mask_emb, model.transformer.mask_emb.view(-1)
    yield head["bias"], model.lm_loss.bias[:size]
    if "weight" in head:
        yield head["weight"], model.lm_loss.weight[:size]
    for block, layer, biases in zip(network.blocks, model.transformer.layer, network.biases, strict=True):
        mixer, theirs = block.mixer, layer.rel_attn
        heads = theirs.q.shape[1:]
        key, value = mixer.kv_proj.weight.chunk(2)
        projections = (mixer.q_proj.weight, key, value, mixer.rel_pos_proj.weight)
        for mine, other in zip(projections, (theirs.q, theirs.k, theirs.v, theirs.r), strict=True):
            yield mine.T.unflatten(1, heads), other
        yield mixer.o_proj.weight.unflatten(1, heads), theirs.o
        for row, other in enumerate((theirs.r_w_bias, theirs.r_r_bias, theirs.r_s_bias)):
            yield biases[row], other
        modules = (theirs.layer_norm, layer.ff.layer_norm, layer.ff.layer_1, layer.ff.layer_2)
        for mine, other in zip((*block.norms, block.up_proj, block.down_proj), modules, strict=True):
            yield mine.weight, other.weight
            yield mine.bias, other.bias


def _to_esscher_config(theirs: TheirConfig) -> XLNetConfig:
    activations = {name: mine for mine, name in ACTIVATIONS.items()}
    if theirs.ff_activation not in activations or theirs.attn_type != "bi":
        raise ValueError(
            f"The model has the activation {theirs.ff_activation!r} and attn_type {theirs.attn_type!r}. Nothing was made; "
            f"supported are the activations {', '.join(activations)} and attn_type 'bi'."
        )
    return XLNetConfig(
        theirs.d_model, theirs.n_layer, theirs.n_head, theirs.d_inner, dropout=float(theirs.dropout),
        attention_dropout=float(theirs.dropout), memory=theirs.mem_len or 0, tied=theirs.tie_word_embeddings,
        clamp_len=theirs.clamp_len if theirs.clamp_len > 0 else None, eps=theirs.layer_norm_eps,
        activation=activations[theirs.ff_activation],  # type: ignore[arg-type]
    )  # fmt: skip


def _to_transformers_config(base: NetworkBase, config: XLNetConfig) -> TheirConfig:
    if set(config.mixers) != {"full"} or config.output != "softmax" or config.norm != "post":
        raise ValueError(
            f"transformers has no XLNet with mixers {config.mixers}, output {config.output!r} and norm {config.norm!r}. "
            f"Nothing was made; only full attention, a softmax and post-norm can be converted."
        )
    bos = base.space.vocab_size
    return TheirConfig(
        vocab_size=bos + len(SPECIAL_SYMBOLS), d_model=config.width, n_layer=config.layers, n_head=config.heads,
        d_head=config.head_width, d_inner=config.feedforward, ff_activation=ACTIVATIONS[config.activation],
        layer_norm_eps=config.eps, dropout=config.dropout, mem_len=config.memory or None, clamp_len=config.clamp_len or -1,
        tie_word_embeddings=config.tied, bos_token_id=bos, pad_token_id=bos, eos_token_id=base.space.eos,
    )  # fmt: skip
