"""The site: tasks are near the first page, their pages have one form, and nothing is loaded from outside."""

import os
import re
import subprocess
import sys
from dataclasses import fields

import pytest
from pages import HOME

from esscher.workflow.model import Model

DOCS = HOME / "docs"
TASKS = [page for page in sorted((DOCS / "howto").glob("*.md")) if page.stem != "index"]
OUTSIDE = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//|<link\b[^>]*\bhref=\"?(?:https?:)?//")
IMPORT = re.compile(r"@import|url\(\s*[\"']?(?:https?:)?//")


def links(page):
    targets = re.findall(r"\]\(([^)\s#]+\.md)", page.read_text())
    return {(page.parent / target).resolve() for target in targets}


@pytest.mark.parametrize("task", [page.stem for page in TASKS])
def test_tasks_are_one_click_from_the_first_page(task):
    assert DOCS / "howto" / f"{task}.md" in links(DOCS / "index.md")


def test_the_list_of_tasks_is_complete():
    assert set(TASKS) <= links(DOCS / "howto" / "index.md")


@pytest.mark.parametrize("page", TASKS, ids=lambda page: page.stem)
def test_a_page_of_a_task_has_a_command_python_a_check_and_the_way_on(page):
    text = page.read_text()
    assert len(text.splitlines()) < 75
    assert "How to know that it worked." in text
    assert "\nMore: [" in text and "../guide/" in text
    assert "```python" in text or "In Python" in text
    assert page.stem == "testing" or "\nesscher " in text


def test_the_glossary_is_in_alphabetical_order():
    words = re.findall(r"^\*\*(.+)\*\*$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(words) > 25 and words == sorted(words, key=str.lower)


def test_every_member_of_the_model_is_in_the_reference():
    page = (DOCS / "reference" / "model.md").read_text()
    listed = re.findall(r"^::: esscher\.workflow\.model\.Model\.(\w+)$", page, re.MULTILINE)
    assert listed[:5] == ["sample", "score", "measure", "tilt", "distil"]
    members = {name for name in vars(Model) if not name.startswith("_")} | {field.name for field in fields(Model)}
    assert set(listed) == members


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_outside(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=HOME, capture_output=True, text=True, env=quiet, check=False)
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 80 and (tmp_path / "notebooks" / "laboratory" / "index.html").exists()
    assert not [str(page) for page in pages if OUTSIDE.search(page.read_text())]
    assert not [str(sheet) for sheet in tmp_path.rglob("*.css") if IMPORT.search(sheet.read_text())]
