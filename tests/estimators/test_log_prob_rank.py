"""Rank and divergence of next-token distributions: exact on tables, softmax within its bound, wrong versions caught."""

import math

import pytest
import torch
from causal_models import tiny_model
from cli_calls import answer, call
from small_networks import CONFIGS, lively

from esscher.bases.causal_lm import causal_lm
from esscher.bases.ngram import fit_ngram
from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.data.tokenizers import train_tokenizer
from esscher.estimators.log_prob_rank import (
    LogProbSpectrum,
    log_prob_spectrum,
    mean_divergence,
    next_log_probs,
    singular_curve,
)
from esscher.exact.automaton import Automaton
from esscher.hub import save_base
from esscher.networks.recurrent_config import LstmConfig
from esscher.networks.transformer_config import TransformerConfig
from esscher.testing import assert_covers
from esscher.workflow.analyse_bases import softmax_bound
from esscher.workflow.config.analyse import RankConfig

SOFTMAX = {
    "lstm, biases": (LstmConfig(6, 1, embedding=5), 6 + 2),
    "transformer, no bias": (TransformerConfig(8, 1, 2, 16), 8 + 1),
    "mixture of contexts": (LstmConfig(9, 1, embedding=5, output="moc", components=3, latent_width=6), 6 + 2),
}


def tokens_of(count, vocabulary):
    return torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(count))


def with_biases(config, space, seed=1):
    """A lively base in double precision, biases of its head not 0."""
    base = lively(config, space, seed=seed).double()
    if base.network.head.bias is not None:
        with torch.no_grad():
            base.network.head.bias.add_(torch.linspace(-1, 1, space.vocab_size).square())
    return base


def plain_rank(matrix):
    singular = torch.linalg.svdvals(matrix.double())
    return int((singular > singular[0] * max(matrix.shape) * 2.0**-52).sum())


@pytest.mark.parametrize("kind", SOFTMAX)
def test_a_softmax_has_the_rank_of_its_width(kind):
    """And in single precision its round-off would pass for full rank, so that is refused."""
    config, bound = SOFTMAX[kind]
    base, tokens = with_biases(config, Space(40, 1)), tokens_of(200, 40)
    matrix = next_log_probs(base, tokens, torch.arange(8, 200, 4), 8)
    actual = log_prob_spectrum(matrix)
    assert matrix.shape == (48, 40) and actual.rank.value == bound == softmax_bound(base) and actual.rank.n == 0
    assert not actual.full
    single = next_log_probs(base.float(), tokens, torch.arange(8, 200, 4), 8)
    assert plain_rank(single) == 40
    with pytest.raises(ValueError, match="full rank"):
        log_prob_spectrum(single)


def test_mixtures_of_softmaxes_are_above_the_bound():
    """More components, more rank; so has a mixture that is made by hand."""
    tokens, places, ranks = tokens_of(300, 60), torch.arange(8, 300, 4), []
    for components in (1, 2, 4):
        config = LstmConfig(9, 1, embedding=5, output="mos", components=components, latent_width=3)
        base = with_biases(config, Space(60, 1))
        ranks.append(log_prob_spectrum(next_log_probs(base, tokens, places, 8)).rank.value)
        assert softmax_bound(base) == 3 + 2
    assert ranks[0] == 5 and 2 * ranks[0] < ranks[1] <= ranks[2]
    config, bound = SOFTMAX["lstm, biases"]
    first, second = (next_log_probs(with_biases(config, Space(60, 1), seed), tokens, places, 8) for seed in (1, 2))
    assert log_prob_spectrum(torch.logaddexp(first, second) - math.log(2)).rank.value > 2 * bound


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_models_of_hugging_face(family):
    base = causal_lm(tiny_model(family, vocab_size=40), max_length=1).double()
    actual = log_prob_spectrum(next_log_probs(base, tokens_of(200, 40), torch.arange(8, 200, 4), 8))
    assert softmax_bound(base) == 17
    assert actual.rank.value == (16 if family == "gpt2" else 17)  # an untrained LayerNorm takes one direction away


def test_log_probs_are_those_after_each_context():
    base, tokens = lively(CONFIGS["lstm, vectors"], Space(5, 4)).double(), tokens_of(30, 5)
    places = torch.tensor([4, 17, 30])
    actual = next_log_probs(base, tokens, places, 4)
    for row, place in enumerate(places.tolist()):
        expected = base.begin(prompts_of([tokens[place - 4 : place].tolist()]))[0][0]
        assert torch.allclose(actual[row], expected, atol=1e-12)
    for wrong in (torch.tensor([3]), torch.tensor([31]), torch.tensor([], dtype=torch.long)):
        with pytest.raises(ValueError, match="Nothing was computed"):
            next_log_probs(base, tokens, wrong, 4)


def test_a_table_has_the_rank_that_is_written_into_it():
    """A table whose log-probabilities are sums of three patterns; and an n-gram model, whose rows are its contexts."""
    generator = torch.Generator().manual_seed(3)
    patterns = torch.randn(9, 2, generator=generator, dtype=torch.float64) @ torch.randn(2, 12, generator=generator).double()
    log_emission = patterns.log_softmax(-1)  # two patterns and the normaliser
    base = Automaton(log_emission, torch.arange(12).remainder(9).repeat(9, 1), Space(12, 1))
    tokens = tokens_of(300, 12)
    assert log_prob_spectrum(next_log_probs(base, tokens, torch.arange(4, 300, 3), 4)).rank.value == 3
    text = tokens_of(400, 6)
    bigram = fit_ngram(sequences([text.tolist()]), Space(6, 400), 2)
    rows = next_log_probs(bigram, text, torch.arange(4, 400, 3), 4)
    actual = log_prob_spectrum(rows)
    assert actual.rank.value == plain_rank(bigram.log_emission) == 6 and actual.full
    unigram = fit_ngram(sequences([text.tolist()]), Space(6, 400), 1)
    alone = log_prob_spectrum(next_log_probs(unigram, text, torch.arange(4, 400, 3), 4))
    assert alone.rank.value == 1 and alone.divergence.value == pytest.approx(0, abs=1e-12)


