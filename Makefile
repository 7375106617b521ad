PYTHON ?= python3
BIN := .venv/bin

# Stamps: installed once, and again when what is to be installed has changed.
SERVE := .venv/serve.stamp
DEV := .venv/dev.stamp
PROJECT := pyproject.toml setup.py constraints.txt $(wildcard miractl/native/src/*)

.DELETE_ON_ERROR:
.PHONY: serve test lint types check clean

serve: $(SERVE)
	$(BIN)/miractl serve --profile a10

test: $(DEV)
	$(BIN)/pytest

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV)
	$(BIN)/mypy

check: lint types test

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

$(SERVE): $(BIN)/python $(PROJECT)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(DEV): $(BIN)/python $(PROJECT)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@ $(SERVE)
