"""The explorer in headless Chromium: a prompt is typed, candidates appear, controls change them, and no text becomes markup."""

import time

import pytest
from browsing import looking, served

pytest.importorskip("gradio", reason="the extra `ui` is not installed")
pytestmark = pytest.mark.slow
ROWS, WAIT = "#candidates tbody tr", 60_000


@pytest.fixture(scope="module")
def address():
    with served("small_model.py") as actual:
        yield actual


def drawn(page):
    """The candidates, once they have stopped changing."""
    page.wait_for_selector(ROWS, timeout=WAIT)
    seen = None
    while (now := page.inner_text("#candidates") + page.inner_text("#verdict")) != seen or "still drawing" in now:
        seen = now
        time.sleep(1)
    return seen


def test_a_prompt_is_entered_and_controls_change_what_is_seen(address):
    with looking(address) as page:
        empty = drawn(page)
        page.fill("#prompt textarea, #prompt input", "ab")
        page.press("#prompt textarea, #prompt input", "Enter")
        page.wait_for_timeout(2000)
        after = drawn(page)
        assert after != empty and "log Z" in after
        page.fill("#top-k input[type=number]", "1")
        page.press("#top-k input[type=number]", "Tab")
        page.wait_for_function("document.querySelectorAll('#candidates tbody tr').length == 1", timeout=WAIT)
        page.get_by_role("tab", name="Next token").click()
        page.click("#ask-tokens")
        page.wait_for_selector("#tokens tbody tr", timeout=WAIT)
        page.get_by_role("tab", name="Token by token").click()
        page.click("#ask-changes")
        page.wait_for_selector("#changes .text span", timeout=WAIT)
        page.get_by_role("tab", name="Energies").click()
        page.wait_for_selector("#energies svg", timeout=WAIT)


def test_the_page_answers_while_it_draws():
    """The rest of the pool is still being drawn when the first candidates are there, a tab was opened, a word typed and the
    server asked for the page again."""
    with served("small_model.py", "", "slow") as address, looking(address) as page:
        page.wait_for_selector(ROWS, timeout=WAIT)
        page.get_by_role("tab", name="About").click()
        page.wait_for_selector("#about :text('vocabulary')")
        page.fill("#prompt textarea, #prompt input", "ba")
        assert page.request.get(address).ok
        assert "still drawing" in page.inner_text("#verdict")


def test_text_is_never_markup(address):
    with looking(address) as page:
        drawn(page)
        page.evaluate("() => { window.alert = () => { window.harmed = true } }")
        evil = "<img src=x onerror=alert(1)><script>alert(2)</script>${alert(3)}{{value}}"
        page.fill("#prompt textarea, #prompt input", evil)
        page.click("#draw")
        page.wait_for_timeout(3000)
        assert page.evaluate("window.harmed") is None
        assert page.locator("#candidates img, #candidates script, #verdict img, #verdict script").count() == 0


def test_a_phone_sees_it_whole(address):
    with looking(address, width=390, height=844) as page:
        drawn(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


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
