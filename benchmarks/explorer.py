"""How long a visitor of the explorer waits: from opening the page, and from asking for another draw, to the first candidates.

Headless Chromium, on the same cores as the server, looks at `esscher explore` of the strings of `make quickstart`, which
has been loaded before; `whole` is until the last candidate of the pool is there. It needs runs/quickstart and Chromium.
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from benchmarks._device import device
from benchmarks._timing import MissingPartError, Row, Table, spread

REPEATS = 5
QUICKSTART = (Path("runs/quickstart/hash"),)
ROWS = "document.querySelectorAll('#candidates tbody tr').length"
DRAWN = f"{ROWS} > 0 && !document.querySelector('#verdict').innerText.includes('still drawing')"


def measured(model: Path, repeats: int) -> list[Row]:
    """Both waits for one model, in a browser of its own each time."""
    server = subprocess.Popen(
        [sys.executable, "-m", "esscher", "explore", str(model), "--device", str(device())], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[0]
        actual = [_visit(address) for _ in range(repeats + 1)][1:]
    finally:
        server.terminate()
        server.wait()
    return [
        {"model": model.name, "what": what, "first, s": spread([item[what][0] for item in actual]),
         "whole, s": spread([item[what][1] for item in actual])}
        for what in actual[0]
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


def tables(repeats: int) -> list[Table]:
    missing = [f"{model} (run `make quickstart`, about 3 minutes)" for model in QUICKSTART if not model.exists()]
    if shutil.which("chromium") is None:
        missing.append("`chromium` on the path (install it, for instance from the system's packages)")
    if missing:
        raise MissingPartError(f"What it needs is not on this machine: {', '.join(missing)}.")
    rows = [row for model in QUICKSTART for row in measured(model, repeats)]
    return [Table("until the first candidates, and until the whole pool", rows)]
