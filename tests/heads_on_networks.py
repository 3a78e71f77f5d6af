"""Every head on every network, small, for the tests that run over all of them."""

from dataclasses import replace
from itertools import product

import torch
from small_networks import lively

from esscher.bases.network import NetworkBase
from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.networks.pixelcnn_config import GatedPixelCnnConfig, PixelCnnConfig, PixelCnnPlusPlusConfig
from esscher.networks.recurrent_config import (
    AwdLstmConfig,
    EnasConfig,
    GruConfig,
    LstmConfig,
    TrellisNetConfig,
)
from esscher.networks.transformer_config import MIXERS, DeqConfig, TransformerConfig, TransformerXLConfig

ENDING, FIXED = Space(4, 3, eos=0), Space(4, 3)
PROMPTS = [[], [2, 1, 3]]

XL = TransformerXLConfig(8, 1, 2, 16)
NETWORKS = {
    "lstm": LstmConfig(8, 2, embedding=8),
    "lstm, one-hot": LstmConfig(8, 1),
    "gru": GruConfig(8, 1, embedding=8),
    "gru, one-hot": GruConfig(8, 3),
    "awd-lstm": AwdLstmConfig(8, 2, inner=6),
    "enas": EnasConfig(8),
    "trellisnet": TrellisNetConfig(8, 3, inner=4),
    "deq": DeqConfig(8, 2, 16, exact_tolerance=1e-14),
    "transformer, rotary": TransformerConfig(8, 1, 2, 16),
    "transformer, learned": TransformerConfig(8, 1, 4, 16, positions="learned", max_positions=6),
    **{
        f"{mixer}, {norm}-norm": replace(XL, mixers=(mixer,), spans=(2,), norm=norm, untied_biases=norm == "pre")
        for mixer, norm in product(MIXERS, ("post", "pre"))
    },
}
DEEPER = {  # what is no matter of the head
    "enas, another cell": EnasConfig(8, 2, arc=(3, 0, 2, 0, 1, 1, 0)),
    "trellisnet, dilated": TrellisNetConfig(8, 4, inner=0, dilations=(1, 3, 2)),
    "deq, short sight": DeqConfig(8, 2, 16, head_width=5, attention_span=2, clamp_len=1, exact_tolerance=1e-14),
    "deq, unrolled": DeqConfig(8, 2, 16, unrolled=3),
    "transformer": TransformerConfig(8, 2, 2, 16),
    "transformer-xl": replace(XL, layers=2, norm="pre", untied_biases=True),
    "transformer-xl, short sight": replace(XL, layers=2, attention_span=2, clamp_len=1),
    "transformer-xl, mixed": replace(XL, layers=4, mixers=MIXERS, spans=(2, 2, 3, 2)),
    "pixelcnn++": PixelCnnPlusPlusConfig(6, 1, 0.0, (2, 4, 1), scales=2, mixtures=3),
    "pixelcnn++, channels": PixelCnnPlusPlusConfig(6, 2, 0.0, (1, 2, 3), scales=1, mixtures=2),
}
PIXELS = {
    "pixelcnn": PixelCnnConfig(8, 1, image=(2, 3, 1), first_kernel_size=3),
    "gated-pixelcnn": GatedPixelCnnConfig(6, 1, image=(1, 2, 3), first_kernel_size=3),
}
HEADS = {
    "softmax": {},
    "adaptive": {"cutoffs": (1, 2), "div_value": 2},
    "softmaxes": {"output": "mos", "components": 3},
    "contexts": {"output": "moc", "components": 3},
}


def config_of(network, head, *, tied):
    """Untied mixtures have contexts of a width that is no other."""
    drawn = {"latent_width": 5} if not tied and "output" in HEADS[head] else {}
    return replace(NETWORKS[network], **HEADS[head], **drawn, tied=tied)


CASES = {
    f"{network} + {head}, {'tied' if tied else 'untied'}": config_of(network, head, tied=tied)
    for network, head, tied in product(NETWORKS, HEADS, (True, False))
    if not (tied and "one-hot" in network)
} | {f"{network} + {head}": replace(PIXELS[network], **HEADS[head]) for network, head in product(PIXELS, HEADS)}


# Fast: every head on a Transformer and, tied, on a recurrent network; every network with a softmax, but for DEQ, which takes
# long to solve and is twice in DEEPER.
FAST = {
    case
    for case in CASES
    if case.startswith("transformer, rotary + ") or (case.startswith("gru + ") and case.endswith(", tied"))
} | {next(case for case in CASES if case.startswith(f"{network} + softmax")) for network in {*NETWORKS, *PIXELS} - {"deq"}}


def base_of(config, space=ENDING) -> NetworkBase:
    """A lively base none of whose biases is 0, so that one that is forgotten would be missed."""
    base = lively(config, space)
    with SeededRng(4).fork_torch_rng(), torch.no_grad():
        for weight in base.parameters():
            if not bool(weight.any()):
                weight.normal_()
    return base
