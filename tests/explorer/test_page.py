"""The page served for real: who is let in, what its calls answer, and that it binds to this machine alone."""

import asyncio
import json
import socket

import pytest
from browsing import served
from small_model import explorer

httpx = pytest.importorskip("httpx", reason="the extra `ui` is not installed")
pytest.importorskip("gradio", reason="the extra `ui` is not installed")

from esscher.explorer.blind_comparison import ComparisonStore, build_comparison_page, make_pairs
from esscher.explorer.config import PageServerConfig
from esscher.explorer.page import Drawn, ExplorerHandlers, build_explorer_page, parse_controls
from esscher.explorer.page_app import MAX_QUEUED, MAX_SESSIONS, page_app
from esscher.explorer.runs import find_runs
from esscher.explorer.runs_page import build_training_page

TOKEN = "a long word"


def test_another_address_needs_a_token():
    with pytest.raises(ValueError, match="there is no token"):
        PageServerConfig(host="0.0.0.0")
    with pytest.raises(ValueError, match="8 characters or more"):
        PageServerConfig(token="short")
    open_ = PageServerConfig(host="0.0.0.0", token="a long word")
    assert open_.authenticate("anyone", "a long word") and not open_.authenticate("anyone", "another word")
    assert not PageServerConfig().authenticate("anyone", "")


def test_errors_are_words_on_the_page():
    work = ExplorerHandlers(explorer())
    (drawn,) = work.draw("c<b>", "magic", 64, 1.0, 0, 0)
    assert "choose from" in drawn.verdict and drawn == Drawn(drawn.verdict)
    assert "draw some first" in work.changes(None, 1)
    assert "does not say what it was trained on" in work.data("sir", 64, 1.0, 0, 0)


def test_every_yield_of_drawing_is_a_whole_page():
    actual = list(ExplorerHandlers(explorer()).draw("ab", "sir", 64, 1.0, 0, 5))
    assert len(actual) == 3
    assert all("log Z" in drawn.verdict and "<tbody>" in drawn.candidates and "Tilted" in drawn.texts for drawn in actual)
    assert "<svg" in actual[-1].energies and actual[-1].view.complete
    assert parse_controls("sir", 64.0, 1, 0.0, 5.0).seed == 5


class Loop:
    """An energy that never returns."""

    def __call__(self, x):
        while True:
            pass


def test_a_computation_that_never_ends_is_given_up():
    work = ExplorerHandlers(explorer(Loop()), timeout=0.2)
    (drawn,) = work.draw("ab", "sir", 16, 1.0, 0, 0)
    assert "longer than 0.2 s and was given up" in drawn.verdict and drawn == Drawn(drawn.verdict)
    assert "given up" in work.tokens("ab", "sir", 16, 1.0, 0, 0)


def built(make):
    """A page and its application, built where there is an event loop: gradio leaves one of its own open otherwise."""

    async def build():
        page = make()
        return page, page_app(page, PageServerConfig())

    return asyncio.run(build())


def posted(app, path, content, **headers):
    """The status of a POST to a page that is not being served, which suffices for what is refused."""
    body, sent = content if isinstance(content, bytes) else json.dumps(content).encode(), []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    pairs = [(name.encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()]
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "headers": pairs}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    pairs = make_pairs(["a prompt"], ["one text of the first"], ["one text of the second"], seed=0)
    store = ComparisonStore.create_or_resume(tmp_path_factory.mktemp("judged"), pairs, seed=0)
    return built(lambda: build_comparison_page(store))[1]


@pytest.mark.parametrize("kind", ["explore", "compare"])
def test_pages_refuse_other_hosts_other_pages_and_the_routes_they_do_not_need(kind, comparison):
    app = comparison if kind == "compare" else built(lambda: build_explorer_page(explorer()))[1]
    call = f"/gradio_api/call/{'left' if kind == 'compare' else 'draw'}"
    assert posted(app, call, {"data": [None]}, host="evil.example") == 421
    assert posted(app, call, {"data": [None]}, origin="http://evil.example") == 403
    for path in ("upload", "file=/etc/passwd", "proxy=http://evil.example/", "run/draw", "api/draw", "call/nobody"):
        assert posted(app, f"/gradio_api/{path}", {"data": []}) == 404, path


