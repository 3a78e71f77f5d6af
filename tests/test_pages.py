import re
import tomllib
from pathlib import Path

import pytest
from pages import HOME, RUN_OR_READ, commands_of, read_commands

PAGES = [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ *(\$ |esscher |make |python |pip |torchrun )", re.MULTILINE)
WITHOUT_PAGE: set[str] = set()  # none


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_every_block_with_a_command_is_run_or_read(page):
    """Blocks of other languages, and what is indented in place of a block, hold none."""
    text = page.read_text(encoding="utf8")
    rest = BLOCK.sub(lambda block: "" if block[1] in RUN_OR_READ else block[2], text)
    assert not COMMAND.findall(rest), "name the block's language: shell runs it, bash reads its flags"


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("esscher train --out runs/base --bas.kind lstm  # a model", "--bas.kind"),
        ("esscher explore runs/first \\\n    --port many", "many"),
        ("torchrun --standalone --nproc_per_node 2 -m esscher sampel runs/first", "sampel"),
        ("make coffee", "coffee"),
        ("pip install 'esscher[wings]'", "wings"),
        ("curl http://127.0.0.1", "nobody reads"),
    ],
)
def test_commands_that_would_not_begin_are_named(block, said):
    with pytest.raises(AssertionError, match=said):
        read_commands(block)


def test_commands_that_would_begin_are_read():
    block = "make quickstart   # first\nesscher sample runs/first \\\n    --draws 4\n\npip install 'esscher[ui]'\n"
    assert [words[0] for words in commands_of(block)] == ["make", "esscher", "pip"]
    read_commands(block)


def test_every_package_has_a_reference_page():
    """Every folder and module at the top of the package stands on a page of the reference, and the page in the navigation."""
    inside = (HOME / "esscher").iterdir()
    tops = {path.stem for path in inside if (path.is_dir() or path.suffix == ".py") and not path.stem.startswith("_")}
    pages = {page.name: page.read_text() for page in (HOME / "docs" / "reference").glob("*.md")}
    output = {name for text in pages.values() for name in re.findall(r"^::: esscher\.(\w+)$", text, re.MULTILINE)}
    assert tops - output == WITHOUT_PAGE, "write docs/reference/<folder>.md, or tell why there is none in WITHOUT_PAGE"
    nav = (HOME / "mkdocs.yml").read_text()
    assert not [page for page in pages if f"reference/{page}" not in nav]


def test_files_and_modules_that_pages_name_exist():
    for page in PAGES:
        text = page.read_text(encoding="utf8")
        for path in re.findall(r"`((?:esscher|tests|benchmarks|docs)/[\w/.-]+)[`:]", text):
            assert (HOME / path).exists(), f"{page.relative_to(HOME)} names {path}"
        for name in re.findall(r"`(esscher\.(?!json)[a-z_.]*\w)`", text):
            assert is_there(HOME.joinpath(*name.split("."))), f"{page.relative_to(HOME)} names {name}"


def is_there(place: Path) -> bool:
    """A package, a module, or a name that one of these holds."""
    if place.is_dir() or place.with_suffix(".py").is_file():
        return True
    home = place.parent / "__init__.py" if place.parent.is_dir() else place.parent.with_suffix(".py")
    return home.is_file() and re.search(rf"\b{place.name}\b", home.read_text(encoding="utf8")) is not None


def test_the_layers_told_are_those_of_the_contract():
    output = next(block for _, block in BLOCK.findall((HOME / "CONTRIBUTING.md").read_text()) if block.startswith("cli >"))
    contract = tomllib.loads((HOME / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    assert " ".join(output.split()).split(" > ") == contract
