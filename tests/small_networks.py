"""Small networks of every kind that many tests share."""

import torch

from esscher.bases.network import NetworkBase, build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, sequences
from esscher.networks.pixelcnn_config import GatedPixelCnnConfig, PixelCnnConfig, PixelCnnPlusPlusConfig
from esscher.networks.recurrent_config import (
    AwdLstmConfig,
    EnasConfig,
    GruConfig,
    LstmConfig,
    RecurrentConfig,
    TrellisNetConfig,
)
from esscher.networks.seq2seq_config import AttentiveLstmConfig, EncoderDecoderConfig
from esscher.networks.transformer_config import DeqConfig, TransformerConfig, TransformerXLConfig, XLNetConfig

SPACES = {"fixed length": Space(3, 4), "end symbol": Space(3, 4, eos=0)}
CONFIGS = {
    "lstm, one-hot": LstmConfig(12, 2),
    "lstm, vectors": LstmConfig(12, 2, embedding=5),
    "lstm, tied": LstmConfig(12, 1, embedding=12, tied=True),
    "gru, one-hot": GruConfig(12, 1),
    "gru, vectors": GruConfig(12, 3, embedding=5),
    "gru, tied": GruConfig(12, 2, embedding=12, tied=True),
    "awd-lstm": AwdLstmConfig(12, 2, inner=10),
    "awd-lstm, softmaxes": AwdLstmConfig(12, 2, 7, inner=10, output="mos", components=3),
    "enas": EnasConfig(12),
    "enas, softmaxes": EnasConfig(12, 2, 7, arc=(1, 0, 3, 0, 2), output="mos", components=3),
    "trellisnet": TrellisNetConfig(8, 3, inner=4, auxiliary_every=2),
    "trellisnet, softmaxes": TrellisNetConfig(8, 4, 7, inner=3, dilations=(1, 3), output="mos", components=3),
    "lstm, contexts": LstmConfig(12, 1, embedding=5, output="moc", components=3),
    "transformer, softmaxes": TransformerConfig(8, 2, 2, 16, output="mos", components=3, latent_width=5, tied=False),
    "transformer, rotary": TransformerConfig(8, 2, 2, 16),
    "transformer, learned": TransformerConfig(8, 2, 2, 16, positions="learned", max_positions=7),
    "transformer, rotary, untied": TransformerConfig(12, 1, 3, 16, tied=False),
    "transformer, learned, untied": TransformerConfig(12, 3, 1, 16, positions="learned", max_positions=7, tied=False),
    "transformer, adaptive": TransformerConfig(8, 2, 2, 16, cutoffs=(1, 2), div_value=2),
    "transformer, adaptive, untied": TransformerConfig(8, 2, 2, 16, tied=False, cutoffs=(2,)),
    "transformer-xl": TransformerXLConfig(8, 2, 2, 16),
    "transformer-xl, short sight": TransformerXLConfig(
        8, 2, 2, 16, head_width=5, attention_span=2, clamp_len=1, norm="pre", untied_biases=True, tied=False
    ),
    "transformer-xl, adaptive": TransformerXLConfig(8, 2, 2, 16, cutoffs=(1, 2), div_value=2),
    "deq": DeqConfig(8, 2, 16, exact_tolerance=1e-14),
    "deq, unrolled": DeqConfig(8, 2, 16, unrolled=2, output="mos", components=3),
    "xlnet": XLNetConfig(8, 2, 2, 16),
    "xlnet, local": XLNetConfig(
        8, 2, 2, 16, head_width=5, clamp_len=4, mixers=("full", "local"), spans=(2,), tied=False, activation="relu"
    ),
    "encoder-decoder": EncoderDecoderConfig(8, 2, 1, 2, 16),
    "encoder-decoder, softmaxes": EncoderDecoderConfig(8, 1, 2, 2, 16, tied=False, output="mos", components=3),
    "attentive-lstm": AttentiveLstmConfig(12, 2, 1, 5, tied=False),
    "attentive-lstm, contexts": AttentiveLstmConfig(12, 1, 2, output="moc", components=3),
    "local-xl": TransformerXLConfig(8, 2, 2, 16, mixers=("local",), spans=(2, 3)),
    "convolutions": TransformerXLConfig(8, 2, 2, 16, mixers=("lightconv", "dynamicconv"), spans=(2, 3), norm="pre"),
    "pixelcnn": PixelCnnConfig(8, 2, image=(2, 4, 1), first_kernel_size=3),
    "gated-pixelcnn, softmaxes": GatedPixelCnnConfig(6, 1, image=(2, 2, 2), first_kernel_size=3, output="mos", components=3),
    "pixelcnn++": PixelCnnPlusPlusConfig(6, 1, 0.0, (2, 4, 1), scales=2, mixtures=3),
}


def lively(config, space: Space, *, seed: int = 1) -> NetworkBase:
    """A base with weights large enough that every token before changes every distribution."""
    base = build_base(config, space, rng=SeededRng(seed)).eval()
    with torch.no_grad():
        for name, weight in base.named_parameters():
            if ".input_injection_proj." in name and weight.dim() > 1:
                weight.mul_(16)  # a layer has a fixed point where what it is given is stronger than what it makes of itself
            pixels = PixelCnnConfig | GatedPixelCnnConfig | PixelCnnPlusPlusConfig
            calm = isinstance(config, RecurrentConfig | AwdLstmConfig | AttentiveLstmConfig | pixels)
            weight.mul_(
                30 if isinstance(config, TrellisNetConfig) and weight.dim() > 1 else 2 if calm or weight.dim() == 1 else 8
            )
    return base


def check_dropout(config, space: Space) -> NetworkBase:
    """What is dropped is new in each training pass, follows its seed, and never touches steps; the base, out of training."""
    base = build_base(config, space, rng=SeededRng(0)).train()
    x = sequences([[1, 2, 3, 4], [4, 3, 2]])
    with SeededRng(5).fork_torch_rng():
        first, second = base.log_probs(x), base.log_probs(x)
    with SeededRng(5).fork_torch_rng():
        assert torch.equal(base.log_probs(x), first)
    assert not torch.equal(first, second)
    prefix_model = base.begin(x.prompts())[0]
    assert torch.equal(base.eval().begin(x.prompts())[0], prefix_model)
    return base


def check_padding(base, prompts: list[list[int]]) -> None:
    """Padding may hold anything, and as much of it as there is."""
    x = sequences([[1, 0], [2, 2, 1]], prompts)
    padded = Sequences(torch.nn.functional.pad(x.tokens, (0, 40), value=-100), x.start, x.stop)
    for row, stop in enumerate(x.stop.tolist()):
        padded.tokens[row, stop:] = -100
    assert torch.equal(base.log_probs(padded)[:, : x.tokens.shape[1]], base.log_probs(x))
    assert base.logits(padded).shape == (*padded.tokens.shape, base.space.vocab_size)
