"""Explorer, server and harness of a model on the device show the CPU's numbers."""

import json
from dataclasses import replace

import pytest
import torch
from cli_calls import answer
from explorer.small_model import explorer, last
from harness import test_model as harness
from marks import slow_except
from serving import conftest
from serving.served import ask, served

from esscher.core.device import device_of, place
from esscher.core.randomness import SeededRng
from esscher.core.space import prompts_of
from esscher.core.target import flat
from esscher.energies.self_energy import SelfEnergy
from esscher.explorer.views import Controls
from esscher.harness.model import EsscherLM
from esscher.samplers.ancestral import draw

DEVICE = torch.device("cuda", 0)
folders = harness.folders
tilted_model = conftest.tilted_model


def shown(device, energy):
    """The explorer of a small model and of its student, on a device, with held-out texts."""
    made = explorer(None if energy == "features" else flat)
    if energy == "self":
        made = explorer(SelfEnergy(made.model.base))
    made = replace(made, model=place(made.model, device), student=place(explorer(flat).model, device))
    held_out = draw(explorer(flat).model.base, prompts_of([[1], [2, 1]]), 20, rng=SeededRng(7))[0]
    made.__dict__["held_out"] = held_out
    return made


def views(device, energy, sampler):
    """All that the page shows, as numbers and texts."""
    page, controls = shown(device, energy), Controls(sampler=sampler, pool=32, seed=3, top_k=2)
    assert device_of(page.model.base) == device
    view = last(page.draw("a", controls))
    names, table = page.next_tokens("a", controls, draws=16)
    tilted = () if energy == "flat" else (page.changes(view, 1, controls, draws=8), page.energies(controls))
    return view.rows, view.parts, view.pool, names, table, page.texts(view, controls), tilted


def assert_alike(actual, expected):
    """Equal texts, and numbers that are equal but for rounding."""
    actual, expected = (
        json.loads(json.dumps(item, default=lambda part: getattr(part, "__dict__", None) or list(part)))
        for item in (actual, expected)
    )
    flat_actual, flat_expected = flatten(actual), flatten(expected)
    assert len(flat_actual) == len(flat_expected)
    for item, right in zip(flat_actual, flat_expected, strict=True):
        assert item == (pytest.approx(right, rel=1e-4, abs=1e-5, nan_ok=True) if isinstance(right, float) else right)


def flatten(value):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    return [value] if items is None else [leaf for _, item in items for leaf in flatten(item)]


@pytest.mark.parametrize("sampler", slow_except(["sir"], ["sir", "adaptive-sir", "particles"]))
@pytest.mark.parametrize("energy", slow_except(["features"], ["features", "self", "flat"]))
def test_the_explorer(energy, sampler):
    assert_alike(views(DEVICE, energy, sampler), views(torch.device("cpu"), energy, sampler))


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tilted", [False, True])
def test_the_server(tilted_model, tilted, stream):
    request = {"prompt": ["", "ab"], "n": 3, "seed": 5, "top_k": 2, "max_tokens": 3, "stream": stream}
    answers = []
    for device in (torch.device("cpu"), DEVICE):
        model = place(tilted_model if tilted else tilted_model.untilted(), device)
        assert device_of(model.base) == device
        with served(model, num_candidates=16) as port:
            status, answer = ask(port, request)
        if stream:
            answer = json.loads(answer.split("data: ")[-2])
        assert status == 200 and len(answer["choices"]) == 6
        answer["usage"].pop("drawn_tokens")  # rows of the network: on a GPU, finished rows go on
        answers.append({name: answer[name] for name in ("choices", "usage")})
    assert_alike(answers[1], answers[0])


def test_env_shows_the_devices(capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = answer(capsys, "env")
    assert found["device_auto"] == "cuda:0" and found["cuda"].endswith(", CUDA_VISIBLE_DEVICES=0")
    gpu, *_, cpu = found["devices"]
    assert gpu["device"] == "cuda:0" and gpu["name"] == torch.cuda.get_device_name(0) and cpu["device"] == "cpu"
    free, total = torch.cuda.mem_get_info(0)
    assert gpu["memory_gib"] == round(total / 2**30, 1) and gpu["free_gib"] == pytest.approx(free / 2**30, abs=0.5)
    assert gpu["bfloat16"] == ("native" if torch.cuda.get_device_capability(0)[0] >= 8 else "emulated")


REQUESTS = [("a", "b"), ("a", "ab"), ("", "abbab")]
SAMPLED = {"until": ["b"], "do_sample": True, "temperature": 0.7, "max_gen_toks": 3}


@pytest.mark.slow
@pytest.mark.parametrize("tilted", [False, True])
def test_the_harness(folders, tilted):
    """Scores, whether they are the likeliest, texts in windows, and generated ones."""
    answers = []
    for device in ("cpu", "cuda"):
        path, energy = map(str, folders)
        model = EsscherLM.create_from_arg_obj(
            {"path": path, "energy": energy if tilted else None, "draws": 20, "num_candidates": 8}, {"device": device}
        )
        assert device_of(model.model.base).type == model.device.type == device
        answers.append(
            [
                model.loglikelihood(harness.asked(REQUESTS)),
                model.loglikelihood_rolling(harness.asked([("abbabab",)])),
                model.generate_until(harness.asked([("a", {"until": []}), ("ab", SAMPLED)])),
            ]
        )
    assert_alike(answers[1], answers[0])


def test_auto_is_the_gpu_and_two_devices_are_refused(folders):
    assert EsscherLM(str(folders[0])).device.type == "cuda"
    assert EsscherLM.create_from_arg_string(f"path={folders[0]},device=cpu", {"device": "cpu"}).device.type == "cpu"
    with pytest.raises(ValueError, match="device=cpu, and the harness says device=cuda"):
        EsscherLM.create_from_arg_string(f"path={folders[0]},device=cpu", {"device": "cuda", "batch_size": 4})
