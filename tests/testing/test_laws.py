"""The laws themselves: right parts pass, and each wrong one is caught by the law that it breaks."""

import pytest
import torch
from random_targets import PROMPTS, random_automaton, taste

from esscher.core.space import Sequences, Space, prompts_of
from esscher.exact.automaton import Automaton
from esscher.exact.enumeration import enumerate_points
from esscher.testing import check_base, check_energy

SPACES = {"fixed length": Space(3, 4), "end symbol": Space(3, 4, eos=0)}


class Plain:
    """An automaton whose state is written in place, as a cache would be; wrong bases differ in one method."""

    def __init__(self, space: Space):
        self.space, self.truth = space, random_automaton(space, states=7)

    def log_probs(self, x):
        return self.truth.log_probs(x)

    def begin(self, prompts):
        log_prob, state = self.truth.begin(prompts)
        return log_prob, {"at": state.clone(), "steps": 0}

    def advance(self, state, token):
        log_prob, state["at"][:] = self.truth.advance(state["at"], token)
        state["steps"] += 1
        return log_prob, state

    def select(self, state, index):
        return {"at": state["at"][index], "steps": state["steps"]}


class OneBehind(Plain):
    """Forgets the first token after the prompt."""

    def advance(self, state, token):
        if state["steps"] == 0:
            state["steps"] = 1
            return self.truth.log_emission[state["at"]], state
        return super().advance(state, token)


class NoCopy(Plain):
    def select(self, state, index):
        same = len(index) == len(state["at"]) and bool((index == torch.arange(len(index))).all())
        return state if same else super().select(state, index)


class NoCopyLater(Plain):
    """Copies what the prompt left, and not what steps have written since: memory that is allocated late."""

    def select(self, state, index):
        same = len(index) == len(state["at"]) and bool((index == torch.arange(len(index))).all())
        return state if same and state["steps"] > 0 else super().select(state, index)


class SortedSelect(Plain):
    def select(self, state, index):
        return super().select(state, index.sort().values)


class SelectsThePrompt(Plain):
    """Keeps, in a selected state, only what the prompt left: a cache whose later slots were not copied."""

    def begin(self, prompts):
        log_prob, state = super().begin(prompts)
        return log_prob, {**state, "prompt": state["at"].clone()}

    def select(self, state, index):
        return {"at": state["prompt"][index], "prompt": state["prompt"][index], "steps": state["steps"]}


class OneMemory(Plain):
    """Keeps its state in itself."""

    def begin(self, prompts):
        log_prob, self.memory = super().begin(prompts)
        return log_prob, self.memory["at"].clone()

    def advance(self, state, token):
        if len(token) != len(self.memory["at"]):
            self.memory = {"at": state, "steps": 0}
        log_prob, self.memory = super().advance(self.memory, token)
        return log_prob, self.memory["at"].clone()

    def select(self, state, index):
        return state[index]


class LooksAhead(Plain):
    """Scores the points backwards: right in total, wrong token by token."""

    def log_probs(self, x):
        score, column = super().log_probs(x), torch.arange(x.tokens.shape[1])
        mirrored = torch.where(x.counted, x.start[:, None] + x.stop[:, None] - 1 - column, column)
        return score.gather(1, mirrored)


class ReadsPadding(Plain):
    """Starts from another state in a wider batch, as left padding without a mask does."""

    def log_probs(self, x):
        log_emission, next_state = (
            self.truth.log_emission.roll(x.tokens.shape[1], 0),
            self.truth.next_state.roll(x.tokens.shape[1], 0),
        )
        return Automaton(log_emission, next_state, self.space).log_probs(x)


class ReadsPromptPadding(Plain):
    """Takes the last column of a batch of prompts for their last tokens."""

    def begin(self, prompts):
        width = torch.full_like(prompts.start, prompts.tokens.shape[1])
        return super().begin(Sequences(prompts.tokens, width, width))


class BatchNorm(Plain):
    """Depends on how many rows there are."""

    def log_probs(self, x):
        sharper = torch.log_softmax(self.truth.log_emission * (1 + 0.01 * len(x)), -1)
        return Automaton(sharper, self.truth.next_state, self.space).log_probs(x)


class PromptNorm(Plain):
    def begin(self, prompts):
        log_prob, state = super().begin(prompts)
        return torch.log_softmax(log_prob * len(prompts), -1), state


class ScoresThePrompt(Plain):
    def log_probs(self, x):
        return self.truth.log_probs(Sequences(x.tokens, torch.zeros_like(x.start), x.stop))


