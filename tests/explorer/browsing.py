"""Pages served by a process of their own, and a headless browser that looks at them."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip


@contextmanager
def served(script, *arguments):
    """The address of a page that a script of this folder serves; the server is killed at the end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE), str(HERE.parent)])}
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        line = server.stdout.readline()
        assert line.startswith("http://"), "the server did not begin"
        yield line.split()[0]
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@contextmanager
def looking(address, *, width=1280, height=900, scheme="light"):
    """A page of headless Chromium; at the end it has made no request to elsewhere and met no error."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=list(FLAGS))
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        wrong, asked = [], []
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.set_default_timeout(60_000)
        page.goto(address)
        yield page
        browser.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def brightness(page, selector, what="color"):
    """How bright the text or the background of an element is, from 0 to 255; behind a transparent ground is the next one."""
    script = """([selector, what]) => {
        for (let e = document.querySelector(selector); e; e = e.parentElement) {
            const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
            canvas.fillStyle = getComputedStyle(e)[what]; canvas.fillRect(0, 0, 1, 1);
            const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
            if (a > 200) return (r + g + b) / 3;
        }
        return 255;
    }"""
    return page.evaluate(script, [selector, what])
