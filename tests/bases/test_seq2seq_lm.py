"""Encoder-decoder models of Hugging Face as bases: the laws over families, equality with `transformers` itself, training."""

import copy

import pytest
import torch
import transformers
from interrupted import Killed, killed_once
from marks import slow
from seq2seq_models import BART, FAMILIES, SHARING, SOURCES, TOKENS, tiny_base, tiny_model
from small_networks import check_padding
from torch.nn.functional import log_softmax

from esscher.bases import logits, shared_source_cache
from esscher.bases.logits import LogitBase, LogsumexpBase, log_probs_from_logits
from esscher.bases.seq2seq_lm import Seq2SeqLM, seq2seq_lm
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.core.storage import digest, module_tensors
from esscher.core.target import Tilted
from esscher.exact.enumeration import enumerate_points
from esscher.networks.incremental_decoding import RowsByPrompt
from esscher.objectives.likelihood import Likelihood
from esscher.samplers.ancestral import Ancestral
from esscher.testing import assert_draws_follow, check_base, check_sampler
from esscher.training.config import TrainingConfig
from esscher.training.trainer import Trainer


@pytest.mark.parametrize("family", FAMILIES)
def test_what_it_has_and_shares(family):
    base = tiny_base(family)
    base.begin(prompts_of(SOURCES))
    assert isinstance(base, LogitBase) and isinstance(base, LogsumexpBase) and base._shares_source == (family in SHARING)


@pytest.mark.parametrize("family", ["t5", slow("bart"), slow("marian")])
def test_laws_without_sharing(family):
    """The cache of `transformers`, on which the other families step."""
    base = tiny_base(family)
    base._shares_source = False
    check_base(base, SOURCES)


def test_double_precision():
    check_base(tiny_base("t5").double(), SOURCES, tolerance=1e-12)


def test_padding_of_sources_that_is_read_is_caught(monkeypatch):
    whole = Seq2SeqLM._encode

    def wrong(self, x):
        hidden, mask = whole(self, x)
        return hidden, torch.ones_like(mask)

    monkeypatch.setattr(Seq2SeqLM, "_encode", wrong)
    with pytest.raises(AssertionError, match=r"padding must not change|must not depend on the other"):
        check_base(tiny_base("bart"), SOURCES)
    check_base(tiny_base("bart"), [[2, 1], [1, 1]])  # equal lengths do not show it


def test_padding_that_only_steps_read_is_caught(monkeypatch):
    whole = shared_source_cache.share
    monkeypatch.setattr(shared_source_cache, "share", lambda cache, mask, length: whole(cache, torch.ones_like(mask), length))
    with pytest.raises(AssertionError, match=r"a prompt must not depend|stepping must equal scoring"):
        check_base(tiny_base("t5"), SOURCES)


def test_rows_with_the_sources_of_others_are_caught(monkeypatch):
    monkeypatch.setattr(
        RowsByPrompt, "select", lambda self, index: (RowsByPrompt(self.owner[index].flip(0), self.prompts), None)
    )
    with pytest.raises(AssertionError, match="select must commute"):
        check_base(tiny_base("marian"), SOURCES)


def after_a_branch(base: Seq2SeqLM) -> torch.Tensor:
    """What two steps and a third say, when a copy of the state went another way after the first."""
    first, second = torch.tensor([1, 2]), torch.tensor([2, 2])
    state = base.advance(base.begin(prompts_of([[2, 1, 1], [1]]))[1], first)[1]
    branch = base.select(state, torch.arange(2))
    state = base.advance(state, second)[1]
    base.advance(branch, first)
    return base.advance(state, second)[0]


