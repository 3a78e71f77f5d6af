# Every target sets up its own virtual environment first; the second time that costs nothing.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
export HF_HUB_OFFLINE ?= 1

.PHONY: help venv quickstart test slow coverage lint mutants faults bench docs clean

help:
	@echo "make quickstart   set up, then train, tilt, measure, sample and report on embedded data (about 5 minutes)"
	@echo "make test         set up, then lint and run the fast tests (under 10 minutes on 2 cores)"
	@echo "make slow         the tests that take longer"
	@echo "make coverage     which lines the fast tests run"
	@echo "make lint         ruff, mypy and the layer contract"
	@echo "make mutants      what share of small mistakes in samplers, estimators and objectives the tests notice (about 15 minutes)"
	@echo "make faults      kills, damaged files, hostile folders, bad requests, misuse: what became of each (under 20 minutes)"
	@echo "make bench        measure against peers, side by side, into benchmarks/RESULTS.md (about half an hour)"
	@echo "make docs         build the documentation into site/"

venv: $(READY)

# pip with a constraints file: a looser way of asking for torch may pull gigabytes of accelerator libraries.
$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (about 3 minutes, 2.4 GB) ..."
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@$(RUN) -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs,eval,harness,images,peft,serve,ui]'
	@touch $@

quickstart: $(READY)
	@$(RUN) -m esscher reproduce quickstart --scale small --out runs/quickstart

test: lint
	$(RUN) -m pytest -n 2 --dist worksteal

slow: $(READY)
	$(RUN) -m pytest -m slow

coverage: $(READY)
	$(RUN) -m coverage erase
	$(RUN) -m coverage run -m pytest -n 2 --dist worksteal
	@$(RUN) -m coverage combine --quiet
	@$(RUN) -m coverage report --skip-covered --sort=cover

lint: $(READY)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

mutants: $(READY)
	@$(RUN) tests/mutants.py run
	@$(RUN) tests/mutants.py table

faults: $(READY)
	@$(RUN) tests/faults/run.py --json docs/figures/faults.json

bench: $(READY)
	$(RUN) -m benchmarks

docs: $(READY)
	@$(VENV)/bin/mkdocs build --strict --quiet
	@echo site/index.html

clean:
	rm -rf $(VENV) mutants site build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
