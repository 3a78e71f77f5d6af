"""Models of Hugging Face as bases: the laws over many families, equality with `transformers` itself, training."""

import copy
from pathlib import Path

import pytest
import torch
from causal_models import FAMILIES, SHARING, tiny_base, tiny_model
from interrupted import Killed, killed_once
from random_targets import PROMPTS
from small_networks import check_padding
from torch.nn.functional import log_softmax
from transformers.activations import NewGELUActivation

from esscher.bases import causal_lm as adapter
from esscher.bases import logits, shared_prompt_cache
from esscher.bases.causal_lm import CausalLM, causal_lm
from esscher.bases.logits import LogitBase
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of, sequences
from esscher.core.storage import digest, module_tensors
from esscher.core.target import Tilted
from esscher.exact.enumeration import enumerate_points
from esscher.objectives.likelihood import Likelihood
from esscher.samplers.ancestral import Ancestral, draw
from esscher.testing import check_base, check_sampler
from esscher.training.config import TrainingConfig
from esscher.training.trainer import Trainer

STORIES = Path("/work/shared/data/stories260K")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_it_has_and_shares(family):
    base = tiny_base(family)
    base.begin(prompts_of([[2, 1]]))
    assert isinstance(base, LogitBase) and base._shares_prompt == (family in SHARING)


@pytest.fixture
def every_prompt_is_shared(monkeypatch):
    monkeypatch.setattr(shared_prompt_cache, "MIN_SHARED_TOKENS", 0)


@pytest.mark.parametrize("family", SHARING)
def test_laws_of_short_prompts_shared(family, every_prompt_is_shared):
    check_base(tiny_base(family), PROMPTS)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_laws_without_sharing(family):
    """The cache of `transformers`, on which the other families step."""
    base = tiny_base(family)
    base._shares_prompt = False
    check_base(base, PROMPTS)


def test_double_precision():
    check_base(tiny_base("gpt2").double(), PROMPTS, tolerance=1e-12)


@pytest.mark.parametrize("left_out", ["position_ids", "attention_mask"])
def test_steps_without_positions_or_mask_are_caught(left_out, monkeypatch):
    """The two mistakes that are easily made with prompts of different lengths."""
    whole = CausalLM._step_inputs

    def wrong(self, ids, mask, position):
        return {name: value for name, value in whole(self, ids, mask, position).items() if name != left_out}

    monkeypatch.setattr(CausalLM, "_step_inputs", wrong)
    for family in ("gpt2", "llama") if left_out == "attention_mask" else ("gpt2",):
        with pytest.raises(AssertionError, match=r"prompt must not depend|stepping must equal"):
            check_base(tiny_base(family), PROMPTS)
        check_base(tiny_base(family), [[2, 1], [1, 1]])  # equal lengths do not show it


def test_rows_with_the_prompts_of_others_are_caught(monkeypatch, every_prompt_is_shared):
    def wrong(rows_by_prompt, index):
        return shared_prompt_cache.RowsByPrompt(rows_by_prompt.owner[index].flip(0), rows_by_prompt.prompts), None

    monkeypatch.setattr(shared_prompt_cache.RowsByPrompt, "select", wrong)
    with pytest.raises(AssertionError, match="select must commute"):
        check_base(tiny_base("llama"), PROMPTS)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_model_after_its_begin_symbol(family):
    base = tiny_base(family)
    actual = base.logits(sequences([[2, 1, 1, 0]]))[0]
    assert torch.allclose(actual, base.model(torch.tensor([[1, 2, 1, 1]])).logits[0], atol=1e-5)


