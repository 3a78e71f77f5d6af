import subprocess
import sys

import pytest

from esscher.bases.config import RecurrentConfig, TransformerConfig
from esscher.energies.config import EnergyConfig, from_dict, to_dict

CONFIGS = [
    EnergyConfig(),
    EnergyConfig("unidirectional", "last", RecurrentConfig("gru", 8, 1)),
    EnergyConfig("bidirectional", "first", TransformerConfig(8, 1, 2, 8), hidden=4, bound=3.0),
    EnergyConfig("encoder", encoder="a", on="tokens", lora=4),
    EnergyConfig("shared", "whole"),
    EnergyConfig(dropout=0.1),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_settings_survive_as_plain_values(config):
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reader": "sideways"}, "Unknown reader 'sideways'.*unidirectional, bidirectional, encoder, shared"),
        ({"pooling": "max"}, "Unknown pooling 'max'"),
        ({"on": "bytes"}, "reads 'text' or 'tokens'"),
        ({"reader": "shared", "pooling": "first"}, "sees nothing after it"),
        ({"bound": 0.0}, "more than 0"),
        ({"hidden": 0}, "hidden is at least 1"),
        ({"dropout": 1.0}, r"lies in \[0, 1\)"),
        ({"encoder": "a"}, "encoder has no meaning for the reader 'bidirectional'"),
        ({"reader": "shared", "network": TransformerConfig()}, "network has no meaning"),
        ({"network": TransformerConfig(), "dropout": 0.1}, "dropout has no meaning for the reader one with a network"),
        ({"network": TransformerConfig(), "lora": 2}, "lora has no meaning"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    """Checked as the library does by itself, without the type checker of the tests."""
    config = object.__new__(EnergyConfig)
    config.__dict__.update({**EnergyConfig().__dict__, **settings})
    with pytest.raises(ValueError, match=message):
        config.__post_init__()


def test_an_unknown_key_is_named():
    with pytest.raises(ValueError, match="Unknown key 'poling' of an energy"):
        from_dict({"poling": "mean"})


def test_settings_need_no_torch():
    code = "import sys, esscher.energies.config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
