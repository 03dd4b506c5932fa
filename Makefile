# Every target makes its own .venv from nothing, and is quick when that is done already.
PYTHON ?= python3
BIN := .venv/bin
RUNTIME := .venv/runtime.stamp
DEV := .venv/dev.stamp
PIP := $(BIN)/pip --disable-pip-version-check --quiet
JOBS ?= 2

.PHONY: demo test check format lint format-check types imports docs-build bench proof

demo: $(RUNTIME)
	$(BIN)/interlock demo

test: $(DEV)
	$(BIN)/pytest -n $(JOBS) --every-contract

check: format-check lint types imports docs-build
	$(BIN)/pytest -q -p no:xdist tests/test_house_rules.py

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

format-check: $(DEV)
	$(BIN)/ruff format --check .

lint: $(DEV)
	$(BIN)/ruff check .

types: $(DEV)
	$(BIN)/mypy

imports: $(DEV)
	$(BIN)/lint-imports

docs-build: $(DEV)
	$(BIN)/mkdocs build --quiet --strict --site-dir .venv/site

bench: $(DEV)
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

proof: $(DEV)
	HYPOTHESIS_PROFILE=proof $(BIN)/pytest -n $(JOBS) --every-contract

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(RUNTIME): requirements.lock pyproject.toml | $(BIN)/python
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	touch $@

$(DEV): requirements-dev.lock $(RUNTIME)
	$(PIP) install --require-hashes -r requirements-dev.lock
	touch $@
