"""The page served for real: who is let in, what its calls answer, and that it binds to this machine alone."""

import socket

import httpx
import pytest
from shown import explorer

gradio = pytest.importorskip("gradio", reason="the extra `ui` is not installed")
gradio_client = pytest.importorskip("gradio_client")

from esscher.explorer.page import Handlers, build_page, controls_of
from esscher.explorer.serving import Serving, serve


def test_another_address_needs_a_token():
    with pytest.raises(ValueError, match="give --token"):
        Serving(host="0.0.0.0")
    with pytest.raises(ValueError, match="soon guessed"):
        Serving(token="short")
    open_ = Serving(host="0.0.0.0", token="a long word")
    assert open_.admits("anyone", "a long word") and not open_.admits("anyone", "another word")
    assert not Serving().admits("anyone", "")


def test_errors_are_words_on_the_page():
    work = Handlers(explorer())
    ((said, *rest),) = work.draw("c<b>", "magic", 64, 1.0, 0, 0)
    assert "choose from" in said and rest == ["", "", "", None]
    assert "draw some first" in work.changes(None, 1)
    assert "does not tell what it was trained on" in work.data("pool", 64, 1.0, 0, 0)


def test_every_yield_of_drawing_is_a_whole_page():
    found = list(Handlers(explorer()).draw("ab", "pool", 64, 1.0, 0, 5))
    assert len(found) == 3
    assert all("log Z" in said and "<tbody>" in table for said, table, *_ in found)
    assert "<svg" in found[-1][2] and "tilted" in found[-1][3]
    assert controls_of("pool", 64.0, 1, 0.0, 5.0).seed == 5


@pytest.fixture(scope="module")
def address():
    page = build_page(explorer(examples=("", "ab")))
    yield serve(page, Serving(token="a long word"), wait=False)
    page.close()


def test_the_page_is_served_to_those_who_know_the_token(address):
    assert address.startswith("http://127.0.0.1:")
    for place in ("config", "gradio_api/info"):
        assert httpx.get(address + place, trust_env=False).status_code == 401
    with pytest.raises(Exception, match=r"(?i)cred|login|auth|401"):
        gradio_client.Client(address, verbose=False, analytics_enabled=False)
    client = gradio_client.Client(address, auth=("me", "a long word"), verbose=False, analytics_enabled=False)
    said, table, *_ = client.predict("a", "pool", 64, 1.0, 0, 0, api_name="/draw")
    assert "log Z" in said and "<tbody>" in table
    again = client.predict("a", "pool", 64, 1.0, 0, 0, api_name="/draw")
    assert again[1] == table
    assert client.predict("a", "pool", 64, 0.3, 0, 0, api_name="/draw")[1] != table
    assert "joint / base" in client.predict("a", "pool", 64, 1.0, 0, 0, api_name="/tokens")


def test_it_listens_on_loopback_only(address):
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    own = socket.gethostbyname(socket.gethostname())
    if own.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    with socket.socket() as outside:
        outside.settimeout(2)
        assert outside.connect_ex((own, port)) != 0
