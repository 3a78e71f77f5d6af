"""Which settings of a run differ from their defaults."""

from esscher.data.config import DataConfig
from esscher.networks.recurrent_config import LstmConfig
from esscher.training.config import TrainingConfig
from esscher.workflow.config.train import TrainRun
from esscher.workflow.run_folder import changed_settings


def test_settings_that_were_changed_are_named_with_the_kind_that_was_chosen():
    run = TrainRun("runs/x", data=DataConfig("motif:101"), base=LstmConfig(width=8), training=TrainingConfig(steps=5))
    assert changed_settings(run) == {
        "out": "runs/x", "data": {"source": "motif:101"}, "base": {"kind": "lstm", "width": 8}, "training": {"steps": 5},
    }  # fmt: skip
    assert changed_settings(TrainRun("runs/x")) == {"out": "runs/x"}
