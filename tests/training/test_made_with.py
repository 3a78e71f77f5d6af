"""The record of what kept work was made with: other work is refused or made anew, and what is the same has one digest."""

import json
from functools import partial

import pytest
import torch
from random_targets import taste

from esscher.core.space import Space
from esscher.energies.features import LogLinear, contains, starts_with
from esscher.training.made_with import RECORD, claim_folder, energy_fingerprint

SPACE = Space(3, 4, eos=0)


def test_work_of_something_else_or_of_unknown_origin_is_refused(tmp_path):
    claim_folder(tmp_path, {"base": "a", "seed": 1})
    claim_folder(tmp_path, {"base": "b", "seed": 1})  # nothing was made with the first
    (tmp_path / "draws.safetensors").touch()
    claim_folder(tmp_path, {"base": "b", "seed": 1})
    with pytest.raises(
        ValueError, match=r"was made with seed = 1, and now seed = 2.*Nothing was changed; give the old seed back"
    ):
        claim_folder(tmp_path, {"base": "b", "seed": 2})
    assert (tmp_path / "draws.safetensors").exists() and json.loads((tmp_path / RECORD).read_text())["seed"] == 1
    for content in ("{", "[]", None):
        (tmp_path / RECORD).write_text(content) if content else (tmp_path / RECORD).unlink()
        with pytest.raises(ValueError, match=r"does not say what it was made with \(made_with.json is missing or damaged\)"):
            claim_folder(tmp_path, {"base": "b", "seed": 1})


def test_by_products_are_made_anew(tmp_path):
    said = []
    claim_folder(tmp_path, {"energy": "a"})
    (tmp_path / "draws.safetensors").touch()
    claim_folder(tmp_path, {"energy": "b"}, remake=True, say=said.append)
    assert not (tmp_path / "draws.safetensors").exists() and json.loads((tmp_path / RECORD).read_text()) == {"energy": "b"}
    assert said == [
        f"By made_with.json, the work in {tmp_path} was made with energy = 'a', and now energy = 'b': it is made anew."
    ]


def test_energies_have_the_same_digest_only_if_they_are_the_same():
    def scaled(x, *, by):
        return by * x.tokens.sum(-1)

    def shifted(x, *, by):
        return by + x.tokens.sum(-1)

    one, two = torch.ones(1), 2 * torch.ones(1)
    energies = [
        partial(scaled, by=1), partial(scaled, by=2), partial(shifted, by=1), taste(SPACE), taste(SPACE, seed=8),
        LogLinear([contains([1])], one), LogLinear([contains([1])], two), LogLinear([contains([2])], one),
        LogLinear([starts_with([1])], one),
    ]  # fmt: skip
    assert len({energy_fingerprint(energy) for energy in energies}) == len(energies)
    assert energy_fingerprint(taste(SPACE)) == energy_fingerprint(taste(SPACE))
    assert energy_fingerprint(partial(scaled, by=torch.ones(2))) == energy_fingerprint(partial(scaled, by=torch.ones(2)))
