"""`python -m esscher.harness`: lm_eval, which knows models of this library, too."""

import esscher.harness.model  # noqa: F401 (registers them)

if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
