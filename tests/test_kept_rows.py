from kept_rows import restore, save

from esscher.papers.study import StudyContext


def test_kept_rows_are_not_made_again(tmp_path):
    first = StudyContext(scale="smoke", out=tmp_path / "first")
    first.row("study", "a model, twice", 3, lambda folder: {"value": 1.5})
    assert save("name", first.out, tmp_path) == 1
    again = StudyContext(scale="smoke", out=tmp_path / "again")
    assert restore("name", again.out, tmp_path) == 1
    assert restore("name", again.out, tmp_path) == 0  # a row that is there stays
    assert again.row("study", "a model, twice", 3, lambda folder: {"value": 2.0}) == {"value": 1.5}