class Unnormalised(Plain):
    def log_probs(self, x):
        return torch.where(x.counted, super().log_probs(x) + 0.01, 0.0)


class UnnormalisedStep(Plain):
    def advance(self, state, token):
        log_prob, state = super().advance(state, token)
        return log_prob + 0.01, state


class DrawsTheOpening(Plain):
    """Offers one token more than the space has."""

    def begin(self, prompts):
        log_prob, state = super().begin(prompts)
        return torch.nn.functional.pad(log_prob, (0, 1), value=-torch.inf), state


class Dropping(Plain):
    def log_probs(self, x):
        log_emission = torch.log_softmax(self.truth.log_emission + torch.rand(7, 3), -1)
        return Automaton(log_emission, self.truth.next_state, self.space).log_probs(x)


class Warm(Plain):
    """A temperature of 1.01 where it steps."""

    def begin(self, prompts):
        log_prob, state = super().begin(prompts)
        return torch.log_softmax(log_prob / 1.01, -1), state


WRONG_BASES = {
    OneBehind: "stepping must equal scoring (step 1)",
    NoCopy: "select must copy: advancing",
    NoCopyLater: "select must copy, after a step too",
    SortedSelect: "select must commute with advance",
    SelectsThePrompt: "select must commute with advance, after a step too",
    OneMemory: "two states must not share memory",
    LooksAhead: "a score must not look ahead",
    ReadsPadding: "padding must not change a score",
    ReadsPromptPadding: "padding must not change a prompt",
    BatchNorm: "a score must not depend on the other rows",
    PromptNorm: "a prompt must not depend on the other prompts",
    ScoresThePrompt: "a score outside the point must be 0",
    Unnormalised: "probabilities of all points must sum to 1",
    UnnormalisedStep: "step 1 must be normalised",
    DrawsTheOpening: "a step gives every token of the space",
    Dropping: "scoring must give the same twice",
    Warm: "stepping must equal scoring (step 0)",
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_right_bases_pass(space):
    check_base(Plain(space), PROMPTS)
    check_base(random_automaton(space), PROMPTS)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("wrong", WRONG_BASES, ids=lambda wrong: wrong.__name__)
def test_wrong_bases_are_caught(wrong, space):
    with pytest.raises(AssertionError) as caught:
        check_base(wrong(space), PROMPTS)
    assert str(caught.value).startswith(WRONG_BASES[wrong])


def sums_everything(x):
    return x.tokens.double().sum(-1)


def centres(x):
    energy = taste(Space(3, 4))(x)
    return energy - energy.mean()


def measures_the_batch(x):
    return x.lengths.double() / x.tokens.shape[1]


def reads_the_neighbour(x):
    return taste(Space(3, 4))(x.rows(torch.arange(len(x)).roll(1)))


def gives_a_column(x):
    return taste(Space(3, 4))(x)[:, None]


def divides_by_nothing(x):
    return torch.where(x.lengths > 0, x.lengths / x.lengths.clamp(max=0), 0.0) * 0


def drops(x):
    return taste(Space(3, 4))(x) + torch.rand(len(x))


WRONG_ENERGIES = {
    sums_everything: "padding must not change an energy",
    measures_the_batch: "padding must not change an energy",
    centres: "an energy must not depend on the other rows",
    reads_the_neighbour: "an energy must not depend on the other rows",
    gives_a_column: "an energy gives one number a row",
    divides_by_nothing: "an energy must be a number",
    drops: "an energy must be the same twice",
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_right_energies_pass(space):
    check_energy(taste(space), enumerate_points(space, prompts_of(PROMPTS)))
    check_energy(lambda x: torch.where(x.lengths > 2, torch.inf, 0.0), enumerate_points(space, prompts_of(PROMPTS)))


@pytest.mark.parametrize("wrong", WRONG_ENERGIES, ids=lambda wrong: wrong.__name__)
def test_wrong_energies_are_caught(wrong):
    space = SPACES["end symbol"]
    with pytest.raises(AssertionError) as caught:
        check_energy(wrong, enumerate_points(space, prompts_of(PROMPTS)))
    assert str(caught.value).startswith(WRONG_ENERGIES[wrong])


def test_laws_hold_on_the_smallest_spaces():
    """One token, one position, an end symbol alone."""
    for space in (Space(1, 1), Space(1, 3), Space(2, 1, eos=1), Space(1, 2, eos=0)):
        check_base(random_automaton(space), [[], [0]])
