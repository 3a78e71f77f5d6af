"""Long texts are scored in chunks of logits: the scores are those of all logits, and a model that does more is found out."""

from types import MethodType

import causal_models
import pytest
import seq2seq_models
import torch

from esscher.bases import causal_lm as causal
from esscher.bases import output_head
from esscher.bases import seq2seq_lm as seq2seq
from esscher.core.space import sequences

MODELS = {
    **{f"causal, {family}": lambda f=family: causal_models.tiny_base(f, max_length=6) for family in causal_models.FAMILIES},
    **{f"seq2seq, {family}": lambda f=family: seq2seq_models.tiny_base(f, max_length=6) for family in seq2seq_models.FAMILIES},
    "causal, cohere": lambda: causal_models.tiny_base("cohere", max_length=6),
}
X = sequences([[1, 2, 2, 1], [2, 0], [1, 1, 2, 2, 2, 0]], [[1, 2], [1], [2, 2, 1]])


@pytest.fixture
def few_logits(monkeypatch):
    """Chunks of two positions, and no text is short."""
    for module in (causal, seq2seq):
        monkeypatch.setattr(module, "LOGITS_PER_CHUNK", 1)
    monkeypatch.setattr(output_head, "LOGITS_AT_ONCE", 8)


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_chunks_give_the_scores_of_all_logits(name, monkeypatch, few_logits):
    base = MODELS[name]()
    assert X.counted.sum() > 2 * 8 // base.space.vocab_size
    with torch.enable_grad():
        expected = [part.detach() for part in (base.log_probs(X), *base.log_probs_and_logsumexp(X))]
    assert base._chunks_logits is None
    actual = base.log_probs(X), *base.log_probs_and_logsumexp(X)
    assert base._chunks_logits
    for part, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(part, right, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_model_that_reads_its_inputs_after_the_decoder_is_scored_by_all_logits(few_logits):
    """Here a bias depends on the token that was read: chunks of vectors alone cannot know it."""
    base = causal_models.tiny_base("llama", max_length=6)
    inner = base.model.forward

    def forward(self, input_ids, attention_mask=None, past_key_values=None, **settings):
        output = inner(input_ids=input_ids, attention_mask=attention_mask, past_key_values=past_key_values, **settings)
        output.logits = output.logits + torch.nn.functional.one_hot(input_ids, 3)[:, -output.logits.shape[1] :]
        return output

    base.model.forward = MethodType(forward, base.model)
    with torch.enable_grad():
        expected = base.log_probs(X).detach()
    assert torch.equal(base.log_probs(X), expected) and base._chunks_logits is False


@torch.no_grad()
def test_no_gradient_is_lost(few_logits):
    base = causal_models.tiny_base("gpt2", max_length=6)
    with torch.enable_grad():
        base.log_probs(X).sum().backward()
    assert base._chunks_logits is None and base.model.lm_head.weight.grad is not None
