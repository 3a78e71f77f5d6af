"""How long a visitor of the explorer waits: from opening the page, and from asking for another draw, to the first candidates.

    python benchmarks/explorer.py [MODEL ...] [--repeats 5]

Headless Chromium looks at `esscher explore MODEL` (by default the two models of `make quickstart`), which has been loaded
before; `whole` is until the last candidate of the pool is there.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from rich.console import Console

from esscher.reports.tables import rich_table

QUICKSTART = [Path("runs/quickstart/motif"), Path("runs/quickstart/docstrings")]
ROWS = "document.querySelectorAll('#candidates tbody tr').length"
DRAWN = f"{ROWS} > 0 && !document.querySelector('#verdict').innerText.includes('still drawing')"


def main() -> None:
    parser = argparse.ArgumentParser(description="How long a visitor of the explorer waits.")
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    models = asked.models or [model for model in QUICKSTART if model.exists()]
    if not models:
        print("The models of the quick start are not here; run `make quickstart` first. Nothing was measured.")
        return
    rows = [row for model in models for row in measured(model, asked.repeats)]
    Console().print(rich_table("seconds until the first candidates, and until the whole pool", rows))


def measured(model: Path, repeats: int) -> list[dict[str, Any]]:
    """Both waits for one model, in a browser of its own each time."""
    server = subprocess.Popen([sys.executable, "-m", "esscher", "explore", str(model)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[0]
        found = [_visit(address) for _ in range(repeats + 1)][1:]
    finally:
        server.terminate()
        server.wait()
    return [
        {"model": model.name, "what": what, "first": _told([one[what][0] for one in found]),
         "whole": _told([one[what][1] for one in found])}
        for what in found[0]
    ]  # fmt: skip


def _visit(address: str) -> dict[str, tuple[float, float]]:
    """Opening the page, then another draw: seconds until the first candidates and until all."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()

        def wait(begun: float, first: str) -> tuple[float, float]:
            page.wait_for_function(first, timeout=120_000)
            seen = time.perf_counter() - begun
            page.wait_for_function(DRAWN, timeout=120_000)
            return seen, time.perf_counter() - begun

        begun = time.perf_counter()
        page.goto(address)
        opened = wait(begun, f"{ROWS} > 0")
        page.evaluate("window.seen = document.querySelector('#candidates tbody').innerText")
        page.fill("#seed input", "7")
        begun = time.perf_counter()
        page.press("#seed input", "Enter")
        again = wait(begun, f"{ROWS} > 0 && document.querySelector('#candidates tbody').innerText != window.seen")
        browser.close()
    return {"opening the page": opened, "drawing again": again}


def _told(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} [{min(seconds):.2f}, {max(seconds):.2f}]"


if __name__ == "__main__":
    main()
