"""Every base under the laws of bases, and of streams where it reads them: this is their list."""

from functools import cache
from itertools import product
from typing import NamedTuple

import causal_models
import pytest
import seq2seq_models
import torch
from bases.hidden import SPACES as HIDDEN_SPACES
from bases.hidden import random_model
from bases.test_first_token_restricted import ALLOWED
from bases.test_truncated import SETTINGS
from bases.test_with_memory import STREAMING
from exact.examples import random_weighted
from heads_on_networks import CASES, DEEPER, ENDING, FAST, FIXED, PIXELS, PROMPTS, base_of
from heads_on_networks import NETWORKS as HEADED
from marks import slow_except
from random_targets import random_automaton
from random_twists import random_twist
from small_networks import CONFIGS, SPACES, lively

from esscher.bases.hidden_markov import path_automaton
from esscher.bases.hidden_states import with_hidden_states
from esscher.bases.mixture import MixtureBase
from esscher.bases.network import with_attention_span, with_factorization_order, with_prompt_tokens, with_unrolled_layers
from esscher.bases.ngram import fit_ngram
from esscher.bases.scaling import causal_lm_with_extra_layers, with_extra_layers
from esscher.bases.truncated import Truncated
from esscher.bases.wrappers import Continuation, FirstTokenRestricted, ProductOfExperts, WithMaxLength, WithMemory
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of, sequences
from esscher.core.target import BaseWrapper
from esscher.energies.twist import TwistedBase
from esscher.exact import features
from esscher.exact.automaton import WeightedAutomaton
from esscher.exact.dynamic_programming import normalise, normalise_unbounded
from esscher.exact.exponential_family import tilt
from esscher.exact.languages import matching_strings, white_noise
from esscher.networks.pixelcnn_config import PixelCnnConfig
from esscher.networks.registry import NETWORKS
from esscher.papers.gam.lookahead import Lookahead
from esscher.samplers.progress import CountingBase, ProgressCounter
from esscher.samplers.proposals import AssumeCovering, defensive
from esscher.testing import check_base, check_stream

from laws.parts import check_complete, has, one_of_each, part_of, parts  # isort: skip

FOUR, SOURCES = [[], [1], [2, 1, 1], [1, 2]], seq2seq_models.SOURCES
SPACE = Space(3, 4, eos=0)


class Tried(NamedTuple):
    """How a base is built, after which prompts it is tried, and whether only `make slow` does."""

    build: object
    prompts: list[list[int]] = FOUR
    tolerance: float = 1e-5
    slow: bool = False


def network(config, *, slow: bool) -> Tried:
    return Tried(lambda: base_of(config, ENDING).double(), PROMPTS, 1e-12, slow)


def small(kind, space=SPACE):
    return lively(CONFIGS[kind], space)


def carried(kind, space):
    """In the midst of a stream; the same without a memory is another distribution."""
    base = small(kind, SPACES[space])
    with torch.no_grad():
        memory = WithMemory(base, base.read(base.init_memory(1), torch.tensor([[1, 2, 2, 1, 0]]))[1])
        item, other = (each.begin(prompts_of([[2, 1]]))[0] for each in (memory, base))
    assert (item - other).abs().max() > 1e-3
    return memory


def labelled_pixels():
    config = PixelCnnConfig(8, 1, image=(2, 2, 3), first_kernel_size=3, classes=2)
    return lively(config, Space(3, 3)).double()


def unbounded():
    lighter = random_automaton(SPACE)
    return normalise_unbounded(WeightedAutomaton(lighter.log_emission - 0.3, lighter.next_state, SPACE))


def ngram(order, space):
    points = [[1, 2, 0], [2, 2, 1, 0], [0], [1, 1, 1, 0]]
    return fit_ngram(sequences(points, [[], [1], [2], [1, 2]]), SPACES[space], order)