@pytest.mark.parametrize("family", ["t5 1.1", "bart", "led"])
def test_a_branch_after_a_step_leaves_the_state(family, monkeypatch):
    base = tiny_base(family, eos=None, max_length=4)
    expected = base.logits(sequences([[1, 2, 2, 0], [2, 2, 2, 0]], [[2, 1, 1], [1]]))
    expected = torch.stack([expected[0, 6], expected[1, 4]]).log_softmax(-1)
    assert torch.allclose(after_a_branch(base), expected, atol=1e-4)
    if family in SHARING:
        monkeypatch.setattr(
            shared_source_cache, "copy_rows", lambda part, index, filled, slots=None: part
        )  # select without a copy
        monkeypatch.setattr(shared_source_cache.TargetCacheLayer, "after_first_step", classmethod(allocated))
        assert not torch.allclose(after_a_branch(base), expected, atol=1e-2)


def allocated(cls, keys, values, max_length):
    """The first step as it is, for a `rows_of` that moves nothing."""
    whole = [torch.nn.functional.pad(part, (0, 0, 0, max_length - part.shape[2])) for part in (keys, values)]
    return cls(*whole, keys.shape[2])


def in_batch(rows: list[list[int]], filler: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_the_loss_of_the_model_itself(family):
    base = tiny_base(family)
    points = [[1, 2, 0], [0], [2, 0], [3, 1, 1]]
    x = sequences(points, SOURCES)
    inputs = in_batch(SOURCES, 3)
    mask = in_batch([[1] * len(row) for row in SOURCES], 0)
    loss = base.model(input_ids=inputs, attention_mask=mask, labels=in_batch(points, -100)).loss
    assert torch.allclose(-base.log_probs(x).sum() / x.lengths.sum(), loss, atol=1e-5)
    alone = base.model(input_ids=torch.tensor([SOURCES[2]]), labels=torch.tensor([[2, 0]])).logits[0]
    assert torch.allclose(base.logits(x)[2, 4:6], alone, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_steps_are_those_of_generate(family):
    """Sources of different lengths together; without what `generate` forces."""
    base = tiny_base(family, max_length=7)
    log_prob, state = base.begin(prompts_of(SOURCES))
    tokens = [log_prob.argmax(-1)]
    while len(tokens) < 7:
        log_prob, state = base.advance(state, tokens[-1])
        tokens.append(log_prob.argmax(-1))
    mask = in_batch([[1] * len(row) for row in SOURCES], 0)
    theirs = base.model.generate(in_batch(SOURCES, 3), attention_mask=mask, do_sample=False, num_beams=1, max_new_tokens=7)
    assert theirs[:, 0].eq(base.bos).all()
    for ours, other in zip(torch.stack(tokens, 1).tolist(), theirs[:, 1:].tolist(), strict=True):
        end = ours.index(0) + 1 if 0 in ours else 7
        assert other[:end] == ours[:end]


def test_a_decoder_deeper_than_its_encoder():
    """Where `generate` of transformers 5.22 fails for T5: it counts the layers of the encoder."""
    check_base(tiny_base("t5", num_layers=1, num_decoder_layers=3), SOURCES)


def test_a_bias_of_the_logits_takes_part_and_forced_tokens_do_not():
    base = tiny_base("marian", forced_eos_token_id=0)
    before = base.log_probs(sequences([[1]], [[2, 0]]))[0, 2]
    with torch.no_grad():
        base.model.final_logits_bias[0, 1] += 5
    assert base.log_probs(sequences([[1]], [[2, 0]]))[0, 2] > before + 0.5
    last = log_softmax(base.logits(sequences([[1, 1, 1]], [[2, 0]]))[0, -1], -1)
    assert last[0] < -0.1  # `generate` would end here for sure


@pytest.mark.parametrize("family", ["t5", "led"])
def test_states_through_many_selections(family):
    """Rows are repeated, dropped and put in any order between steps; some sources lose all theirs."""
    base, rng = tiny_base(family, eos=None, max_length=8), torch.Generator().manual_seed(3)
    _, state = base.begin(prompts_of(SOURCES))
    rows: list[tuple[list[int], list[int]]] = [(source, []) for source in SOURCES]
    for count in (12, 9, 3, 30, 7, 1, 4):
        index = torch.randint(len(rows), (count,), generator=rng)
        token = torch.randint(4, (count,), generator=rng)
        log_prob, state = base.advance(base.select(state, index), token)
        rows = [(rows[row][0], [*rows[row][1], int(new)]) for row, new in zip(index, token, strict=True)]
        x = sequences([[*point, 0] for _, point in rows], [source for source, _ in rows])
        expected = base.logits(x)[torch.arange(count), x.stop - 1].softmax(-1)
        assert torch.allclose(log_prob.exp(), expected, atol=1e-5)


def test_a_source_is_read_once_and_never_copied():
    base, passes = tiny_base("t5", max_length=8), []
    base.model.get_encoder().register_forward_hook(lambda module, given, output: passes.append(1))
    _, state = base.begin(prompts_of([[2, 1, 1], [1, 2, 2]]))
    place = [layer.keys.data_ptr() for layer in state.cache.cross_attention_cache.layers]
    many = base.select(state, torch.arange(2).repeat_interleave(50))
    _, many = base.advance(many, torch.full((100,), 1))
    few = base.select(many, torch.tensor([3, 60, 99]))
    base.advance(few, torch.full((3,), 1))
    assert len(passes) == 1
    for item in (many, few):
        assert [layer.keys.data_ptr() for layer in item.cache.cross_attention_cache.layers] == place
    alone = base.select(many, torch.tensor([60, 99]))
    assert alone.cache.cross_attention_cache.layers[0].keys.shape[0] == 1


def test_each_source_of_a_batch_is_encoded_once():
    base, rows = tiny_base("bart"), []
    base.model.get_encoder().register_forward_pre_hook(
        lambda module, args, given: rows.append(len(given["input_ids"])), with_kwargs=True
    )
    base.log_probs(sequences([[1, 0], [2, 0], [1, 1, 0]], [[1, 0], [2, 0], [1, 0]]))
    assert rows == [2]


@pytest.mark.parametrize("family", ["t5", slow("marian"), slow("led")])
@pytest.mark.parametrize("eos", [0, None], ids=["end symbol", "fixed length"])
def test_draws_follow_the_base_and_know_their_scores(family, eos):
    """False-alarm rate 1e-6 for each of the six."""
    base = tiny_base(family, eos=eos)
    prompts = prompts_of([SOURCES[row % len(SOURCES)] for row in range(300)])
    check_sampler(Ancestral(), Tilted(base), prompts, rng=SeededRng(2, family))


def test_draws_of_another_source_are_told():
    """A wrong version: sources that lose their end symbol."""
    base, source = tiny_base("t5 1.1"), SOURCES[2]
    prompts, cut = prompts_of([source] * 300), prompts_of([source[:-1]] * 300)
    draws = Ancestral()(Tilted(base), cut, 8, rng=SeededRng(2))
    assert_draws_follow(Tilted(base), cut, draws)
    with pytest.raises(AssertionError, match="standard errors apart"):
        assert_draws_follow(Tilted(base), prompts, draws)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_levels_are_those_of_the_logits_and_can_be_differentiated(family):
    base = tiny_base(family)
    x = enumerate_points(base.space, prompts_of(SOURCES))
    score, level = log_probs_from_logits(base.logits(x), x)
    assert torch.allclose(base.log_probs(x), score, atol=1e-5)
    for gradients, expected in zip(base.log_probs_and_logsumexp(x), (score, level), strict=True):
        assert torch.allclose(gradients, expected, atol=1e-5)
    weights = [weight for weight in base.model.get_encoder().parameters() if weight.requires_grad]
    wanted = torch.autograd.grad(score.sum(), weights, retain_graph=True, allow_unused=True)
    for way in (base.log_probs(x), base.log_probs_and_logsumexp(x)[0]):
        gradients = torch.autograd.grad(way.sum(), weights, allow_unused=True)
        for item, other in zip(gradients, wanted, strict=True):
            assert (item is None) == (other is None) and (item is None or torch.allclose(item, other, atol=1e-3, rtol=1e-3))


def test_scoring_in_pieces_changes_nothing(monkeypatch):
    base = tiny_base("t5")
    x = enumerate_points(base.space, prompts_of(SOURCES))
    whole = base.log_probs(x), *base.log_probs_and_logsumexp(x)
    monkeypatch.setattr(logits, "LOGITS_PER_CHUNK", 60)
    for item, other in zip(whole, (base.log_probs(x), *base.log_probs_and_logsumexp(x)), strict=True):
        assert torch.allclose(item, other, atol=1e-5)


def test_padding_may_hold_anything():
    check_padding(tiny_base("bart"), [[1], [1, 0]])


@pytest.mark.parametrize("rows", [0, 2])
def test_nothing_to_score(rows):
    base, x = tiny_base("t5"), sequences([[]] * rows, [[1, 0]] * rows)
    assert base.log_probs(x).shape == x.tokens.shape and base.log_probs(x).eq(0).all()
    assert base.logits(x).shape == (*x.tokens.shape, 4)
    assert all(item.shape == x.tokens.shape for item in base.log_probs_and_logsumexp(x))


def test_empty_sources_are_refused():
    base = tiny_base("t5")
    for ask in (base.log_probs, base.logits, base.log_probs_and_logsumexp, lambda x: base.begin(x.prompts())):
        with pytest.raises(ValueError, match=r"source in row 1 is empty.*Nothing was computed; put the end symbol"):
            ask(sequences([[1], [1]], [[1], []]))


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_dropout_acts_on_scores_in_training_only_and_modes_are_left_alone(family):
    base = tiny_base(family).train()
    base.model.get_encoder().eval()  # a user's choice, which stays
    modes = [module.training for module in base.modules()]
    x, prompts = enumerate_points(base.space, prompts_of(SOURCES)), prompts_of(SOURCES)
    assert not torch.equal(base.log_probs(x), base.log_probs(x))
    log_prob, state = base.begin(prompts)
    further = base.advance(state, torch.tensor([1, 2, 1, 2]))[0]
    assert [module.training for module in base.modules()] == modes
    base.eval()
    again, state = base.begin(prompts)
    assert torch.equal(again, log_prob) and torch.equal(base.advance(state, torch.tensor([1, 2, 1, 2]))[0], further)
    assert base.model.get_decoder().config._attn_implementation == "sdpa"


def test_lengths_and_a_full_cache():
    base = tiny_base("bart", max_length=16)
    with pytest.raises(ValueError, match="16 positions and was given a target of up to 17 tokens"):
        base.log_probs(sequences([[1] * 17], [[1]]))
    with pytest.raises(ValueError, match="16 positions and was given a source of up to 17 tokens"):
        base.begin(prompts_of([[1] * 17]))
    base.begin(prompts_of([[1] * 16]))
    with pytest.raises(ValueError, match="target of up to 17 tokens"):
        tiny_base("bart", max_length=17).begin(prompts_of([[1]]))
    base = tiny_base("t5", max_length=3)
    state = base.begin(prompts_of([[1] * 100]))[1]
    for _ in range(2):
        state = base.advance(state, torch.tensor([1]))[1]
    with pytest.raises(ValueError, match="The cache is full"):
        base.advance(state, torch.tensor([1]))


def test_defaults_come_from_the_model():
    base = seq2seq_lm(tiny_model("bart"))
    assert (base.space, base.bos, base.max_positions) == (Space(4, 16, eos=0), 0, 16)
    base = seq2seq_lm(tiny_model("t5"))
    assert (base.space, base.bos, base.max_positions) == (Space(4, 256, eos=0), 3, None)
    model = tiny_model("bart")  # generation settings that are silent: then the config speaks, not the default of its class
    model.generation_config = transformers.GenerationConfig()
    assert (seq2seq_lm(model).space.eos, seq2seq_lm(model).bos) == (0, 0)
    model.config.decoder_start_token_id, model.config.bos_token_id = None, 1
    assert seq2seq_lm(model).bos == 1 and seq2seq_lm(model, bos=2, eos=None).bos == 2
    model.config.bos_token_id = None
    with pytest.raises(ValueError, match="states neither a decoder start token nor a BOS token"):
        seq2seq_lm(model)
    with pytest.raises(ValueError, match="has 4 tokens; the space has 5"):
        Seq2SeqLM(model, Space(5, 2), 0)


def test_sources_of_another_vocabulary():
    """Of Marian's kind: the space is that of the targets."""
    model = tiny_model("marian", vocab_size=9, decoder_vocab_size=4, share_encoder_decoder_embeddings=False)
    base = seq2seq_lm(model, max_length=3)
    assert base.space.vocab_size == 4
    check_base(base, [[8, 7, 0], [5]])


@pytest.mark.parametrize("strange", ["m2m_100", "prophetnet"])
def test_models_whose_steps_are_not_their_scores_are_refused(strange):
    if strange == "m2m_100":
        config = transformers.M2M100Config(**BART, **TOKENS)
    else:
        config = transformers.ProphetNetConfig(
            **TOKENS, hidden_size=16, encoder_ffn_dim=24, num_encoder_layers=1, num_encoder_attention_heads=2, ngram=2,
            decoder_ffn_dim=24, num_decoder_layers=2, num_decoder_attention_heads=4, max_position_embeddings=16,
        )  # fmt: skip
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8 if weight.dim() > 1 else 1)
    with pytest.raises(ValueError, match=r"Steps of .* do not equal its scores"):
        seq2seq_lm(model, max_length=4)


def test_causal_models_are_refused():
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=4, n_embd=8, n_layer=1, n_head=1, n_positions=8))
    with pytest.raises(ValueError, match="GPT2LMHeadModel takes no decoder_input_ids"):
        Seq2SeqLM(model, Space(4, 2), 0)


