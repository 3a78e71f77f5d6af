"""Contexts of models that read only so many tokens."""

import torch
from causal_models import tiny_model

from esscher.data.tokenizers import character_tokenizer
from esscher.workflow.analyse_bases import analyse_context
from esscher.workflow.config.analyse import ContextConfig


def test_a_pretrained_model_sees_no_further_than_its_positions(tmp_path):
    tiny_model("gpt2").save_pretrained(tmp_path / "model")
    character_tokenizer("ab", unknown=False).save(tmp_path / "model")
    (tmp_path / "text.txt").write_text("abbab" * 30)
    folder, text = str(tmp_path / "model"), str(tmp_path / "text.txt")
    analysis = analyse_context(ContextConfig((folder,), data=text, step=8, longest=24, positions=10))
    (losses,) = analysis.result.losses.values()
    assert torch.equal(losses[1], losses[2])  # of 16 positions, one is the token that is predicted
    assert not torch.equal(losses[0], losses[1])
