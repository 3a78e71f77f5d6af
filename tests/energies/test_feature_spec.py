import subprocess
import sys

import pytest

from esscher.energies.feature_spec import (
    FEATURE_KINDS,
    FeatureSpec,
    parse_feature,
    parse_features,
    read_features,
    spec_from_dict,
    spec_to_dict,
)

EACH = {
    "contains:cat": FeatureSpec("contains", "cat"),
    "contains:a:b": FeatureSpec("contains", "a:b"),
    "contains: cat ": FeatureSpec("contains", " cat "),
    "contains:@home": FeatureSpec("contains", "@home"),
    "lacks[on=tokens,name=no motif]:1 0 1": FeatureSpec("lacks", "1 0 1", "no motif", "tokens"),
    "count:\n": FeatureSpec("count", "\n"),
    "starts-with[negated]:0": FeatureSpec("starts-with", "0", negated=True),
    "starts-with[negated=false]:0": FeatureSpec("starts-with", "0"),
    "ends-with:.": FeatureSpec("ends-with", "."),
    "matches:^[A-Z]": FeatureSpec("matches", "^[A-Z]"),
    "matches[name=capital]:^[A-Z]:?": FeatureSpec("matches", "^[A-Z]:?", "capital"),
    "hash:4": FeatureSpec("hash", "4"),
    "characters": FeatureSpec("characters"),
    "words[at_least=20]": FeatureSpec("words", at_least=20.0),
    "tokens": FeatureSpec("tokens"),
    "word-list:happy,glad": FeatureSpec("word-list", "happy,glad"),
    "word-list[measure=count]:@lists/a.txt": FeatureSpec("word-list", file="lists/a.txt", measure="count"),
    "ngram-overlap[n=2]:@ref.txt": FeatureSpec("ngram-overlap", file="ref.txt", n=2),
    "classifier[label=1,measure=logit]:models/mood": FeatureSpec("classifier", "models/mood", label="1", measure="logit"),
}


@pytest.mark.parametrize("short", EACH)
def test_short_and_long_forms_say_the_same(short):
    declared = parse_feature(short)
    assert declared == EACH[short]
    assert (
        spec_from_dict(spec_to_dict(declared)) == declared == parse_feature(declared) == parse_feature(spec_to_dict(declared))
    )


def test_every_kind_has_a_short_form_here():
    assert {declared.kind for declared in EACH.values()} == set(FEATURE_KINDS)


def test_titles_tell_features_apart():
    titles = [declared.title for declared in EACH.values()]
    assert titles[0] == "contains cat" and "starts-with 0" in titles and "not starts-with 0" in titles
    assert "words at least 20" in titles and "ngram-overlap n=2 ref.txt" in titles and "classifier 1 mood logit" in titles
    assert len(set(titles)) == len(titles)
    with pytest.raises(ValueError, match="Two features are called 'contains cat'"):
        parse_features(["contains:cat", {"kind": "contains", "value": "cat"}])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("holds:x", "'holds:x' cannot be used: No feature of kind 'holds'. Choose from: contains, lacks"),
        ("contains", "needs a value to look for, a string"),
        ("word-list", r"needs a value to look for \(or a file\)"),
        ("words:5", "'words' takes no value; got '5'"),
        ("matches:(", "no regular expression"),
        ("contains[on=letters]:a", "reads text or tokens, not 'letters'"),
        ("words[on=tokens]", "'words' reads text, not 'tokens'"),
        ("contains[on=tokens]:cat", "'cat' is no token id; on tokens a value is ids such as '12 7 9'"),
        ("contains[on=tokens]:-1", "'-1' is no token id"),
        ("count[on=tokens]: , ", "no token id in"),
        ("contains[n=2]:a", "'contains' has no setting 'n'. Choose from: name, on, at_least, negated"),
        ("contains[nagated]:a", "No setting 'nagated'. Choose from: kind, value"),
        ("ngram-overlap[n=two]:a b", "'n' is a number, not 'two'"),
        ("ngram-overlap[n=0]:a b", "at least one word, not n = 0"),
        ("word-list[measure=mean]:a", "no measure 'mean'. Choose from: share, presence, count"),
        ("word-list:well done,good", "'well done' is not one word"),
        ("word-list:,", "no word in"),
        ("words[negated]", "is a number and cannot be negated"),
        ("words[at_least=inf]", "finite number"),
        ("contains[abc", "not of the form kind:value"),
        ({"value": "a"}, "has no kind. Choose from: contains"),
        ({"kind": "starts-with", "value": 65}, "'value' is a string, and 65 was read as int; put it in quotes"),
        ({"kind": "words", "at_least": "many"}, "'at_least' is a number, and 'many' was read as str"),
        ({"kind": "word-list", "value": "a", "file": "b"}, "a value or a file, not both"),
        ({"kind": "ngram-overlap", "value": "a", "n": True}, "'n' is a whole number, and True was read as bool"),
    ],
)
def test_errors_name_the_wrong_piece(given, message):
    with pytest.raises(ValueError, match=message):
        parse_feature(given)


def test_features_of_a_yaml_file(tmp_path):
    file = tmp_path / "features.yaml"
    file.write_text(
        "features:\n- contains:cat\n- {kind: word-list, value: [happy, glad], measure: presence}\n"
        "- kind: classifier\n  value: models/mood\n  label: 1\n  at_least: 1\n"
    )
    mood = FeatureSpec("classifier", "models/mood", label="1", at_least=1.0)
    expected = (FeatureSpec("contains", "cat"), FeatureSpec("word-list", "happy,glad", measure="presence"), mood)
    assert read_features(file) == expected
    file.write_text("- words\n")
    assert read_features(file) == (FeatureSpec("words"),)
    for content, message in [
        ("- starts-with:a\n- {kind: starts-with, value: 0101}\n", "features.yaml: .*65 was read as int; put it in quotes"),
        ("feature: [words]\n", "holds no list of features"),
        ("- [words]\n", "holds no list of features"),
        ("- {kind: [\n", "is not valid YAML"),
    ]:
        file.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_features(file)
    with pytest.raises(FileNotFoundError, match=r"no file .*nowhere.yaml"):
        read_features(tmp_path / "nowhere.yaml")


def test_declarations_are_read_without_torch():
    code = "import sys, esscher.energies.text_scorers; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    code = "import sys, esscher.energies.declared_features; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
