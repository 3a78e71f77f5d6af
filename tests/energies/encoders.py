"""Energies that are networks, of every kind, awake: their heads are random, so that they are not 0 everywhere."""

from collections.abc import Callable
from pathlib import Path

import torch
from causal_models import tiny_base
from energies.classifiers import VOCABULARY, write_classifier
from small_networks import CONFIGS, lively

from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.energies.config import EnergyConfig
from esscher.energies.network import NetworkEnergy, build_energy
from esscher.networks.transformer_config import TransformerConfig

SPACE = Space(3, 4, eos=0)
WORDS = ["", "good", "cat"]
OWN = TransformerConfig(8, 2, 2, 16, max_positions=7)


def decode(points: list[list[int]]) -> list[str]:
    return [" ".join(WORDS[token] for token in point if token) for point in points]


def awake(energy: NetworkEnergy, *, scale: float = 1.0) -> NetworkEnergy:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in energy.head.parameters():
            weight.copy_(scale * torch.randn(weight.shape, generator=generator))
    return energy.eval()


def built(base, **settings: object) -> NetworkEnergy:
    return awake(build_energy(EnergyConfig(**settings), base, decode=decode, rng=SeededRng(3)))


def encoder_folder(root: Path, *, vocab_size: int | None = None) -> str:
    """A tiny BERT; with `vocab_size`, one that reads so many tokens."""
    folder = root / f"encoder-{vocab_size}"
    if not folder.is_dir():
        write_classifier(folder, head=False)
        if vocab_size is not None:
            from transformers import BertModel

            model = BertModel.from_pretrained(folder)
            model.resize_token_embeddings(vocab_size, mean_resizing=False)
            model.save_pretrained(folder)
    return str(folder)


def own_base(kind: str):
    return lively(CONFIGS[kind], SPACE)


MAKERS: dict[str, Callable[[Path], tuple[object, NetworkEnergy]]] = {}


def _maker(name: str, base: Callable[[], object], settings: Callable[[Path], dict[str, object]]) -> None:
    def make(root: Path) -> tuple[object, NetworkEnergy]:
        made = base()
        return made, built(made, **settings(root))

    MAKERS[name] = make


for _direction in ("unidirectional", "bidirectional"):
    _maker(f"{_direction}, own", lambda: own_base("gru, one-hot"), lambda _, d=_direction: {"kind": d, "network": OWN})
    for _kind in ("transformer, rotary", "transformer, learned, untied", "xlnet", "xlnet, local"):
        _maker(f"{_direction} from {_kind}", lambda k=_kind: own_base(k), lambda _, d=_direction: {"kind": d})
    for _kind in ("gpt2", "llama", "opt", "gemma2"):
        _maker(f"{_direction} from {_kind}", lambda k=_kind: tiny_base(k), lambda _, d=_direction: {"kind": d})
_maker("unidirectional from lstm", lambda: own_base("lstm, vectors"), lambda _: {"kind": "unidirectional", "hidden": 5})
_maker("shared with gru", lambda: own_base("gru, tied"), lambda _: {"kind": "shared", "hidden": 5})
_maker("shared with llama", lambda: tiny_base("llama"), lambda _: {"kind": "shared", "pooling": "last"})
_maker("encoder of text", lambda: own_base("gru, tied"), lambda root: {"kind": "encoder", "encoder": encoder_folder(root)})
_maker(
    "encoder of tokens",
    lambda: tiny_base("gpt2", vocab_size=len(VOCABULARY)),
    lambda root: {"kind": "encoder", "on": "tokens", "encoder": encoder_folder(root, vocab_size=len(VOCABULARY))},
)
