import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from stub import FILE, stub

import esscher

ROOT = Path(esscher.__file__).parents[1]


def test_every_public_name_is_where_it_says():
    for name in esscher.__all__:
        assert getattr(esscher, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Tilt'"):
        _ = esscher.Tilt
    assert esscher.__version__ == importlib.metadata.version("esscher")


def test_importing_the_package_imports_no_torch():
    subprocess.run([sys.executable, "-c", "import esscher, sys; assert 'torch' not in sys.modules"], check=True)


def test_help_imports_no_torch_either():
    code = "import sys; from esscher.cli import main; main(['--help']); "
    code += "assert not {'torch', 'transformers', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    newest = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(encoding="utf8"), re.MULTILINE)
    assert newest is not None and esscher.__version__ == citation["version"] == newest.group(1)


def test_type_checkers_see_the_public_names():
    assert FILE.read_text(encoding="utf8") == stub(), "the public names changed; write the stub anew: python tests/stub.py"


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The wheel and the source distribution, built from a copy of what they are made of, without a network."""
    place = tmp_path_factory.mktemp("build")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    shutil.copytree(ROOT / "esscher", place / "esscher", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", place / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    pytest.importorskip("build")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place / "dist"), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next((place / "dist").glob("*.whl")), next((place / "dist").glob("*.tar.gz"))


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_nothing_of_the_tests(distributions):
    wheel, source = distributions
    assert wheel.name == f"esscher-{esscher.__version__}-py3-none-any.whl" and wheel.stat().st_size < 2_000_000
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
        metadata = content.read(f"esscher-{esscher.__version__}.dist-info/METADATA").decode()
        entry_points = content.read(f"esscher-{esscher.__version__}.dist-info/entry_points.txt").decode()
    files = {file.relative_to(ROOT).as_posix() for file in (ROOT / "esscher").rglob("*") if file.is_file()}
    assert {name for name in names if ".dist-info/" not in name} == {name for name in files if "__pycache__" not in name}
    assert {"esscher/py.typed", "esscher/__init__.pyi", "esscher/explorer/style.css", "esscher/reports/report.html"} <= names
    assert "Requires-Python: >=3.11" in metadata and all(f"Python :: 3.{minor}" in metadata for minor in (11, 12, 13))
    assert "esscher = esscher.cli:main" in entry_points
    with tarfile.open(source) as packed:
        assert any(name.endswith("esscher/py.typed") for name in packed.getnames())


USER_SCRIPT = """
import esscher
from esscher import DataConfig, Estimate, Model, TrainingConfig

model: Model = esscher.train("runs/first", data=DataConfig("my.txt"), training=TrainingConfig(epochs=1))
texts: list[str] = model.sample(["Once upon"], draws=4).texts
scores: list[float] = model.score(["Once upon a time."], prompts=["Once"]).log_base
nats: Estimate = model.measure("test.txt", draws=1000).nats["base"]["token"]
tilted: Model = esscher.load("runs/first").tilt(want={"contains:the": 0.5}, out="runs/energy")
plain: Model = tilted.distil("runs/plain")
print(texts, scores, nats.value, nats.low, plain.name)
"""
WRONG = {
    'esscher.load("runs/first").sample(["x"], drwas=4)': "call-arg",
    'count: int = esscher.load("runs/first").sample(["x"]).texts': "assignment",
    "esscher.lod": "attr-defined",
}


@pytest.mark.slow
def test_programs_of_users_are_checked_by_mypy(tmp_path):
    """A correct program passes `mypy --strict`, and mistakes in it are found: the public names have types."""
    (tmp_path / "right.py").write_text(USER_SCRIPT)
    (tmp_path / "wrong.py").write_text("import esscher\n" + "\n".join(WRONG) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    command += ["--config-file", "", "right.py", "wrong.py"]
    environment = {"MYPYPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [(line.partition(":")[0], line.rpartition("[")[2].rstrip("]")) for line in lines] == [
        ("wrong.py", code) for code in WRONG.values()
    ], done.stdout
