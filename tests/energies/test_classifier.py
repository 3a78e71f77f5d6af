import pytest
import torch
from energies.classifiers import write_classifier

from esscher.core.space import Space, prompts_of, sequences
from esscher.energies.declared_features import CachedFeature, feature_from_spec, load_classifier
from esscher.energies.feature_spec import FeatureSpec, parse_feature
from esscher.energies.features import LogLinear, feature_values
from esscher.exact.enumeration import enumerate_points
from esscher.testing import check_energy

TEXTS = ["the good cat", "", "bad", "the good cat", "dog " * 30, "the bad dog the bad"]
WORDS = ["", "good", "bad", "cat"]


def decode(points: list[list[int]]) -> list[str]:
    return [" ".join(WORDS[token] for token in point if token) for point in points]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    write_classifier(folder)
    return folder


def one_by_one(folder, texts):
    """All logits, straight from transformers, a text at a time."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        actual = [model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=12)).logits[0] for text in texts]
    return torch.stack(actual).double()


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_scores_are_those_of_the_model_whatever_the_batch(folder, batch_size, capfd):
    logits = one_by_one(folder, TEXTS)
    capfd.readouterr()
    good = load_classifier(folder, "good", batch_size=batch_size)
    assert capfd.readouterr() == ("", "")
    assert torch.allclose(good(TEXTS), logits.softmax(-1)[:, 2], atol=1e-6)
    assert torch.allclose(load_classifier(folder, "0", "logit", batch_size=batch_size)(TEXTS), logits[:, 0], atol=1e-5)
    assert not torch.allclose(logits[:, 2], logits[:, 0], atol=0.1)  # a wrong label would be seen
    assert good([]).shape == (0,)


def test_tokens_are_given_as_they_are(folder):
    points = [[2, 4, 6, 3], [2, 5, 3], [8]]
    score = load_classifier(folder, "good", texts=False).score(points)
    assert torch.allclose(score[:2], load_classifier(folder, "good")(["good cat", "bad"]), atol=1e-6)
    on_tokens = feature_from_spec(FeatureSpec("classifier", str(folder), on="tokens", label="good"))
    assert torch.allclose(feature_values([on_tokens], sequences(points))[:, 0], score, atol=1e-6)
    with pytest.raises(ValueError, match="has 9 tokens and was given token 9: it was trained with another tokenizer"):
        load_classifier(folder, "good", texts=False).score([[9]])


def test_a_single_output_and_many_labels_at_once(tmp_path):
    write_classifier(tmp_path / "one", labels=("score",))
    item = one_by_one(tmp_path / "one", TEXTS)[:, 0]
    assert torch.allclose(load_classifier(tmp_path / "one")(TEXTS), torch.sigmoid(item), atol=1e-6)
    write_classifier(tmp_path / "many", problem_type="multi_label_classification")
    many = one_by_one(tmp_path / "many", TEXTS)[:, 1]
    assert torch.allclose(load_classifier(tmp_path / "many", "so-so")(TEXTS), torch.sigmoid(many), atol=1e-6)
    write_classifier(tmp_path / "number", labels=("score",), problem_type="regression")
    assert torch.isfinite(load_classifier(tmp_path / "number", measure="logit")(TEXTS)).all()
    with pytest.raises(ValueError, match="regression, which has no probability"):
        load_classifier(tmp_path / "number")


def test_a_declared_classifier_is_cached_and_obeys_the_laws(folder, monkeypatch):
    asked = []
    feature = feature_from_spec(parse_feature(f"classifier[label=good]:{folder}"), decode)
    assert isinstance(feature.of, CachedFeature)
    score = feature.of.of.score
    counting = type(feature.of.of)(decode, lambda texts: asked.append(len(texts)) or score(texts))
    monkeypatch.setattr(feature.of, "of", counting)
    space = Space(4, 3, eos=0)
    x = enumerate_points(space, prompts_of([[], [1]]))
    first = feature_values([feature], x)
    assert asked == [len(x) // 2]  # prompts are not read
    assert torch.equal(feature_values([feature], x), first) and len(asked) == 1
    assert torch.allclose(first[:, 0], load_classifier(folder, "good")(decode(x.points())), atol=1e-6)
    check_energy(LogLinear([feature], torch.ones(1)), x)
    at_least = feature_from_spec(FeatureSpec("classifier", str(folder), label="good", at_least=float(first.median())), decode)
    assert torch.equal(feature_values([at_least], x), (first >= first.median()).double())


def test_what_is_no_classifier_says_so(folder, tmp_path):
    with pytest.raises(ValueError, match=r"has no label 'fine'. Choose from: 0 \(bad\), 1 \(so-so\), 2 \(good\)"):
        load_classifier(folder, "fine")
    with pytest.raises(ValueError, match="several labels, and none was named"):
        load_classifier(folder)
    with pytest.raises(ValueError, match=r"no measure 'odds'. Choose from: probability, logit"):
        load_classifier(folder, "good", "odds")
    with pytest.raises(FileNotFoundError, match="no classifier folder org/name"):
        load_classifier("org/name", "good")
    with pytest.raises(FileNotFoundError, match="reads the folder org/name, which is not there"):
        feature_from_spec(FeatureSpec("classifier", "org/name", label="good"), decode)
    with pytest.raises(ValueError, match="holds no readable classifier"):
        load_classifier(tmp_path, "good")
    write_classifier(tmp_path / "encoder", head=False)
    with pytest.raises(ValueError, match=r"never trained to classify: it has no weights \['classifier.bias'"):
        load_classifier(tmp_path / "encoder", "good")
