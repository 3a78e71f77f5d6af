"""The pages in headless Chromium: they draw when they open, controls change what is seen, the training view refreshes by
itself, phone and dark mode work, and no text becomes markup."""

import re
import time

import pytest
from browsing import brightness, looking, served
from test_runs import ENTRIES, write_run

pytest.importorskip("gradio", reason="the extra `ui` is not installed")
pytestmark = pytest.mark.slow
TEXTS, PROMPT, WAIT = "#texts article", "#prompt textarea, #prompt input", 60_000
TABS = ("Candidates", "Next token", "Token by token", "Energies", "About", "Texts")


@pytest.fixture(scope="module")
def address():
    with served("small_model.py") as actual:
        yield actual


def drawn(page):
    """The verdict and the texts, once they have stopped changing."""
    page.wait_for_selector(TEXTS, timeout=WAIT)
    seen = None
    while (now := page.inner_text("#verdict") + page.inner_text("#texts")) != seen or "Drawing …" in now:
        seen = now
        time.sleep(1)
    return seen


def open_tab(page, name):
    """Open a tab, which a narrow page has in a menu."""
    tab = page.get_by_role("tab", name=name, exact=True).first
    if not tab.is_visible():
        page.click(".overflow-menu button")
        tab = page.locator(".overflow-dropdown button", has_text=name).first
    tab.click()


def test_it_opens_with_a_title_texts_side_by_side_and_a_verdict_in_words(address):
    with looking(address) as page:
        seen = drawn(page)
        assert page.title() == "Explore toy: what the tilt changes · Esscher" and "Explore toy" in page.inner_text("h1")
        columns = page.eval_on_selector_all("#texts section", "all => all.map(e => e.getBoundingClientRect().left)")
        assert len(columns) == 2 and columns[0] < columns[1] and page.locator("#texts section article").count() == 12
        assert "log Z =" in seen and "[" in seen and "unreliable" not in seen
        assert page.locator("#texts .whisker[title*='%']").count() == 4  # two features, intervals on hover


def test_the_button_does_what_the_verdict_advises(address):
    with looking(address) as page:
        (count,) = re.findall(r"Drawing stopped (?:at the limit of|after) ([0-9,]+) candidates", drawn(page))
        assert "Draw 4" in page.inner_text("#more")
        open_tab(page, "Candidates")
        page.wait_for_selector("#candidates tbody tr", timeout=WAIT)
        page.click("#more")
        words = f"among {4 * int(count.replace(',', '')):,} draws"
        page.wait_for_function(f"document.querySelector('#candidates').textContent.includes('{words}')", timeout=WAIT)


def test_an_example_is_clicked_and_controls_change_what_is_seen(address):
    with looking(address) as page:
        empty = drawn(page)
        page.locator(".chip", has_text="ab").click()
        page.wait_for_selector("#texts .prompt", timeout=WAIT)
        assert page.input_value(PROMPT) == "ab" and drawn(page) != empty
        page.fill(PROMPT, "")
        page.press(PROMPT, "Enter")
        page.wait_for_function("document.querySelectorAll('#texts .prompt').length == 0", timeout=WAIT)
        page.click("#settings button")
        page.fill("#top-k input[type=number]", "1")
        page.press("#top-k input[type=number]", "Tab")
        open_tab(page, "Candidates")
        page.wait_for_selector("#candidates tbody tr", timeout=WAIT)
        page.wait_for_function("document.querySelectorAll('#candidates tbody tr').length == 1", timeout=WAIT)
        open_tab(page, "Next token")
        page.wait_for_selector("#tokens .token", timeout=WAIT)
        tracks = page.eval_on_selector_all("#tokens .track", "all => all.map(e => Math.round(e.getBoundingClientRect().width))")
        assert len(set(tracks)) == 1, "all bars have one scale"
        open_tab(page, "Token by token")
        page.wait_for_selector("#changes .text span", timeout=WAIT)
        open_tab(page, "Energies")
        page.wait_for_selector("#energies svg", timeout=WAIT)


def test_the_page_answers_while_it_draws():
    """The rest of the pool is still being drawn when the first texts are there, a tab was opened, a word typed and the server
    asked for the page again."""
    with served("small_model.py", "", "slow") as address, looking(address) as page:
        page.wait_for_selector(TEXTS, timeout=WAIT)
        open_tab(page, "About")
        page.wait_for_selector("#about :text('vocabulary')")
        page.fill(PROMPT, "ba")
        assert page.request.get(address).ok
        assert "Drawing …" in page.inner_text("#verdict")


