"""The settings of recurrent networks, without torch: LSTM and GRU, AWD-LSTM, the cell that ENAS found, TrellisNet.

Defaults of those that others published are their sizes on the Penn Treebank.
"""

from dataclasses import dataclass
from typing import Literal

from esscher.networks.output_config import OutputConfig, check_sizes

FUNCTIONS = ("tanh", "relu", "identity", "sigmoid")
FOUND_ARC = (0, 0, 0, 1, 1, 2, 1, 2, 0, 2, 0, 5, 1, 1, 0, 6, 1, 8, 1, 8, 1, 8, 1)


@dataclass(frozen=True)
class RecurrentConfig(OutputConfig):
    """A stacked LSTM or GRU; `embedding` is the width of its input vectors, None means one-hot input.

    `tied` uses the input vectors as the output weights, so a softmax needs `embedding == width`.
    """

    cell: Literal["lstm", "gru"] = "lstm"
    width: int = 200
    layers: int = 2
    dropout: float = 0.0
    embedding: int | None = None
    tied: bool = False

    def __post_init__(self) -> None:
        if self.cell not in ("lstm", "gru"):
            raise ValueError(f"Unknown cell {self.cell!r}; the known cells are 'lstm' and 'gru'.")
        check_sizes(self.width, self.layers, self.dropout)
        if self.embedding is not None and self.embedding < 1:
            raise ValueError(f"An embedding has at least width 1, not {self.embedding}; None means one-hot input.")
        if self.tied and (self.embedding is None or (self.output == "softmax" and self.embedding != self.width)):
            raise ValueError(f"Tied weights need embedding = width = {self.width}, not embedding = {self.embedding}.")
        self.check_output(shared=self.embedding if self.tied else None, width=self.width)


@dataclass(frozen=True)
class AwdLstmConfig(OutputConfig):
    """AWD-LSTM (Merity et al. 2018): input vectors of width `embedding` (by default
    the last layer's), LSTM layers of width `inner`, and a last one of `width`.

    In training whole tokens are dropped (`word_dropout`), parts of the input vectors, of what passes between layers and of
    the output (`input_dropout`, `between_dropout`, `dropout`), each the same at all positions, and parts of the weights by
    which a layer reads its own past (`weight_dropout`). `alpha` and `beta` weigh the penalties of large and of changing
    outputs. `tied` uses the input vectors as the output weights, so a softmax needs `embedding == width`.
    """

    width: int = 400
    layers: int = 3
    embedding: int | None = None
    inner: int = 1150
    dropout: float = 0.4
    input_dropout: float = 0.4
    between_dropout: float = 0.25
    word_dropout: float = 0.1
    weight_dropout: float = 0.5
    alpha: float = 2.0
    beta: float = 1.0
    tied: bool = True

    def __post_init__(self) -> None:
        rates = (self.dropout, self.input_dropout, self.between_dropout, self.word_dropout, self.weight_dropout)
        check_sizes(min(self.widths), self.layers, *rates)
        if min(self.alpha, self.beta) < 0:
            raise ValueError(f"alpha and beta are at least 0, not {self.alpha} and {self.beta}.")
        self.check_output(shared=self.widths[0] if self.tied else None, width=self.width)

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the input vectors, and of each layer."""
        return (self.embedding or self.width, *(self.inner,) * (self.layers - 1), self.width)


@dataclass(frozen=True)
class EnasConfig(OutputConfig):
    """The recurrent cell of ENAS (Pham et al. 2018), or any cell of its search space.

    `arc` names the function of node 0 and then, for each further node, the node it reads and its function: 0 tanh, 1 relu, 2
    identity, 3 sigmoid. `embedding` is the width of the input vectors, by default that of the cell.

    In training a row loses some of its words wherever they stand (`word_dropout`), and, the same at all positions, parts of
    its input vectors (`input_dropout`), of what nodes read of the state and of each other (`hidden_dropout`) and of the output
    (`dropout`; the released program draws that mask and does not use it, which is `dropout = 0`). `alpha` and `beta` weigh the
    mean squares of outputs and of their changes; the published slowness of 1e-3, a sum over 748 units, is `beta = 0.748`.
    `tied` uses the input vectors as the output weights, so a softmax needs `embedding == width`.
    """

    width: int = 748
    layers: int = 1
    embedding: int | None = None
    arc: tuple[int, ...] = FOUND_ARC
    dropout: float = 0.76
    input_dropout: float = 0.75
    hidden_dropout: float = 0.25
    word_dropout: float = 0.21
    alpha: float = 0.0
    beta: float = 0.748
    tied: bool = True

    def __post_init__(self) -> None:
        rates = (self.dropout, self.input_dropout, self.hidden_dropout, self.word_dropout)
        check_sizes(min(self.width, self.widths[0]), self.layers, *rates)
        _check_arc(self.arc)
        if min(self.alpha, self.beta) < 0:
            raise ValueError(f"alpha and beta are at least 0, not {self.alpha} and {self.beta}.")
        self.check_output(shared=self.widths[0] if self.tied else None, width=self.width)

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the input vectors, and of each layer."""
        return (self.width if self.embedding is None else self.embedding, *(self.width,) * self.layers)

    @property
    def nodes(self) -> tuple[tuple[int, int], ...]:
        """For each node the one that it reads and its function; node 0 reads the input and the state, which is -1."""
        return ((-1, self.arc[0]), *zip(self.arc[1::2], self.arc[2::2], strict=True))


