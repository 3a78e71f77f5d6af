"""XLNet of `transformers`, from and to ours: the same outputs for the same weights.

    base = from_transformers(XLNetLMHeadModel(config), space)
    model = to_transformers(base)

What a model of theirs has twice, a vector for pairs of one segment and one for pairs of two, we have once, as their difference:
no output depends on more. Our symbols beside the tokens (`esscher.networks.xlnet.SYMBOLS`) are further tokens there, whose
probability is 0; those of a model from elsewhere begin as its own <s>, <sep>, <cls> and <mask>. What it leaves out: local
attention and mixtures, which `transformers` has not.
"""

import os
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import XLNetConfig as TheirConfig
from transformers import XLNetLMHeadModel

from esscher.bases.config import XLNetConfig
from esscher.bases.network import NetworkBase, build_base
from esscher.data.tokenizers import Tokenizer
from esscher.hub.folder import CONFIG, write_tokenizer
from esscher.hub.foreign import OURS, read_model, read_points, save_model
from esscher.networks.transformer_xl import XLBlock
from esscher.networks.xlnet import SYMBOLS, XLNetNetwork
from esscher.randomness import Seeded
from esscher.space import Space
from esscher.storage import sync_folder, write_json

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new"}
THEIR_SYMBOLS = (1, 4, 3, 6)  # <s>, <sep>, <cls> and <mask> of the published vocabulary
NEVER = -1e30
USUAL_LENGTH = 256


def load_xlnet(
    folder: Path, config: dict[str, Any], *, eos: str | None, device: torch.device
) -> tuple[NetworkBase, Tokenizer | None]:
    """The base of a folder of `transformers`, and its tokenizer when it has one; `eos` names another end symbol."""
    model = read_model(folder, config, "causal", device)
    size, end = int(model.config.vocab_size), model.config.eos_token_id
    ours, tokenizer = read_points(folder, size, [] if end is None else [end], eos)
    end = end if tokenizer is None else tokenizer.eos
    return from_transformers(model, Space(size, USUAL_LENGTH, end) if ours is None else ours[0]), tokenizer


def save_xlnet(folder: str | Path, base: NetworkBase, tokenizer: Tokenizer | None = None) -> Path:
    """Write a base as a folder of `transformers`, which `load_base` reads too."""
    folder = Path(folder)
    write_tokenizer(folder, tokenizer)
    save_model(folder, to_transformers(base))
    opening = {"opening": base.space.vocab_size, "esscher_version": version("esscher")}
    write_json(folder / OURS, {"space": asdict(base.space), **opening})
    os.replace(folder / f".{CONFIG}", folder / CONFIG)
    sync_folder(folder)
    return folder


@torch.no_grad()
def from_transformers(model: XLNetLMHeadModel, space: Space) -> NetworkBase:
    """A base with the weights of a model; it speaks the tokens of the space, which are the model's or its first ones."""
    base = build_base(_our_config(model.config), space, rng=Seeded(0))
    network, theirs = cast(Any, base.network), cast(Any, model.transformer)
    table, size = theirs.word_embedding.weight, space.vocab_size
    if len(table) not in (size, size + len(SYMBOLS)):
        raise ValueError(
            f"The model has {len(table)} tokens and the space {size}. Nothing was made; give the space of its tokenizer."
        )
    symbols = table[size:] if len(table) > size else table[[min(number, size - 1) for number in THEIR_SYMBOLS]]
    network.embedding.weight.copy_(torch.cat([table[:size], symbols]))
    network.unseen.copy_(theirs.mask_emb.view(-1))
    head = network.head.state_dict(keep_vars=True)
    head["bias"].copy_(model.lm_loss.bias[:size])
    if "weight" in head:
        head["weight"].copy_(model.lm_loss.weight[:size])
    for block, layer, biases in zip(network.blocks, theirs.layer, network.biases, strict=True):
        for mine, other in _pairs(cast(XLBlock, block), layer):
            mine.copy_(other)
        attention = layer.rel_attn
        same, different = attention.seg_embed
        biases.copy_(torch.stack([attention.r_w_bias, attention.r_r_bias, attention.r_s_bias, different - same]))
    return base.eval()


