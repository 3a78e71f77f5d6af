"""`generate` with an energy: draws follow the tilted model, settings are honoured or refused, chance can be repeated."""

import math

import pytest
import torch
from causal_models import tiny_model
from marks import slow
from random_targets import taste
from small_networks import CONFIGS, lively
from transformers import AutoTokenizer, StoppingCriteria, StoppingCriteriaList, pipeline

from esscher.bases.causal_lm import causal_lm
from esscher.bases.truncated import Truncated
from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.model_folder import quiet_transformers
from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.core.target import Tilted, flat
from esscher.data.tokenizers import train_tokenizer
from esscher.energies.feature_spec import FeatureSpec
from esscher.energies.serialization import SavedLogLinear, base_digest, save_energy
from esscher.exact.enumeration import enumerate_points
from esscher.hub import load_base, save_base
from esscher.hub.auto import network_lm
from esscher.hub.custom_generate import TiltedGenerate, load_tilted
from esscher.testing import assert_draws_follow
from esscher.testing.statistics import point_number

SPACE = Space(3, 4, eos=0)
ENERGY = taste(SPACE, seed=3, scale=1.2)
PLAIN = {"do_sample": True, "top_k": 0, "max_new_tokens": 4}
COUNT, POOL = 1200, 48


def draws_of(ids, width: int, prompt: list[int]) -> Draws:
    """One draw for each of as many equal prompts, from the columns that `generate` added."""
    rows = [row[: row.index(0) + 1] if 0 in row else row for row in ids[:, width:].tolist()]
    zeros = torch.zeros(len(rows), 1, dtype=torch.float64)
    x = sequences(rows, [prompt] * len(rows))
    return Draws(x, zeros, zeros, estimates_z=False, independent=True, cost=len(rows))


@torch.no_grad()
def total_variation(target: Tilted, draws: Draws) -> float:
    """Of the frequencies of the draws, which all follow one prompt, from the exact distribution."""
    x = enumerate_points(target.space, draws.x.prompts().rows(slice(0, 1)))
    exact = torch.softmax(target.log_score(x).double(), 0)
    actual = point_number(target.space, draws.x).bincount(minlength=len(x)) / len(draws.x)
    return float((actual - exact).abs().sum() / 2)


def farthest(points: int, draws: int, false_alarm: float = 1e-6) -> float:
    """The total variation that independent draws exceed with that probability only: its mean, and McDiarmid's inequality."""
    return math.sqrt(points / draws) / 2 + math.sqrt(math.log(1 / false_alarm) / (2 * draws))


def generate(model, way: TiltedGenerate, ids: list[int], **settings):
    torch.manual_seed(0)
    with quiet_transformers():
        return model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), custom_generate=way, num_return_sequences=COUNT,
            pad_token_id=0, **{**PLAIN, **settings},
        )  # fmt: skip


@pytest.mark.parametrize("family", ["gpt2", slow("llama")])
def test_draws_follow_the_tilted_model(family):
    """False alarms: two in a million. No energy, a small pool and a cut, such as `generate` makes by default, are caught."""
    model, prompt = tiny_model(family), [2, 1]
    target = Tilted(causal_lm(model, max_length=4), ENERGY)
    prompts = prompts_of([prompt] * COUNT)
    limit = farthest(len(enumerate_points(SPACE)), COUNT)
    good = draws_of(generate(model, TiltedGenerate(ENERGY, num_candidates=POOL), [1, *prompt]), 3, prompt)
    assert_draws_follow(target, prompts, good)
    assert total_variation(target, good) < limit
    wrong = {
        "no energy": generate(model, TiltedGenerate(flat, num_candidates=2), [1, *prompt]),
        "small pool": generate(model, TiltedGenerate(ENERGY, num_candidates=2), [1, *prompt]),
        "cut": generate(model, TiltedGenerate(ENERGY, num_candidates=POOL // 2), [1, *prompt], top_k=2),
    }
    for name, ids in wrong.items():
        with pytest.raises(AssertionError, match="standard errors apart"):
            assert_draws_follow(target, prompts, draws_of(ids, 3, prompt))
        assert total_variation(target, draws_of(ids, 3, prompt)) > limit, name


@pytest.mark.parametrize("kind", ["lstm, tied", "transformer, rotary"])
def test_our_own_models_follow_too(kind):
    base, prompt = lively(CONFIGS[kind], SPACE), [2, 1]
    ids = generate(network_lm(base), TiltedGenerate(ENERGY, num_candidates=POOL), [3, *prompt])
    assert_draws_follow(Tilted(base, ENERGY), prompts_of([prompt] * COUNT), draws_of(ids, 3, prompt))


def test_what_the_settings_leave_is_what_is_tilted():
    """Temperature, top_k and top_p change the base before the energy does. False alarms: one in a million."""
    model, prompt = tiny_model("gpt2"), [2, 1]
    base = Truncated(causal_lm(model, max_length=4), top_k=2, top_p=0.9, temperature=0.8)
    settings = {"top_k": 2, "top_p": 0.9, "temperature": 0.8}
    ids = generate(model, TiltedGenerate(ENERGY, num_candidates=POOL), [1, *prompt], **settings)
    assert_draws_follow(Tilted(base, ENERGY), prompts_of([prompt] * COUNT), draws_of(ids, 3, prompt))
    with pytest.raises(AssertionError):
        assert_draws_follow(
            Tilted(Truncated(causal_lm(model, max_length=4), top_k=2), ENERGY),
            prompts_of([prompt] * COUNT),
            draws_of(ids, 3, prompt),
        )


def seen_by(log: list):
    def energy(x: Sequences) -> torch.Tensor:
        log.extend(row[:start] for row, start in zip(x.tokens.tolist(), x.start.tolist(), strict=True))
        return torch.zeros(len(x))

    return energy


IDS = torch.tensor([[0, 0, 1, 2], [1, 2, 2, 1], [0, 2, 1, 2], [0, 0, 0, 1]])
MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1]])


