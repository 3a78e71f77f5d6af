"""ENAS cells, TrellisNets and DEQ-Transformers learn from streams and lines, and a killed run goes on to the same weights."""

from dataclasses import replace
from itertools import product

import pytest
from marks import slow

from esscher.core.storage import digest, module_tensors
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.hub import load_base
from esscher.networks.recurrent_config import EnasConfig, TrellisNetConfig
from esscher.networks.transformer_config import DeqConfig
from esscher.training.config import TrainingConfig
from esscher.workflow.config.train import TrainRun
from esscher.workflow.train import train_base

CHOICES = {
    "enas": EnasConfig(width=12, arc=(0, 0, 1, 1, 1), dropout=0.2, input_dropout=0.2),
    "trellisnet": TrellisNetConfig(width=12, inner=6, layers=3, auxiliary_every=2, dilations=(1, 2)),
    "deq": DeqConfig(width=8, heads=2, feedforward=16, memory=6, unrolled=2),
    "deq, solved": DeqConfig(
        width=8, heads=2, feedforward=16, memory=6, tolerance=0.9, iterations=60, adjoint_iterations=60,
        exact_tolerance=1e-2, exact_iterations=2000,
    ),
}  # fmt: skip


FAST = [("enas", True), ("trellisnet", False), ("deq", True)]


@pytest.mark.parametrize(
    ("kind", "stream"), [case if case in FAST else slow(*case) for case in product(CHOICES, (True, False))]
)
@pytest.mark.filterwarnings("ignore:The fixed point of")
def test_killed_and_resumed_is_never_killed(kind, stream, tmp_path, monkeypatch):
    """Dropout, penalties and memories too, to the bit."""
    file = tmp_path / "tales.txt"
    file.write_text("".join(f"the {n % 7} old men and {n % 5} cats\n" for n in range(60)))
    training = TrainingConfig(steps=6, batch_size=4, evaluate_every=2, learning_rate=0.01)

    def run(name):
        length = LengthConfig(8, stream=stream)
        return TrainRun(
            str(tmp_path / name),
            data=DataConfig(str(file)),
            tokenizer=TokenizerConfig("word", 30),
            length=length,
            base=CHOICES[kind],
            training=training,
        )

    whole = train_base(run("whole"))
    kind_of = type(whole.base.network)
    passes, hidden = 0, kind_of.penalty

    def dies(self):
        nonlocal passes
        passes += 1
        if passes == 5:
            raise KeyboardInterrupt
        return hidden(self)

    with monkeypatch.context() as patch:
        patch.setattr(kind_of, "penalty", dies)
        with pytest.raises(KeyboardInterrupt):
            train_base(run("killed"))
    resumed = train_base(replace(run("killed"), resume=True))
    assert passes == 5 and digest(module_tensors(resumed.base)) == digest(module_tensors(whole.base))
    assert load_base(run("killed").out)[0].config == CHOICES[kind]