@dataclass(frozen=True)
class TrellisNetConfig(OutputConfig):
    """TrellisNet (Bai et al. 2019): `layers` levels of one causal convolution with the gates of an LSTM.

    A level has `inner + width` units, the last `width` of which are the output; the input vectors have the width `embedding`,
    by default that of the output. `dilations` are how far back the levels look, over and over again.

    In training whole tokens are dropped (`word_dropout`), the same at all positions of the input vectors (`input_dropout`), of
    what all levels read (`hidden_dropout`) and of the output (`dropout`), and parts of the weights that read the past
    (`weight_dropout`). `alpha` and `beta` weigh the mean squares of outputs and of their changes, `auxiliary` the likelihood
    of the data by each level that `auxiliary_every` divides. `tied` uses the input vectors as the output weights, so a softmax
    needs `embedding == width`.
    """

    width: int = 400
    layers: int = 58
    embedding: int | None = None
    inner: int = 1000
    dilations: tuple[int, ...] = (1,)
    dropout: float = 0.45
    input_dropout: float = 0.45
    hidden_dropout: float = 0.28
    word_dropout: float = 0.1
    weight_dropout: float = 0.5
    alpha: float = 2.0
    beta: float = 1.0
    auxiliary: float = 0.05
    auxiliary_every: int = 12
    tied: bool = True

    def __post_init__(self) -> None:
        rates = (self.dropout, self.input_dropout, self.hidden_dropout, self.word_dropout, self.weight_dropout)
        check_sizes(min(self.width, self.input_width), self.layers, *rates)
        if min(self.alpha, self.beta, self.auxiliary, self.inner) < 0:
            raise ValueError(f"alpha, beta, auxiliary and inner are at least 0: {self}.")
        if not self.dilations or min(self.dilations) < 1:
            raise ValueError(f"A level looks back by at least one position, and one dilation is needed: {self.dilations}.")
        if self.auxiliary_every < 1:
            raise ValueError(
                f"auxiliary_every counts levels, at least 1, not {self.auxiliary_every}; auxiliary = 0 means none."
            )
        self.check_output(shared=self.input_width if self.tied else None, width=self.width)

    @property
    def input_width(self) -> int:
        """Of the input vectors."""
        return self.width if self.embedding is None else self.embedding

    @property
    def spans(self) -> tuple[int, ...]:
        """How far back each level looks."""
        return tuple(self.dilations[level % len(self.dilations)] for level in range(self.layers))


def _check_arc(arc: tuple[int, ...]) -> None:
    """Refuse numbers that describe no cell."""
    if len(arc) % 2 == 0:
        raise ValueError(
            f"An arc is the function of node 0, then a node and a function for each further node, so it has an odd number of "
            f"entries, not {len(arc)}: {arc}. Nothing was built."
        )
    for number in range(len(arc) // 2 + 1):
        source, function = (-1, arc[0]) if number == 0 else arc[2 * number - 1 : 2 * number + 1]
        if function not in range(len(FUNCTIONS)):
            known = ", ".join(f"{place} {name}" for place, name in enumerate(FUNCTIONS))
            raise ValueError(f"Node {number} of the arc has the unknown function {function}; the known ones are {known}.")
        if number and source not in range(number):
            raise ValueError(f"Node {number} of the arc reads node {source}; it may read nodes 0 to {number - 1} alone.")