def call(model, way, **settings):
    with quiet_transformers():
        return model.generate(IDS, attention_mask=MASK, custom_generate=way, **{**PLAIN, "pad_token_id": 0, **settings})


def test_rows_and_what_energies_see_of_them():
    """Padded on the left, begun with the begin symbol or not; what was given stays, what is added is a point and padding."""
    model, log = tiny_model("gpt2"), []
    way = TiltedGenerate(seen_by(log), num_candidates=3, seed=1)
    out = call(model, way, num_return_sequences=2, return_dict_in_generate=True)
    assert out.sequences[:, :4].equal(IDS.repeat_interleave(2, 0)) and out.sequences.shape[1] <= 8
    assert {tuple(item) for item in log} == {(2,), (2, 2, 1), (2, 1, 2), ()}
    checked = 4  # rows computed again, alone: at most three of each target whose energy is checked
    assert 4 * 2 * 3 <= len(log) <= 4 * 2 * 3 + checked
    assert out.ess.tolist() == pytest.approx([3.0] * 8)
    points = [row[: row.index(0) + 1] if 0 in row else row for row in out.sequences[:, 4:].tolist()]
    read = [IDS[row][MASK[row] == 1].tolist() for row in range(4) for _ in range(2)]
    with torch.no_grad():
        logits = [model(torch.tensor([[*before, *point]])).logits[0] for before, point in zip(read, points, strict=True)]
    expected = [
        sum(float(actual[len(before) + t - 1].log_softmax(-1)[token]) for t, token in enumerate(point))
        for actual, before, point in zip(logits, read, points, strict=True)
    ]
    assert out.log_base.tolist() == pytest.approx(expected, abs=1e-4)


def test_an_opening_stands_before_every_prompt():
    model, log = tiny_model("gpt2"), []
    out = call(model, TiltedGenerate(seen_by(log), num_candidates=2, seed=1, bos=1), return_dict_in_generate=True)
    assert {tuple(item) for item in log} == {(2,), (2, 2, 1), (2, 1, 2), ()}
    points = [row[: row.index(0) + 1] if 0 in row else row for row in out.sequences[:, 4:].tolist()]
    x = sequences(points, [[2], [2, 2, 1], [2, 1, 2], []])
    actual = causal_lm(model, max_length=4).log_probs(x).sum(-1)
    assert out.log_base.tolist() == pytest.approx(actual.tolist(), abs=1e-4)


def test_chance_follows_torch_or_a_seed():
    model = tiny_model("llama")
    actual = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        actual.append(call(model, TiltedGenerate(ENERGY, 4), num_return_sequences=9))
    assert actual[0].equal(actual[1]) and not actual[0].equal(actual[2])
    torch.manual_seed(1)
    assert not call(model, TiltedGenerate(ENERGY, 4), num_return_sequences=9).equal(
        call(model, TiltedGenerate(ENERGY, 4), num_return_sequences=9)
    )
    fixed = TiltedGenerate(ENERGY, 4, seed=5)
    assert call(model, fixed, num_return_sequences=9).equal(call(model, fixed, num_return_sequences=9))


