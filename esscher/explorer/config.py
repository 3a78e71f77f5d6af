"""The settings of `esscher explore` and `esscher compare`, and how their pages are served; loads neither torch nor gradio."""

import os
from dataclasses import dataclass, field
from types import ModuleType

from esscher.core.auth import ServerConfig, token_matches
from esscher.core.chunking import Chunking
from esscher.workflow.config.load import LoadConfig, PlacementConfig


@dataclass(frozen=True, kw_only=True)
class PageServerConfig(ServerConfig):
    """The address of a page, and the token that visitors type as their password."""

    port: int | None = None
    """Port; by default the first free one from 7860."""

    def authenticate(self, user: str, password: str) -> bool:
        """Whether the password is the token; any user name will do."""
        return self.token is not None and token_matches(password, self.token)


@dataclass(frozen=True, kw_only=True)
class ExploreConfig(PageServerConfig):
    """What the page shows beside the model, its time limit, and its address."""

    student: str | None = None
    """Folder of a distilled model to show beside; by default `student` in the base's folder, if there is one."""
    prompts: tuple[str, ...] = field(default=(), metadata={"flag": "--prompt"})
    """Prompts to pick from; by default beginnings of the model's own texts. May be given several times."""
    runs: tuple[str, ...] = ()
    """Run folders to compare; by default those beside the model's folder. May be given several times."""
    timeout: float = 300.0
    """Seconds that one computation of the page may take; a slower one is given up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.timeout > 0:
            raise ValueError(f"timeout must be above 0, not {self.timeout}. Nothing is served.")


@dataclass(frozen=True)
class ExploreRun(ExploreConfig, LoadConfig):
    """Type a prompt and see texts of base and tilted model side by side, whether the draws suffice, next tokens, energies and a
    distilled model; compare runs; watch a run while it trains. Nothing leaves this machine; the page is served to it alone."""

    energy: str | None = field(default=None, kw_only=True)
    """Folder of the energy that tilts the base, or `self`; by default the folder `energy` in the base's, if there is one."""

    def __post_init__(self) -> None:
        ExploreConfig.__post_init__(self)
        Chunking.__post_init__(self)


@dataclass(frozen=True)
class ComparedTexts:
    """Where the texts come from; a class of its own so that it comes before the settings of the page."""

    a: str | None = None
    """Folder of model A, or a file with a text for each prompt, one a line."""
    b: str | None = None
    """Folder of model B, or such a file."""


@dataclass(frozen=True)
class CompareConfig(PageServerConfig, PlacementConfig, ComparedTexts):
    """Each rater sees every pair once, blind, in a random order and on random sides; now and then a pair with a known answer
    checks attention. A vote is on the disk before the next pair is shown. With `results`, report the votes in a folder."""

    prompts: str | None = field(default=None, kw_only=True)
    """File of prompts, one a line; an empty line is the empty prompt."""
    energy_a: str | None = field(default=None, kw_only=True)
    """Folder of the energy that tilts A."""
    energy_b: str | None = field(default=None, kw_only=True)
    """Folder of the energy that tilts B."""
    out: str | None = field(default=None, kw_only=True)
    """Folder of pairs and votes; an interrupted comparison goes on there."""
    results: str | None = field(default=None, kw_only=True)
    """Report the votes in this folder, instead of serving a page."""
    confidence: float = field(default=0.95, kw_only=True)
    """Coverage of the intervals."""
    seed: int = field(default=0, kw_only=True)
    """Seed of everything random."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.results is None and None in (self.a, self.b, self.prompts, self.out):
            raise ValueError("A comparison needs A, B, prompts and out. Nothing was served; or give results alone.")


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