def test_text_is_never_markup(address):
    with looking(address) as page:
        drawn(page)
        page.evaluate("() => { window.alert = () => { window.harmed = true } }")
        evil = "<img src=x onerror=alert(1)><script>alert(2)</script>${alert(3)}{{value}}"
        page.fill(PROMPT, evil)
        page.click("#draw")
        page.wait_for_timeout(3000)
        assert page.evaluate("window.harmed") is None
        assert page.locator("#texts img, #texts script, #candidates img, #verdict img, #verdict script").count() == 0


def test_a_phone_sees_every_tab_without_scrolling_sideways(address):
    with looking(address, width=390, height=844) as page:
        drawn(page)
        for name in TABS:
            open_tab(page, name)
            page.wait_for_timeout(1500)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name


@pytest.mark.parametrize("width", [1280, 390])
def test_a_dark_page_has_light_text_on_a_dark_ground(address, width):
    with looking(address, width=width, scheme="dark") as page:
        drawn(page)
        for place in ("h1", "#verdict p", "#texts article p", "#texts .whisker .words", "#texts .dim"):
            assert brightness(page, place) > 150 and brightness(page, place, "backgroundColor") < 60, place


def test_the_training_view_refreshes_by_itself_and_runs_are_compared(tmp_path):
    write_run(tmp_path / "old", value=2.0)
    run = write_run(tmp_path / "run", step=20)
    with served("serve_training.py", run) as address, looking(address) as page:
        page.wait_for_selector("#training .tile", timeout=WAIT)
        shown = page.inner_text("#training")
        assert "Training." in shown and "1,234" in shown and "a second <text>" in shown and "of 40" in shown
        more = [{"step": 30, "loss": 1.5}, {"step": 30, "validation": 1.7}, {"step": 30, "samples": ["a third text"]}]
        write_run(run, [*ENTRIES, *more], step=30)
        page.wait_for_function("document.querySelector('#training').innerText.includes('a third text')", timeout=WAIT)
        open_tab(page, "Compare runs")
        page.wait_for_selector("#comparison polyline", timeout=WAIT)
        assert page.locator("#comparison polyline").count() == 2 and "run is not finished" in page.inner_text("#comparison")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_report_is_readable(tmp_path, width, scheme):
    """Samples and curves are above the fold; the settings are folded; nothing is cut off; dark pages are dark."""
    run = write_run(tmp_path / "run", value=2.0)
    with looking((run / "report.html").as_uri(), width=width, scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        tops = [page.locator(place).first.bounding_box()["y"] for place in ("pre", ".chart svg", "dl", "summary")]
        assert tops == sorted(tops) and tops[0] < 400
        assert not page.evaluate("document.querySelector('details').open")
        text, ground = brightness(page, "pre"), brightness(page, "body", "backgroundColor")
        assert (text > 150 and ground < 60) if scheme == "dark" else (text < 100 and ground > 200)


def test_votes_outlive_the_server(tmp_path):
    """Two votes, a kill, a new server: the rater goes on with the third pair, and all votes are there."""
    folder = tmp_path / "judged"

    def judge(page, votes, first):
        page.fill("#rater textarea, #rater input", "ann")
        page.click("#begin")
        for number in range(first, first + votes):
            page.wait_for_function(f"document.querySelector('#pair').innerText.includes('Pair {number} of 5')", timeout=WAIT)
            assert "<b>wrote</b>" in page.inner_text("#pair")
            page.click("#vote-left" if number % 2 else "#vote-right")
        page.wait_for_function(f"!document.querySelector('#pair').innerText.includes('Pair {number} of')", timeout=WAIT)

    with served("serve_comparison.py", folder) as address, looking(address) as page:
        judge(page, 2, 1)
    kept = (folder / "votes.jsonl").read_text()
    assert kept.count("\n") == 2
    with served("serve_comparison.py", folder) as address, looking(address, width=390, height=844) as page:
        judge(page, 3, 3)
        assert "Thank you" in page.inner_text("#pair")
    assert (folder / "votes.jsonl").read_text().startswith(kept)
    assert (folder / "votes.jsonl").read_text().count("\n") == 5
