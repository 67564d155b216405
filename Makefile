# Each target makes .venv when it is missing and installs what it needs, in the versions of constraints.txt.
# Repeat runs install nothing until pyproject.toml or constraints.txt changes.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
# The constraints pin torch exactly: where a CPU wheel of that version is offered, that is the one pip takes.
INSTALL = -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test coverage lint bench docs dist

help:  ## say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.has-demo  ## train PPO on CartPole-v1 and leave curve, video, metrics and checkpoint under runs/
	@$(BIN)/swath train CartPole-v1
	@echo "(\`source $(BIN)/activate\` finds swath)"

# Three processes: most tests wait, for workers or deadlines; all tests on Ray are in one of them (tests/conftest.py).
# One thread each: small networks gain nothing from a second, and threads that wait for each other spin on shared cores.
test: lint  ## lint, then the whole test suite
	@echo "pytest: the whole suite"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses=3 --max-worker-restart=0

coverage: $(VENV)/.has-dev  ## the whole test suite again, and which lines it runs: half as long again as without
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses=3 --max-worker-restart=0 \
		--cov=swath --cov-report=term:skip-covered --cov-fail-under=90

lint: $(VENV)/.has-dev  ## ruff, mypy strict, the layers
	@echo "ruff: rules and format"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@echo "mypy: strict on src/swath"
	@$(BIN)/mypy --no-error-summary
	@echo "import-linter: the layers"
	@$(BIN)/lint-imports --no-logo

bench: $(VENV)/.has-dev  ## measure everything beside the peers, and write docs/performance.md (BENCH=--quick for a look)
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/suite.py $(BENCH)

docs: $(VENV)/.has-docs  ## build the documentation into site/
	@echo "mkdocs: docs/ to site/"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

dist: $(VENV)/.has-dev  ## build a wheel and a source archive into dist/
	@$(BIN)/python -m build --outdir dist .

$(VENV)/.has-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing swath[$*] into $(VENV)"
	@$(BIN)/python $(INSTALL) --editable '.[$*]'
	@touch $@

# The first Python that is new enough; PYTHON=... chooses another. 3.11 comes first: constraints.txt was tried on it.
$(BIN)/python: %/bin/python:
	@found=; \
	for candidate in $${PYTHON:-python3.11 python3.12 python3.13 python3 python}; do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "make: Swath needs Python 3.11 or newer, and $${PYTHON:-the PATH} has none: install it, or say where it is with PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi; \
	echo "creating $* with $$($$found --version)"; \
	$$found -m venv $* || { rm -rf $*; \
	  echo "make: $$found cannot create a virtual environment (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
