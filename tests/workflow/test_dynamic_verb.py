"""The whole of `esscher measure --dynamic`: what is printed, what is kept beside the model, what is refused."""

import shutil

import cli_calls
import pytest
import torch
from small_networks import CONFIGS, lively

from esscher.bases.causal_lm import causal_lm
from esscher.cli import main
from esscher.core.space import Space
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.data.text import raw_stream
from esscher.data.tokenizers import train_tokenizer
from esscher.estimators.long_context import stream_log_probs
from esscher.hub import save_base
from esscher.networks.recurrent_config import GruConfig
from esscher.training.config import DynamicConfig, TrainingConfig
from esscher.workflow.config.train import TrainRun
from esscher.workflow.dynamic_evaluation import gradient_statistics_for
from esscher.workflow.model import load
from esscher.workflow.train import train_base


def call(capsys, *arguments):
    return cli_calls.call(capsys, "measure", *arguments, "--dynamic", "--quiet", "--json")


def answer(capsys, *arguments):
    return cli_calls.answer(capsys, "measure", *arguments, "--dynamic", "--quiet")


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """A folder of a model that hardly learnt from a stream of bytes, and a text."""
    root = tmp_path_factory.mktemp("dynamic")
    (root / "book.txt").write_text("".join(f"day {n}: rain\n" for n in range(300)))
    (root / "other.txt").write_text("night 7: snow\n" * 40)
    run = TrainRun(
        str(root / "run"), data=DataConfig(str(root / "book.txt"), split="raw"), tokenizer=TokenizerConfig("byte"),
        length=LengthConfig(16, stream=True, ends=False), base=GruConfig(width=8, layers=1),
        training=TrainingConfig(steps=5, batch_size=4, evaluate_every=5, learning_rate=0.01),
    )  # fmt: skip
    train_base(run)
    return root


FEW = ["--adapt.columns", "20"]


def test_learning_saves_bits_and_statistics_stay(capsys, book):
    folder, text = book / "run", str(book / "other.txt")
    weights = (folder / "model.safetensors").read_bytes()
    output = answer(capsys, str(folder), "--data", text, *FEW, "--adapt.learning-rate", "0.001")
    rows = {row["per"]: row for row in output["perplexities"]}
    assert set(rows) == {"token", "word", "character", "byte"}
    assert rows["byte"]["perplexity"]["value"] < rows["byte"]["static_perplexity"]["value"]
    saved = rows["byte"]["bits_saved"]
    assert 0 < saved["low"] < saved["value"] < saved["high"] and saved["unit"] == "bits per byte"
    wide = rows["byte"]["bits"]
    assert saved["high"] - saved["low"] < 2 * (wide["high"] - wide["low"])
    assert output["read_as"] == "one stream, learnt from after every 5 tokens"
    assert output["rule"] == "original: learning rate 0.001, decay 0.002, epsilon 2e-05"
    file = folder / "gradients-20x5.safetensors"
    assert file.name in output["statistics"] and "book.txt" in output["statistics"]
    st_mtime_ns = file.stat().st_mtime_ns
    again = answer(capsys, str(folder), "--data", text, *FEW, "--adapt.learning-rate", "0.001", "--fixed")
    assert file.stat().st_mtime_ns == st_mtime_ns and (folder / "model.safetensors").read_bytes() == weights
    fixed = again["perplexities"][0]
    assert fixed["perplexity"]["n"] == 0 and fixed["bits_saved"]["value"] == pytest.approx(rows["token"]["bits_saved"]["value"])
    model = load(folder)
    exact = stream_log_probs(
        model.streaming_base(), raw_stream((book / "other.txt").read_bytes(), model.tokenizer).tokens, segment=5
    )
    assert rows["token"]["static_perplexity"]["value"] == pytest.approx(float((-exact.mean()).exp()), rel=1e-5)


def test_no_learning_saves_nothing(book):
    config = DynamicConfig(learning_rate=0.0, columns=20)
    result = load(book / "run").measure(str(book / "other.txt"), dynamic=True, adapt=config)
    assert all(saved.value == saved.low == saved.high == 0 for saved in result.measurement.bits_saved.values())
    assert result.nats["base"] == result.nats["dynamic"]


