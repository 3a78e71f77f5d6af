"""Training and scoring in mixed precision on a CPU: every network, head, energy and objective under autocast."""

import pytest
import torch
from autocast_cases import BASES, CASES, check_case, check_scores
from laws.parts import one_of_each
from marks import slow_except
from small_networks import CONFIGS

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:The fixed point of", "ignore:The output of a training pass was not scored")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("encoders")


FAST = [case for case in CASES if case in CONFIGS or case.startswith(("head,", "xlnet, "))]
FAST += ["CausalLM, gpt2", "Seq2SeqLM, t5", "transformer-xl, stream", "lstm, vectors, stream", "gru, tied, distil"]
FAST += ["energy shared with gru, noise contrast", "energy unidirectional from xlnet, noise contrast"]


@pytest.mark.parametrize("case", slow_except(FAST, CASES))
def test_losses_and_gradients_are_near_those_of_float32(case, root):
    check_case(case, CPU, root)


@pytest.mark.parametrize("kind", slow_except(one_of_each(BASES), BASES))
def test_scores_are_float32_and_normalised(kind):
    check_scores(BASES[kind](), CPU, [[1], [2, 1]])
