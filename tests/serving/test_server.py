"""The endpoint end to end, over a socket: its law, its words, its limits, and clients that misbehave."""

import json
import math
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from served import ask, served

from esscher.core.space import empty_prompts
from esscher.core.target import Tilted, flat
from esscher.exact.enumeration import enumerate_points
from esscher.serving.config import ServeConfig


@pytest.fixture(scope="module")
def port(tilted_model):
    with served(tilted_model, max_body_bytes=2_000, max_prompt_tokens=3, max_draws=64, num_candidates=200) as place:
        yield place


class Slow:
    """An energy that takes its time."""

    def __init__(self, energy, seconds):
        self.energy, self.seconds = energy, seconds

    def __call__(self, x):
        time.sleep(self.seconds)
        return self.energy(x)


def slowed(model, seconds):
    return replace(model, target=Tilted(model.target.base, Slow(model.target.energy, seconds)))


def test_draws_follow_the_tilted_model_and_not_its_base(tilted_model, port):
    counts = Counter()
    for seed in range(20):
        status, actual = ask(port, {"prompt": "", "n": 64, "seed": seed})
        assert status == 200 and actual["object"] == "text_completion" and len(actual["choices"]) == 64
        counts.update(choice["text"] for choice in actual["choices"])
    target = tilted_model.target
    x = enumerate_points(target.space, empty_prompts(1))
    texts = tilted_model.tokenizer.decode(x.points())
    laws = {"tilted": target.log_score(x), "base": target.base.log_probs(x).sum(-1)}
    far = {}
    for name, score in laws.items():
        share = Counter()
        for text, probability in zip(texts, torch.softmax(score, 0).tolist(), strict=True):
            share[text] += probability
        far[name] = sum(abs(counts[text] / 1_280 - share[text]) for text in share) / 2
    assert far["tilted"] < 0.06 < 0.15 < far["base"], far


def test_same_seed_same_draws_and_an_answer_says_what_it_cost(port):
    asked = {"prompt": ["a", "b"], "n": 2, "seed": 3, "max_tokens": 2, "model": "toy", "logprobs": None}
    first, second = (ask(port, asked)[1] for _ in range(2))
    assert first["choices"] == second["choices"] and [item["index"] for item in first["choices"]] == [0, 1, 2, 3]
    assert first["usage"]["prompt_tokens"] == 2 and first["usage"]["drawn_tokens"] > 0
    for choice in first["choices"]:
        assert choice["finish_reason"] in ("stop", "length") and len(choice["text"]) <= 2
        assert choice["esscher"]["log_base"] <= 0 and 1 <= choice["esscher"]["ess"] <= 200
        assert choice["esscher"]["verdict"] in ("good", "doubtful", "unreliable")


def test_a_base_alone_is_served_too(tilted_model):
    with served(replace(tilted_model, target=Tilted(tilted_model.target.base, flat))) as place:
        assert ask(place, {"prompt": "a", "temperature": 0.5, "top_k": 1, "n": 3})[0] == 200


