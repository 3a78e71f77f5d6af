import importlib.metadata
import subprocess
import sys

import pytest

import esscher


def test_every_public_name_is_where_it_says():
    for name in esscher.__all__:
        assert getattr(esscher, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Tilt'"):
        _ = esscher.Tilt
    assert esscher.__version__ == importlib.metadata.version("esscher")


def test_importing_the_package_imports_no_torch():
    subprocess.run([sys.executable, "-c", "import esscher, sys; assert 'torch' not in sys.modules"], check=True)
