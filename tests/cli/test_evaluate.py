"""esscher evaluate as a user meets it."""

import json

import cli_calls
import pytest
from metrics.translations import made_references, translated

from esscher.core.randomness import SeededRng
from esscher.metrics.metric import score_translation

pytest.importorskip("sacrebleu")
REFERENCES = made_references(30)
TEXTS = {
    "REFERENCES": REFERENCES,
    "OTHERS": made_references(30, seed=1),
    "OURS": translated(REFERENCES, seed=2, keep=9),
    "THEIRS": translated(REFERENCES, seed=3, keep=4),
    "SHORT": REFERENCES[1:],
    "NONE": [],
}


@pytest.fixture
def call(capsys, tmp_path):
    """Calls the verb with names of texts as files: exit code, standard output, standard error."""
    for name, lines in TEXTS.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf8")

    def called(*arguments: str) -> tuple[int, str, str]:
        inputs = [str(tmp_path / argument) if argument in TEXTS else argument for argument in arguments]
        return cli_calls.call(capsys, "evaluate", *inputs)

    return called


def test_scores_lengths_and_a_comparison(call):
    asked = ("OURS", "REFERENCES", "OTHERS", "--metrics", "bleu", "ter", "--against", "THEIRS", "--sources", "REFERENCES")
    code, out, err = call(*asked, "--bounds", "4", "8", "--confidence", "0.9", "--resamples", "200", "--seed", "7", "--json")
    assert code == 0, err
    output = json.loads(out.splitlines()[-1])
    verdicts = score_translation(
        ["bleu", "ter"],
        TEXTS["OURS"],
        list(zip(REFERENCES, TEXTS["OTHERS"], strict=True)),
        against=TEXTS["THEIRS"],
        sources=REFERENCES,
        bounds=(4, 8),
        confidence=0.9,
        resamples=200,
        rng=SeededRng(7).stream("score"),
    )
    assert (output["lines"], output["seed"], output["references"].count(", ")) == (30, 7, 1)
    assert [row["value"] for row in output["scores"]] == [verdict.value.to_dict() for verdict in verdicts]
    assert [row["better"] for row in output["scores"]] == ["higher", "lower"]
    assert [row["lines"] for row in output["by_length"]] == [group.lines for verdict in verdicts for group in verdict.groups]
    assert [row["words_of_source"] for row in output["by_length"][:3]] == ["[0, 4)", "[4, 8)", "[8, inf)"]
    assert [row["difference"] for row in output["comparison"]] == [verdict.against.difference.to_dict() for verdict in verdicts]
    assert all(row["p_value"]["value"] < 0.05 for row in output["comparison"])
    assert "BLEU|nrefs:2|" in output["scores"][0]["value"]["method"]


def test_a_table_for_people_and_empty_lines(call, tmp_path):
    code, out, err = call("OURS", "REFERENCES")
    assert code == 0, err
    assert "bleu" in out and "chrf" in out and "by length" not in out and "comparison" not in out
    (tmp_path / "gap").write_text("a b\n\n\u2028c\x0bd\n")
    code, out, _ = call(str(tmp_path / "gap"), str(tmp_path / "gap"), "--metrics", "wer", "--json")
    assert (code, json.loads(out)["lines"], json.loads(out)["scores"][0]["value"]["value"]) == (0, 3, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["OURS", "SHORT"], "SHORT has 29 lines and"),
        (["OURS", "REFERENCES", "SHORT"], "line k of both must belong together"),
        (["OURS", "REFERENCES", "--against", "SHORT"], "SHORT has 29 lines and"),
        (["OURS", "REFERENCES", "--sources", "SHORT"], "OURS has 30"),
        (["OURS", "REFERENCES", "--metrics", "comet"], "No metric named 'comet'. Nothing was computed; choose from: bleu"),
        (["OURS", "REFERENCES", "--confidence", "95"], "between 0 and 1, not 95"),
        (["OURS", "REFERENCES", "--resamples", "9"], "9 resamples are too few"),
        (["OURS", "REFERENCES", "--sources", "REFERENCES", "--bounds", "9", "3"], "Bounds of lengths ascend from above 0"),
        (["NONE", "NONE"], "There is no line at all"),
        (["OURS", "nowhere.txt"], "There is no file nowhere.txt"),
    ],
)
def test_errors_say_what_to_do(call, arguments, message):
    code, out, err = call(*arguments, "--json")
    assert (code, message in err) == (1, True), err
    assert json.loads(out.splitlines()[-1])["error"] == err.removeprefix("esscher: ").strip()
