"""Measuring text: which sequences, how many draws, kept pieces, and the verb's tables."""

import math
from dataclasses import replace

import pytest
import torch
from cli_calls import answer, call
from random_targets import random_target

from esscher.bases.network import build_base
from esscher.core.chunking import Chunking
from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of, sequences
from esscher.data.splits import evenly_spaced
from esscher.data.tokenizers import train_tokenizer
from esscher.energies.config import EnergyConfig
from esscher.energies.network import build_energy
from esscher.energies.serialization import Origin, base_digest, save_network_energy
from esscher.hub import ModelCard, save_base
from esscher.networks.transformer_config import TransformerConfig
from esscher.reports.plots import interval_bands
from esscher.reports.report import read_report
from esscher.samplers.importance import Importance
from esscher.training.resumable import ResumableByPrompts
from esscher.workflow.config.measure import MeasureConfig
from esscher.workflow.model import load
from esscher.workflow.processors import EncodedSet

TARGET = random_target(Space(3, 4, eos=0))
MANY = prompts_of([[1 + (row >> bit) % 2 for bit in range(4)][: row % 4 + 1] for row in range(16)])
WORDS = "the cat sat on the mat while a rat ate the hat of a cat that had a nap".split()  # noqa: SIM905


# pieces


def same(one, two) -> bool:
    return one.x.points() == two.x.points() and torch.equal(one.log_weight, two.log_weight) and one.cost == two.cost


def test_pieces_are_a_sampler_that_goes_on_where_it_was_stopped(tmp_path):
    whole = ResumableByPrompts(Importance(), tmp_path / "whole", rows=20)(TARGET, MANY, 5, rng=SeededRng(1))
    assert whole.log_weight.shape == (16, 5) and len(list((tmp_path / "whole").glob("*.safetensors"))) == 4
    assert torch.equal(whole.x.start.view(16, 5)[:, 0], MANY.start)
    assert torch.allclose(TARGET.base.log_probs(whole.x).sum(-1).view(16, 5), whole.log_base)
    asked = []

    def watched(target, prompts, draws, *, rng):
        asked.append(len(prompts))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return Importance()(target, prompts, draws, rng=rng)

    with pytest.raises(KeyboardInterrupt):
        ResumableByPrompts(watched, tmp_path / "broken", rows=20)(TARGET, MANY, 5, rng=SeededRng(1))
    assert same(ResumableByPrompts(watched, tmp_path / "broken", rows=20)(TARGET, MANY, 5, rng=SeededRng(1)), whole)
    assert asked == [4, 4, 4, 4, 4]  # two kept, one interrupted, two more
    assert same(ResumableByPrompts(Importance(), rows=20)(TARGET, MANY, 5, rng=SeededRng(1)), whole)


def test_pieces_of_other_prompts_or_numbers_are_others(tmp_path):
    sampler = ResumableByPrompts(Importance(), tmp_path, rows=100)
    first = sampler(TARGET, MANY, 5, rng=SeededRng(1))
    assert same(sampler(TARGET, MANY, 5, rng=SeededRng(2)), first)  # kept, whatever the seed: the folder's owner watches it
    assert sampler(TARGET, MANY, 6, rng=SeededRng(1)).log_weight.shape == (16, 6)
    assert sampler(TARGET, MANY.rows(slice(1, 9)), 5, rng=SeededRng(1)).log_weight.shape == (8, 5)
    parts = [Importance()(TARGET, MANY.rows(slice(a, a + 8)), 3, rng=SeededRng(a)) for a in (0, 8)]
    assert Draws.cat(parts, 0).cost == 48


# sequences


def test_thinned_is_even_and_counts_what_is_cut():
    x = sequences([[1, 0]] * 5 + [[1, 1, 1, 1]] * 5)
    whole = EncodedSet(x, {"token": x.lengths, "word": torch.arange(10)}, "ten texts", eos=0)
    assert whole.cut == 5 and str(whole) == "10 sequences (30 tokens, 45 words, 5 of them cut)"
    some = whole.rows(evenly_spaced(10, 4))
    assert some.units["word"].tolist() == [0, 2, 5, 7] and some.cut == 2
    assert evenly_spaced(10, 10).tolist() == evenly_spaced(10, 99).tolist() == list(range(10))
    assert replace(whole, eos=None).cut == 0
    for wrong in ({"draws": 1}, {"sequences": 1}, {"positions": -1}, {"position_draws": 1}):
        with pytest.raises(ValueError, match="at least"):
            MeasureConfig("x", **wrong)


