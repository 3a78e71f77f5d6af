"""Every verb on the device: it runs to its end, says where it computes, and gives the CPU's numbers from the same seed."""

import pytest
from cli_calls import answer

SMALL = (
    "--data", "motif:101", "--data.length", "8", "--data.size", "300", "--base.kind", "gru", "--base.width", "8",
    "--base.layers", "1", "--training.steps", "6", "--training.batch-size", "10", "--training.precision", "float32",
)  # fmt: skip
TILT = ("--energy.network.kind", "transformer", "--training.steps", "4", "--training.batch-size", "10")


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """The folders of one chain for each device."""
    return {device: tmp_path_factory.mktemp(device.replace(":", "")) for device in ("auto", "cpu")}


def numbers(value):
    """All numbers of an answer, without paths and times."""
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items() if "second" not in key and key not in ("device", "out")}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return value if isinstance(value, int | float) else None


def assert_close(actual, expected, where=""):
    """Equal but for rounding: some kernels of a GPU sum in another order."""
    if isinstance(expected, dict):
        assert set(actual) == set(expected), where
        for key, value in expected.items():
            assert_close(actual[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for place, value in enumerate(expected):
            assert_close(actual[place], value, f"{where}[{place}]")
    else:
        assert actual == pytest.approx(expected, rel=1e-3, abs=1e-5), where


def both(capsys, chain, make):
    """The numbers of a verb on the GPU and on the CPU."""
    return [numbers(answer(capsys, *make(str(folder), device))) for device, folder in chain.items()]


def test_train(capsys, chain):
    gpu, cpu = both(capsys, chain, lambda run, device: ("train", "--out", f"{run}/base", *SMALL, "--device", device))
    assert_close(gpu, cpu)


def test_tilt(capsys, chain):
    gpu, cpu = both(
        capsys,
        chain,
        lambda run, device: (
            "tilt", f"{run}/base", "--out", f"{run}/energy", *TILT, "--device", device,
            "--training.precision", "float32",
        ),
    )  # fmt: skip
    assert_close(gpu, cpu)


@pytest.mark.parametrize(
    "verb",
    [("sample", "--draws", "3"), ("score", "--texts", "10110000"), ("measure", "--data", "motif:101", "--draws", "50")],
    ids=lambda verb: verb[0],
)
def test_verbs_of_a_tilted_model(capsys, chain, verb):
    gpu, cpu = both(
        capsys,
        chain,
        lambda run, device: (verb[0], f"{run}/base", "--energy", f"{run}/energy", *verb[1:], "--device", device),
    )
    assert_close(gpu, cpu)


def test_distil(capsys, chain):
    gpu, cpu = both(
        capsys,
        chain,
        lambda run, device: (
            "distil", f"{run}/base", "--energy", f"{run}/energy", "--out", f"{run}/plain", "--distil.draws", "40",
            "--distil.candidates", "60", "--distil.evaluation-draws", "20", "--training.steps", "3", "--device", device,
            "--device", device, "--training.precision", "float32",
        ),
    )  # fmt: skip
    assert_close(gpu, cpu)
