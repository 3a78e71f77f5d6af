"""Folders of encoder-decoder models: loaded as bases, saved as models that `transformers` reads, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from seq2seq_models import FAMILIES, tiny_base, tiny_model
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig

from esscher.bases.seq2seq_lm import Seq2SeqLM
from esscher.core.space import Space, sequences
from esscher.core.storage import digest, module_tensors
from esscher.data.tokenizers import train_tokenizer
from esscher.data.translation_pairs import encode_sources
from esscher.hub import ModelCard, load_base, save_base
from esscher.hub.custom_generate import load_tilted

TEXTS = ["abc", "cab a"]
PADDING, SIZE = 6, 8  # one token more than the tokenizer has, as models that round their vocabulary up


@pytest.fixture
def tokenizer():
    return train_tokenizer("character", TEXTS)


@pytest.fixture
def foreign(tmp_path, tokenizer):
    """A folder as others publish it: generation defaults that cut and force, a tokenizer that ends its texts."""
    folder = tmp_path / "foreign"
    model = tiny_model("t5", vocab_size=SIZE, pad_token_id=PADDING, decoder_start_token_id=PADDING)
    model.generation_config = GenerationConfig(
        do_sample=True,
        top_k=3,
        num_beams=4,
        eos_token_id=0,
        forced_bos_token_id=2,
        decoder_start_token_id=PADDING,
        pad_token_id=PADDING,
    )
    model.save_pretrained(folder)
    tokenizer.backend.add_special_tokens(["<pad>"])
    tokenizer.backend.post_processor = TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 0)])
    tokenizer.save(folder)
    return folder


def test_a_foreign_folder(foreign):
    base, tokenizer = load_base(foreign, max_length=5)
    assert isinstance(base, Seq2SeqLM) and not base.training
    assert (base.space, base.bos) == (Space(SIZE, 5, eos=0), PADDING)
    assert (tokenizer.vocab_size, tokenizer.eos) == (SIZE, 0)
    theirs = AutoTokenizer.from_pretrained(foreign)
    sources = encode_sources([*TEXTS, ""], tokenizer)
    assert sources == theirs([*TEXTS, ""])["input_ids"] and sources[0][-1] == 0 and sources[2] == [0]
    assert tokenizer.encode(TEXTS) == [source[:-1] for source in sources[:2]]
    point = [*tokenizer.encode(["cab"])[0], 0]
    plain = AutoModelForSeq2SeqLM.from_pretrained(foreign)
    expected = plain(input_ids=torch.tensor(sources[:1]), labels=torch.tensor([point]))
    assert torch.allclose(base.log_probs(sequences([point], sources[:1])).sum(), -len(point) * expected.loss, atol=1e-4)


def test_special_tokens_in_a_source_are_characters(foreign):
    _, tokenizer = load_base(foreign)
    assert encode_sources(["a<eos>"], tokenizer)[0].count(0) == 1


def test_another_end_symbol_is_remembered(foreign, tokenizer, tmp_path):
    base, words = load_base(foreign, max_length=5, eos="b")
    number = tokenizer.encode(["b"])[0][0]
    assert base.space == Space(SIZE, 5, eos=number) and words.eos == number
    again, words = load_base(save_base(tmp_path / "kept", base, words))
    assert again.space == base.space and words.eos == number and again.bos == PADDING
    assert load_base(tmp_path / "kept", chunks=True)[0].space.eos is None


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_and_loaded_again(tmp_path, family, tokenizer):
    base = tiny_base(family, vocab_size=tokenizer.vocab_size, eos=None, max_length=7)
    save_base(tmp_path, base, tokenizer, ModelCard("Abc", "some letters"))
    actual, words = load_base(tmp_path)
    assert digest(module_tensors(actual)) == digest(module_tensors(base))
    assert (actual.space, actual.bos) == (base.space, base.bos)
    assert words.encode(TEXTS) == tokenizer.encode(TEXTS)
    x = sequences([[1, 2, 0], [3]], [[1, 0], [2]])
    assert torch.allclose(actual.log_probs(x), base.log_probs(x), atol=1e-6)
    plain = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    inputs = {"input_ids": torch.tensor([[1, 2]]), "decoder_input_ids": torch.tensor([[base.bos, 2]])}
    assert plain(**inputs).logits.equal(base.model(**inputs).logits)
    card = (tmp_path / "README.md").read_text()
    assert "AutoModelForSeq2SeqLM.from_pretrained(" in card and "AutoModelForCausalLM" not in card
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_what_is_saved_samples_from_the_model_itself(foreign, tmp_path):
    """Of generation defaults that cut, search and force nothing is left."""
    saved = save_base(tmp_path / "student", *load_base(foreign, max_length=5))
    settings = GenerationConfig.from_pretrained(saved)
    assert (settings.top_k, settings.do_sample, settings.decoder_start_token_id, settings.max_new_tokens) == (
        0,
        True,
        PADDING,
        5,
    )
    assert settings.forced_bos_token_id is None and settings.num_beams in (None, 1)
    inputs = AutoTokenizer.from_pretrained(saved)("abc", return_tensors="pt")
    assert inputs["input_ids"][0, -1] == 0
    drawn = AutoModelForSeq2SeqLM.from_pretrained(saved).generate(input_ids=inputs["input_ids"], num_return_sequences=20)
    assert drawn[:, 0].eq(PADDING).all() and len(drawn[:, 1].unique()) > 1


def test_pickles_and_incomplete_weights_are_refused(foreign):
    file = foreign / "model.safetensors"
    tensors = load_file(file)
    name = next(key for key in tensors if "EncDecAttention.q" in key)
    save_file({key: value for key, value in tensors.items() if key != name}, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"do not fill the model: 1 tensors are missing.*{name}"):
        load_base(foreign)
    file.rename(foreign / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"are pickled \(pytorch_model.bin\).*Nothing was loaded"):
        load_base(foreign)


def test_an_unknown_kind_is_refused(foreign):
    config = json.loads((foreign / "config.json").read_text())
    (foreign / "config.json").write_text(json.dumps({**config, "model_type": "strange"}))
    with pytest.raises(ValueError, match=r"'strange', which transformers .* does not load as an encoder-decoder model"):
        load_base(foreign)


def test_two_tokenizers_are_refused(tmp_path, tokenizer):
    """Marian's folders cut sources and targets by two models; without a tokenizer they are loaded."""
    model = tiny_model("marian", vocab_size=tokenizer.vocab_size)
    model.save_pretrained(tmp_path)
    assert load_base(tmp_path)[1] is None
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(ValueError, match=r"a Tokenizer is one for both. Nothing was loaded"):
        load_base(tmp_path)


def test_two_vocabularies_are_refused_with_a_tokenizer(tmp_path, tokenizer):
    model = tiny_model("marian", vocab_size=9, decoder_vocab_size=tokenizer.vocab_size, share_encoder_decoder_embeddings=False)
    model.save_pretrained(tmp_path)
    assert load_base(tmp_path)[0].space.vocab_size == tokenizer.vocab_size
    tokenizer.save(tmp_path)
    with pytest.raises(ValueError, match=r"has 9 source tokens and 6 target tokens, with a tokenizer for each"):
        load_base(tmp_path)


def test_generation_by_energy_is_refused(foreign, monkeypatch):
    from esscher.hub import custom_generate

    class Saved:
        class chunking:
            max_length, eos, prompt_tokens = 5, None, None

    monkeypatch.setattr(custom_generate, "load_energy", lambda folder: Saved)
    with pytest.raises(ValueError, match=r"has an encoder.*Nothing was made"):
        load_tilted(foreign, "energy")