def test_new_callbacks_pass_the_same_checks(tmp_path):
    """Examples, more candidates, runs and training: too many values and unknown names are refused before gradio sees them."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "history.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    page, app = built(lambda: build_training_page(tmp_path / "run", find_runs(tmp_path / "run")))
    names = {function.api_name for function in page.fns.values()}
    assert {"watch", "watch_first", "watch_run", "compare_runs", "compare_first"} <= names
    _, explored = built(lambda: build_explorer_page(explorer(examples=("", "ab")), runs={"a": tmp_path}))
    for where, name, values in (
        (app, "watch", 1), (app, "compare_runs", 1), (explored, "compare_runs", 1), (explored, "example_1", 5),
        (explored, "more", 6),
    ):  # fmt: skip
        right = json.dumps({"data": [None] * values}).encode()
        assert where.check(f"/gradio_api/call/{name}", right) is None
        assert posted(where, f"/gradio_api/call/{name}", {"data": [None] * (values + 2)}) == 400, name
    assert posted(app, "/gradio_api/call/draw", {"data": []}) == 404


CALL = {"data": ["ann"], "fn_index": 0, "session_hash": "s"}
WRONG_CALLS = {
    "not JSON": b"{",
    "infinite": b'{"data": [1e999], "fn_index": 0, "session_hash": "s"}',
    "no session": {**CALL, "session_hash": ""},
    "a long session": {**CALL, "session_hash": "a" * 65},
    "an unknown function": {**CALL, "fn_index": 999},
    "true as function": {**CALL, "fn_index": True},
    "too many values": {**CALL, "data": ["ann", "bob"]},
    "a batch": {**CALL, "batched": True},
}


@pytest.mark.parametrize("wrong", WRONG_CALLS)
def test_what_gradio_cannot_take_is_refused_before_it(wrong, comparison):
    assert posted(comparison, "/gradio_api/queue/join", WRONG_CALLS[wrong]) == 400
    assert comparison.check("/gradio_api/queue/join", json.dumps(CALL).encode()) is None


def test_messages_to_a_visitor_who_left_do_not_end_the_queue():
    page, _ = built(lambda: build_explorer_page(explorer()))
    assert page._queue.max_size == MAX_QUEUED and page.state_session_capacity == MAX_SESSIONS
    page._queue.pending_messages_per_session["nobody"].put_nowait("lost")
    assert "nobody" not in page._queue.pending_messages_per_session


@pytest.fixture(scope="module")
def address():
    with served("small_model.py", TOKEN) as actual:
        yield actual


def called(client, name, *values):
    """What one of the page's calls answers in the end."""
    event = client.post(f"gradio_api/call/{name}", json={"data": list(values)}).raise_for_status().json()["event_id"]
    lines = client.get(f"gradio_api/call/{name}/{event}").text.splitlines()
    return json.loads([line for line in lines if line.startswith("data: ")][-1].removeprefix("data: "))


@pytest.mark.slow
def test_the_page_is_served_to_those_who_know_the_token(address):
    assert address.startswith("http://127.0.0.1:")
    settings = ("sir", 64, 1.0, 0, 0)
    with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
        assert client.get("config").status_code == 401
        assert client.post("gradio_api/call/draw", json={"data": ["a", *settings]}).status_code == 401
        assert client.post("login", data={"username": "me", "password": "a wrong word"}).status_code == 400
        assert client.post("login", data={"username": "me", "password": TOKEN}).status_code == 200
        said, _, texts, table, *_ = called(client, "draw", "a", *settings)
        assert "log Z" in said and "Tilted" in texts and "<tbody>" in table
        assert called(client, "draw", "a", *settings)[3] == table
        assert called(client, "draw", "a", "sir", 64, 0.3, 0, 0)[3] != table
        assert "on one scale" in called(client, "tokens", "a", *settings)[0]
        assert called(client, "example_2", *settings)[0] == "ab"


@pytest.mark.slow
def test_it_listens_on_loopback_only(address):
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    drawn = socket.gethostbyname(socket.gethostname())
    if drawn.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    with socket.socket() as outside:
        outside.settimeout(2)
        assert outside.connect_ex((drawn, port)) != 0