@pytest.mark.parametrize("worth", [0, 100])
def test_states_through_many_selections(worth, monkeypatch):
    """Rows are repeated, dropped and put in any order between steps; some prompts lose all theirs."""
    monkeypatch.setattr(shared_prompt_cache, "MIN_SHARED_TOKENS", worth)
    base, rng = tiny_base("llama", eos=None, max_length=8), torch.Generator().manual_seed(3)
    prompts = prompts_of([[], [1], [2, 1, 1], [1, 2], [2]])
    log_prob, state = base.begin(prompts)
    rows = [[*prompt] for prompt in ([], [1], [2, 1, 1], [1, 2], [2])]
    for count in (12, 9, 3, 30, 7, 1, 4):
        index = torch.randint(len(rows), (count,), generator=rng)
        token = torch.randint(3, (count,), generator=rng)
        log_prob, state = base.advance(base.select(state, index), token)
        rows = [[*rows[row], int(new)] for row, new in zip(index, token, strict=True)]
        for row, actual in zip(rows, log_prob, strict=True):
            expected = base.begin(prompts_of([row]))[0][0] if len(row) < 9 else actual
            assert torch.allclose(actual.exp(), expected.exp(), atol=1e-5)


def after_a_branch(base: CausalLM) -> torch.Tensor:
    """What two steps and a third say, when a copy of the state went another way after the first."""
    first, second = torch.tensor([1, 2]), torch.tensor([2, 2])
    state = base.advance(base.begin(prompts_of([[2, 1, 1], []]))[1], first)[1]
    branch = base.select(state, torch.arange(2))
    state = base.advance(state, second)[1]
    base.advance(branch, first)
    return base.advance(state, second)[0]


@pytest.mark.parametrize("worth", [0, 100])
@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_a_branch_after_a_step_leaves_the_state(family, worth, monkeypatch):
    monkeypatch.setattr(shared_prompt_cache, "MIN_SHARED_TOKENS", worth)
    base = tiny_base(family, eos=None)
    expected = base.logits(sequences([[1, 2, 2, 0], [2, 2, 2, 0]], [[2, 1, 1], []]))
    expected = torch.stack([expected[0, 6], expected[1, 3]]).log_softmax(-1)
    assert torch.allclose(after_a_branch(base), expected, atol=1e-5)
    if family == "gpt2":
        monkeypatch.setattr(
            shared_prompt_cache, "copy_rows", lambda part, index, filled, slots=None: part
        )  # select without a copy
        assert not torch.allclose(after_a_branch(base), expected, atol=1e-2)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("eos", [0, None], ids=["end symbol", "fixed length"])
def test_draws_follow_the_base_and_know_their_scores(family, eos):
    """False-alarm rate 1e-6 for each of the six."""
    base = tiny_base(family, eos=eos)
    prompts = prompts_of([PROMPTS[row % len(PROMPTS)] for row in range(300)])
    check_sampler(Ancestral(), Tilted(base), prompts, rng=SeededRng(2, family))


def test_no_token_is_cut_off():
    """`generate` draws 50 tokens at most unless told otherwise; here all 64 of an even distribution come up.

    By 64 exp(-2000 / 64) a false alarm has probability below 1e-11.
    """
    model = tiny_model("gpt2", vocab_size=64)
    with torch.no_grad():
        model.transformer.wte.weight.mul_(1e-3)
    x, _ = draw(causal_lm(model, max_length=1), empty_prompts(1), 2000, rng=SeededRng(0))
    assert len(x.tokens.unique()) == 64
    with SeededRng(0).fork_torch_rng():
        cut = model.generate(torch.full((2000, 1), 1), do_sample=True, max_new_tokens=1, pad_token_id=0)
    assert len(cut[:, 1].unique()) <= 50


def test_a_prompt_is_read_once_and_never_copied(every_prompt_is_shared):
    base = tiny_base("llama", max_length=8)
    _, state = base.begin(prompts_of([[2, 1, 1], [1, 2, 2]]))
    shared = state.cache.layers[0].prompt[0]
    many = base.select(state, torch.arange(2).repeat_interleave(50))
    _, many = base.advance(many, torch.full((100,), 1))
    few = base.select(many, torch.tensor([3, 60, 99]))
    assert many.cache.layers[0].prompt[0] is shared and few.cache.layers[0].prompt[0] is shared
    alone = base.select(many, torch.tensor([60, 99]))
    assert alone.cache.layers[0].prompt[0].shape[0] == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_the_normalised_logits_and_can_be_differentiated(family):
    base = tiny_base(family)
    x = enumerate_points(base.space, prompts_of(PROMPTS))
    expected = log_softmax(base.logits(x), -1).gather(2, x.tokens[..., None])[..., 0]
    assert torch.allclose(base.log_probs(x), torch.where(x.counted, expected, 0.0), atol=1e-5)
    base.log_probs(x).sum().backward()
    assert any(weight.grad is not None and bool(weight.grad.abs().sum() > 0) for weight in base.parameters())


