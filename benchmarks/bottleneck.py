"""Time of an update with mixtures of softmaxes, against one softmax: the slowdown of training (thesis of Dai, Table A.13).

The networks of `esscher reproduce softmax-bottleneck --scale small`: a softmax and mixtures of contexts and of softmaxes of one
size, then mixtures of 1 to 16 softmaxes where all else is fixed, and AWD-LSTM with both heads. One run is 5 updates on segments
of 20 x 35 words of 2,000: forward, backward, one step of the recipe's kind of optimizer; words are drawn evenly, since their
frequencies take no time. `slowdown` is the time over that of the softmax in the same repeat. Theirs is on a GPU, for Penn
Treebank with 10,000 words, 22 to 24 M parameters and equal batches; the number of components is in brackets.
"""

from collections.abc import Mapping

import torch

from benchmarks._device import on_device
from benchmarks._timing import Row, Run, Table, spread, time_runs
from esscher.bases.network import NetworkBase, build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.papers.softmax_bottleneck.studies import COMPONENTS, MOS, SOFTMAX, awd_study, components_sweep, words_study
from esscher.workflow.config.train import TrainRun

REPEATS = 3
VOCAB, ROWS, SEGMENT, UPDATES = 2_000, 20, 35, 5
THEIRS = {SOFTMAX: "1", "MoS of 4": "1.2 (5)", MOS: "1.6 (10)", "MoS of 16": "1.9 (15)"}


def updates(run: TrainRun) -> Run:
    """Some updates of a network, the memory of the segment before being there."""
    base = on_device(build_base(run.base, Space(VOCAB, SEGMENT), rng=SeededRng(0)).train())
    assert isinstance(base, NetworkBase)
    tokens = on_device(SeededRng(1).categorical(torch.zeros(ROWS, VOCAB), SEGMENT))
    kind = torch.optim.SGD if run.training.optimizer == "sgd" else torch.optim.Adam
    optimizer = kind(base.parameters(), lr=1e-4)
    with torch.no_grad():
        memory = base.read(base.init_memory(ROWS), tokens)[1]

    def update() -> None:
        for _ in range(UPDATES):
            optimizer.zero_grad()
            (-base.read(memory, tokens)[0].mean()).backward()
            optimizer.step()

    return update


def compare(networks: Mapping[str, TrainRun], repeats: int) -> list[Row]:
    """A row for each network; the softmax is the first."""
    seconds = time_runs({name: updates(run) for name, run in networks.items()}, repeats)
    rows: list[Row] = []
    for name, times in seconds.items():
        ratio = [time / softmax for time, softmax in zip(times, seconds[SOFTMAX], strict=True)]
        milliseconds = spread([1000 * time / UPDATES for time in times])
        rows.append({"network": name, "ms an update": milliseconds, "slowdown": spread(ratio), "theirs": THEIRS.get(name)})
    return rows


def tables(repeats: int) -> list[Table]:
    words = words_study().models
    sweep = {SOFTMAX: words[SOFTMAX], f"MoS of {COMPONENTS}": words[MOS], **components_sweep().models}
    heads = {name: run for name, run in awd_study().models.items() if run.start is None}
    return [
        Table("an LSTM of one layer, one size", compare(words, repeats)),
        Table("an LSTM of one layer, components alone", compare(sweep, repeats)),
        Table("AWD-LSTM, one size", compare(heads, repeats)),
    ]