def pairs(matrix):
    """Mean divergence of ordered pairs of different rows, one by one."""
    actual = [
        float((matrix[i].exp() * (matrix[i] - matrix[j])).sum())
        for i in range(len(matrix))
        for j in range(len(matrix))
        if i != j
    ]
    return sum(actual) / len(actual)


def test_divergence_is_that_of_all_pairs():
    matrix = (3 * torch.randn(17, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).log_softmax(-1)
    actual = mean_divergence(matrix)
    assert actual.value == pytest.approx(pairs(matrix), rel=1e-12) and actual.unit == "nats"
    assert actual.value != pytest.approx(pairs(matrix) * 16 / 17, rel=1e-3)  # with pairs of a row and itself
    middle = matrix.exp().mean(0).log()
    around = float((matrix.exp() * (matrix - middle)).sum(1).mean())  # from their mean: another, smaller number
    assert actual.value > 1.5 * around
    assert 0 <= actual.low < actual.value < actual.high


def test_the_interval_covers_the_divergence_of_two_contexts():
    """Contexts come in runs of 5 equal ones. False-alarm rate 1e-3; contexts one by one as replicates are caught."""
    table = (2 * torch.randn(8, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)).log_softmax(-1)
    apart = (table.exp() * table).sum(1, keepdim=True) - table.exp() @ table.T
    truth, hits, naive, replications = float(apart.mean()), 0, 0, 200
    for replication in range(replications):
        drawn = torch.randint(8, (40,), generator=torch.Generator().manual_seed(replication)).repeat_interleave(5)
        hits += mean_divergence(table[drawn]).covers(truth)
        shuffled = drawn[torch.randperm(200, generator=torch.Generator().manual_seed(replication))]
        naive += mean_divergence(table[shuffled]).covers(truth)
    assert naive < 0.8 * replications
    assert_covers(hits, replications, 0.95)


def test_the_curve_and_what_is_refused():
    singular = torch.tensor([4.0, 2.0, 1.0, 0.0], dtype=torch.float64)
    matrix = torch.diag(singular) - 5
    actual = log_prob_spectrum(matrix.log_softmax(-1))
    spread = LogProbSpectrum(4, 4, actual.rank, singular, actual.divergence)
    assert singular_curve(spread.singular) == ([0.0, 0.25, 0.5, 1.0], [0.25, 0.5, 0.75, 1.0])
    with pytest.raises(ValueError, match="2 contexts"):
        log_prob_spectrum(matrix[:1])
    with pytest.raises(ValueError, match="1 probabilities are 0"):
        log_prob_spectrum(torch.tensor([[0.0, -math.inf], [-0.7, -0.7]], dtype=torch.float64))
    for wrong in ({"contexts": 1}, {"length": -1}):
        with pytest.raises(ValueError, match="Nothing was measured"):
            RankConfig(("model",), data="text", **wrong)


def test_the_verb(capsys, tmp_path):
    text, tokenizer = tmp_path / "text.txt", train_tokenizer("character", ["abcdefghijklmnop"])
    text.write_text("\n".join("abcdefghijklmnop"[n % 7 : n % 11 + 5] for n in range(40)))
    space = Space(tokenizer.vocab_size, 8)
    save_base(tmp_path / "one", lively(LstmConfig(6, 1, embedding=5), space), tokenizer)
    short = TransformerConfig(8, 1, 2, 16, positions="learned", max_positions=8)
    save_base(tmp_path / "two", lively(short, space), tokenizer)
    flags = ["--data", str(text), "--contexts", "60", "--length", "12", "--plot", str(tmp_path / "p.png"), "--quiet"]
    output = answer(capsys, "analyse", "rank", str(tmp_path / "one"), str(tmp_path / "two"), *flags)
    assert [(row["rank"]["value"], row["softmax_at_most"], row["contexts"]) for row in output["ranks"]] == [
        (8, 8, 60),
        (9, 9, 60),
    ]
    assert all(row["mean_divergence"]["value"] > 0 for row in output["ranks"])
    assert {len(values) for values in output["singular_values"].values()} == {tokenizer.vocab_size}
    assert (tmp_path / "p.png").stat().st_size > 1000
    code, _, err = call(capsys, "analyse", "rank", "--data", str(text))
    assert code == 1 and "Name at least one folder" in err
    _, out, _ = call(capsys, "analyse", "rank", str(tmp_path / "one"), *flags[:3], "5", "--quiet")
    assert "as high as 5" in " ".join(out.split())


def test_a_context_of_nothing_is_the_beginning():
    base = lively(CONFIGS["gru, one-hot"], Space(5, 4)).double()
    actual = next_log_probs(base, tokens_of(6, 5), torch.arange(3), 0)
    empty = Sequences(torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    assert torch.allclose(actual, base.begin(empty)[0].expand(3, -1), atol=1e-12)
