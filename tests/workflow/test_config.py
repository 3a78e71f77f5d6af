"""Settings: what is refused, and that they survive being written down."""

import json
import subprocess
import sys

import pytest

from esscher.core.config import changed_key, from_dict, to_dict
from esscher.data.config import DataConfig, LengthConfig
from esscher.networks.recurrent_config import GruConfig
from esscher.networks.transformer_config import TransformerConfig
from esscher.objectives.config import OBJECTIVES
from esscher.training.config import TrainingConfig, learning_rate
from esscher.workflow.config.train import TrainRun


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 3, "epochs": 2}, "either steps = 3 or epochs = 2"),
        ({"batch_size": 0}, "batch_size is more than 0, not 0"),
        ({"learning_rate": float("nan")}, "learning_rate is more than 0, not nan"),
        (
            {"batch_size": 10, "gradient_accumulation_steps": 4},
            "A batch of 10 cannot be read in gradient_accumulation_steps = 4 equal passes",
        ),
        ({"weight_decay": -1.0}, "weight_decay is at least 0"),
        ({"label_smoothing": 1.0}, "label_smoothing lies in"),
        ({"patience": 0}, "patience is more than 0"),
    ],
)
def test_bad_settings_are_refused_with_their_name(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**settings)


def test_other_bad_settings():
    with pytest.raises(ValueError, match="both validation and test, or neither"):
        DataConfig("a.txt", validation="b.txt")
    with pytest.raises(ValueError, match="set chunks = true as well"):
        LengthConfig(prompt_tokens=3)
    with pytest.raises(ValueError, match=r"Unknown key 'base\.heads'; the known keys are base\.width, base\.output, "):
        from_dict(TrainRun, {"out": "a", "base": {"kind": "lstm", "heads": 2}})
    run = from_dict(TrainRun, {"out": "a", "base": {"kind": "transformer", "heads": 2, "width": 8}})
    assert run.base == TransformerConfig(width=8, heads=2)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"weight": 0.5}, "Unknown key 'weight'"),
        ({"kind": "eforcing", "share": 0.5}, "Unknown key 'share'"),
        ({"kind": "scheduled-sampling", "decay": 0.5}, "Unknown key 'decay'"),
        ({"kind": "permutation-lm", "mask_probability": 0.5}, "Unknown key 'mask_probability'"),
        ({"kind": "permuted"}, "Unknown kind of objective 'permuted'"),
        ({"kind": "eforcing", "after_steps": 3, "after_epochs": 1}, "not both"),
        ({"kind": "eforcing", "weight": -1.0}, "weight is at least 0"),
        ({"kind": "eforcing", "decay": 0.0}, "decay lies in"),
        ({"kind": "eforcing", "negatives": 0}, "negatives is at least 1"),
        ({"kind": "eforcing", "max_weight": 0.5}, "max_weight is at least 1"),
        ({"kind": "scheduled-sampling", "share": 2.0}, "share lies in"),
    ],
)
def test_impossible_objectives_are_refused(settings, word):
    with pytest.raises(ValueError, match=word):
        OBJECTIVES.from_dict(settings)


def test_schedules_by_hand():
    def rates(schedule, warmup_steps=2):
        config = TrainingConfig(learning_rate=1.0, schedule=schedule, warmup_steps=warmup_steps)
        return [round(learning_rate(config, step, 6), 4) for step in range(6)]

    assert rates("constant") == [0.5, 1, 1, 1, 1, 1]
    assert rates("linear") == [0.5, 1, 1, 0.75, 0.5, 0.25]
    assert rates("cosine") == [0.5, 1, 1, 0.8536, 0.5, 0.1464]
    assert rates("inverse-sqrt") == [0.5, 1, 0.8165, 0.7071, 0.6325, 0.5774]
    assert rates("inverse-sqrt", 0) == [1, 0.7071, 0.5774, 0.5, 0.4472, 0.4082]


def test_written_down_and_read_again():
    run = TrainRun("runs/a", data=DataConfig("x.txt"), base=GruConfig(width=7), training=TrainingConfig(steps=3))
    assert from_dict(TrainRun, json.loads(json.dumps(to_dict(run)))) == run
    assert from_dict(TrainRun, {"out": "runs/a"}) == TrainRun("runs/a")
    with pytest.raises(ValueError, match=r"Unknown key 'training.rate'; the known keys are training.steps"):
        from_dict(TrainRun, {"out": "a", "training": {"rate": 3}})
    with pytest.raises(ValueError, match="Unknown key 'model'"):
        from_dict(TrainRun, {"out": "a", "model": {}})


def test_first_change_is_named():
    old, new = TrainRun("a"), TrainRun("a", training=TrainingConfig(seed=4))
    assert changed_key(old, new) == ("training.seed", 0, 4)
    assert changed_key(old, TrainRun("a")) is None


UNCHECKED = """
import sys
from esscher.objectives.config import OBJECTIVES
from esscher.training.config import TrainingConfig
for name in ("optimizer", "schedule", "precision", "tracker"):
    try:
        TrainingConfig(**{name: "AdamW"})
    except ValueError as error:
        print(error)
WRONG = [("eforcing", "inner", "guessed"), ("eforcing", "counts", "twice"), ("scheduled-sampling", "form", "x")]
for kind, name, value in WRONG:
    try:
        OBJECTIVES.from_dict({"kind": kind, name: value})
    except ValueError as error:
        print(error)
sys.exit("torch" in sys.modules)
"""


def test_unknown_names_are_refused_and_no_torch_is_imported():
    """In a process of its own, where no type checker comes first."""
    done = subprocess.run([sys.executable, "-c", UNCHECKED], check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "Unknown optimizer 'AdamW'; the known ones are adam, adamw, adagrad, sgd.",
        "Unknown schedule 'AdamW'; the known ones are constant, cosine, linear, exponential, inverse-sqrt.",
        "Unknown precision 'AdamW'; the known ones are auto, float32, bfloat16.",
        "Unknown tracker 'AdamW'; the known ones are tensorboard, trackio, wandb, mlflow, None.",
        "Unknown inner 'guessed'; the known ones are exact, sampled.",
        "Unknown counts 'twice'; the known ones are again, once.",
        "Unknown form 'x'; the known ones are passes, steps.",
    ]
