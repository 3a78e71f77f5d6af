"""Learning the twist of a tilted model, and the prompts that a model learns from: `model.learn_twist(...)`, `tilt --twist`.

The twist is saved in the folder of the energy, and loading the model loads it. Samplers of particles then draw with it; weights
stay proper, so it changes how many draws are needed, never what is drawn.
"""

import shutil
from dataclasses import replace
from pathlib import Path

from esscher.core.distributed import is_main_process
from esscher.core.folder_lock import locked_folder
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, empty_prompts, prompts_of, unique_prompts
from esscher.data.splits import evenly_spaced_rows
from esscher.energies.twist_folder import SavedTwist, TwistOrigin, save_twist
from esscher.training.collectives import barrier
from esscher.training.config import TwistLearningConfig
from esscher.training.made_with import energy_fingerprint
from esscher.training.twist_learning import TwistResult, learn_twist
from esscher.workflow.config.tilt import TiltRun
from esscher.workflow.model import Model
from esscher.workflow.processors import ImageProcessor
from esscher.workflow.run_folder import TILT_SETTINGS, read_settings

TWIST_FOLDER = "twist"  # the draws and checkpoints of learning it, inside the energy's folder


def learn_model_twist(model: Model, config: TwistLearningConfig, *, resume: bool = False) -> tuple[Model, TwistResult]:
    """The model with a twist of its energy, which is saved in the energy's folder, if there is one."""
    if not model.is_tilted:
        raise ValueError(f"{model.name} is not tilted, so there is nothing to learn a twist of. Nothing was drawn; tilt it.")
    if model.fsdp:
        raise ValueError("The hidden vectors of a sharded base cannot be read. Nothing was drawn; leave --fsdp out.")
    folder, prompts = model.energy_folder, prompts_to_learn_from(model, config.prompts)
    rng = SeededRng(config.training.seed).stream("twist")
    with locked_folder(folder):
        kept = None if folder is None else folder / TWIST_FOLDER
        if kept is not None and kept.is_dir() and not resume and is_main_process():
            shutil.rmtree(kept)  # of an earlier twist, which this one replaces
        barrier()
        result = learn_twist(model.target, prompts, config, folder=kept, resume=resume, rng=rng)
        origin = TwistOrigin(
            model.base_digest, energy_fingerprint(model.target.energy), result.cost, config.training.seed, result.log_z,
            result.ess, result.base_ess,
        )  # fmt: skip
        saved = SavedTwist(result.twist, origin)
        if folder is not None:
            save_twist(Path(folder), saved)
    return replace(model, twist=saved), result


def prompts_to_learn_from(model: Model, count: int) -> Sequences:
    """The prompt that the energy was fitted after, or the empty one; the classes of images; or `count` prompts of the data that
    the energy was trained on."""
    if isinstance(model.processor, ImageProcessor):
        return model.processor.class_prompts().x
    if model.stored_prompt is not None:
        return prompts_of(model.data.encode_prompts([model.stored_prompt]))
    if not model.prompt_tokens:
        return empty_prompts(1)
    run = None if model.energy_folder is None else read_settings(model.energy_folder / TILT_SETTINGS, TiltRun)
    train = model.training_splits(None if run is None else run.source).train
    return unique_prompts(evenly_spaced_rows(train, count))[0]
