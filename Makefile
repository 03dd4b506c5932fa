# Every target makes its own .venv from nothing, and is quick when that is done already.
PYTHON ?= python3
BIN := .venv/bin
RUNTIME := .venv/runtime.stamp
DEV := .venv/dev.stamp
PIP := $(BIN)/pip --disable-pip-version-check --quiet
JOBS ?= 2

.PHONY: demo test check format lint format-check types imports docs-build bench proof mutants

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
	$(BIN)/mkdocs build --quiet --strict

bench: $(DEV)
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

# The long searches alone, each with many more examples, for at most an hour. docs/proof.md has what they gave.
proof: $(DEV)
	HYPOTHESIS_PROFILE=proof timeout --kill-after=30 3600 $(BIN)/pytest -n $(JOBS) -m "hypothesis or proof"

# Each guard of the list is taken out in a copy, and its tests must go red there.
mutants: $(DEV)
	timeout --kill-after=30 1800 $(BIN)/python tests/mutants/run.py --jobs $(JOBS)

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(RUNTIME): requirements.lock pyproject.toml | $(BIN)/python
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	touch $@

$(DEV): requirements-dev.lock $(RUNTIME)
	$(PIP) install --require-hashes -r requirements-dev.lock
	touch $@
