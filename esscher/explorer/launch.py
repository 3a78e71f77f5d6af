"""Serve a gradio page, to this machine only or to others with a token; importing this loads neither torch nor gradio."""

import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from esscher.explorer.config import PageServerConfig

if TYPE_CHECKING:
    from gradio import Blocks


def load_gradio() -> ModuleType:
    """Import gradio with its telemetry off."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ImportError as error:
        raise ImportError(
            f"The page needs gradio, which is not installed ({error}). Nothing was served; run: pip install 'esscher[ui]'."
        ) from error
    return gradio


def launch(page: "Blocks", serving: PageServerConfig, *, wait: bool = True) -> str:
    """Serve the page and return its address; with `wait`, block until Ctrl-C."""
    gradio = load_gradio()
    ports: dict[str, Any] = {} if serving.port is None else {"server_port": serving.port}
    _, address, _ = page.queue(default_concurrency_limit=1).launch(
        server_name=serving.host,
        auth=None if serving.token is None else serving.authenticate,
        auth_message="Any name will do; the password is the token.",
        theme=gradio.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
        css=Path(__file__).with_name("style.css").read_text(encoding="utf8"),
        share=False,
        quiet=True,
        ssr_mode=False,
        footer_links=[],
        prevent_thread_lock=True,
        **ports,
    )
    print(f"{address}  (stop with Ctrl-C)", flush=True)
    if wait:
        page.block_thread()
    return str(address)
