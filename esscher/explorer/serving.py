"""Where a page is served, and to whom: this machine alone, or others who know a token.

Importing this module imports neither torch nor gradio.
"""

import os
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from esscher.reach import HOME, check_reach, known_token, knows

if TYPE_CHECKING:
    from gradio import Blocks

FIRST_PORT, PORTS = 7860, 100

STYLE = """
.gradio-container { max-width: 1200px !important; }
.es { padding: .2rem .4rem; }
.es table { border-collapse: collapse; width: 100%; font-size: .92rem; }
.es table, .es tr, .es th, .es td { border: 0 !important; }
.es th, .es td { text-align: left; padding: .3rem .8rem .3rem 0 !important; vertical-align: top; }
.es tbody tr, .es thead tr { border-bottom: 1px solid #8884 !important; }
.es th { font-weight: 600; opacity: .75; } .es td.n { font-variant-numeric: tabular-nums; white-space: nowrap; }
.es .t { overflow-wrap: anywhere; white-space: pre-wrap; min-width: 9rem; } .es .wide { overflow-x: auto; }
.es .bar { display: block; height: .35rem; border-radius: .2rem; background: #1f5fa8; margin-top: .15rem; }
.es .bar.of-base { background: #8b98a9; } .es .dim { opacity: .75; font-size: .88rem; margin: .3rem 0; }
.es .good { color: #15803d; } .es .doubtful { color: #b45309; } .es .unreliable, .es .error { color: #b91c1c; }
.es .text { font-size: 1.05rem; line-height: 2; white-space: pre-wrap; overflow-wrap: anywhere; }
.es .text span { border-radius: .2rem; } .es svg { max-width: 100%; height: auto; background: #fff; }
.es .sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 1rem; }
.es .one { border-left: 3px solid #8884; padding: .2rem .6rem; margin: .4rem 0; overflow-wrap: anywhere; }
.es .pill { display: inline-block; border: 1px solid #8886; border-radius: .6rem; padding: 0 .4rem; margin: 0 .2rem .1rem 0;
  font-size: .82rem; white-space: nowrap; }
"""


@dataclass(frozen=True)
class Serving:
    """The address of a page; any but this machine's own needs a token, which visitors type as their password."""

    host: Annotated[str, Parameter(help="Address to serve at: this machine alone, unless told otherwise.")] = HOME
    port: Annotated[int | None, Parameter(help="Port; the first free one from 7860 by default.")] = None
    token: Annotated[
        str | None, Parameter(help="Password of the page, by default ESSCHER_TOKEN; required with another --host.")
    ] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "token", known_token(self.token))
        check_reach(self.host, self.token)

    def admits(self, user: str, password: str) -> bool:
        """Anyone who knows the token, under any name."""
        return self.token is not None and knows(password, self.token)


def load_gradio() -> ModuleType:
    """The library of the page, which tells nobody outside that it is used."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ImportError as error:
        raise ImportError(
            f"The page needs gradio, which is not here ({error}). Nothing was served; run: pip install 'esscher[ui]'."
        ) from error
    return gradio


def serve(page: "Blocks", serving: Serving, *, wait: bool = True) -> str:
    """Serve the page and return its address; with `wait`, only when the keyboard stops it."""
    gradio = load_gradio()
    ports: dict[str, Any] = {} if serving.port is None else {"server_port": serving.port}
    _, address, _ = page.queue(default_concurrency_limit=1).launch(
        server_name=serving.host,
        auth=None if serving.token is None else serving.admits,
        auth_message="Any name will do; the password is the token.",
        theme=gradio.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
        css=STYLE,
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
