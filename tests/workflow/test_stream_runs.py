"""The whole of `esscher train` and `esscher measure` on streams, small: raw bytes, words by lines, resumed, refused."""

import math
from dataclasses import replace

import pytest
import torch
from cli_calls import answer

from esscher.cli import main
from esscher.core.storage import digest, module_tensors
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.data.text import raw_stream
from esscher.estimators.long_context import stream_log_probs
from esscher.hub import load_base
from esscher.networks.recurrent_config import GruConfig
from esscher.networks.transformer_config import TransformerConfig
from esscher.training.config import TrainingConfig
from esscher.workflow.config.train import TrainRun
from esscher.workflow.measure import stream_columns
from esscher.workflow.model import load
from esscher.workflow.train import train_base

BASE = GruConfig(width=8, layers=1)
TRAINING = TrainingConfig(steps=5, batch_size=4, evaluate_every=3, swa_start=0.5)


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """Bytes with long characters and ends of lines, and a model of them."""
    root = tmp_path_factory.mktemp("streams")
    file = root / "book.txt"
    file.write_bytes("".join(f"née {n}: a rainy day\r\n" for n in range(900)).encode())
    run = TrainRun(
        str(root / "run"), data=DataConfig(str(file), split="raw"), tokenizer=TokenizerConfig("byte"),
        length=LengthConfig(16, stream=True, ends=False, segments="random"), base=BASE, training=TRAINING,
    )  # fmt: skip
    return file, run, train_base(run)


def test_raw_bytes_from_a_file_to_a_model(book):
    file, run, result = book
    content = file.read_bytes()
    size = round(0.05 * len(content))
    data_splits = result.data
    assert [len(part) for part in (data_splits.train, data_splits.validation, data_splits.test)] == [
        len(content) - 2 * size,
        size,
        size,
    ]
    assert torch.equal(data_splits.test.tokens, raw_stream(content[-size:], data_splits.tokenizer).tokens)
    assert set(result.measured) == {
        "perplexity per token", "perplexity per word", "perplexity per character", "perplexity per byte", "bits per character",
        "bits per byte",
    }  # fmt: skip
    bits, per = result.measured["bits per byte"], result.measured["perplexity per byte"]
    assert bits.unit == "bits per byte" and 2**bits.value == pytest.approx(per.value) and bits.low < bits.value < bits.high
    actual = stream_log_probs(result.base, data_splits.test.tokens, segment=7)
    assert bits.value == pytest.approx(-float(actual.mean()) / math.log(2), abs=1e-6)
    base, _ = load_base(run.out)
    assert base.space.eos is None and base.space.max_length == 16
    assert load(run.out).trained == run
    again = train_base(replace(run, resume=True))
    assert again.measured == result.measured
    assert digest(module_tensors(again.base)) == digest(module_tensors(result.base))


def measured(capsys, *arguments: str) -> dict:
    return answer(capsys, "measure", *arguments, "--quiet")


def test_the_verb_reads_with_the_memory(capsys, book, tmp_path):
    _, run, result = book
    text = tmp_path / "other.txt"
    text.write_bytes("née 7: another rainy day\r\n".encode() * 40)
    actual = measured(capsys, run.out, "--data", str(text))
    rows = {row["per"]: row for row in actual["perplexities"]}
    assert set(rows) == {"token", "word", "character", "byte"} and "one column, 16 tokens at a time" in actual["read_as"]
    assert "blocks of" in rows["token"]["perplexity"]["method"]
    stream = raw_stream(text.read_bytes(), result.data.tokenizer)
    exact = -float(stream_log_probs(result.base, stream.tokens).mean())
    assert rows["byte"]["bits"]["value"] == pytest.approx(exact / math.log(2), abs=1e-5)
    assert rows["character"]["bits"]["value"] > rows["byte"]["bits"]["value"]
    several = measured(
        capsys,
        run.out,
        "--data",
        str(text),
        "--stream.columns",
        "3",
        "--stream.warmup",
        "50",
        "--stream.segment",
        "9",
        "--fixed",
    )
    assert several["read_as"] == "3 columns, each after 50 tokens before it, 9 tokens at a time"
    fixed = several["perplexities"][0]["perplexity"]
    assert fixed["n"] == 0 and fixed["value"] == pytest.approx(rows["token"]["perplexity"]["value"], rel=1e-3)
    chunks = measured(capsys, run.out, "--data", str(text), "--prompt-tokens", "4")
    assert "sequences" in chunks["measured_on"] and chunks["perplexities"][0]["bits"]["unit"] == "bits per token"


def test_words_by_lines_with_an_end_symbol_for_each(capsys, tmp_path):
    for name, lines in (("train", 300), ("valid", 60), ("test", 60)):
        rows = [f" the rain on day {n % 7} of Week {n}" if n % 3 else "" for n in range(lines)]
        (tmp_path / f"{name}.txt").write_text("\n".join(rows) + "\n")
    files = {name: str(tmp_path / f"{name}.txt") for name in ("train", "valid", "test")}
    data = DataConfig(files["train"], validation=files["valid"], test=files["test"], empty="keep")
    run = TrainRun(
        str(tmp_path / "run"), data=data, tokenizer=TokenizerConfig("word", vocab_size=1000, min_frequency=2),
        length=LengthConfig(10, stream=True), base=BASE, training=replace(TRAINING, swa_start=None),
    )  # fmt: skip
    result = train_base(run)
    test = result.data.test
    assert int((test.tokens == result.data.tokenizer.eos).sum()) == 60
    assert torch.equal(test.words, torch.ones_like(test.words))
    actual = measured(capsys, run.out, "--data", files["test"])
    assert actual["perplexities"][0]["perplexity"]["value"] == pytest.approx(
        result.measured["perplexity per token"].value, rel=1e-5
    )


def test_what_is_refused(capsys, book, tmp_path):
    _, run, _ = book
    blind = replace(run, out=str(tmp_path / "blind"), base=TransformerConfig(width=8, heads=2, layers=1))
    with pytest.raises(ValueError, match="A TransformerNetwork has no memory"):
        train_base(blind)
    assert not (tmp_path / "blind").exists()
    with pytest.raises(ValueError, match="not one long text"):
        train_base(replace(run, data=DataConfig("motif:11"), out=str(tmp_path / "motif")))
    for wrong, message in (
        ({"stream": True, "chunks": True}, "set one of stream and chunks"),
        ({"ends": False}, "set stream = true"),
        ({"segments": "random"}, "set stream = true"),
    ):
        with pytest.raises(ValueError, match=message):
            LengthConfig(**wrong)
    for flags, message in (
        (["--draws", "9"], "draws has no meaning"),
        (["--stream.columns", "2", "--prompt-tokens", "3"], "leave energy"),
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(["measure", run.out, "--data", "x", *flags])
        assert stop.value.code == 1 and message in capsys.readouterr().err
    for swa_start in (1.0, -0.1):
        with pytest.raises(ValueError, match="swa_start is a share of the run"):
            TrainingConfig(swa_start=swa_start)
    with pytest.raises(ValueError, match="min_frequency is at least 1"):
        TokenizerConfig(min_frequency=0)
    assert stream_columns(5000) == 1 and stream_columns(100_000) == 4 and stream_columns(10**9) == 16
    assert load(run.out).streaming_base() is not None
