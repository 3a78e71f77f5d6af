"""`esscher report`: runs side by side, on one page."""

from dataclasses import dataclass, field
from pathlib import Path

from esscher.reports.report import Report, compare_reports, read_report


@dataclass(frozen=True)
class ReportConfig:
    """The numbers that the runs share with their intervals, and the settings in which they differ."""

    runs: tuple[str, ...]
    """Folders that train, tilt, distil, finetune, measure or reproduce wrote."""
    out: str = field(default="comparison.html", kw_only=True)
    """File of the page."""

    def __post_init__(self) -> None:
        if len(set(self.runs)) < 2:
            raise ValueError(f"A comparison needs two runs or more, not {len(set(self.runs))}. Nothing was compared.")


def report_runs(settings: ReportConfig) -> Report:
    """Compare the saved reports of runs, and write the page."""
    from esscher.reports.report_page import write_comparison

    reports = {folder: read_report(Path(folder)) for folder in settings.runs}
    rows, differ = compare_reports(reports)
    page = write_comparison(Path(settings.out), reports)
    return Report("esscher report", {"page": page}, {"numbers": rows, "settings": differ})
