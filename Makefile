# The verbs of the project. They act on the environment of $(PYTHON); test-oldest makes its own.
PYTHON ?= python
BIN = .venv-oldest/bin

.DEFAULT_GOAL := help
.PHONY: help install lint format typecheck test test-fast test-grid test-oldest demo docs notebooks look build ci clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-12s %s\n", $$1, $$2}'

install:  ## install the package, editable, with all extras and the tested versions
	$(PYTHON) -m pip install -c constraints.txt -e ".[demo,recipes,test,dev,triton,docs,browser,notebooks]"

lint:  ## check style, formatting, and which module imports which
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -c "from importlinter.cli import lint_imports_command; lint_imports_command()"

format:  ## fix style and formatting
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

typecheck:  ## check the types of the package
	$(PYTHON) -m mypy

test:  ## run all tests
	$(PYTHON) -m pytest

test-fast:  ## run the tests that are neither slow nor distributed
	$(PYTHON) -m pytest -m "not slow and not distributed"

test-grid:  ## run the rows that the tests leave out; before a release
	$(PYTHON) -m pytest -m grid

test-oldest:  ## run all tests on the oldest supported versions, in .venv-oldest
	$(PYTHON) -m venv .venv-oldest
	$(BIN)/python -m pip install -c constraints-oldest.txt -e ".[test]"
	$(BIN)/python -m pytest

demo:  ## fine-tune BERT on BBC news without and with relative positions
	$(PYTHON) -m hf_relpos.cli demo --output-dir relpos-demo

docs:  ## build the documentation site into build/site/; a warning is an error
	$(PYTHON) -m sphinx -q -W --keep-going -c docs . build/site

notebooks:  ## run the notebooks from the first cell to the last
	$(PYTHON) -m pytest tests/test_notebooks.py -m notebooks

look: docs  ## look at the site in Chromium, which has to be installed
	$(PYTHON) -m pytest tests/test_browser.py -n 0 -m browser --pages=build/site

build:  ## build the source distribution and the wheel into dist/
	$(PYTHON) -m build

ci:  ## run what CI runs, in environments of its own
	bash .ci/run

clean:  ## remove what builds, tests and tools leave behind
	rm -rf build dist *.egg-info .venv-oldest .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
