"""Serve a model behind an endpoint that speaks OpenAI's completions, until Ctrl-C."""

from esscher.core.progress import current_progress
from esscher.serving.config import ServeConfig
from esscher.serving.engine import Engine
from esscher.workflow.model import Model


def serve_model(model: Model, config: ServeConfig) -> None:
    """Serve a model of text, tilted or not; one without a tokenizer is refused."""
    try:
        import uvicorn

        from esscher.serving.server import create_app
    except ImportError as error:
        raise ImportError("Serving needs uvicorn and starlette. Nothing is served; pip install 'esscher[serve]'.") from error
    model.tokenizer  # noqa: B018 (refuses a model without text)
    current_progress().say(f"{model.name} at http://{config.host}:{config.port}/v1/completions; Ctrl-C ends it.")
    uvicorn.run(
        create_app(Engine(model, config)), host=config.host, port=config.port, log_level="warning", access_log=False,
        timeout_keep_alive=5, limit_concurrency=None, h11_max_incomplete_event_size=65_536,
    )  # fmt: skip
