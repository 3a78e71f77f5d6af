"""Scores and levels of logits: of the points alone, whatever prompts and padding hold."""

import torch
from small_networks import lively

from esscher.bases.logits import log_probs_from_logits
from esscher.core.space import Sequences, Space, sequences
from esscher.networks.pixelcnn_config import PixelCnnConfig


def test_prompts_and_padding_may_hold_symbols_that_are_no_tokens():
    """The class of an image is a number after the last level, and padding is anything."""
    base = lively(PixelCnnConfig(8, 1, image=(2, 2, 1), first_kernel_size=3, classes=2), Space(3, 4))
    x = sequences([[1, 0, 2, 1], [2, 2, 1, 0]], [[3], [4]])
    padded = Sequences(torch.nn.functional.pad(x.tokens, (0, 2), value=-100), x.start, x.stop)
    for item, other in zip(
        log_probs_from_logits(base.logits(padded), padded), base.log_probs_and_logsumexp(padded), strict=True
    ):
        assert torch.allclose(item, other, atol=1e-6)
        assert bool((item[padded.counted] != 0).all()) and not bool(item[~padded.counted].any())