def test_scoring_in_pieces_changes_nothing(monkeypatch):
    base = tiny_base("llama")
    x = enumerate_points(base.space, prompts_of(PROMPTS))
    whole = base.log_probs(x)
    monkeypatch.setattr(logits, "LOGITS_PER_CHUNK", 60)
    assert torch.allclose(base.log_probs(x), whole, atol=1e-5)


def test_only_the_scored_positions_pass_through_the_output_weights():
    base, seen = tiny_base("gpt2"), []
    base.model.lm_head.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[1]))
    base.begin(prompts_of([[1] * 9]))
    seen.clear()  # the first prompt also finds out whether prompts can be shared
    base.log_probs(sequences([[1, 0], [2]], [[1] * 9, [2] * 10]))
    base.begin(prompts_of([[1] * 9]))
    assert seen == [2, 1]


def test_padding_may_hold_anything():
    check_padding(tiny_base("gpt2"), [[], [1]])


@pytest.mark.parametrize("rows", [0, 2])
def test_nothing_to_score(rows):
    base, x = tiny_base("gpt2"), sequences([[]] * rows)
    assert base.log_probs(x).shape == (rows, 0) and base.logits(x).shape == (rows, 0, 3)
    assert base.log_probs(sequences([[]] * rows, [[1, 2]] * rows)).eq(0).all()


def test_dropout_acts_on_scores_in_training_only_and_modes_are_left_alone():
    base = tiny_base("gpt2").train()
    base.model.transformer.h[0].eval()  # a user's choice, which stays
    modes = [module.training for module in base.modules()]
    x, prompts = enumerate_points(base.space, prompts_of(PROMPTS)), prompts_of(PROMPTS)
    assert not torch.equal(base.log_probs(x), base.log_probs(x))
    log_prob, state = base.begin(prompts)
    further = base.advance(state, torch.tensor([1, 2, 1, 2]))[0]
    assert [module.training for module in base.modules()] == modes
    base.eval()
    again, state = base.begin(prompts)
    assert torch.equal(again, log_prob) and torch.equal(base.advance(state, torch.tensor([1, 2, 1, 2]))[0], further)
    with pytest.raises(ValueError, match="positions"):
        base.train().begin(prompts_of([[1] * 30]))
    assert all(module.training for module in base.modules())


def test_steps_write_no_gelu_out_and_leave_the_activations_alone():
    """The same function, faster; a forward that someone else put on a module is theirs."""
    x = torch.linspace(-30, 30, 4001, dtype=torch.float64)
    assert torch.allclose(adapter._fused_gelu_tanh(x), NewGELUActivation()(x), atol=1e-14, rtol=1e-12)
    assert not torch.allclose(adapter._fused_gelu_tanh(x), torch.nn.functional.gelu(x), atol=1e-6)
    model = tiny_model("gpt2")
    written_out = [module for module in model.modules() if isinstance(module, NewGELUActivation)]
    assert written_out
    with adapter.step_mode(model):
        assert all(vars(module)["forward"] is adapter._fused_gelu_tanh for module in written_out)
    assert not any("forward" in vars(module) for module in written_out)
    written_out[0].forward = torch.relu
    with adapter.step_mode(model):
        assert written_out[0].forward is torch.relu
    assert written_out[0].forward is torch.relu


def test_lengths_and_a_full_cache():
    base = tiny_base("gpt2", max_length=4)
    with pytest.raises(ValueError, match="16 positions and was given a sequence of 17 tokens"):
        base.log_probs(sequences([[1] * 17]))
    base.begin(prompts_of([[1] * 12]))
    with pytest.raises(ValueError, match="16 positions and was given a prompt of 13 tokens with a point of up to 4"):
        base.begin(prompts_of([[1] * 13]))
    state = base.begin(prompts_of([[1]]))[1]
    for _ in range(3):
        state = base.advance(state, torch.tensor([1]))[1]
    with pytest.raises(ValueError, match="The cache is full"):
        base.advance(state, torch.tensor([1]))


