"""What each difference between the thesis and the released code comes to in the plane, one option at a time.

Every option changes one thing of a row of the recipe; the first of a group is the row as it is. Options of images (noise, the
energy of CIFAR-10, its penalties) are in `esscher.recipes.energy_gan_images`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from esscher.adversarial.calibration import NeighbourEntropy, VariationalEntropy
from esscher.adversarial.energy_gan import EnergyGan
from esscher.adversarial.planar import blurred, two_spirals
from esscher.recipes.energy_gan_rows import Planned, planned, play

Change = Callable[[Planned], Planned]
FOUR, SPIRALS, NN, VI = "four Gaussians", "two spirals", "EGAN-Ent-NN", "EGAN-Ent-VI"


def _game(**fields: Any) -> Change:
    """The same row with other settings of its objective."""

    def changed(plan: Planned) -> Planned:
        assert isinstance(plan.objective, EnergyGan)
        return replace(plan, objective=replace(plan.objective, **fields))

    return changed


OPTIONS: Mapping[str, tuple[str, str, Change]] = {
    "direction over the pooled variance (ours)": (FOUR, NN, lambda plan: plan),
    "direction of length 1 (thesis)": (FOUR, NN, _game(calibration=NeighbourEntropy(form="unit"))),
    "direction over each variance (code)": (FOUR, NN, _game(calibration=NeighbourEntropy(form="variance"))),
    "the code's temperature, 0.5": (FOUR, NN, _game(temperature=0.5)),
    "no gate (thesis)": (FOUR, NN, _game(gate=None)),
    "margin of 10 (code)": (FOUR, NN, _game(margin=10.0)),
    "penalty of large costs (code, CIFAR-10)": (FOUR, NN, _game(smoothness=0.01)),
    "whole log-deviation (ours)": (FOUR, VI, lambda plan: plan),
    "half of the log-deviation (code)": (FOUR, VI, _game(calibration=VariationalEntropy("released"))),
    "deviation at most 1 (thesis, C.5.1)": (FOUR, VI, _game(calibration=VariationalEntropy(bound=1.0))),
    "no noise before the inference net (thesis)": (FOUR, VI, lambda plan: replace(plan, nets=replace(plan.nets, blur=0.0))),
    "spirals of 100 Gaussians (thesis)": (SPIRALS, NN, lambda plan: plan),
    "spirals of 50 Gaussians (code)": (SPIRALS, NN, lambda plan: replace(plan, truth=lambda: two_spirals("released"))),
    "judged by identity covariances (code)": (SPIRALS, NN, lambda plan: replace(plan, judge=lambda: blurred(two_spirals()))),
}  # fmt: skip


def make_option_row(scale: str, option: str, seed: int, out: Path) -> dict[str, Any]:
    """The divergences of a game with one option, from the folder if they are there."""
    if option not in OPTIONS:
        raise ValueError(f"There is no option {option!r}; known are {'; '.join(OPTIONS)}.")
    process, model, change = OPTIONS[option]
    row = play(change(planned(scale, process, model)), process, model, seed, out / "options" / _folder(option, seed))
    return {"option": option, **row}


def _folder(option: str, seed: int) -> str:
    return f"{''.join(letter if letter.isalnum() else '-' for letter in option.lower())}-seed{seed}"
