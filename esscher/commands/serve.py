"""esscher serve: a model, tilted or not, behind an endpoint that speaks OpenAI's completions."""

from typing import Annotated

from cyclopts import App, Parameter

from esscher.commands.flags import BaseFolder, Cutting, EnergyFolder
from esscher.cut import Cut
from esscher.serving.config import ServeConfig

app = App(name="serve", help_epilogue="Example: esscher serve runs/first --energy runs/energy --port 8000")


@app.default
def serve(
    model: BaseFolder,
    *,
    energy: EnergyFolder = None,
    cut: Cutting = Cut(),  # noqa: B008 (frozen)
    limits: Annotated[ServeConfig, Parameter(name="*")] = ServeConfig(),  # noqa: B008 (frozen)
) -> None:
    """Each draw is chosen by the energy among candidates of the base. Requests beyond the limits, and what a tilted model
    cannot do, are refused with a word on why. A distilled model needs none of this: it is a plain Hugging Face folder."""
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError("Serving needs uvicorn and starlette. Nothing is served; pip install 'esscher[serve]'.") from error
    from esscher.serving.endpoint import endpoint
    from esscher.serving.engine import Engine
    from esscher.training.progress import choose_progress
    from esscher.verbs.models import load_model

    loaded = load_model(model, energy, cut)
    loaded.tokenizer  # noqa: B018 (refuses a model without text)
    choose_progress(False).say(f"{model} at http://{limits.host}:{limits.port}/v1/completions; Ctrl-C ends it.")
    uvicorn.run(
        endpoint(Engine(loaded, limits)), host=limits.host, port=limits.port, log_level="warning", access_log=False,
        timeout_keep_alive=5, limit_concurrency=None, h11_max_incomplete_event_size=65_536,
    )  # fmt: skip
