"""The whole of `esscher train` and `esscher measure` on streams, small: raw bytes, words by lines, resumed, refused."""

import math
from dataclasses import replace

import pytest
import torch
from calling import answer

from esscher.cli import main
from esscher.data.streams import raw_stream
from esscher.estimators.streams import read_stream
from esscher.hub import load_base
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig, LengthConfig, TokenizerConfig
from esscher.settings.train import TrainRun
from esscher.settings.training import TrainingConfig
from esscher.storage import digest, module_tensors
from esscher.verbs.measure_stream import StreamMeasuring
from esscher.verbs.models import load_model
from esscher.verbs.run_folder import trained_on_streams
from esscher.verbs.train import train

BASE = BaseChoice("gru", width=8, layers=1)
TRAINING = TrainingConfig(steps=5, batch_size=4, evaluate_every=3, average=0.5)


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """Bytes with long characters and ends of lines, and a model of them."""
    root = tmp_path_factory.mktemp("streams")
    file = root / "book.txt"
    file.write_bytes("".join(f"née {n}: a rainy day\r\n" for n in range(900)).encode())
    run = TrainRun(
        str(root / "run"), DataConfig(str(file), split="raw"), TokenizerConfig("byte"),
        LengthConfig(16, stream=True, ends=False, segments="random"), BASE, TRAINING,
    )  # fmt: skip
    return file, run, train(run, quiet=True)


def test_raw_bytes_from_a_file_to_a_model(book):
    file, run, result = book
    content = file.read_bytes()
    size = round(0.05 * len(content))
    material = result.material
    assert [len(part) for part in (material.train, material.validation, material.test)] == [len(content) - 2 * size, size, size]
    assert torch.equal(material.test.tokens, raw_stream(content[-size:], material.tokenizer).tokens)
    assert set(result.measured) == {
        "perplexity per token", "perplexity per word", "perplexity per character", "perplexity per byte", "bits per character",
        "bits per byte",
    }  # fmt: skip
    bits, per = result.measured["bits per byte"], result.measured["perplexity per byte"]
    assert bits.unit == "bits per byte" and 2**bits.value == pytest.approx(per.value) and bits.low < bits.value < bits.high
    found = read_stream(result.base, material.test.tokens, segment=7)
    assert bits.value == pytest.approx(-float(found.mean()) / math.log(2), abs=1e-6)
    base, _ = load_base(run.out)
    assert base.space.eos is None and base.space.max_length == 16
    assert trained_on_streams(run.out) == run
    again = train(run, resume=True, quiet=True)
    assert again.measured == result.measured
    assert digest(module_tensors(again.base)) == digest(module_tensors(result.base))


def measured(capsys, *arguments: str) -> dict:
    return answer(capsys, "measure", *arguments, "--quiet")


def test_the_verb_reads_with_the_memory(capsys, book, tmp_path):
    _, run, result = book
    text = tmp_path / "other.txt"
    text.write_bytes("née 7: another rainy day\r\n".encode() * 40)
    found = measured(capsys, run.out, "--data", str(text))
    rows = {row["per"]: row for row in found["perplexities"]}
    assert set(rows) == {"token", "word", "character", "byte"} and "one column, 16 tokens at a time" in found["read_as"]
    assert "blocks of" in found["notes"][0]
    stream = raw_stream(text.read_bytes(), result.material.tokenizer)
    exact = -float(read_stream(result.base, stream.tokens).mean())
    assert rows["byte"]["bits"]["value"] == pytest.approx(exact / math.log(2), abs=1e-5)
    assert rows["character"]["bits"]["value"] > rows["byte"]["bits"]["value"]
    several = measured(capsys, run.out, "--data", str(text), "--streams", "3", "--warm", "50", "--segment", "9", "--fixed")
    assert several["read_as"] == "3 columns, each after 50 tokens before it, 9 tokens at a time"
    fixed = several["perplexities"][0]["perplexity"]
    assert fixed["draws"] == 0 and fixed["value"] == pytest.approx(rows["token"]["perplexity"]["value"], rel=1e-3)
    chunks = measured(capsys, run.out, "--data", str(text), "--given", "4")
    assert "sequences" in chunks["measured_on"] and chunks["perplexities"][0]["bits"]["unit"] == "bits per token"


def test_words_by_lines_with_an_end_symbol_for_each(capsys, tmp_path):
    for name, lines in (("train", 300), ("valid", 60), ("test", 60)):
        rows = [f" the rain on day {n % 7} of Week {n}" if n % 3 else "" for n in range(lines)]
        (tmp_path / f"{name}.txt").write_text("\n".join(rows) + "\n")
    files = {name: str(tmp_path / f"{name}.txt") for name in ("train", "valid", "test")}
    data = DataConfig(files["train"], files["valid"], files["test"], empty="keep")
    run = TrainRun(
        str(tmp_path / "run"), data, TokenizerConfig("word", vocab_size=1000, cutoff=2), LengthConfig(10, stream=True), BASE,
        replace(TRAINING, average=None),
    )  # fmt: skip
    result = train(run, quiet=True)
    test = result.material.test
    assert int((test.tokens == result.material.tokenizer.eos).sum()) == 60
    assert torch.equal(test.words, torch.ones_like(test.words))
    found = measured(capsys, run.out, "--data", files["test"])
    assert found["perplexities"][0]["perplexity"]["value"] == pytest.approx(
        result.measured["perplexity per token"].value, rel=1e-5
    )


def test_what_is_refused(capsys, book, tmp_path):
    _, run, _ = book
    blind = replace(run, out=str(tmp_path / "blind"), base=BaseChoice("transformer", width=8, heads=2, layers=1))
    with pytest.raises(ValueError, match="A TransformerNetwork carries nothing"):
        train(blind, quiet=True)
    assert not (tmp_path / "blind").exists()
    with pytest.raises(ValueError, match="not one long text"):
        train(replace(run, data=DataConfig("motif:11"), out=str(tmp_path / "motif")), quiet=True)
    for wrong, message in (
        ({"stream": True, "chunks": True}, "set one of stream and chunks"),
        ({"ends": False}, "set stream = true"),
        ({"segments": "random"}, "set stream = true"),
    ):
        with pytest.raises(ValueError, match=message):
            LengthConfig(**wrong)
    for flags, message in (
        (["--draws", "9"], "--draws has no meaning"),
        (["--streams", "2", "--given", "3"], "leave --energy"),
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(["measure", run.out, "--data", "x", *flags])
        assert stop.value.code == 1 and message in capsys.readouterr().err
    for average in (1.0, -0.1):
        with pytest.raises(ValueError, match="average is a share of the run"):
            TrainingConfig(average=average)
    with pytest.raises(ValueError, match="cutoff is at least 1"):
        TokenizerConfig(cutoff=0)
    assert StreamMeasuring().columns(5000) == 1 and StreamMeasuring().columns(100_000) == 4
    assert StreamMeasuring().columns(10**9) == 16 and StreamMeasuring(streams=3).columns(10) == 3
    assert load_model(run.out).streaming is not None
