"""Draws on disk: the same whether drawn at once, in pieces, or after an interruption."""

from dataclasses import replace

import pytest
import torch
from random_targets import PROMPTS, random_target, taste

from esscher.core.draws import Draws
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of
from esscher.core.target import Tilted
from esscher.samplers.accept_reject import QuasiRejection
from esscher.samplers.importance import Importance
from esscher.training.resumable import ResumableByDraws, read_draws, write_draws

SPACE = Space(3, 4, eos=0)
TARGET = random_target(SPACE)


def gather(folder, draws=10, sampler=None) -> Draws:
    sampler = Importance() if sampler is None else sampler
    return ResumableByDraws(sampler, folder, 12)(TARGET, prompts_of(PROMPTS), draws, rng=SeededRng(3))


def shards(folder) -> list:
    return sorted(folder.glob("*.safetensors"))


def same(one: Draws, two: Draws) -> bool:
    return one.x.points() == two.x.points() and torch.equal(one.log_weight, two.log_weight) and one.cost == two.cost


def test_an_interrupted_collection_ends_with_the_same_draws(tmp_path):
    whole = gather(tmp_path / "whole")
    assert whole.log_weight.shape == (4, 10) and len(shards(tmp_path / "whole")) == 4  # 3 draws a prompt, the last 1
    assert torch.allclose(TARGET.base.log_probs(whole.x).sum(-1).view(4, 10), whole.log_base)

    class Interrupted(Exception):
        pass

    calls = []

    def sampler(*arguments, **named):
        calls.append(1)
        if len(calls) == 3:
            raise Interrupted
        return Importance()(*arguments, **named)

    with pytest.raises(Interrupted):
        gather(tmp_path / "broken", sampler=sampler)
    assert same(gather(tmp_path / "broken"), whole)
    assert same(gather(None), whole)


def test_more_draws_go_on_from_the_whole_shards_of_fewer(tmp_path):
    gather(tmp_path, draws=7)
    asked = []

    def sampler(target, prompts, draws, *, rng):
        asked.append(draws)
        return Importance()(target, prompts, draws, rng=rng)

    assert same(gather(tmp_path, draws=11, sampler=sampler), gather(None, draws=11))
    assert asked == [3, 2]  # two shards of three were there, and one of a single draw that is of no more use


def test_what_was_proposed_is_kept(tmp_path):
    drawn = QuasiRejection(1.0)(TARGET, prompts_of(PROMPTS), 5, rng=SeededRng(0))
    write_draws(tmp_path / "draws.safetensors", drawn)
    again = read_draws(tmp_path / "draws.safetensors")
    assert same(drawn, again) and again.independent and not again.estimates_z
    assert torch.equal(drawn.info["proposed_log_weight"], again.info["proposed_log_weight"])


def test_a_folder_of_another_run_and_a_changed_file_are_refused(tmp_path):
    gather(tmp_path, draws=10)
    collect, two = ResumableByDraws(Importance(), tmp_path, 12), prompts_of(PROMPTS[:2])
    with pytest.raises(ValueError, match=r"was made with prompts = .*, and now prompts = .*Nothing was changed"):
        collect(TARGET, two, 12, rng=SeededRng(3))
    with pytest.raises(ValueError, match=r"was made with rng = 'SeededRng\(3,\)', and now rng = 'SeededRng\(4,\)'"):
        collect(TARGET, prompts_of(PROMPTS), 10, rng=SeededRng(4))
    with pytest.raises(ValueError, match=r"was made with energy = "):
        collect(Tilted(TARGET.base, taste(SPACE, seed=3)), prompts_of(PROMPTS), 10, rng=SeededRng(3))
    with pytest.raises(ValueError, match=r"draws-00000 .* holds \(4, 3\) draws where \(4, 2\) are asked for.*another folder"):
        replace(collect, rows=8)(TARGET, prompts_of(PROMPTS), 10, rng=SeededRng(3))
    file = shards(tmp_path)[0]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="corrupted"):
        gather(tmp_path)
