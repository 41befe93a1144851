# `make run` and `make test` work in a fresh clone on a machine with Python 3.11+, make and git.

PYTHON ?= python3
BIN := .venv/bin

# Every version is pinned, those that build the package too (newer pips read the second).
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run test lint check clean

run: .venv/installed  ## replay the example log
	$(BIN)/tokenyard run examples/requests.csv --slo ttft=500ms,tpot=20ms

test: .venv/installed  ## run the tests
	$(BIN)/pytest --numprocesses auto

lint: .venv/installed  ## style, types, and who may import whom
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test  ## all of what has to pass

clean:  ## remove what make made
	rm -rf .venv

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11: name a newer one, as in make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@