class Never(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.zeros(len(input_ids), dtype=torch.bool)


REFUSED = {
    "generate by beam sample": {"num_beams": 2},
    "generate by greedy search": {"do_sample": False},
    "generate by assisted generation": {"prompt_lookup_num_tokens": 2},
    "change logits by MinLength": {"min_new_tokens": 2},
    "change logits by RepetitionPenalty": {"repetition_penalty": 1.2},
    "change logits by PrefixConstrained": {"prefix_allowed_tokens_fn": lambda *_: [1]},
    "stop by MaxTime": {"max_time": 3.0},
    "stop by Never": {"stopping_criteria": StoppingCriteriaList([Never()])},
    r"end with any of \[0, 2\]": {"eos_token_id": [0, 2]},
    "return what output_scores asks for": {"output_scores": True, "return_dict_in_generate": True},
    "take position_ids of your own": {"position_ids": torch.arange(4).expand(4, 4)},
    "read token_type_ids": {"token_type_ids": torch.zeros(4, 4, dtype=torch.long)},
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what):
    with pytest.raises(ValueError, match=rf"cannot {what}.*Nothing was drawn"):
        call(tiny_model("gpt2"), TiltedGenerate(ENERGY), **REFUSED[what])


def test_a_cache_or_nothing_to_go_on_from_is_refused():
    model = tiny_model("gpt2")
    past = model(IDS[:, :2], use_cache=True).past_key_values
    with pytest.raises(ValueError, match="cannot go on from a cache"):
        call(model, TiltedGenerate(ENERGY), past_key_values=past)
    nothing = {"attention_mask": torch.tensor([[0]]), "pad_token_id": 0}
    with quiet_transformers(), pytest.raises(ValueError, match="Prompt 0 has no token"):
        model.generate(torch.tensor([[1]]), custom_generate=TiltedGenerate(ENERGY), **PLAIN, **nothing)


def test_a_vocabulary_that_is_not_the_energys():
    class Reads:
        vocab_size = 5

        def __call__(self, x):
            return torch.zeros(len(x))

    with pytest.raises(ValueError, match="reads 5 tokens and the base speaks 3"):
        call(tiny_model("gpt2"), TiltedGenerate(Reads()))


TEXTS = ["abc", "cab a"]


def folders(tmp_path, kind: str):
    """A base and an energy on it that likes the letter c."""
    tokenizer = train_tokenizer("character", TEXTS)
    if kind == "ours":
        base = lively(CONFIGS["lstm, tied"], Space(tokenizer.vocab_size, 5, tokenizer.eos))
    else:
        model = tiny_model("gpt2", vocab_size=tokenizer.vocab_size, bos_token_id=None, eos_token_id=tokenizer.eos)
        base = causal_lm(model, max_length=5)
    save_base(tmp_path / "base", base, tokenizer)
    weight = Estimate.exact(6.0)
    liked = FeatureSpec("contains", "c")
    digest = base_digest(load_base(tmp_path / "base")[0])
    saved = SavedLogLinear((liked,), (weight,), str(tmp_path / "base"), digest, Estimate.exact(0.0), 0)
    save_energy(tmp_path / "energy", saved)
    return tmp_path / "base", tmp_path / "energy"


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_folders_make_a_model_whose_generate_is_tilted(tmp_path, kind):
    base, energy = folders(tmp_path, kind)
    model, tokenizer = load_tilted(base, energy, num_candidates=32), AutoTokenizer.from_pretrained(base)
    inputs = tokenizer(["ab"], return_tensors="pt")
    torch.manual_seed(0)
    with quiet_transformers():
        actual = tokenizer.batch_decode(model.generate(**inputs, num_return_sequences=40, pad_token_id=0))
        plain = tokenizer.batch_decode(type(model).generate(model, **inputs, num_return_sequences=40, pad_token_id=0))
        speak = pipeline("text-generation", model=model, tokenizer=tokenizer)
        said = speak("ab")[0]["generated_text"]
    assert sum("c" in text for text in actual) > 38 > sum("c" in text for text in plain)
    assert said.startswith("ab")
    model.save_pretrained(tmp_path / "saved")
    assert base_digest(load_base(tmp_path / "saved", max_length=5)[0]) == base_digest(load_base(base)[0])


def test_an_energy_of_another_base_is_refused(tmp_path):
    _, energy = folders(tmp_path / "one", "ours")
    other, _ = folders(tmp_path / "two", "theirs")
    with pytest.raises(ValueError, match="was fitted on the base in"):
        load_tilted(other, energy)
