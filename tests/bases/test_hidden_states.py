"""States that carry the hidden vector behind their log-probabilities."""

import causal_models
import pytest
import torch
from random_targets import PROMPTS, random_automaton
from small_networks import CONFIGS, lively

from esscher.bases.hidden_states import hidden_width, steps_over, with_hidden_states
from esscher.bases.truncated import Truncated
from esscher.bases.wrappers import WithMaxLength
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of
from esscher.core.target import Tilted
from esscher.energies.encoders import encoder_of_base
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.progress import CountingBase, ProgressCounter

SPACE = Space(3, 4, eos=0)
CASES = [
    "lstm, vectors",
    "awd-lstm, softmaxes",
    "trellisnet",
    "transformer, rotary",
    "transformer-xl",
    "xlnet",
]


def some_draws(base):
    return Ancestral()(Tilted(base), prompts_of(PROMPTS), 3, rng=SeededRng(0)).x


def network_base(name: str):
    return lively(CONFIGS[name], SPACE).double().eval()


@pytest.mark.parametrize("base", [*CASES, "gpt2", "llama", "gemma2"])
def test_steps_carry_the_hidden_vectors_of_whole_passes(base):
    """The same vectors as an encoder around the base gives, and the same log-probabilities as without them; ragged prompts."""
    base = causal_models.tiny_base(base) if base in causal_models.FAMILIES else network_base(base)
    x = some_draws(base)
    steps, plain = steps_over(with_hidden_states(base), x), steps_over(base, x)
    assert torch.equal(steps.log_prob, plain.log_prob)
    assert plain.hidden is None and steps.hidden.shape[2] == hidden_width(base)
    vectors = encoder_of_base(base)(x).vectors
    for row, (start, length) in enumerate(zip(x.start.tolist(), x.lengths.tolist(), strict=True)):
        torch.testing.assert_close(steps.hidden[row, :length], vectors[row, start : start + length], atol=1e-4, rtol=1e-4)


def test_states_are_selected_with_their_vectors():
    base = network_base("gru, tied")
    inner = with_hidden_states(base)
    _, state = inner.begin(prompts_of(PROMPTS))
    chosen = torch.tensor([2, 0, 0])
    picked = inner.select(state, chosen)
    assert torch.equal(picked.hidden, state.hidden[chosen])
    before = picked.hidden.clone()
    inner.advance(state, torch.tensor([1, 1, 2, 2]))  # a recurrent network overwrites its state
    assert torch.equal(picked.hidden, before)


def test_the_network_itself_records_nothing():
    base = network_base("lstm, tied")
    head = base.network.head
    with_hidden_states(base).begin(prompts_of(PROMPTS))
    assert base.network.head is head
    assert len(list(with_hidden_states(base).base.parameters())) >= len(list(base.parameters())) - len(list(head.parameters()))


def test_wrappers_pass_the_vectors_on():
    base = network_base("lstm, vectors")
    wrapped = CountingBase(Truncated(WithMaxLength(base, 3), top_k=2), ProgressCounter(lambda text: None))
    inner = with_hidden_states(wrapped)
    log_prob, state = inner.begin(prompts_of(PROMPTS))
    assert torch.equal(log_prob, wrapped.begin(prompts_of(PROMPTS))[0])
    assert torch.equal(state.hidden, with_hidden_states(base).begin(prompts_of(PROMPTS))[1].hidden)


def test_a_base_without_hidden_vectors():
    assert with_hidden_states(random_automaton(SPACE)) is None
    assert hidden_width(Truncated(random_automaton(SPACE), top_k=2)) is None
    assert steps_over(random_automaton(SPACE), some_draws(random_automaton(SPACE))).hidden is None
