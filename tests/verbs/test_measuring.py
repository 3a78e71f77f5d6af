"""Measuring text: which sequences, how many draws, kept pieces, and the verb's tables."""

import math

import pytest
import torch
from calling import answer
from languages import random_target

from esscher.bases.config import TransformerConfig
from esscher.bases.network import build_base
from esscher.cli import main
from esscher.cut import Cut
from esscher.data.text import TextSet
from esscher.data.tokenizers import train_tokenizer
from esscher.energies.building import build_energy
from esscher.energies.config import EnergyConfig
from esscher.energies.origin import base_digest
from esscher.energies.saved_network import Origin, save_network_energy
from esscher.estimate import Estimate
from esscher.hub import Card, save_base
from esscher.randomness import Seeded
from esscher.reports.plots import bands
from esscher.samplers.importance import Importance
from esscher.space import Space, prompts_of, sequences
from esscher.training.draws_in_pieces import InPieces, one_below_the_other
from esscher.verbs.measure import Measuring, measure_text, thinned
from esscher.verbs.models import load_model

TARGET = random_target(Space(3, 4, eos=0))
MANY = prompts_of([[1 + (row >> bit) % 2 for bit in range(4)][: row % 4 + 1] for row in range(16)])
WORDS = "the cat sat on the mat while a rat ate the hat of a cat that had a nap".split()  # noqa: SIM905


# pieces


def same(one, two) -> bool:
    return one.x.points() == two.x.points() and torch.equal(one.log_weight, two.log_weight) and one.cost == two.cost


def test_pieces_are_a_sampler_that_goes_on_where_it_was_stopped(tmp_path):
    whole = InPieces(Importance(), tmp_path / "whole", rows=20)(TARGET, MANY, 5, rng=Seeded(1))
    assert whole.log_weight.shape == (16, 5) and len(list((tmp_path / "whole").iterdir())) == 4
    assert torch.equal(whole.x.start.view(16, 5)[:, 0], MANY.start)
    assert torch.allclose(TARGET.base.log_probs(whole.x).sum(-1).view(16, 5), whole.log_base)
    asked = []

    def watched(target, prompts, draws, *, rng):
        asked.append(len(prompts))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return Importance()(target, prompts, draws, rng=rng)

    with pytest.raises(KeyboardInterrupt):
        InPieces(watched, tmp_path / "broken", rows=20)(TARGET, MANY, 5, rng=Seeded(1))
    assert same(InPieces(watched, tmp_path / "broken", rows=20)(TARGET, MANY, 5, rng=Seeded(1)), whole)
    assert asked == [4, 4, 4, 4, 4]  # two kept, one interrupted, two more
    assert same(InPieces(Importance(), rows=20)(TARGET, MANY, 5, rng=Seeded(1)), whole)


def test_pieces_of_other_prompts_or_numbers_are_others(tmp_path):
    sampler = InPieces(Importance(), tmp_path, rows=100)
    first = sampler(TARGET, MANY, 5, rng=Seeded(1))
    assert same(sampler(TARGET, MANY, 5, rng=Seeded(2)), first)  # kept, whatever the seed: the folder's owner watches it
    assert sampler(TARGET, MANY, 6, rng=Seeded(1)).log_weight.shape == (16, 6)
    assert sampler(TARGET, MANY.rows(slice(1, 9)), 5, rng=Seeded(1)).log_weight.shape == (8, 5)
    parts = [Importance()(TARGET, MANY.rows(slice(a, a + 8)), 3, rng=Seeded(a)) for a in (0, 8)]
    assert one_below_the_other(parts).cost == 48


# sequences


def test_thinned_is_even_and_counts_what_is_cut():
    x = sequences([[1, 0]] * 5 + [[1, 1, 1, 1]] * 5)
    made = TextSet(x, torch.arange(10), torch.arange(10), 5)
    some = thinned(made, 4, eos=0)
    assert some.words.tolist() == [0, 2, 5, 7] and some.cut == 2
    assert thinned(made, 10, eos=0) is made and thinned(made, 99, eos=None) is made
    for wrong in ({"draws": 1}, {"sequences": 1}, {"steps": -1}, {"step_draws": 1}):
        with pytest.raises(ValueError, match="at least"):
            Measuring(**wrong)


