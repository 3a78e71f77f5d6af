"""A plain folder, as distilling into a model of Hugging Face leaves it, behind the server of transformers itself."""

import os
import socket
import subprocess
import sys
import time

import pytest
import torch
from causal_models import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from esscher.bases.causal_lm import causal_lm
from esscher.data.tokenizers import character_tokenizer
from esscher.hub import save_base

httpx = pytest.importorskip("httpx", reason="the extra `ui` is not installed")
pytest.importorskip("openai", reason="`transformers serve` needs transformers[serving]")
pytestmark = pytest.mark.slow


def test_transformers_serves_it(tmp_path):
    tokenizer = character_tokenizer("abc ", unknown=False)
    model = tiny_model("gpt2", vocab_size=tokenizer.vocab_size, bos_token_id=None, eos_token_id=tokenizer.eos)
    save_base(tmp_path, causal_lm(model, max_length=8), tokenizer)
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port = some.getsockname()[1]
    code = "from transformers.cli.transformers import main; main()"
    command = [sys.executable, "-c", code, "serve", str(tmp_path), "--host", "127.0.0.1", "--port", str(port)]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=quiet, stderr=quiet)
    try:
        answer = ask(f"http://127.0.0.1:{port}", {"model": str(tmp_path), "prompt": "ab", "max_tokens": 5, "temperature": 0})
    finally:
        server.kill()
        server.wait()
    loaded, words = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    with torch.no_grad():
        known = loaded.generate(**words("ab", return_tensors="pt"), max_new_tokens=5, do_sample=False)[0, 2:]
    assert answer["choices"][0]["text"] == words.decode(known, skip_special_tokens=True)


def ask(place, body):
    for _ in range(120):
        try:
            httpx.get(f"{place}/health").raise_for_status()
            break
        except httpx.TransportError:
            time.sleep(0.5)
    return httpx.post(f"{place}/v1/completions", json=body, timeout=60).raise_for_status().json()
