"""The page served for real: who is let in, what its calls answer, and that it binds to this machine alone."""

import json
import socket

import pytest
from browsing import served
from small_model import explorer

httpx = pytest.importorskip("httpx", reason="the extra `ui` is not installed")
pytest.importorskip("gradio", reason="the extra `ui` is not installed")

from esscher.explorer.config import PageServerConfig
from esscher.explorer.page import ExplorerHandlers, parse_controls

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
    ((said, *rest),) = work.draw("c<b>", "magic", 64, 1.0, 0, 0)
    assert "choose from" in said and rest == ["", "", "", None]
    assert "draw some first" in work.changes(None, 1)
    assert "does not say what it was trained on" in work.data("sir", 64, 1.0, 0, 0)


def test_every_yield_of_drawing_is_a_whole_page():
    actual = list(ExplorerHandlers(explorer()).draw("ab", "sir", 64, 1.0, 0, 5))
    assert len(actual) == 3
    assert all("log Z" in said and "<tbody>" in table for said, table, *_ in actual)
    assert "<svg" in actual[-1][2] and "tilted" in actual[-1][3]
    assert parse_controls("sir", 64.0, 1, 0.0, 5.0).seed == 5


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
        said, table, *_ = called(client, "draw", "a", *settings)
        assert "log Z" in said and "<tbody>" in table
        assert called(client, "draw", "a", *settings)[1] == table
        assert called(client, "draw", "a", "sir", 64, 0.3, 0, 0)[1] != table
        assert "joint / base" in called(client, "tokens", "a", *settings)[0]


@pytest.mark.slow
def test_it_listens_on_loopback_only(address):
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    drawn = socket.gethostbyname(socket.gethostname())
    if drawn.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    with socket.socket() as outside:
        outside.settimeout(2)
        assert outside.connect_ex((drawn, port)) != 0