WRONG = {
    "not JSON": (b"{", 400, "not JSON"),
    "deep": (b"[" * 1_900, 400, "not JSON"),
    "no object": (b"[1]", 400, "object"),
    "tokens": ({"prompt": [1, 2]}, 400, "lists of tokens"),
    "no prompt": ({"prompt": []}, 400, "'prompt' must be"),
    "a number of texts": ({"prompt": "", "n": "many"}, 400, "'n' must be a whole number"),
    "true is no number": ({"prompt": "", "n": True}, 400, "'n' must be a whole number"),
    "too many draws": ({"prompt": "", "n": 65}, 400, "from 1 to 64"),
    "greedy": ({"prompt": "", "temperature": 0}, 400, "above 0.01"),
    "infinite": (b'{"prompt": "", "temperature": Infinity}', 400, "'temperature' must be a number"),
    "a pool beyond bounds": ({"prompt": "", "num_candidates": 801}, 400, "from 1 to 800"),
    "what it cannot do": ({"prompt": "", "stop": ["a"]}, 400, "'stop' is not possible"),
    "what nobody knows": ({"prompt": "", "wings": 2}, 400, "'wings' is not a known field"),
    "a long prompt": ({"prompt": "abab"}, 413, "at most 3 tokens, not 4"),
    "many prompts": ({"prompt": ["a"] * 9}, 413, "at most 8 prompts"),
    "many bytes": (b" " * 3_000, 413, "at most 2,000 bytes"),
    "a stream that is none": ({"prompt": "", "stream": 1}, 400, "'stream' must be"),
    "a letter outside the alphabet": ({"prompt": "c"}, 400, "use its alphabet"),
    "half of a pair": (b'{"prompt": "\\ud800"}', 400, "half of a surrogate pair"),
    "half of a pair in a stream": (b'{"prompt": "\\udfff", "stream": true}', 400, "half of a surrogate pair"),
    "a huge seed": ({"prompt": "", "seed": 2**64}, 400, "'seed' must be a whole number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_with_a_word_on_it(port, case):
    content, status, words = WRONG[case]
    actual, answer = ask(port, content)
    assert actual == status and words in answer["error"]["message"] and answer["error"]["code"] == status
    assert ask(port, {"prompt": "a"})[0] == 200


def test_a_letter_outside_the_alphabet_is_an_error_event_of_a_stream(port):
    status, text = ask(port, {"prompt": "c", "stream": True})
    assert status == 200 and "[DONE]" not in text
    assert json.loads(text.removeprefix("data: "))["error"]["code"] == 400


def test_only_this_model_and_this_host_are_served(port):
    status, answer = ask(port, {"prompt": "", "model": "gpt-4"})
    assert status == 404 and answer["error"]["code"] == "model_not_found" and "there is 'toy'" in answer["error"]["message"]
    assert ask(port, {"prompt": "", "model": "toy"})[0] == 200
    assert ask(port, {"prompt": ""}, Host="evil.example")[0] == 421
    assert ask(port, {"prompt": ""}, Origin="http://evil.example")[0] == 403


def test_a_seed_is_fresh_unless_it_is_given(port):
    first, second = (ask(port, {"prompt": "", "n": 64})[1] for _ in range(2))
    assert first["seed"] != second["seed"] and first["choices"] != second["choices"]
    again = ask(port, {"prompt": "", "n": 64, "seed": first["seed"]})[1]
    assert again["choices"] == first["choices"]


def test_the_client_of_openai_reads_a_choice_of_every_chunk(port):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        chunks = list(client.completions.create(model="toy", prompt="a", n=2, stream=True))
        assert len(chunks) >= 2 and {chunk.choices[0].index for chunk in chunks} == {0, 1}
        options = {"include_usage": True}
        *chunks, last = client.completions.create(model="toy", prompt="a", stream=True, stream_options=options)
        assert all(chunk.choices for chunk in chunks) and last.usage.completion_tokens > 0
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="gpt-4", prompt="a")


def test_other_places(port):
    status, answer = ask(port, {}, path="/v1/chat/completions")
    assert status == 404 and "there are POST /v1/completions" in answer["error"]["message"]
    assert ask(port, None, path="/v1/completions", method="GET")[0] == 405
    assert ask(port, None, path="/v1/models", method="GET")[1]["data"][0]["id"] == "toy"
    assert ask(port, None, path="/health", method="GET")[1] == {"status": "up", "pending_requests": 0}


def test_a_stream_tells_of_progress_and_ends(tilted_model):
    with served(slowed(tilted_model, 0.6)) as place:
        status, text = ask(place, {"prompt": "", "n": 2, "stream": True, "seed": 1})
        whole = ask(place, {"prompt": "", "n": 2, "seed": 1})[1]
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert status == 200 and lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    words, last = chunks[:-2], chunks[-2:]
    assert [choice for chunk in last for choice in chunk["choices"]] == whole["choices"]
    assert words and all(word["choices"][0]["text"] == "" and "sequences weighed" in word["progress"] for word in words)
    assert len({chunk["id"] for chunk in chunks}) == 1 and all(len(chunk["choices"]) == 1 for chunk in chunks)


def test_who_may_ask(tilted_model):
    with pytest.raises(ValueError, match=r"there is no token.*set one"):
        ServeConfig(host="0.0.0.0")
    with served(tilted_model, token="open sesame") as place:
        assert ask(place, {"prompt": "a"})[0] == 401
        assert ask(place, {"prompt": "a"}, Authorization="Bearer open sesam")[0] == 401
        assert ask(place, {"prompt": "a"}, Authorization="Bearer open sesame")[0] == 200


def test_late_drawing_ends(tilted_model):
    with served(slowed(tilted_model, 0.3), timeout=0.2) as place:
        status, answer = ask(place, {"prompt": "", "n": 2})
        assert status == 408 and "time limit was reached" in answer["error"]["message"]
        _, text = ask(place, {"prompt": "", "stream": True})
        assert json.loads(text.removeprefix("data: "))["error"]["code"] == 408


def test_a_body_that_never_comes_and_a_client_that_goes_away(tilted_model):
    with served(slowed(tilted_model, 0.2), timeout=1.0, receive_timeout=0.5) as place:
        with socket.create_connection(("127.0.0.1", place)) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            assert b"408" in client.recv(100)
        with socket.create_connection(("127.0.0.1", place)) as client:
            body = json.dumps({"prompt": ["a"] * 8, "n": 16}).encode()
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        for _ in range(100):
            if ask(place, None, path="/health", method="GET")[1]["pending_requests"] == 0:
                break
            time.sleep(0.05)
        assert ask(place, None, path="/health", method="GET")[1]["pending_requests"] == 0
        assert ask(place, {"prompt": "a"})[0] == 200


@pytest.mark.parametrize(
    "begin", [b"", b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"]
)
def test_connections_that_send_no_request_neither_count_nor_stay(tilted_model, begin):
    with served(tilted_model, max_queued=1, receive_timeout=1.0) as place, ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", place))) for _ in range(300)]
        for client in clients:
            client.sendall(begin)
        assert ask(place, {"prompt": "a"})[0] == 200
        end = time.monotonic() + 5
        for client in clients:
            client.settimeout(max(0.01, end - time.monotonic()))
            try:
                while client.recv(1_000):
                    pass
            except ConnectionError:  # ended for a newer one
                pass
    assert time.monotonic() < end, "connections were left open"


class Loop:
    """An energy that never returns."""

    def __call__(self, x):
        while True:
            pass


def test_an_energy_that_never_returns_ends_at_the_time_limit(tilted_model):
    looping = replace(tilted_model, target=Tilted(tilted_model.target.base, Loop()))
    with served(looping, timeout=0.3) as place:
        for _ in range(2):  # the second finds a free slot
            status, answer = ask(place, {"prompt": ""})
            assert status == 408 and "time limit" in answer["error"]["message"]
        assert ask(place, None, path="/health", method="GET")[1]["pending_requests"] == 0


def test_two_hundred_at_once_are_answered_or_refused(tilted_model):
    with served(slowed(tilted_model, 0.01), max_queued=20) as place, ThreadPoolExecutor(200) as clients:
        gate = threading.Barrier(200)

        def one(number):
            gate.wait()
            return ask(place, {"prompt": "a", "seed": number})[0]

        statuses = Counter(clients.map(one, range(200)))
        assert set(statuses) <= {200, 429} and statuses[200] >= 20 and sum(statuses.values()) == 200
        assert ask(place, {"prompt": "a"})[0] == 200
        assert ask(place, None, path="/health", method="GET")[1]["pending_requests"] == 0


def test_limits_that_make_no_sense():
    for wrong in ({"max_draws": 0}, {"timeout": 0.0}, {"max_queued": -1}, {"timeout": math.nan}):
        with pytest.raises(ValueError, match=r"Nothing is served"):
            ServeConfig(**wrong)
