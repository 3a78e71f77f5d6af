"""Our networks as models of `transformers`: the same numbers, the same draws, there and back."""

import json
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from laws.parts import one_of_each
from marks import slow, slow_except
from safetensors.torch import load_file, save_file
from small_networks import CONFIGS, lively
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    pipeline,
)

import esscher.hub.auto
from esscher.core.draws import Draws
from esscher.core.manifest import MANIFEST
from esscher.core.model_folder import quiet_transformers
from esscher.core.space import Sequences, Space, empty_prompts, sequences
from esscher.core.storage import digest, module_tensors
from esscher.core.target import Tilted
from esscher.data.tokenizers import train_tokenizer
from esscher.hub import load_base, save_base
from esscher.hub.auto import NetworkLM, hf_classes
from esscher.networks.transformer_config import TransformerConfig
from esscher.testing import assert_draws_follow

TEXTS = ["abc", "", "b", "cab a"]
TOKENIZER = train_tokenizer("character", TEXTS)
SPACE = Space(TOKENIZER.vocab_size, 7, TOKENIZER.eos)
OPENING = SPACE.vocab_size


def base_of(kind, space=SPACE):
    config = CONFIGS[kind]
    return lively(replace(config, max_positions=40) if isinstance(config, TransformerConfig) else config, space)


def read(folder):
    with quiet_transformers():
        return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def model_of(base) -> NetworkLM:
    return esscher.hub.auto.network_lm(base)


TEXT = [kind for kind, config in CONFIGS.items() if config.modality == "text"]


@pytest.mark.parametrize("kind", slow_except(one_of_each(TEXT), TEXT))
def test_a_folder_of_ours_is_a_model_of_theirs(tmp_path, kind):
    """The same logits after a begin symbol that their tokenizer puts, whichever side is padded, and written or not."""
    base = base_of(kind)
    model, tokenizer = read(save_base(tmp_path, base, TOKENIZER))
    assert type(model).__name__ in json.loads((tmp_path / "config.json").read_text())["architectures"]
    assert digest(module_tensors(model)) == digest(module_tensors(base)) and not model.training
    assert len(tokenizer) == model.config.vocab_size == OPENING + 1
    x = sequences(TOKENIZER.encode(TEXTS))
    expected = base.logits(x)
    for side in ("left", "right"):
        tokenizer.padding_side = side
        inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
        assert set(inputs) == {"input_ids", "attention_mask"}
        logits = model(**inputs).logits
        assert logits.equal(model(inputs["input_ids"]).logits)  # padding is known without a mask too
        other = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, SPACE.eos)
        assert logits.equal(model(other, attention_mask=inputs["attention_mask"]).logits)
        assert bool((logits[..., OPENING] < -1e38).all())
        for row, length in enumerate(x.lengths.tolist()):
            first = int(inputs["input_ids"].shape[1] - length - 1) if side == "left" else 0
            assert torch.allclose(logits[row, first : first + length, :OPENING], expected[row, :length], atol=1e-5)
    unopened = model(torch.tensor(TOKENIZER.encode(["cab a"]))).logits[0, :-1, :OPENING]
    assert torch.allclose(unopened, expected[3, 1:], atol=1e-5)


EVERY_HEAD = [
    "transformer, adaptive",
    "transformer-xl, adaptive",
    "awd-lstm, softmaxes",
    "enas, softmaxes",
    "trellisnet, softmaxes",
    "deq",
    "lstm, contexts",
]


@pytest.mark.parametrize(
    "kind", ["lstm, tied", "transformer, rotary", *EVERY_HEAD, slow("gru, one-hot"), slow("transformer, learned")]
)
def test_there_and_back(tmp_path, kind):
    base = base_of(kind)
    model, tokenizer = read(save_base(tmp_path / "ours", base, TOKENIZER))
    model.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    again, words = load_base(tmp_path / "theirs")
    assert digest(module_tensors(again)) == digest(module_tensors(base))
    assert (again.config, again.space) == (base.config, base.space)
    x = sequences(TOKENIZER.encode(TEXTS))
    assert load_base(tmp_path / "ours")[0].log_probs(x).equal(base.log_probs(x)) and again.log_probs(x).equal(base.log_probs(x))
    assert (words.vocab_size, words.eos, words.name) == (TOKENIZER.vocab_size, TOKENIZER.eos, TOKENIZER.name)
    assert words.encode(TEXTS) == TOKENIZER.encode(TEXTS) and words.decode(words.encode(TEXTS)) == TEXTS
    keys = [set(json.loads((tmp_path / name / "config.json").read_text())) for name in ("ours", "theirs")]
    assert keys[1] - keys[0] <= {"transformers_version"} and keys[0] <= keys[1]
    for folder in ("ours", "theirs"):
        card = (tmp_path / folder / "README.md").read_text()
        assert "load_base(" in card and "import esscher.hub.auto" in card and "AutoModelForCausalLM.from_pretrained(" in card
    third, _ = read(save_base(tmp_path / "third", again, words))
    ids = torch.tensor([[OPENING, 2, 3]])
    assert third(ids).logits.equal(model(ids).logits)