# text


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A base of words, an energy with a bound for chunks of it, and a text."""
    root = tmp_path_factory.mktemp("measuring")
    text = [" ".join(WORDS[(7 * row + place * place) % len(WORDS)] for place in range(30)) for row in range(40)]
    (root / "text.txt").write_text("\n".join(text))
    tokenizer = train_tokenizer("character", text)
    space = Space(tokenizer.vocab_size, 5)
    base = build_base(TransformerConfig(16, 1, 2, 32, max_positions=64), space, rng=SeededRng(0))
    save_base(root / "base", base, tokenizer, ModelCard("a base"))
    energy = build_energy(EnergyConfig("bidirectional", "mean", bound=2.0), base, rng=SeededRng(1))
    with torch.no_grad():
        energy.head.weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
    chunking = Chunking(max_length=5, prompt_tokens=8)
    loaded = load(root / "base", **vars(chunking))
    origin = Origin(str(root / "base"), base_digest(loaded.base), Estimate.exact(0.0), 0, chunking)
    save_network_energy(root / "energy", energy, origin)
    return root


def measured(capsys, *arguments: str) -> dict:
    return answer(capsys, "measure", *arguments, "--quiet")


def test_a_base_with_an_energy_by_every_method(capsys, folders, tmp_path):
    base, energy, text = str(folders / "base"), str(folders / "energy"), str(folders / "text.txt")
    flags = ("--sequences", "12", "--draws", "20", "--positions", "4", "--position-draws", "6")
    flags = (*flags, "--plot", str(tmp_path / "p.png"))
    actual = measured(capsys, base, "--energy", energy, "--data", text, *flags)
    ways = [(row["model"], row["per"], row["method"]) for row in actual["perplexities"]]
    assert len(ways) == len(set(ways)) == 12
    assert {way[2] for way in ways} == {"interval", "bounds of the paper", "guarantee"}
    assert "12 sequences" in actual["measured_on"] and "evenly spaced among" in actual["measured_on"]
    assert actual["log_z_std"]["low"] >= 0 and "prompts" in actual["log_z"]["method"]
    assert [row["position"] for row in actual["positions"]] == [1, 2, 3, 4, 5] and actual["positions"][0]["sequences"] == 4
    assert (tmp_path / "p.png").stat().st_size > 1000
    tilted = {
        row["method"]: row["perplexity"] for row in actual["perplexities"] if row["model"] == "tilted" and row["per"] == "token"
    }
    middle = tilted["interval"]["value"]
    assert tilted["guarantee"]["low"] < middle < tilted["guarantee"]["high"]
    assert tilted["bounds of the paper"]["low"] < middle < tilted["bounds of the paper"]["high"]
    assert tilted["bounds of the paper"]["confidence"] is None
    worst = actual["worst_prompts"]
    assert worst and {"prompt_ends_with", "ess", "max_share", "spread", "verdict"} == set(worst[0])
    assert actual["reliability"].endswith("by prompt)")


def test_kept_draws_are_used_again_and_belong_to_one_model(folders, tmp_path):
    model, text = load(folders / "base", folders / "energy"), str(folders / "text.txt")
    settings = {"draws": 8, "sequences": 10, "positions": 2, "position_draws": 4, "out": str(tmp_path)}
    first = model.measure(text, **settings).measurement
    files = sorted(file.name for file in tmp_path.rglob("*.safetensors"))
    result = model.measure(text, **settings)
    again = result.measurement
    assert again.estimates.tilted == first.estimates.tilted and again.positions == first.positions
    assert result.nats == {"base": first.estimates.base, "tilted": first.estimates.tilted}
    assert files == sorted(file.name for file in tmp_path.rglob("*.safetensors")) and len(files) == 5
    assert first.draws == 8 and first.available > 10
    saved = read_report(tmp_path)
    assert saved.settings["draws"] == 8 and saved.settings["energy"] == str(folders / "energy")
    assert result.report.facts["report"] == tmp_path / "report.html"
    with pytest.raises(ValueError, match=r"was made with seed = 0, and now seed = 1.*Nothing was changed"):
        model.measure(text, **{**settings, "positions": 0, "seed": 1})


def test_how_many_draws_and_sequences_by_default(folders):
    text = str(folders / "text.txt")
    model, other = (load(folders / "base", max_length=5, prompt_tokens=tokens) for tokens in (8, 0))
    base = model.measure(text).measurement
    assert len(base.sequences) == base.available and base.estimates.tilted is None
    assert base.positions == () and base.worst_prompts == ()
    assert base.draws == 64
    assert other.measure(text).measurement.draws == 4000


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--plot", "p.png"], "set positions"), (["--positions", "2"], "was loaded without an energy")],
)
def test_positions_need_an_energy_and_a_picture_needs_positions(capsys, folders, flags, message):
    code, _, err = call(capsys, "measure", str(folders / "base"), "--data", "x", *flags)
    assert code == 1 and message in err


def test_bands_leave_out_what_is_infinite():
    some = [Estimate(1.0, 0.5, 2.0, 0.95, 3, "m"), Estimate(2.0, -math.inf, math.inf, 0.95, 1, "m")]
    figure = interval_bands({"base": ("#123456", [1, 2], some)}, x="position", y="nats")
    low, high = figure.axes[0].get_ylim()
    assert low > -10 and high < 10
