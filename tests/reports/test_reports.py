import re

from esscher.core.estimate import Estimate
from esscher.reports.document import Picture, Section, Table, TextLines, write_report
from esscher.reports.plots import bars, curves, intervals
from esscher.reports.tables import format_cell

SOME = Estimate(1.23456789, 1.0, 1.5, 0.95, 100, "delta", "nats")


def test_cells_show_intervals_and_digits():
    assert format_cell(SOME) == "1.23 [1.00, 1.50] nats"
    assert format_cell(Estimate.exact(0.5)) == "0.5"
    assert [format_cell(value) for value in (None, True, 1234567, 0.1234567, "x")] == ["", "yes", "1,234,567", "0.1235", "x"]


def test_a_report_is_one_file_and_escapes_what_it_shows(tmp_path):
    attack = "<script>alert(1)</script>"
    sections = [
        Section(
            attack,
            f"first\n\nsecond {attack}",
            [
                Table(attack, [{attack: attack, "n": SOME}], attack),
                Picture(intervals({attack: SOME, "b": SOME}, label="nats", truth=1.1), attack),
                Picture(bars([{"name": attack, "x": 0.5}], series={"x": "#123456"}, label="share"), "bars"),
                Picture(curves({"loss": ([1, 2], [3, 2])}, x="step", y="nats", floor=1.0), "curves"),
                TextLines(attack, [attack]),
            ],
        )
    ]
    html = write_report(tmp_path / "deep" / "report.html", attack, attack, sections).read_text()
    assert "<script" not in html
    assert html.count("<svg") == 3
    assert not re.search(r"(src|href)=\"(?!#)", re.sub(r"<svg.*?</svg>", "", html, flags=re.S)), "nothing is fetched"
    assert "1.23 [1.00, 1.50] nats" in html
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["report.html"]
