"""Folders of networks of esscher: config.json has the model_type "esscher-lstm" ..., the network's config, the space, and the
keys that `transformers` needs (`esscher.hub.auto`).

The BOS token that a network reads first is no token of the space; its id is the one after the last token. In a folder it is BOS
and padding token of the tokenizer: no text is encoded to it, `AutoTokenizer` puts it before every text, `Tokenizer` does not.
"""

import json
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tokenizers

from esscher.bases.network import NetworkBase, build_base
from esscher.core.config import from_dict
from esscher.core.manifest import write_manifest
from esscher.core.randomness import SeededRng
from esscher.core.reading import describing
from esscher.core.space import Space
from esscher.core.storage import load_module_tensors, module_tensors, read_tensors, write_json, write_tensors
from esscher.data.images import ImageCodec
from esscher.data.tokenizers import Tokenizer, load_tokenizer
from esscher.hub.folder import CONFIG, GENERATION, PREFIX, WEIGHTS, ModelCard, generation_settings, write_card, write_tokenizer
from esscher.networks.registry import NETWORKS

BOS = "<bos>"
CONFIG_KEYS = (
    "model_type", "architectures", "base", "space", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "dtype",
    "esscher_version", "transformers_version", "use_cache",
)  # fmt: skip


def bos_id(space: Space) -> int:
    """The id of the BOS token of a network: the one after the last token of the space."""
    return space.vocab_size


def with_bos(tokenizer: Tokenizer, space: Space) -> Tokenizer:
    """The tokenizer with the BOS token of a network over this space, as saved in a folder."""
    number = bos_id(space)
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    if backend.id_to_token(number) is None:
        name = BOS
        while backend.token_to_id(name) is not None:
            name = f"<{name}>"
        missing = range(backend.get_vocab_size(), number)  # a vocabulary that was rounded up has ids without a token
        backend.add_special_tokens([*(f"<unused{token}>" for token in missing), name])
    symbol = backend.id_to_token(number)
    if symbol is None:
        raise ValueError(
            f"The ids of the tokenizer's {number} tokens have gaps, so the BOS token cannot follow them. Nothing was saved; "
            f"save the base without the tokenizer, or number the tokens from 0 on."
        )
    names = {"bos_token": symbol, "pad_token": symbol, "padding_side": "left"}
    settings = {**tokenizer.settings, **names, "model_input_names": ["input_ids", "attention_mask"]}
    state: dict[str, Any] = json.loads(backend.to_str())
    previous = state["post_processor"] or {}
    steps = previous.get("processors", [previous] if previous else [])
    bos, text = {"SpecialToken": {"id": symbol, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {symbol: {"id": symbol, "ids": [number], "tokens": [symbol]}},
    }
    processors = [*(step for step in steps if step["type"] == "ByteLevel"), template]  # of the old steps only byte-level ones
    state["post_processor"] = template if len(processors) == 1 else {"type": "Sequence", "processors": processors}
    backend = tokenizers.Tokenizer.from_str(json.dumps(state))
    return replace(tokenizer, backend=backend, size=number, settings=settings)


def save_network(folder: Path, base: NetworkBase, tokenizer: Tokenizer | ImageCodec | None, card: ModelCard) -> None:
    """Write the files of a folder, config.json and the manifest last."""
    write_tokenizer(folder, with_bos(tokenizer, base.space) if isinstance(tokenizer, Tokenizer) else tokenizer)
    write_tensors(folder / WEIGHTS, module_tensors(base))
    bos = bos_id(base.space)
    write_json(folder / GENERATION, generation_settings(base.space, bos=bos, pad=bos))
    write_model_card(folder, base, card)
    write_json(folder / CONFIG, hf_config_of(base))
    write_manifest(folder)


def hf_model_name(kind: str) -> str | None:
    """The name of the `transformers` class of a kind of network, such as EsscherLstmForCausalLM; None if it is not for text."""
    config = NETWORKS[kind].config_class
    return f"Esscher{config.__name__.removesuffix('Config')}ForCausalLM" if config.modality == "text" else None


def write_model_card(folder: Path, base: NetworkBase, card: ModelCard) -> None:
    """Write the model card of a base."""
    kind = NETWORKS.kind_of(base.config)
    auto = None if hf_model_name(kind) is None else "AutoModelForCausalLM"
    use = "sample" if base.config.modality == "image" else "translate"
    write_card(folder, card, base, base.space, kind=kind, tags=[PREFIX + kind], library="esscher", auto=auto, use=use)


def load_network(folder: Path, config: dict[str, Any]) -> tuple[NetworkBase, Tokenizer | None]:
    """The base of a folder with this config.json, and its tokenizer, if it has one."""
    kind = str(config.get("model_type", ""))
    if kind.removeprefix(PREFIX) not in NETWORKS:
        known = ", ".join(PREFIX + name for name in NETWORKS)
        raise ValueError(
            f"{folder} holds a model of type {kind!r}, not a base; the known types are {known}, and those of Hugging Face "
            f"transformers. Nothing was loaded."
        )
    unknown = [key for key in config if key not in CONFIG_KEYS]
    if unknown:
        raise ValueError(f"{folder / CONFIG} has an unknown key {unknown[0]!r}; the known keys are {', '.join(CONFIG_KEYS)}.")
    with describing(folder / CONFIG, "a base"):
        space = from_dict(Space, config["space"], "space.")
        base = build_base(NETWORKS.from_dict(config["base"], "base."), space, rng=SeededRng(0))
        for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id"):
            stated, expected = config.get(key), hf_config_of(base)[key]
            if key in config and stated != expected and (key, stated) != ("vocab_size", space.vocab_size):  # of older folders
                raise ValueError(f"{key} is {stated}, and by its {space} it is {expected}")
    load_module_tensors(base, read_tensors(folder / WEIGHTS), folder / WEIGHTS)
    if not (folder / "tokenizer.json").is_file():
        return base, None
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocab_size != space.vocab_size:
        raise ValueError(
            f"The tokenizer in {folder} has {tokenizer.vocab_size} tokens and the base has {space.vocab_size}: one of them was "
            f"replaced. Nothing was loaded; restore the tokenizer.json and tokenizer_config.json the base was trained on."
        )
    if space.eos is not None and tokenizer.eos != space.eos:
        raise ValueError(
            f"The eos_token in {folder / 'tokenizer_config.json'} is token {tokenizer.eos}, and space.eos in {folder / CONFIG} "
            f"is {space.eos}: texts would not end where they did in training. Nothing was loaded; restore these files."
        )
    return base, tokenizer


def hf_config_of(base: NetworkBase) -> dict[str, Any]:
    """The content of the config.json of a base."""
    bos, kind = bos_id(base.space), NETWORKS.kind_of(base.config)
    name = hf_model_name(kind)
    return {
        "model_type": PREFIX + kind,
        "architectures": [] if name is None else [name],
        "base": NETWORKS.to_dict(base.config),
        "space": asdict(base.space),
        "vocab_size": bos + 1,
        "bos_token_id": bos,
        "eos_token_id": base.space.eos,
        "pad_token_id": bos,
        "dtype": str(next(base.parameters()).dtype).removeprefix("torch."),
        "esscher_version": version("esscher"),
    }
