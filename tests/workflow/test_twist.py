"""A twist in the folder of its energy: `tilt --twist` learns it, loading finds it, and particles draw with it."""

import json
import shutil

import pytest
import torch
from cli_calls import run_cli
from small_networks import CONFIGS, lively

import esscher
from esscher.core.progress import progress_as
from esscher.core.space import Space
from esscher.data.tokenizers import character_tokenizer
from esscher.energies.config import TwistConfig
from esscher.energies.twist import TwistedBase
from esscher.energies.twist_folder import TWIST_CONFIG, TWIST_FILES
from esscher.hub import save_base
from esscher.samplers.twists import ParticleSIR
from esscher.training.config import TwistLearningConfig, TwistTraining

FEW = TwistLearningConfig(
    128, rounds=2, evaluation_draws=40, network=TwistConfig(8), training=TwistTraining(steps=10, evaluate_every=10)
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A base of letters, and an energy with a twist."""
    root = tmp_path_factory.mktemp("twist")
    save_base(root / "base", lively(CONFIGS["lstm, vectors"], Space(3, 6, eos=2)), character_tokenizer("ab", "the end symbol"))
    with progress_as("quiet"):
        esscher.load(root / "base").tilt(want={"contains:ab": 0.9}, out=str(root / "energy"), fit=esscher_fit(), twist=FEW)
    return root


def esscher_fit():
    from esscher.workflow.config.tilt import FitConfig

    return FitConfig(draws=200)