def test_a_folder_without_a_word_about_the_opening(tmp_path):
    """As they were written before models of `transformers` were made of them."""
    base = base_of("gru, vectors")
    save_base(tmp_path, base, TOKENIZER)
    config = json.loads((tmp_path / "config.json").read_text())
    old = {key: config[key] for key in ("model_type", "base", "space", "eos_token_id", "dtype")}
    (tmp_path / "config.json").write_text(json.dumps({**old, "vocab_size": SPACE.vocab_size, "architectures": ["NetworkBase"]}))
    (tmp_path / MANIFEST).unlink()
    TOKENIZER.save(tmp_path)
    model, tokenizer = read(tmp_path)
    logits = model(**tokenizer("cab a", return_tensors="pt")).logits[0, :-1, :OPENING]
    assert torch.allclose(logits, base.logits(sequences(TOKENIZER.encode(["cab a"])))[0, 1:], atol=1e-5)
    assert load_base(tmp_path)[1].vocab_size == SPACE.vocab_size


def test_model_and_base_share_their_weights():
    base = base_of("lstm, vectors")
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    model = model_of(base)
    assert torch.rand(2).equal(expected)  # no dice were thrown
    assert model.network is base.network is model.base.network and model.base.space == base.space
    assert model.generation_config.top_k == 0


def test_sampling_is_scoring():
    """Log-probabilities of what `generate` samples are those of the base; with ends, padding and the longest points."""
    for kind in ("lstm, tied", "gru, one-hot", "transformer, rotary", "transformer, learned"):
        base = base_of(kind)
        model, prompts = model_of(base), TOKENIZER.encode(["ab", "", "cab"])
        ids = torch.tensor([[OPENING] * (4 - len(prompt)) + prompt for prompt in prompts])
        torch.manual_seed(0)
        out = model.generate(
            ids, attention_mask=ids != -1, num_return_sequences=8, return_dict_in_generate=True, output_logits=True
        )
        new = out.sequences[:, ids.shape[1] :]
        points = [row[: row.index(SPACE.eos) + 1] if SPACE.eos in row else row for row in new.tolist()]
        assert len({len(point) for point in points}) > 2
        actual = torch.stack(out.logits, 1).log_softmax(-1).gather(2, new[..., None])[..., 0]
        inside = torch.arange(new.shape[1]) < torch.tensor([len(point) for point in points])[:, None]
        x = sequences(points, [prompt for prompt in prompts for _ in range(8)])
        assert torch.allclose((actual * inside).sum(-1), base.log_probs(x).sum(-1), atol=1e-4)
        assert bool((new[~inside] == OPENING).all())


def test_samples_follow_the_base():
    """False alarms: one in a million, both together. The default of `generate`, a cut to some tokens, is caught."""
    base = lively(CONFIGS["lstm, one-hot"], Space(3, 4, eos=0))
    model, count = model_of(base), 4000
    torch.manual_seed(1)
    assert_draws_follow(Tilted(base), empty_prompts(count), drawn(model.generate(num_return_sequences=count)), false_alarm=5e-7)
    cut = drawn(model.generate(num_return_sequences=count, top_k=2))
    with pytest.raises(AssertionError, match="standard errors apart"):
        assert_draws_follow(Tilted(base), empty_prompts(count), cut, false_alarm=5e-7)


def drawn(ids) -> Draws:
    """One draw for each of as many empty prompts, from what `generate` returned after a begin symbol."""
    rows = [row[: row.index(0) + 1] if 0 in row else row for row in ids[:, 1:].tolist()]
    zeros = torch.zeros(len(rows), 1, dtype=torch.float64)
    return Draws(sequences(rows), zeros, zeros, estimates_z=False, independent=True, cost=len(rows))


WAYS = {
    "greedy": {"do_sample": False},
    "beam": {"do_sample": False, "num_beams": 3},
    "beams returned": {"do_sample": False, "num_beams": 4, "num_return_sequences": 3},
    "sampling": {"do_sample": True, "num_return_sequences": 3},
    "penalty": {"do_sample": False, "repetition_penalty": 1.5},
    "chunks": {"do_sample": False, "prefill_chunk_size": 2},
}


