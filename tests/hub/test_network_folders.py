"""Model folders: what is saved is loaded, to the bit; and what is said of folders that are no such thing."""

import json

import pytest
import torch
import yaml

from esscher.bases.network import build_base
from esscher.core.estimate import Estimate
from esscher.core.manifest import MANIFEST
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, sequences
from esscher.core.storage import digest, module_tensors, write_tensors
from esscher.data.tokenizers import train_tokenizer
from esscher.hub import ModelCard, load_base, save_base
from esscher.networks.recurrent_config import GruConfig, LstmConfig
from esscher.networks.transformer_config import TransformerConfig

CONFIGS = {
    "lstm": LstmConfig(width=5, layers=1),
    "gru": GruConfig(width=6, layers=1, embedding=6, tied=True),
    "transformer": TransformerConfig(width=8, heads=2, layers=1, feedforward=8, max_positions=9),
}
TEXTS = ["abc", "cab a"]


@pytest.fixture
def tokenizer():
    return train_tokenizer("character", TEXTS)


def base_of(kind, tokenizer):
    return build_base(CONFIGS[kind], Space(tokenizer.vocab_size, 7, tokenizer.eos), rng=SeededRng(3)).eval()


@pytest.fixture
def folder(tmp_path, tokenizer):
    return save_base(tmp_path / "model", base_of("lstm", tokenizer), tokenizer)


@pytest.mark.parametrize("kind", CONFIGS)
def test_saved_and_loaded_again(tmp_path, kind, tokenizer):
    base = base_of(kind, tokenizer)
    save_base(tmp_path, base, tokenizer)
    actual, words = load_base(tmp_path)
    assert digest(module_tensors(actual)) == digest(module_tensors(base))
    assert (actual.config, actual.space) == (base.config, base.space) and not actual.training
    assert words.encode(TEXTS) == tokenizer.encode(TEXTS)
    x = sequences([[1, 2, 0], [3]])
    assert actual.log_probs(x).equal(base.log_probs(x))
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == f"esscher-{kind}"


def test_loading_throws_no_dice(folder):
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    load_base(folder)
    assert torch.rand(2).equal(expected)


def test_folder_is_a_repository(folder):
    from transformers import AutoTokenizer, GenerationConfig

    names = {file.name for file in folder.iterdir()}
    assert names == {
        "config.json",
        "model.safetensors",
        "generation_config.json",
        "README.md",
        MANIFEST,
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert GenerationConfig.from_pretrained(str(folder)).top_k == 0
    assert AutoTokenizer.from_pretrained(str(folder)).eos_token_id == 0


def test_card_tells_data_settings_and_intervals(tmp_path, tokenizer):
    estimate = Estimate(8.25, 8.0, 8.5, 0.95, 400, "400 test sequences as a sample", "per token")
    card = ModelCard("Abc", "some letters", {"seed": 3}, [("perplexity", estimate)], "A toy.")
    save_base(tmp_path, base_of("gru", tokenizer), tokenizer, card)
    text = (tmp_path / "README.md").read_text()
    head = yaml.safe_load(text.split("---")[1])
    assert head["library_name"] == "esscher" and head["tags"] == ["esscher-gru"]
    for part in ("# Abc", "some letters", "seed: 3", "8.25", "[8, 8.5] (95%, 400 draws)", "per token", "A toy."):
        assert part in text


def test_another_length_but_not_another_end(folder):
    assert load_base(folder, max_length=3)[0].space == Space(6, 3, 0)
    with pytest.raises(ValueError, match="was chosen when it was trained"):
        load_base(folder, eos="a")


def test_without_tokenizer(tmp_path, tokenizer):
    save_base(tmp_path, base_of("lstm", tokenizer))
    assert load_base(tmp_path)[1] is None


def test_other_files_stay_and_saving_again_replaces(folder, tokenizer):
    (folder / "notes.txt").write_text("mine")
    other = build_base(CONFIGS["lstm"], Space(tokenizer.vocab_size, 7, tokenizer.eos), rng=SeededRng(4))
    save_base(folder, other, tokenizer)
    assert digest(module_tensors(load_base(folder)[0])) == digest(module_tensors(other))
    assert (folder / "notes.txt").read_text() == "mine"
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]


def test_missing(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match="There is no model folder"):
        load_base(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"holds no config.json"):
        load_base(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"There is no file .*model.safetensors"):
        load_base(folder)


def change(folder, **values):
    (folder / MANIFEST).unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def test_wrong_kind_and_unknown_keys(folder):
    change(folder, surprise=1)
    with pytest.raises(ValueError, match="unknown key 'surprise'; the known keys are model_type"):
        load_base(folder)
    change(folder, model_type="esscher-gpt2")
    with pytest.raises(ValueError, match=r"a model of type 'esscher-gpt2', not a base; the known types are esscher-lstm"):
        load_base(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is not valid JSON"):
        load_base(folder)


def test_settings_that_describe_no_base(folder):
    change(folder, base={"kind": "lstm", "breadth": 3})
    with pytest.raises(ValueError, match=r"does not describe a base: Unknown key 'base.breadth'"):
        load_base(folder)
    change(folder, base={"kind": "lstm"}, space={"vocab_size": 3})
    with pytest.raises(ValueError, match="does not describe a base"):
        load_base(folder)


def test_corrupted_weights(folder, tokenizer):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    (folder / MANIFEST).unlink()
    with pytest.raises(ValueError, match=r"model.safetensors is corrupted"):
        load_base(folder)
    other = build_base(CONFIGS["lstm"], Space(tokenizer.vocab_size + 2, 7, 0), rng=SeededRng(3))
    write_tensors(file, module_tensors(other))
    with pytest.raises(ValueError, match=r"model.safetensors does not fit the model: .*another vocabulary or width"):
        load_base(folder)


def test_another_tokenizer(folder, tmp_path, tokenizer):
    other = train_tokenizer("character", ["abcdefgh"])
    with pytest.raises(ValueError, match=r"The tokenizer has 10 tokens and the base has 6. Nothing was saved"):
        save_base(tmp_path / "new", base_of("lstm", tokenizer), other)
    assert not (tmp_path / "new").exists()
    other.save(folder)
    with pytest.raises(ValueError, match=r"The tokenizer in .* has 10 tokens and the base has 6"):
        load_base(folder)
