"""Training and scoring in mixed precision on a GPU: every network, head, energy and objective under autocast."""

import pytest
import torch
from autocast_cases import BASES, CASES, check_case, check_scores
from marks import slow_except

GPU = torch.device("cuda", 0)
pytestmark = pytest.mark.filterwarnings("ignore:The fixed point of", "ignore:The output of a training pass was not scored")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("encoders")


FAST = ["lstm, one-hot", "enas", "transformer, rotary", "transformer-xl", "xlnet", "encoder-decoder", "pixelcnn"]
FAST += ["CausalLM, gpt2", "Seq2SeqLM, t5"]
LOSSES = ["transformer-xl, stream", "gru, tied, distil", "energy shared with gru, noise contrast"]


@pytest.mark.parametrize("case", slow_except([*FAST, *LOSSES], CASES))
def test_losses_and_gradients_are_near_those_of_float32(case, root):
    check_case(case, GPU, root)


@pytest.mark.parametrize("kind", slow_except(FAST, BASES))
def test_scores_are_float32_and_normalised(kind):
    check_scores(BASES[kind](), GPU, [[1], [2, 1]])