@pytest.mark.parametrize(
    ("kind", "room"), [("lstm, vectors", 64), ("gru, tied", 2), ("transformer, rotary", 64), ("transformer, learned", 2)]
)
def test_cached_equals_uncached(kind, room, monkeypatch):
    """For every way to generate, with padding on the left, rows that end early, and states that get full."""
    monkeypatch.setattr("esscher.hub.network_cache.MIN_STEPS", room)
    model = model_of(base_of(kind))
    ids = torch.tensor([[OPENING, OPENING, OPENING], [OPENING, OPENING, 2], [OPENING, 4, 3], [2, 2, 1]])
    mask = (ids != OPENING).long()
    for name, way in WAYS.items():
        actual = []
        for cached in (True, False):
            if not cached and name == "chunks":
                way = WAYS["greedy"]
            torch.manual_seed(0)
            with quiet_transformers():
                actual.append(model.generate(ids, max_new_tokens=8, use_cache=cached, **way))
        assert actual[0].equal(actual[1]), name
    ends = [row.tolist().count(OPENING) for row in actual[0]]
    assert max(ends) > 0
    with quiet_transformers():
        other = model.generate(
            ids.masked_fill(mask == 0, SPACE.eos),
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=8,
            pad_token_id=SPACE.eos,
        )
    assert other[:, 3:].equal(actual[0][:, 3:].masked_fill(actual[0][:, 3:] == OPENING, SPACE.eos))


def test_assisted_equals_greedy():
    """An assistant proposes several tokens, and those that are refused are cut off the cache."""
    for kind in ("gru, tied", "transformer, rotary"):
        model = model_of(base_of(kind))
        with quiet_transformers():
            greedy = model.generate(torch.tensor([[OPENING, 2]]), do_sample=False, max_new_tokens=12, eos_token_id=5)
            helped = model.generate(
                torch.tensor([[OPENING, 2]]), do_sample=False, max_new_tokens=12, eos_token_id=5,
                assistant_model=model_of(lively(CONFIGS["lstm, tied"], SPACE, seed=5)),
            )  # fmt: skip
        assert helped.equal(greedy)