TO_CHANGE = {
    "automaton": lambda space: random_automaton(SPACES[space]),
    "lstm": lambda space: small("lstm, one-hot", SPACES[space]),
    "gru": lambda space: small("gru, tied", SPACES[space]),
    "transformer": lambda space: small("transformer, rotary", SPACES[space]),
    "truncated": lambda space: Truncated(small("gru, tied", SPACES[space]), top_p=0.9),
}


def tallies(space):
    return [features.contains([1, 2], space), features.length(space)]


EXACT = 1e-12
BASES = {
    **{
        f"{NETWORKS.kind_of(config)}, {case}": network(config, slow=case in CASES and case not in FAST)
        for case, config in {**CASES, **DEEPER}.items()
    },
    **{
        f"{NETWORKS.kind_of(config)}, {case}, single precision": Tried(
            lambda c=config: base_of(c, FIXED), [[2, 3], [1, 1]], 1e-4, slow=case not in PIXELS
        )
        for case, config in {**HEADED, **DEEPER, **PIXELS}.items()
    },
    "xlnet": Tried(lambda: small("xlnet").double(), FOUR, EXACT),
    "xlnet, local": Tried(lambda: small("xlnet, local").double(), FOUR, EXACT),
    "encoder-decoder": Tried(lambda: small("encoder-decoder").double(), FOUR, EXACT),
    "encoder-decoder, softmaxes": Tried(lambda: small("encoder-decoder, softmaxes", Space(3, 4)).double(), FOUR, EXACT),
    "attentive-lstm": Tried(lambda: small("attentive-lstm").double(), FOUR, EXACT),
    "attentive-lstm, contexts": Tried(lambda: small("attentive-lstm, contexts", Space(3, 4)).double(), FOUR, EXACT),
    "pixelcnn, with labels": Tried(labelled_pixels, [[3], [4, 2, 0, 1]], 1e-10),
    "bases.with_factorization_order": Tried(lambda: with_factorization_order(small("xlnet"), [6, 5, 4, 3, 2, 1, 0])),
    "bases.with_factorization_order, local": Tried(
        lambda: with_factorization_order(small("xlnet, local", Space(3, 4)), [3, 0, 6, 2, 5, 1, 4])
    ),
    "bases.with_attention_span": Tried(lambda: with_attention_span(small("transformer-xl"), attention_span=2, clamp_len=1)),
    "bases.with_prompt_tokens": Tried(
        lambda: with_prompt_tokens(lively(PIXELS["pixelcnn"], Space(3, 6)), 3), [[1, 2, 0], [0, 0, 1]]
    ),
    "bases.with_unrolled_layers": Tried(lambda: with_unrolled_layers(small("deq"), 2)),
    "bases.with_extra_layers": Tried(lambda: with_extra_layers(small("transformer, learned"), 2, rng=SeededRng(0)).eval()),
    "bases.causal_lm_with_extra_layers": Tried(lambda: causal_lm_with_extra_layers(causal_models.tiny_base("llama"), 1)),
    **{f"bases.CausalLM, {family}": Tried(lambda f=family: causal_models.tiny_base(f)) for family in causal_models.FAMILIES},
    **{
        f"bases.CausalLM, {family}, fixed length": Tried(
            lambda f=family: causal_models.tiny_base(f, eos=None, max_length=3), slow=family != "gpt2"
        )
        for family in causal_models.FAMILIES
    },
    **{
        f"bases.Seq2SeqLM, {family}{', fixed length' * (eos is None)}": Tried(
            lambda f=family, e=eos: seq2seq_models.tiny_base(f, eos=e), SOURCES, slow=eos is None and family != "t5"
        )
        for family in seq2seq_models.FAMILIES
        for eos in (0, None)
    },
    **{
        f"bases.fit_ngram, of order {order}, {space}": Tried(lambda o=order, s=space: ngram(o, s), FOUR, EXACT)
        for order, space in product((1, 2, 3, 10), SPACES)
    },
    **{  # a single state that cannot emit a token would make prompts impossible
        f"bases.HiddenMarkov, {states} states{', zeros' * zeros}, {name}": Tried(
            lambda n=states, z=zeros, s=space: random_model(s, states=n, zeros=z), FOUR, EXACT
        )
        for (name, space), (states, zeros) in product(
            HIDDEN_SPACES.items(), ((1, False), (2, False), (5, False), (2, True), (5, True))
        )
    },
    "bases.path_automaton": Tried(lambda: path_automaton(random_model(Space(2, 2), states=2)), [[], [1]], EXACT),
    **{
        f"bases.FirstTokenRestricted, {kind}, {allowed}, {space}": Tried(
            lambda k=kind, a=allowed, s=space: FirstTokenRestricted(TO_CHANGE[k](s), torch.tensor(ALLOWED[a])),
            slow=kind != "automaton" and allowed != "one",
        )
        for kind, allowed, space in product(("automaton", "gru", "transformer"), ALLOWED, SPACES)
    },
    **{
        f"bases.WithMemory, {kind}, {space}": Tried(
            lambda k=kind, s=space: carried(k, s), [prompt], slow=space == "fixed length" or kind not in one_of_each(STREAMING)
        )
        for kind, (space, prompt) in product(STREAMING, {"fixed length": [], "end symbol": [2, 1]}.items())
    },
    "bases.Continuation": Tried(lambda: Continuation(random_automaton(SPACE), 1), [[1, 2, 1], [2, 2, 2, 1], [1]]),
    "bases.ProductOfExperts": Tried(lambda: ProductOfExperts(small("gru, tied"), small("transformer, rotary"))),
    "bases.ProductOfExperts, of Hugging Face": Tried(
        lambda: ProductOfExperts(causal_models.tiny_base("gpt2"), small("transformer, rotary"))
    ),
    "bases.WithMaxLength": Tried(lambda: WithMaxLength(random_automaton(Space(3, 5, eos=0)), 3)),
    "bases.WithMaxLength, fixed length": Tried(lambda: WithMaxLength(small("gru, tied", Space(3, 5)), 3)),
    **{
        f"bases.Truncated, {kind}, {setting}, {space}": Tried(
            lambda k=kind, c=setting, s=space: Truncated(TO_CHANGE[k](s), **SETTINGS[c]),
            slow=kind != "automaton" and setting != "all three",
        )
        for kind, setting, space in product(TO_CHANGE, SETTINGS, SPACES)
    },
    "core.BaseWrapper": Tried(lambda: BaseWrapper(random_automaton(SPACE))),
    "energies.TwistedBase": Tried(lambda: TwistedBase(small("lstm, vectors"), random_twist(small("lstm, vectors"), memory=0))),
    "energies.TwistedBase, memory": Tried(lambda: TwistedBase(random_automaton(SPACE), random_twist(random_automaton(SPACE)))),
    "bases.with_hidden_states": Tried(lambda: with_hidden_states(small("gru, tied"))),
    "bases.with_hidden_states, of Hugging Face": Tried(lambda: with_hidden_states(causal_models.tiny_base("gpt2"))),
    "samplers.CountingBase": Tried(lambda: CountingBase(random_automaton(SPACE), ProgressCounter(print))),
    "papers.Lookahead": Tried(lambda: Lookahead(random_automaton(SPACE), (1, 2, 1)), FOUR, EXACT),
    "papers.Lookahead, fixed length": Tried(lambda: Lookahead(small("gru, tied", Space(3, 5)), (1, 1))),
    "samplers.AssumeCovering": Tried(lambda: AssumeCovering(Truncated(random_automaton(SPACE), top_k=2)), FOUR, EXACT),
    "samplers.defensive": Tried(
        lambda: defensive(random_automaton(SPACE), Truncated(random_automaton(SPACE, seed=3), top_k=1)), FOUR, EXACT
    ),
    "exact.Automaton": Tried(lambda: random_automaton(SPACE), FOUR, EXACT),
    "exact.Automaton, fixed length": Tried(lambda: random_automaton(Space(3, 4)), FOUR, EXACT),
    "exact.NormalisedAutomaton": Tried(lambda: normalise(random_weighted(SPACE, seed=3)), FOUR, EXACT),
    "exact.NormalisedAutomaton, reads otherwise": Tried(
        lambda: normalise(random_weighted(Space(3, 4), seed=8, prompt_next_state=True)), FOUR, EXACT
    ),
    "exact.normalise_unbounded": Tried(unbounded, FOUR, EXACT),
    "exact.tilt": Tried(lambda: tilt(random_automaton(SPACE), tallies(SPACE), torch.tensor([0.8, -1.1]).double()), FOUR, EXACT),
    "exact.white_noise": Tried(lambda: white_noise(2, 4), [[], [1], [0, 1, 1]], EXACT),
    "exact.matching_strings": Tried(lambda: matching_strings("(01|1)*", 4), [[], [1], [0, 1]], EXACT),
    "bases.MixtureBase": Tried(
        lambda: MixtureBase((random_automaton(SPACE), random_automaton(SPACE, seed=3)), (0.9, 0.1)), FOUR, EXACT
    ),
}
APART = {
    "bases.NetworkBase": "is tried by each of its kinds",
    "bases.build_base": "builds the kinds",
    "bases.causal_lm": "gives a CausalLM",
    "bases.seq2seq_lm": "gives a Seq2SeqLM",
    "samplers.DrawCountingBase": "passes every call on and counts tokens; tests/core/test_progress.py",
    "samplers.check_proposal": "gives the base it was given",
    "core.unwrapped": "gives the base inside; tests/samplers/test_proposals.py",
    "bases.require_logits": "gives the base it was given",
    "bases.with_max_length": "gives a WithMaxLength, or the base",
    "bases.truncated": "gives a Truncated, or the base",
    "exact.normalise": "gives a NormalisedAutomaton",
    "objectives.require_any_order": "gives the base it was given",
    "training.require_network_base": "gives the base it was given",
    "papers.random_process": "gives an Automaton",
    "papers.phrase_process": "gives a HiddenMarkov",
    "papers.cycle_process": "gives a HiddenMarkov",
    "hub.from_transformers": "gives an xlnet; its weights: tests/hub/test_xlnet_parity.py",
}
IS_BASE, IS_NETWORK = has("log_probs", "begin", "advance", "select"), has("hidden", "output")
STREAMS = [  # what a memory holds is the same for output weights of one's own
    case
    for case in BASES
    if part_of(case) in NETWORKS and hasattr(NETWORKS[part_of(case)].part_class, "read")
    if "single" not in case and "untied" not in case.replace("one-hot", "")
]


def fast(cases):
    return [case for case in cases if not BASES[case].slow]


@cache
def found() -> dict[str, object]:
    """What the package has; a function, because other tests that use the list need not import all of it."""
    return parts(lambda part: IS_BASE(part) and not IS_NETWORK(part))


def test_the_list_is_complete():
    check_complete({**found(), **NETWORKS}, BASES, APART, __file__)


@pytest.mark.parametrize("case", slow_except(fast(BASES), BASES))
def test_every_base_obeys_the_laws(case):
    build, prompts, tolerance, _ = BASES[case]
    base = build()
    part = found().get(part_of(case))
    assert not isinstance(part, type) or isinstance(base, part)
    assert part_of(case) not in NETWORKS or NETWORKS.kind_of(base.config) == part_of(case)
    check_base(base, prompts, tolerance=tolerance)


@pytest.mark.parametrize("case", slow_except(fast(STREAMS), STREAMS))
def test_every_base_that_reads_streams_obeys_their_laws(case):
    check_stream(BASES[case].build(), length=7, rows=2, tolerance=1e-12)