def test_defaults_come_from_the_model():
    model = tiny_model("gpt2")
    base = causal_lm(model)
    assert (base.space, base.bos) == (Space(3, 16, eos=0), 1)
    model.generation_config.eos_token_id, model.generation_config.bos_token_id = [2, 0], None
    model.config.bos_token_id = None
    base = causal_lm(model, max_length=5)
    assert (base.space, base.bos) == (Space(3, 5, eos=2), 2)
    assert causal_lm(model, eos=None, bos=0).space.eos is None
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    with pytest.raises(ValueError, match="states neither a BOS nor an EOS token"):
        causal_lm(model)
    with pytest.raises(ValueError, match="has 3 tokens; the space has 4"):
        CausalLM(model, Space(4, 2), 0)


def test_models_without_a_cache_are_refused():
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(vocab_size=3, hidden_size=8, num_hidden_layers=1, eos_token_id=0))
    with pytest.raises(ValueError, match="MambaForCausalLM takes no past_key_values"):
        causal_lm(model)


def some_data(count: int = 64) -> Sequences:
    return sequences([[1, 2, 1, 0] if row % 4 else [2, 2, 0] for row in range(count)])


def test_it_trains_and_resumes_to_the_bit(tmp_path):
    config = TrainingConfig(steps=12, batch_size=16, learning_rate=0.01, save_every=4, evaluate_every=4)
    whole, parts = tiny_base("gpt2"), tiny_base("gpt2")  # tied weights, dropout
    before = Likelihood()(Tilted(whole), some_data(), rng=SeededRng(0)).value.item()
    train = Trainer(config)
    train(Likelihood(), Tilted(whole), some_data(), modules=whole, folder=tmp_path / "whole")
    with pytest.raises(Killed):
        train(killed_once, Tilted(parts), some_data(), modules=parts, folder=tmp_path / "parts")
    assert digest(module_tensors(parts)) != digest(module_tensors(whole))
    train(Likelihood(), Tilted(parts), some_data(), modules=parts, folder=tmp_path / "parts", resume=True)
    assert digest(module_tensors(parts)) == digest(module_tensors(whole))
    assert Likelihood()(Tilted(whole.eval()), some_data(), rng=SeededRng(0)).value.item() < 0.7 * before
    assert whole.model.lm_head.weight is whole.model.transformer.wte.weight
    check_base(whole, PROMPTS)


def test_a_copy_learns_by_itself():
    base = tiny_base("gpt2")
    check_base(base, PROMPTS)  # a base that was used
    student = copy.deepcopy(base)
    assert digest(module_tensors(student)) == digest(module_tensors(base))
    assert student.model.lm_head.weight is student.model.transformer.wte.weight
    student.log_probs(some_data()).sum().backward()
    assert all(weight.grad is None for weight in base.parameters())
    assert all(weight.grad is not None for weight in student.parameters())
    with torch.no_grad():
        student.model.lm_head.weight.mul_(2)
    assert digest(module_tensors(student)) != digest(module_tensors(base))
    check_base(student, PROMPTS)


@pytest.mark.skipif(not STORIES.is_dir(), reason="the pretrained model is not on this machine")
def test_a_real_pretrained_model():
    from esscher.hub import load_base

    base, tokenizer = load_base(STORIES, max_length=1)
    texts = ["", "Once upon a time, there was a dog"]
    tokens = tokenizer.encode(texts)
    check_base(base, tokens, tolerance=1e-4)
    base, _ = load_base(STORIES, max_length=40)
    x, log_prob = draw(base, prompts_of(tokens), 8, rng=SeededRng(1))
    scored = base.log_probs(x).detach().double()
    assert torch.allclose(log_prob.view(-1), scored.sum(-1), atol=1e-3)
    assert 2.5 < float((-scored.sum() / x.lengths.sum()).exp()) < 8  # its perplexity on stories is 4.2