def test_a_cache_can_be_continued_in_any_way():
    """Several columns at once, padded ones among them, and a row that goes on after it was padded."""
    model = model_of(base_of("transformer, rotary"))
    ids = torch.tensor([[OPENING, 1, 2, 3, OPENING, 4, 1], [OPENING, 3, OPENING, 2, 2, OPENING, 4]])
    expected = model(ids, use_cache=False).logits
    for cuts in ([3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [4]):
        cache = None
        with torch.no_grad():
            for first, last in zip([0, *cuts], [*cuts, 7], strict=True):
                step = model(ids[:, first:last], past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = step.past_key_values
                assert torch.allclose(step.logits[:, 0], expected[:, last - 1], atol=1e-5)
        assert cache.get_seq_length() == 7
    cache.crop(-2)
    with torch.no_grad():
        step = model(ids[:, 6:], past_key_values=cache, logits_to_keep=1)
        expected = model(torch.cat([ids[:, :5], ids[:, 6:]], 1)).logits
    assert torch.allclose(step.logits[:, 0], expected[:, -1], atol=1e-5)
    with pytest.raises(ValueError, match="holds 6 positions that another model has read"):
        model_of(base_of("gru, tied"))(ids, past_key_values=cache)


def test_a_pipeline_samples_from_the_model_itself(tmp_path):
    model, tokenizer = read(save_base(tmp_path, base_of("lstm, tied"), TOKENIZER))
    with quiet_transformers():
        speak = pipeline("text-generation", model=model, tokenizer=tokenizer)
        torch.manual_seed(0)
        actual = speak("ab")[0]["generated_text"]
        torch.manual_seed(0)
        plain = model.generate(**tokenizer("ab", return_tensors="pt"))[0]
    assert actual == tokenizer.decode(plain, skip_special_tokens=True) and actual.startswith("ab")


@pytest.mark.parametrize("side", ["left", "right"])
def test_labels_give_the_likelihood(tmp_path, side):
    """All tokens of a text are scored, the first and the end symbol too; bos and padding are not."""
    base = base_of("gru, vectors")
    model, tokenizer = read(save_base(tmp_path, base, TOKENIZER))
    tokenizer.padding_side = side
    batch = DataCollatorForLanguageModeling(tokenizer, mlm=False)([tokenizer(text + "<eos>") for text in TEXTS])
    assert batch["input_ids"].tolist()[1].count(SPACE.eos) == 1
    x = sequences([[*item, SPACE.eos] for item in TOKENIZER.encode(TEXTS)])
    expected = -base.log_probs(x).sum() / x.lengths.sum()
    assert torch.isclose(model(**batch).loss, expected)
    self_value = {**batch, "labels": batch["input_ids"]}  # with begin and padding symbols as labels
    assert torch.isclose(model(**self_value).loss, expected)


def test_their_trainer_trains_it(tmp_path):
    base = base_of("lstm, vectors")
    model, tokenizer = read(save_base(tmp_path / "model", base, TOKENIZER))
    settings = TrainingArguments(
        str(tmp_path / "run"), max_steps=3, per_device_train_batch_size=4, learning_rate=0.05, use_cpu=True,
        report_to="none", save_strategy="no", disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    data = [tokenizer(text + "<eos>") for text in TEXTS]
    with torch.random.fork_rng():
        trainer = Trainer(model, settings, DataCollatorForLanguageModeling(tokenizer, mlm=False), data, eval_dataset=data)
        with quiet_transformers():
            before = trainer.evaluate()["eval_loss"]
            trainer.train()
            assert trainer.evaluate()["eval_loss"] < before - 0.1
    model.save_pretrained(tmp_path / "tuned")
    x = sequences([[*item, SPACE.eos] for item in TOKENIZER.encode(TEXTS)])
    assert load_base(tmp_path / "tuned")[0].log_probs(x).sum() > base.log_probs(x).sum()


def test_what_a_folder_lacks_is_drawn_anew(tmp_path):
    base = base_of("transformer, rotary")
    save_base(tmp_path, base, TOKENIZER)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "network.blocks.0.o_proj.weight"
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    torch.manual_seed(0)
    weight = read(tmp_path)[0].get_parameter(name).detach()
    assert 0 < float(weight.abs().max()) < 0.1  # the initial weights are small, those of the base are not
    assert float(base.get_parameter(name).detach().abs().max()) > 0.1


def test_refusals(tmp_path):
    model = model_of(base_of("transformer, rotary"))
    with pytest.raises(NotImplementedError, match="has the 6 tokens of its space"):
        model.resize_token_embeddings(9)
    with pytest.raises(ValueError, match="has 40 positions and was given 41 tokens, the BOS token included"):
        model(torch.ones(1, 40, dtype=torch.long))
    with pytest.raises(ValueError, match=r"has a row for each sequence .* of shape \(1, 1, 2, 2\)"):
        model(torch.ones(1, 2, dtype=torch.long), attention_mask=torch.ones(1, 1, 2, 2))
    with pytest.raises(ValueError, match="of type 'esscher-gru' was given a base of kind 'transformer'"):
        hf_classes("gru")[0](base=model.config.base, space=model.config.space)
    with pytest.raises(ValueError, match="states no 'space'"):
        AutoModelForCausalLM.from_config(AutoConfig.for_model("esscher-lstm"))
    with pytest.raises(NotImplementedError, match="reads one-hot vectors"):
        model_of(base_of("lstm, one-hot")).get_input_embeddings()


def test_a_limit_of_positions_is_reached_and_not_passed():
    model = model_of(lively(TransformerConfig(8, 2, 2, 16, max_positions=6), Space(3, 6)))
    assert model.generate(max_new_tokens=6).shape == (1, 7)
    with pytest.raises(ValueError, match="has 6 positions and was given 7"):
        model.generate(max_new_tokens=7)


def test_importing_the_hub_imports_no_transformers():
    check = "import esscher.hub, sys; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_rows_are_read_without_padding():
    from esscher.hub.network_cache import unpadded_rows

    x, seen = unpadded_rows(torch.tensor([[9, 9, 9], [9, 1, 2], [3, 9, 9], [9, 4, 9]]), 9)
    assert isinstance(x, Sequences) and x.start.tolist() == [0, 2, 1, 1]
    assert [row[:length] for row, length in zip(x.tokens.tolist(), x.start.tolist(), strict=True)] == [[], [1, 2], [3], [4]]
    assert seen.tolist() == [[0, 0, 0], [0, 1, 2], [1, 1, 1], [0, 1, 1]]


def test_a_config_survives_a_pickle():
    config = model_of(base_of("transformer, rotary")).config
    assert pickle.loads(pickle.dumps(config)).to_dict() == config.to_dict()