# text


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A base of words, an energy with a bound for chunks of it, and a text."""
    root = tmp_path_factory.mktemp("measuring")
    text = [" ".join(WORDS[(7 * row + place * place) % len(WORDS)] for place in range(30)) for row in range(40)]
    (root / "text.txt").write_text("\n".join(text))
    tokenizer = train_tokenizer("character", text)
    space = Space(tokenizer.vocab_size, 5)
    base = build_base(TransformerConfig(16, 1, 2, 32, max_positions=64), space, rng=Seeded(0))
    save_base(root / "base", base, tokenizer, Card("a base"))
    energy = build_energy(EnergyConfig("bidirectional", "mean", bound=2.0), base, rng=Seeded(1))
    with torch.no_grad():
        energy.head.weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
    cut = Cut(max_length=5, given=8)
    loaded = load_model(root / "base", cut=cut)
    origin = Origin(str(root / "base"), base_digest(loaded.base), Estimate.exact(0.0), 0, cut)
    save_network_energy(root / "energy", energy, origin)
    return root


def measured(capsys, *arguments: str) -> dict:
    return answer(capsys, "measure", *arguments, "--quiet")


def test_a_base_with_an_energy_by_every_method(capsys, folders, tmp_path):
    base, energy, text = str(folders / "base"), str(folders / "energy"), str(folders / "text.txt")
    flags = ("--sequences", "12", "--draws", "20", "--steps", "4", "--step-draws", "6", "--plot", str(tmp_path / "p.png"))
    found = measured(capsys, base, "--energy", energy, "--data", text, *flags)
    ways = [(row["model"], row["per"], row["method"]) for row in found["perplexities"]]
    assert len(ways) == len(set(ways)) == 12
    assert {way[2] for way in ways} == {"interval", "bounds of the paper", "guarantee"}
    assert "12 sequences" in found["measured_on"] and "evenly spaced among" in found["measured_on"]
    assert found["log_z_spread"]["low"] >= 0 and "prompts" in found["log_z"]["method"]
    assert [row["position"] for row in found["steps"]] == [1, 2, 3, 4, 5] and found["steps"][0]["sequences"] == 4
    assert (tmp_path / "p.png").stat().st_size > 1000
    tilted = {
        row["method"]: row["perplexity"] for row in found["perplexities"] if row["model"] == "tilted" and row["per"] == "token"
    }
    middle = tilted["interval"]["value"]
    assert tilted["guarantee"]["low"] < middle < tilted["guarantee"]["high"]
    assert tilted["bounds of the paper"]["low"] < middle < tilted["bounds of the paper"]["high"]
    assert tilted["bounds of the paper"]["level"] is None
    worst = found["worst_prompts"]
    assert worst and {"prompt_ends_with", "effective_draws", "largest_weight", "pareto_k", "verdict"} == set(worst[0])
    assert any("of 12 prompts" in note for note in found["notes"])


def test_kept_draws_are_used_again_and_belong_to_one_model(folders, tmp_path):
    model = load_model(folders / "base", folders / "energy")
    texts = (folders / "text.txt").read_text().splitlines()
    settings = Measuring(draws=8, sequences=10, steps=2, step_draws=4, folder=tmp_path)
    first = measure_text(model, model.read(texts), settings)
    files = sorted(file.name for file in tmp_path.rglob("*.safetensors"))
    again = measure_text(model, model.read(texts), settings)
    assert again.found.tilted == first.found.tilted and again.steps == first.steps
    assert files == sorted(file.name for file in tmp_path.rglob("*.safetensors")) and len(files) == 5
    assert first.draws == 8 and first.of > 10
    with pytest.raises(ValueError, match=r"was started with seed = 0.*resumed with seed = 1"):
        measure_text(model, model.read(texts), Measuring(draws=8, sequences=10, folder=tmp_path, step_draws=4, seed=1))


def test_how_many_draws_and_sequences_by_default(folders):
    texts = (folders / "text.txt").read_text().splitlines()
    model, other = (load_model(folders / "base", cut=Cut(max_length=5, given=given)) for given in (8, 0))
    base = measure_text(model, model.read(texts), Measuring())
    assert len(base.made) == base.of and base.found.tilted is None and base.steps == () and base.worst == ()
    assert base.draws == 64
    assert measure_text(other, other.read(texts), Measuring()).draws == 4000


def test_a_picture_needs_steps(capsys, folders):
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["measure", str(folders / "base"), "--data", "x", "--plot", "p.png"])
    assert stop.value.code == 1 and "--steps" in capsys.readouterr().err


def test_bands_leave_out_what_is_infinite():
    some = [Estimate(1.0, 0.5, 2.0, 0.95, 3, "m"), Estimate(2.0, -math.inf, math.inf, 0.95, 1, "m")]
    figure = bands({"base": ("#123456", [1, 2], some)}, x="position", y="nats")
    low, high = figure.axes[0].get_ylim()
    assert low > -10 and high < 10