def some_data(count: int = 64) -> Sequences:
    """Targets that repeat their source."""
    words = [[1, 2], [2, 1], [1, 1], [2, 2]]
    return sequences([[*words[row % 4], 0] for row in range(count)], [[*words[row % 4], 0] for row in range(count)])


def test_it_trains_and_resumes_to_the_bit(tmp_path):
    config = TrainingConfig(steps=12, batch_size=16, learning_rate=0.02, save_every=4, evaluate_every=4)
    whole, parts = tiny_base("t5"), tiny_base("t5")  # tied weights, dropout
    before = Likelihood()(Tilted(whole), some_data(), rng=SeededRng(0)).value.item()
    train = Trainer(config)
    train(Likelihood(), Tilted(whole), some_data(), modules=whole, folder=tmp_path / "whole")
    with pytest.raises(Killed):
        train(killed_once, Tilted(parts), some_data(), modules=parts, folder=tmp_path / "parts")
    assert digest(module_tensors(parts)) != digest(module_tensors(whole))
    train(Likelihood(), Tilted(parts), some_data(), modules=parts, folder=tmp_path / "parts", resume=True)
    assert digest(module_tensors(parts)) == digest(module_tensors(whole))
    assert Likelihood()(Tilted(whole.eval()), some_data(), rng=SeededRng(0)).value.item() < 0.7 * before
    assert whole.model.lm_head.weight is whole.model.shared.weight
    check_base(whole, SOURCES)


def test_a_copy_learns_by_itself():
    base = tiny_base("t5")
    check_base(base, SOURCES)  # a base that was used
    student = copy.deepcopy(base)
    student.log_probs(some_data()).sum().backward()
    assert all(weight.grad is None for weight in base.parameters())
    assert all(weight.grad is not None for weight in student.parameters())
    with torch.no_grad():
        student.model.shared.weight.mul_(2)
    assert digest(module_tensors(student)) != digest(module_tensors(base))
    check_base(student, SOURCES)
