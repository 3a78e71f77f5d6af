"""Training and scoring in mixed precision on a GPU: every network, head, energy and objective under autocast."""

import pytest
import torch
from autocast_cases import BASES, CASES, check_case, check_scores
from small_networks import CONFIGS

GPU = torch.device("cuda", 0)
pytestmark = pytest.mark.filterwarnings("ignore:The fixed point of", "ignore:The output of a training pass was not scored")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("encoders")


FAST = [case for case in CASES if case in CONFIGS or case.startswith(("energy unidirectional from", "head,", "xlnet,"))]
FAST += ["CausalLM, gpt2", "Seq2SeqLM, t5", "transformer-xl, stream", "lstm, vectors, stream", "gru, tied, distil"]


@pytest.mark.parametrize("case", [case if case in FAST else pytest.param(case, marks=pytest.mark.slow) for case in CASES])
def test_losses_and_gradients_are_near_those_of_float32(case, root):
    check_case(case, GPU, root)


@pytest.mark.parametrize("kind", BASES)
def test_scores_are_float32_and_normalised(kind):
    check_scores(BASES[kind](), GPU, [[1], [2, 1]])
