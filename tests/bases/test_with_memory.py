"""Streams: memories that break their law are caught, and a base in the midst of streams is a base."""

import pytest
import torch
from small_networks import CONFIGS, SPACES, lively

from esscher.bases.network import build_base
from esscher.bases.wrappers import WithMemory
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts
from esscher.core.target import Tilted
from esscher.networks.recurrent_config import LstmConfig
from esscher.networks.transformer_config import TransformerXLConfig
from esscher.objectives.likelihood import Likelihood
from esscher.samplers.ancestral import Ancestral
from esscher.testing import check_base, check_stream

SPACE = Space(5, 4)
STREAMING = [
    name for name in CONFIGS if not name.startswith(("transformer,", "encoder-decoder", "attentive-lstm", "pixelcnn", "gated"))
]


@pytest.fixture(params=STREAMING)
def base(request):
    return lively(CONFIGS[request.param], SPACE)


def segment(tokens):
    length = torch.full((len(tokens),), tokens.shape[1])
    return Sequences(tokens, torch.zeros_like(length), length)


def test_a_network_without_memory_says_so():
    with pytest.raises(ValueError, match=r"A TransformerNetwork has no memory from one segment.*cut the text into chunks"):
        lively(CONFIGS["transformer, rotary"], SPACE).init_memory(2)


class Wrong:
    """A right base whose memory is spoilt in one way."""

    def __init__(self, base):
        self.base, self.space = base, base.space

    def log_probs(self, x):
        return self.base.log_probs(x)

    def init_memory(self, rows):
        return self.base.init_memory(rows)

    def read(self, memory, tokens):
        return self.base.read(memory, tokens)


class Forgets(Wrong):
    """Begins every segment anew."""

    def read(self, memory, tokens):
        return self.base.read(self.base.init_memory(len(tokens)), tokens)


class ForgetsTheLast(Wrong):
    """Carries the hidden state, and reads the BOS symbol again before each segment."""

    def read(self, memory, tokens):
        return self.base.read((self.base.init_memory(len(tokens))[0], *memory[1:]), tokens)


class MixesRows(Wrong):
    def read(self, memory, tokens):
        actual, after = self.base.read(memory, tokens)
        return actual, (after[0], *(0.9 * part + 0.1 * part.mean(0, keepdim=True) for part in after[1:]))


class ColumnsFirst(Wrong):
    """Keeps layers before rows, as torch does."""

    def init_memory(self, rows):
        last, *own = self.base.init_memory(rows)
        return (last, *(part.transpose(0, 1) for part in own))

    def read(self, memory, tokens):
        actual, (last, *own) = self.base.read((memory[0], *(part.transpose(0, 1) for part in memory[1:])), tokens)
        return actual, (last, *(part.transpose(0, 1) for part in own))


class WritesIntoMemory(Wrong):
    def read(self, memory, tokens):
        actual, after = self.base.read(memory, tokens)
        for part, new in zip(memory, after, strict=True):
            part.copy_(new)
        return actual, tuple(part.clone() for part in after)


class CountsRows(Wrong):
    """Alike in pieces and in one row, and other in another company."""

    def log_probs(self, x):
        return self.base.log_probs(x) * (1 + 0.01 * len(x))

    def read(self, memory, tokens):
        actual, after = self.base.read(memory, tokens)
        return actual * (1 + 0.01 * len(tokens)), after


class KeepsItself(Wrong):
    """A memory is a number under which the network holds its own, whatever rows are chosen of it."""

    def init_memory(self, rows):
        self.kept = [self.base.init_memory(rows)]
        return (torch.zeros(rows, dtype=torch.long),)

    def read(self, memory, tokens):
        actual, after = self.base.read(self.kept[int(memory[0][0])], tokens)
        self.kept.append(after)
        return actual, (torch.full((len(tokens),), len(self.kept) - 1),)


class KeepsTheGradient(Wrong):
    def read(self, memory, tokens):
        actual, after = self.base.read(memory, tokens)
        return actual, (after[0], *(part + 0 * actual.sum() for part in after[1:]))


