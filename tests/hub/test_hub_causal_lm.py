"""Folders of Hugging Face: loaded as bases, saved as models that `transformers` reads, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from causal_models import tiny_base, tiny_model
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig, BertLMHeadModel, GenerationConfig

from esscher.bases.causal_lm import causal_lm
from esscher.core.manifest import MANIFEST
from esscher.core.space import Space, sequences
from esscher.core.storage import digest, module_tensors
from esscher.data.tokenizers import train_tokenizer
from esscher.hub import ModelCard, load_base, save_base

TEXTS = ["abc", "cab a"]
BEGIN, SIZE = 6, 8  # one token more than the tokenizer has, as models that round their vocabulary up
STORIES = Path("/work/shared/data/stories260K")


@pytest.fixture
def tokenizer():
    return train_tokenizer("character", TEXTS)


@pytest.fixture
def foreign(tmp_path, tokenizer):
    """A folder as others publish it: more settings, generation defaults that cut, a tokenizer that puts a begin symbol."""
    folder = tmp_path / "foreign"
    model = tiny_model("llama", vocab_size=SIZE)
    model.generation_config = GenerationConfig(
        do_sample=True, top_k=3, repetition_penalty=1.3, eos_token_id=[5, 0], bos_token_id=BEGIN
    )
    model.save_pretrained(folder)
    tokenizer.backend.add_special_tokens(["<s>"])
    tokenizer.backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BEGIN)])
    tokenizer.save(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["esscher_name"]
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": "<s>", "model_max_length": 99}))
    (folder / MANIFEST).unlink()
    return folder


def test_a_foreign_folder(foreign):
    base, tokenizer = load_base(foreign)
    assert base.space == Space(SIZE, 16, eos=0) and base.bos == BEGIN and not base.training
    assert (tokenizer.vocab_size, tokenizer.eos, tokenizer.name) == (SIZE, 0, "foreign")
    theirs = AutoTokenizer.from_pretrained(foreign)("abc")["input_ids"]
    assert theirs[0] == BEGIN and tokenizer.encode(["abc", ""]) == [theirs[1:], []]
    assert tokenizer.decode([[*tokenizer.encode(["cab"])[0], SIZE - 1, 0]]) == ["cab"]
    plain = AutoModelForCausalLM.from_pretrained(foreign)
    x = sequences([[2, 3, 4, 0]])
    assert torch.allclose(base.logits(x)[0], plain(torch.tensor([[BEGIN, 2, 3, 4]])).logits[0], atol=1e-5)


def test_another_length_and_end_symbol(foreign, tokenizer):
    base, words = load_base(foreign, max_length=5, eos="b")
    number = tokenizer.encode(["b"])[0][0]
    assert base.space == Space(SIZE, 5, eos=number) and words.eos == number
    again, words = load_base(save_base(foreign.parent / "kept", base, words))
    assert again.space == base.space and words.eos == number
    with pytest.raises(ValueError, match="has no token 'zz'"):
        load_base(foreign, eos="zz")


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_saved_and_loaded_again(tmp_path, family, tokenizer):
    base = tiny_base(family, vocab_size=tokenizer.vocab_size, eos=None, max_length=7)
    save_base(tmp_path, base, tokenizer, ModelCard("Abc", "some letters"))
    actual, words = load_base(tmp_path)
    assert digest(module_tensors(actual)) == digest(module_tensors(base))
    assert (actual.space, actual.bos) == (base.space, base.bos)
    assert words.encode(TEXTS) == tokenizer.encode(TEXTS)
    x = sequences([[1, 2, 0], [3]])
    assert actual.log_probs(x).equal(base.log_probs(x))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[1, 2, 3, 0]])
    assert plain(ids).logits.equal(base.model(ids).logits)
    card = (tmp_path / "README.md").read_text()
    assert "library_name: transformers" in card and f"- {plain.config.model_type}" in card and "# Abc" in card
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_a_student_is_a_normal_model(foreign, tmp_path):
    """All of a foreign folder's own tokenizer settings survive; its generation defaults do not."""
    base, tokenizer = load_base(foreign)
    saved = save_base(tmp_path / "student", base, tokenizer)
    for text in TEXTS:
        ours, theirs = (AutoTokenizer.from_pretrained(folder)(text)["input_ids"] for folder in (saved, foreign))
        assert ours == theirs
    settings = json.loads((saved / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 99 and settings["bos_token"] == "<s>"
    generation = GenerationConfig.from_pretrained(saved)
    assert (generation.top_k, generation.do_sample, generation.eos_token_id, generation.bos_token_id) == (0, True, 0, BEGIN)
    assert generation.repetition_penalty in (None, 1.0)
    model = AutoModelForCausalLM.from_pretrained(saved)
    drawn = model.generate(do_sample=True, max_new_tokens=3, num_return_sequences=4, pad_token_id=0)
    assert drawn[:, 0].tolist() == [BEGIN] * 4


def test_without_tokenizer(tmp_path):
    save_base(tmp_path, tiny_base("gpt2"))
    assert load_base(tmp_path)[1] is None
    with pytest.raises(ValueError, match="has no tokenizer, so there is no EOS token"):
        load_base(tmp_path, eos="</s>")


def test_saving_again_replaces_and_keeps_other_files(tmp_path):
    save_base(tmp_path, tiny_base("gpt2"))
    (tmp_path / "notes.txt").write_text("mine")
    other = tiny_base("gpt2", max_length=9)
    with torch.no_grad():
        other.model.lm_head.weight.mul_(2)
    save_base(tmp_path, other)
    assert digest(module_tensors(load_base(tmp_path)[0])) == digest(module_tensors(other))
    assert load_base(tmp_path)[0].space.max_length == 9 and (tmp_path / "notes.txt").read_text() == "mine"


def test_loading_is_quiet_and_throws_no_dice(foreign, capfd):
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    load_base(foreign)
    assert torch.rand(2).equal(expected)
    assert "".join(capfd.readouterr()) == ""
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_half_precision_is_read_in_single_on_a_cpu(tmp_path):
    tiny_model("gpt2").to(torch.bfloat16).save_pretrained(tmp_path)
    assert load_base(tmp_path)[0].model.dtype == torch.float32


def test_pickles_and_empty_folders_are_refused(foreign):
    (foreign / "model.safetensors").rename(foreign / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"are pickled \(pytorch_model.bin\).*Nothing was loaded"):
        load_base(foreign)
    (foreign / "pytorch_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no \*.safetensors"):
        load_base(foreign)


def test_incomplete_or_broken_weights_are_refused(foreign):
    file = foreign / "model.safetensors"
    tensors = load_file(file)
    name = next(key for key in tensors if "q_proj" in key)
    save_file({key: value for key, value in tensors.items() if key != name}, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"do not fill the model: 1 tensors are missing.*{name}"):
        load_base(foreign)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"model.safetensors is corrupted: .* Nothing was loaded"):
        load_base(foreign)


def test_unknown_types_and_code_of_the_folder_are_refused(foreign):
    config = json.loads((foreign / "config.json").read_text())
    strange = {**config, "model_type": "strange", "auto_map": {"AutoModelForCausalLM": "strange.Model"}}
    (foreign / "strange.py").write_text("raise SystemExit('ran')")
    (foreign / "config.json").write_text(json.dumps(strange))
    with pytest.raises(ValueError, match=r"config.json has 'auto_map': .* Nothing was loaded or run"):
        load_base(foreign)


def test_encoders_are_refused(tmp_path):
    config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    model = BertLMHeadModel(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"\(BertLMHeadModel\) looks ahead"):
        load_base(tmp_path)


def test_a_tokenizer_with_tokens_that_the_model_lacks(foreign):
    train_tokenizer("character", ["abcdefghijk"]).save(foreign)
    with pytest.raises(ValueError, match=r"has 5 tokens that the model lacks"):
        load_base(foreign)


def test_settings_of_ours_that_say_nothing(tmp_path):
    save_base(tmp_path, tiny_base("gpt2"))
    (tmp_path / "esscher.json").write_text("{}")
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(ValueError, match=r"esscher.json does not state space, bos"):
        load_base(tmp_path)


def test_another_tokenizer_is_not_saved(tmp_path, tokenizer):
    with pytest.raises(ValueError, match=r"The tokenizer has 6 tokens and the base has 3. Nothing was saved"):
        save_base(tmp_path / "new", tiny_base("gpt2"), tokenizer)
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(not STORIES.is_dir(), reason="the pretrained model is not on this machine")
def test_a_real_folder_there_and_back(tmp_path):
    base, tokenizer = load_base(STORIES, eos="<s>", max_length=30)
    assert (base.space, base.bos) == (Space(512, 30, eos=1), 1)
    assert tokenizer.encode(["", "Once upon"]) == [[], [403, 407]]
    assert tokenizer.decode([[403, 407, 1]]) == ["Once upon"]
    save_base(tmp_path, base, tokenizer)
    again, _ = load_base(tmp_path)
    assert digest(module_tensors(again)) == digest(module_tensors(base)) and again.space == base.space
    for text in ("Once upon a time", "He said: <s> é\n  two"):
        ours, theirs = (AutoTokenizer.from_pretrained(folder) for folder in (tmp_path, STORIES))
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
        assert ours.decode(ours(text)["input_ids"]) == theirs.decode(theirs(text)["input_ids"])


def test_a_model_made_here(tmp_path, tokenizer):
    """No folder at all: a network of `transformers` with our tokenizer."""
    model = tiny_model("gpt2", vocab_size=tokenizer.vocab_size, bos_token_id=None, eos_token_id=tokenizer.eos)
    base = causal_lm(model, max_length=6)
    assert (base.bos, base.space.eos) == (tokenizer.eos, tokenizer.eos)
    save_base(tmp_path, base, tokenizer)
    assert AutoTokenizer.from_pretrained(tmp_path)("abc")["input_ids"] == tokenizer.encode(["abc"])[0]