@torch.no_grad()
def to_transformers(base: NetworkBase) -> XLNetLMHeadModel:
    """A model of `transformers` with the weights of a base."""
    network = base.network
    if not isinstance(network, XLNetNetwork):
        raise ValueError(f"A {type(network).__name__} is no XLNet. Nothing was made; give a base of kind xlnet.")
    model: Any = XLNetLMHeadModel(_their_config(base, network.config))  # type: ignore[no-untyped-call]
    theirs, size = model.eval().transformer, base.space.vocab_size
    theirs.word_embedding.weight.copy_(network.embedding.weight)
    theirs.mask_emb.copy_(network.unseen.view(1, 1, -1))
    head = cast(Any, network.head).state_dict(keep_vars=True)
    model.lm_loss.bias.fill_(NEVER)[:size] = head["bias"]
    if "weight" in head:
        model.lm_loss.weight[:size] = head["weight"]
    for block, layer, biases in zip(network.blocks, theirs.layer, network.biases, strict=True):
        for mine, other in _pairs(cast(XLBlock, block), layer):
            other.copy_(mine)
        attention = layer.rel_attn
        for name, value in zip(("r_w_bias", "r_r_bias", "r_s_bias"), biases, strict=False):
            getattr(attention, name).copy_(value)
        attention.seg_embed.copy_(torch.stack([torch.zeros_like(biases[3]), biases[3]]))
    return cast(XLNetLMHeadModel, model)


def _pairs(block: XLBlock, layer: Any) -> list[tuple[Tensor, Tensor]]:
    """Our weights of a layer and theirs, as views of one shape."""
    mixer, theirs = cast(Any, block.mixer), layer.rel_attn
    shape = theirs.q.shape
    key, value = mixer.remember.weight.chunk(2)
    projections = zip((mixer.ask.weight, key, value, mixer.place.weight), (theirs.q, theirs.k, theirs.v, theirs.r), strict=True)
    pairs = [(mine.T.unflatten(1, shape[1:]), other) for mine, other in projections]
    pairs.append((mixer.mix.weight.unflatten(1, shape[1:]), theirs.o))
    modules = [
        (block.norms[0], theirs.layer_norm),
        (block.norms[1], layer.ff.layer_norm),
        (block.widen, layer.ff.layer_1),
        (block.narrow, layer.ff.layer_2),
    ]
    return pairs + [pair for mine, other in modules for pair in ((mine.weight, other.weight), (mine.bias, other.bias))]


def _our_config(theirs: TheirConfig) -> XLNetConfig:
    known = {name: mine for mine, name in ACTIVATIONS.items()}
    if theirs.ff_activation not in known or theirs.attn_type != "bi":
        raise ValueError(
            f"The model has the activation {theirs.ff_activation!r} and attn_type {theirs.attn_type!r}. Nothing was made; "
            f"known are the activations {', '.join(known)} and attn_type 'bi'."
        )
    return XLNetConfig(
        theirs.d_model,
        theirs.n_layer,
        theirs.n_head,
        None,
        theirs.d_inner,
        dropout=float(theirs.dropout),
        attention_dropout=float(theirs.dropout),
        memory=theirs.mem_len or 0,
        clamp=theirs.clamp_len if theirs.clamp_len > 0 else None,
        tied=theirs.tie_word_embeddings,
        activation=known[theirs.ff_activation],  # type: ignore[arg-type]
        eps=theirs.layer_norm_eps,
    )


def _their_config(base: NetworkBase, config: XLNetConfig) -> TheirConfig:
    if set(config.mixers) != {"full"} or config.output != "softmax":
        raise ValueError(
            f"transformers has no XLNet with mixers {config.mixers} and output {config.output!r}. Nothing was made; only full "
            f"attention and a softmax can be brought there."
        )
    opening = base.space.vocab_size
    return TheirConfig(
        vocab_size=opening + len(SYMBOLS), d_model=config.width, n_layer=config.layers, n_head=config.heads,
        d_head=config.head_width, d_inner=config.feedforward, ff_activation=ACTIVATIONS[config.activation],
        layer_norm_eps=config.eps, dropout=config.dropout, mem_len=config.memory or None, clamp_len=config.clamp or -1,
        tie_word_embeddings=config.tied, bos_token_id=opening, pad_token_id=opening, eos_token_id=base.space.eos,
    )  # fmt: skip
