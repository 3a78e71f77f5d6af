"""Beam search: exhaustive when wide enough, greedy when narrow, the same batched and one by one, cached and not."""

import pytest
import torch
from marks import slow
from random_targets import random_automaton
from seq2seq_models import tiny_model
from small_networks import CONFIGS, lively

from esscher.bases.seq2seq_lm import seq2seq_lm
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.decoding.beam_search import BeamSearch, Greedy, beam_search
from esscher.exact.enumeration import enumerate_points

SPACES = {"fixed length": Space(3, 4), "end symbol": Space(3, 4, eos=0)}
PROMPTS = prompts_of([[1, 2], [], [2, 2, 1]])


@torch.no_grad()
def best_points(base, prompt: list[int], penalty: float, count: int) -> list[tuple[list[int], float]]:
    """The points of highest score after a prompt, by scoring them all."""
    points = enumerate_points(base.space)
    x = sequences(points.points(), [prompt] * len(points))
    score = base.log_probs(x).sum(-1).double() / x.lengths**penalty
    order = score.argsort(descending=True)[:count]
    return [(x.points()[row], float(score[row])) for row in order.tolist()]


@pytest.mark.parametrize("kind", ["encoder-decoder", "attentive-lstm", "transformer, rotary", "automaton"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_wide_beam_is_exhaustive(kind, space, penalty):
    base = random_automaton(SPACES[space]) if kind == "automaton" else lively(CONFIGS[kind], SPACES[space]).double()
    prompts = [[]] if kind == "automaton" else [[1, 2], [], [2, 2, 1]]
    actual = beam_search(base, prompts_of(prompts), 81, length_penalty=penalty)
    for number, prompt in enumerate(prompts):
        expected = best_points(base, prompt, penalty, 81)
        for place, (_, score) in enumerate(expected):
            if score > -torch.inf:
                assert float(actual.score[number, place]) == pytest.approx(score, abs=1e-6)
        assert actual.x.points()[number * 81] == expected[0][0]


@pytest.mark.parametrize("space", SPACES)
def test_a_narrow_beam_takes_the_likeliest_token(space):
    base = lively(CONFIGS["encoder-decoder"], SPACES[space])
    draws = Greedy()(Tilted(base), PROMPTS, rng=SeededRng(0))
    for prompt, point in zip([[1, 2], [], [2, 2, 1]], draws.x.points(), strict=True):
        log_prob, state = base.begin(prompts_of([prompt]))
        said = []
        while len(said) < base.space.max_length and not (said and said[-1] == base.space.eos):
            said.append(int(log_prob.argmax()))
            if len(said) < base.space.max_length:
                log_prob, state = base.advance(state, torch.tensor(said[-1:]))
        assert point == said
    torch.testing.assert_close(draws.log_base.float(), base.log_probs(draws.x).sum(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["encoder-decoder", "attentive-lstm", "lstm, tied"])
@pytest.mark.parametrize("width", [slow(1), 2, slow(3)])
def test_a_batch_is_one_by_one_and_cached_is_not_cached(kind, width):
    base = lively(CONFIGS[kind], Space(3, 6, eos=0)).double()
    together = beam_search(base, PROMPTS, width)
    for number in range(len(PROMPTS)):
        alone = beam_search(base, PROMPTS.rows(slice(number, number + 1)), width)
        plain = uncached(base, PROMPTS.rows(slice(number, number + 1)), width)
        rows = slice(number * width, (number + 1) * width)
        assert together.x.rows(rows).points() == alone.x.points() == [point for point, _ in plain]
        torch.testing.assert_close(together.score[number], alone.score[0])
        torch.testing.assert_close(alone.score[0], torch.tensor([score for _, score in plain], dtype=torch.float64))


@torch.no_grad()
def uncached(base, prompt: Sequences, width: int) -> list[tuple[list[int], float]]:
    """Beam search written down by scoring whole rows, for one prompt and penalty 1."""
    inputs = prompt.tokens[0, : int(prompt.start[0])].tolist()
    open_, ended = [([], 0.0)], []
    for step in range(base.space.max_length):
        grown = []
        for tokens, total in open_:
            for token in range(base.space.vocab_size):
                row = sequences([[*tokens, token]], [inputs])
                grown.append(([*tokens, token], total + float(base.log_probs(row)[0, len(inputs) + len(tokens)])))
        grown = sorted(grown, key=lambda one: -one[1])[: 2 * width]
        last = step + 1 == base.space.max_length
        ended += [(tokens, total / len(tokens)) for tokens, total in grown[:width] if last or tokens[-1] == base.space.eos]
        ended = sorted(ended, key=lambda one: -one[1])[:width]
        open_ = [one for one in grown if not last and one[0][-1] != base.space.eos][:width]
        if len(ended) == width and ended[-1][1] >= open_[0][1] / base.space.max_length if open_ else True:
            break
    return ended


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
def test_beams_are_those_of_generate(family):
    model, sources = tiny_model(family), [[1, 2, 0], [2, 1, 0], [1, 1, 0]]
    ids = torch.tensor(sources)
    said = model.generate(
        ids, attention_mask=torch.ones_like(ids), num_beams=3, num_return_sequences=3, min_new_tokens=5, max_new_tokens=5,
        eos_token_id=None, forced_eos_token_id=None, output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    actual = beam_search(seq2seq_lm(model, max_length=5, eos=None), prompts_of(sources), 3)
    assert actual.x.points() == said.sequences[:, 1:].tolist()
    torch.testing.assert_close(actual.score.flatten().float(), said.sequences_scores, atol=1e-4, rtol=1e-4)


def test_an_energy_chooses_among_the_candidates():
    base = lively(CONFIGS["encoder-decoder"], SPACES["end symbol"])
    plain = BeamSearch(4)(Tilted(base), PROMPTS, rng=SeededRng(0))

    def long(x: Sequences) -> torch.Tensor:
        return 50.0 * x.lengths.float()

    tilted = BeamSearch(4)(Tilted(base, long), PROMPTS, rng=SeededRng(0))
    actual = beam_search(base, PROMPTS, 4)
    assert tilted.x.lengths.tolist() == actual.x.lengths.view(3, 4).amin(1).tolist()
    assert tilted.x.lengths.sum() < plain.x.lengths.sum()


def test_places_without_a_candidate_have_no_energy():
    base = lively(CONFIGS["encoder-decoder"], Space(2, 1))

    def of_points(x: Sequences) -> torch.Tensor:
        return torch.where(x.lengths > 0, x.lengths.float(), torch.nan)

    actual = BeamSearch(6)(Tilted(base, of_points), PROMPTS, rng=SeededRng(0))
    assert actual.x.points() == BeamSearch(1)(Tilted(base), PROMPTS, rng=SeededRng(0)).x.points()
    torch.testing.assert_close(actual.score, actual.log_base - 1)


def test_points_end_at_the_longest_length_asked_for():
    base = lively(CONFIGS["encoder-decoder"], SPACES["fixed length"])
    assert BeamSearch(2, max_new_tokens=2)(Tilted(base), PROMPTS, rng=SeededRng(0)).x.lengths.tolist() == [2, 2, 2]
    assert len(BeamSearch(2)(Tilted(base), empty_prompts(0), rng=SeededRng(0)).x) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0, 1.0), "width is at least 1, not 0"),
        ((2, -1.0), "at least 0, not -1"),
        ((2, 1.0, 0), "max_new_tokens is at least 1, not 0"),
    ],
)
def test_settings_that_are_no_beam(settings, message):
    with pytest.raises(ValueError, match=message):
        BeamSearch(*settings)