def test_statistics_are_of_the_text_that_was_learnt_from(book):
    """Of all of it, in columns: the held-out bytes take no part, and the number of gradients is told."""
    config = DynamicConfig(columns=7, segment=11)
    actual, output = gradient_statistics_for(load(book / "run"), config)
    whole = (book / "book.txt").stat().st_size
    length = (whole - 2 * round(0.05 * whole)) // 7
    assert actual.batches == -(-length // 11) and output.startswith(f"{actual.batches:,} gradients on")
    again, _ = gradient_statistics_for(load(book / "run"), config)
    assert all(torch.equal(again.squares[name], total) for name, total in actual.squares.items())


def test_another_models_statistics_are_refused(capsys, book, tmp_path):
    folder, text = book / "run", str(book / "other.txt")
    answer(capsys, str(folder), "--data", text, *FEW)
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    model = load(other)
    with torch.no_grad():
        next(model.base.parameters()).add_(0.01)
    save_base(other, model.base, model.tokenizer)
    code, _, err = call(capsys, str(other), "--data", text, *FEW)
    assert (
        code == 1 and "collected with weights = " in " ".join(err.split()) and "do not belong together" in " ".join(err.split())
    )
    for flags, word in ((["--adapt.batches", "3"], "batches = None"), (["--adapt.text", text], "text = ")):
        code, _, err = call(capsys, str(folder), "--data", text, *FEW, *flags)
        assert code == 1 and word in " ".join(err.split())


def test_sgd_needs_no_statistics_and_any_model_will_do(capsys, book, tmp_path):
    text, tokenizer = tmp_path / "text.txt", train_tokenizer("character", ["abc"])
    text.write_text("abcab\n" * 40)
    sgd = ["--data", str(text), "--adapt.rule", "sgd"]
    space = Space(tokenizer.vocab_size, 6, tokenizer.eos)
    for name, kind, read in (
        ("memory", "lstm, vectors", "one stream"),
        ("none", "transformer, learned", "after every sequence"),
    ):
        save_base(tmp_path / name, lively(CONFIGS[kind], space), tokenizer)
        output = answer(capsys, str(tmp_path / name), *sgd, "--adapt.learning-rate", "0.05")
        assert read in output["read_as"] and output["statistics"] == "none"
        assert output["perplexities"][0]["bits_saved"]["low"] > 0
        assert not list((tmp_path / name).glob("gradients*"))
        code, _, err = call(capsys, str(tmp_path / name), "--data", str(text))
        assert code == 1 and "name the text (adapt.text)" in " ".join(err.split())
        named = ["--data", str(text), "--adapt.text", str(text), "--adapt.columns", "5", "--adapt.batches", "4"]
        output = answer(capsys, str(tmp_path / name), *named, "--adapt.rule", "mos")
        assert output["statistics"].startswith(f"4 gradients on {text}")


def test_a_model_of_hugging_face_learns_after_each_chunk(capsys, tmp_path):
    import transformers

    tokenizer = train_tokenizer("character", ["abc"])
    config = transformers.GPT2Config(
        vocab_size=tokenizer.vocab_size, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        base = causal_lm(transformers.GPT2LMHeadModel(config), max_length=6, eos=tokenizer.eos)
    save_base(tmp_path / "gpt2", base, tokenizer)
    (tmp_path / "text.txt").write_text("abcab\n" * 40)
    flags = ["--data", str(tmp_path / "text.txt"), "--prompt-tokens", "2", "--max-length", "8", "--adapt.rule", "sgd"]
    output = answer(capsys, str(tmp_path / "gpt2"), *flags)
    assert output["measured_on"].startswith("24 sequences (192 tokens")  # of 40 lines of 6 tokens, chunks of 10
    assert output["perplexities"][0]["bits_saved"]["value"] > 0


def test_what_is_refused(capsys, book):
    folder, text = str(book / "run"), str(book / "other.txt")
    for flags, message in (
        (["--draws", "9"], "draws has no meaning with dynamic"),
        (["--stream.columns", "2"], "stream.columns has no meaning"),
        (["--stream.segment", "7"], "tokens between two updates: adapt.segment"),
        (["--energy", "self"], "energy has no meaning"),
        (["--prompt-tokens", "3"], "learns from one stream"),
        (["--adapt.epsilon", "0"], "epsilon is more than 0"),
        (["--adapt.columns", "100000"], "cannot be read in 100000 columns"),
        (["--stream.attention-span", "3"], "has no attention span"),
    ):
        code, _, err = call(capsys, folder, "--data", text, *flags)
        assert code == 1 and message in " ".join(err.split()), err
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["measure", folder, "--data", text, "--adapt.decay", "0.1"])
    assert stop.value.code == 1 and "set dynamic" in capsys.readouterr().err
