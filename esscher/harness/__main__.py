"""`python -m esscher.harness`: the command `lm_eval` with `--model esscher` registered."""

import esscher.harness.model  # noqa: F401 (registers the model)

if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
