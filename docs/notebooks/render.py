"""MkDocs hook: an executed notebook becomes a page of the site, its figures files beside it.

Cells become Markdown and fenced code, so that notebooks have the highlighting, copy buttons, search and dark mode of every
other page, and load nothing from outside (nbconvert's HTML loads MathJax from a CDN). The notebook itself stays in the site, to
download. Cells with the tag `remove` are left out.
"""

import base64
import json
import re
from pathlib import PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

NOTEBOOK_LINK = re.compile(r"\]\(([\w./]+)\.ipynb(#[\w-]+)?\)(?!\{ \.md-button)")
IMAGES = {"image/png": "png", "image/svg+xml": "svg"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each notebook."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        place = PurePosixPath(file.src_uri)
        text, images = notebook_page(json.loads(file.content_string), place.stem)
        files.append(File.generated(config, str(place.with_suffix(".md")), content=text))
        for name, content in images.items():
            files.append(File.generated(config, str(place.with_name(name)), content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to a notebook, which open it in the repository, lead to its page; the button downloads it."""
    return NOTEBOOK_LINK.sub(r"](\1.md\2)", markdown)


def notebook_page(notebook: dict[str, Any], stem: str) -> tuple[str, dict[str, bytes]]:
    """The notebook as Markdown, and its images by file name."""
    parts: list[str] = []
    images: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        if "remove" in cell["metadata"].get("tags", []):
            continue
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(fenced(source, "python"))
        for output in cell["outputs"]:
            parts.append(output_text(output, f"{stem}-{len(images) + 1}", images))
    download = f"[Download this notebook]({stem}.ipynb){{ .md-button download }}"
    return "\n\n".join([*filter(None, parts), download, ""]), images


def output_text(output: dict[str, Any], name: str, images: dict[str, bytes]) -> str:
    """One output as Markdown; an image is added to `images`."""
    if output["output_type"] == "stream":
        return fenced("".join(output["text"]).rstrip("\n"), "text", "{ .text .output }") if output["name"] == "stdout" else ""
    data = output.get("data", {})
    for kind, suffix in IMAGES.items():
        if kind in data:
            content = "".join(data[kind])
            images[f"{name}.{suffix}"] = base64.b64decode(content) if suffix == "png" else content.encode()
            return f"![Figure of the cell above]({name}.{suffix})"
    return fenced("".join(data.get("text/plain", "")), "text", "{ .text .output }") if "text/plain" in data else ""


def fenced(text: str, language: str, header: str | None = None) -> str:
    """A code block."""
    return f"```{header or language}\n{text}\n```"