WRONG = {
    Forgets: r"a stream in pieces of \(1,\) must be scored as one long row",
    ForgetsTheLast: r"a stream in pieces of \(1,\) must be scored as one long row",
    MixesRows: "a stream in pieces of",
    ColumnsFirst: "a memory has a row for each stream",
    WritesIntoMemory: "reading must leave the memory it began with",
    CountsRows: "a stream must not depend on the other streams",
    KeepsItself: "rows of a memory must be those of the streams",
    KeepsTheGradient: "a memory must hold no gradient",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_wrong_memories_are_caught(wrong):
    with pytest.raises(AssertionError, match=WRONG[wrong]):
        check_stream(wrong(lively(CONFIGS["lstm, vectors"], SPACE)))


@pytest.mark.parametrize("mixers", [("full",), ("local",), ("lightconv", "full")], ids=["full", "local", "mixed"])
def test_segments_that_stand_alone_are_drawn_as_they_are_scored(mixers):
    """Without a memory a stream's segment has only itself and the token before it."""
    norm = "pre" if "lightconv" in mixers else "post"
    config = TransformerXLConfig(8, 2, 2, 16, memory=0, mixers=mixers, spans=(2, 3), norm=norm)
    base = lively(config, SPACES["fixed length"])
    memory = base.read(base.init_memory(1), torch.tensor([[1, 2, 2, 1, 0]]))[1]
    for prompt in ([], [2, 1]):
        check_base(WithMemory(base, memory), [prompt])


@pytest.mark.parametrize("kind", ["transformer-xl", "transformer-xl, short sight", "convolutions"])
def test_memories_of_training_may_be_drawn_from(kind):
    base = lively(CONFIGS[kind], SPACES["fixed length"]).train()
    memory = base.read(base.init_memory(2), torch.tensor([[1, 2, 2, 1, 0], [0, 0, 1, 2, 1]]))[1]
    drawn = Ancestral()(Tilted(WithMemory(base, memory)), empty_prompts(2), 50, rng=SeededRng(0))
    scored = WithMemory(base.eval(), memory).log_probs(drawn.x).sum(-1).view(2, 50)
    torch.testing.assert_close(drawn.log_base, scored.double(), atol=1e-4, rtol=0)


def test_the_likelihood_of_segments_is_that_of_the_stream(base):
    tokens = torch.randint(5, (3, 12), generator=torch.Generator().manual_seed(0))
    whole = -base.log_probs(segment(tokens))
    memory = base.init_memory(3)
    for first, last in ((0, 5), (5, 6), (6, 12)):
        carried, x = WithMemory(base, memory), segment(tokens[:, first:last])
        loss = Likelihood()(Tilted(carried), x, rng=SeededRng(0))
        assert loss.value.item() == pytest.approx(whole[:, first:last].mean().item(), abs=1e-5)
        smooth = Likelihood(label_smoothing=0.1)(Tilted(carried), x, rng=SeededRng(0))
        assert smooth.metrics["nll"] == pytest.approx(loss.value.item(), abs=1e-5)
        loss.value.backward()
        memory = carried.memory_after(x)
        assert not any(part.requires_grad for part in memory)


def test_the_memory_after_a_segment_is_of_that_segment_whatever_was_scored_last():
    base = lively(CONFIGS["gru, vectors"], SPACE)
    x, other = segment(torch.tensor([[1, 2, 3], [4, 0, 1]])), segment(torch.tensor([[3, 3, 3], [0, 0, 1]]))
    with_memory = WithMemory(base, base.init_memory(2))
    expected = base.read(base.init_memory(2), x.tokens)[1]
    for scored in ([], [x], [x, other], [other, x]):
        for item in scored:
            with_memory.log_probs(item)
        for actual, right in zip(with_memory.memory_after(x), expected, strict=True):
            assert torch.allclose(actual, right)
    with pytest.raises(ValueError, match="equally many tokens of each of 2 streams"):
        with_memory.memory_after(segment(torch.tensor([[1]])))
    with pytest.raises(ValueError, match="equally many tokens of each of 2 streams"):
        with_memory.memory_after(Sequences(x.tokens, torch.tensor([0, 1]), torch.tensor([3, 3])))


def test_draws_go_on_from_their_streams():
    base = lively(CONFIGS["lstm, tied"], SPACE)
    with torch.no_grad():
        memory = base.read(base.init_memory(2), torch.tensor([[1, 2, 3], [4, 0, 1]]))[1]
    with_memory = WithMemory(base, memory)
    draws = Ancestral()(Tilted(with_memory), empty_prompts(2), 50, rng=SeededRng(0))
    long = torch.cat([torch.tensor([[1, 2, 3], [4, 0, 1]]).repeat_interleave(50, 0), draws.x.tokens], 1)
    expected = base.log_probs(Sequences(long, torch.full((100,), 3), torch.full((100,), 7)))[:, 3:]
    assert torch.allclose(with_memory.log_probs(draws.x), expected, atol=1e-5)
    assert torch.allclose(draws.log_base.view(-1), expected.double().sum(-1), atol=1e-5)
    with pytest.raises(ValueError, match="3 rows cannot be divided equally among 2 streams"):
        with_memory.begin(empty_prompts(3))
    with pytest.raises(ValueError, match=r"all prompts have one length, not 0 to 1"):
        with_memory.begin(Sequences(torch.tensor([[1], [1]]), torch.tensor([0, 1]), torch.tensor([0, 1])))


def test_steps_are_without_dropout_and_leave_the_mode():
    base = build_base(LstmConfig(width=8, dropout=0.5, embedding=4), SPACE, rng=SeededRng(0)).train()
    with_memory = WithMemory(base, base.init_memory(1))
    first, state = with_memory.begin(empty_prompts(1))
    assert torch.equal(first, with_memory.begin(empty_prompts(1))[0]) and base.training
    token = torch.tensor([2])
    assert torch.equal(with_memory.advance(state, token)[0], with_memory.advance(state, token)[0]) and base.network.training
