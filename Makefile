# Everything runs inside .venv; stamp files there say what has been installed.
PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
# -qq: errors only. The constraints pin every package, torch first of all: a looser request for
# torch may resolve to a build with several gigabytes of GPU libraries.
INSTALL := $(BIN)/python -m pip install -qq -c constraints.txt -e

export PIP_DISABLE_PIP_VERSION_CHECK := 1
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test lint docs bench study clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.installed ## install into .venv, then run a short demonstration
	@$(BIN)/pushsum demo

# PASSIVE: the few tests with two threads do not spin while they wait for a processor.
test: lint ## all checks: lint, types, layers, tests and doctests (PYTEST_ARGS=...)
	@OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -n 2 $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev ## the static checks alone: ruff, mypy, import-linter
	@$(BIN)/ruff check -q
	@out=$$($(BIN)/ruff format --check 2>&1) || { echo "$$out"; echo "To fix: $(BIN)/ruff format"; exit 1; }
	@$(BIN)/mypy --no-error-summary src benchmarks study website
	@out=$$($(BIN)/lint-imports 2>&1) || { echo "$$out"; exit 1; }

# PYTHONPATH: the generator finds the package `website` there.
docs: $(VENV)/.installed-dev ## build the site into build/site; a broken link is an error
	@PYTHONPATH=. $(BIN)/zensical build --clean --strict
	@echo "Open build/site/index.html"

bench: $(VENV)/.installed ## run the benchmarks (BENCH_ARGS=...)
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

# JOBS: cells at the same time, one thread each. What has rows in study/results is not measured again.
study: $(VENV)/.installed ## run what the study behind the evidence pages lacks: many hours (JOBS=...)
	@$(BIN)/python -m study.run --jobs $(JOBS)
	@for step in consensus family; do test -e study/results/$$step.csv || $(BIN)/python -m study.$$step || exit 1; done
	@for step in collect publish; do $(BIN)/python -m study.$$step || exit 1; done

clean: ## remove .venv and everything else that was generated
	@rm -rf $(VENV) build dist pushsum-demo .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find $(wildcard src tests benchmarks study website) -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "pushsum needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing)." >&2; \
	  echo "Name another one: make $(firstword $(MAKECMDGOALS)) PYTHON=python3.12" >&2; exit 1; }
# The second way is for Pythons that come without ensurepip.
	@$(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 || { \
	  $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install -qq pip; }
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing pushsum into $(VENV) (once, a few minutes) ..."
	@$(INSTALL) .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing pushsum and its development tools into $(VENV) (once, a few minutes) ..."
	@$(INSTALL) '.[dev]'
	@touch $(VENV)/.installed $@
