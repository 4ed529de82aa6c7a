# `make quickstart` shows a real model learn; `make test` proves the machinery, `make audit` the
# verifiers.
# Both make .venv when it is missing and install what they need.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUNS ?= runs

.PHONY: quickstart test test-slow audit lint types unit browser compiler runtimes databases \
  install clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

quickstart: install
	$(BIN)/headrace run quickstart --runs $(RUNS)

# Types are checked beside the tests, which run in two processes; each file stays in one of them.
test: lint
	$(MAKE) --no-print-directory --jobs=2 types unit

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: install
	$(BIN)/pyright --pythonpath $(BIN)/python

unit: install browser compiler runtimes databases
	$(BIN)/pytest -m "not slow" --numprocesses 2 --dist loadfile

test-slow: install browser compiler runtimes databases
	$(BIN)/pytest -m slow --timeout 3600

# Every shipped verifier is attacked with everything known before anybody trains on its word.
audit: install compiler runtimes
	$(BIN)/headrace audit --all --quick

# The report is tested in the browser that people will read it in.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { echo "installing chromium (Debian)"; apt-get -qq update && apt-get -qq install -y chromium >/dev/null; }

# The engine's kernels are compiled where they run; without a compiler it is slower, and untested.
compiler:
	@command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null || \
	  { echo "installing gcc (Debian)"; apt-get -qq update && apt-get -qq install -y gcc libc6-dev >/dev/null; }

# Sandboxes are tested in the runtimes that people have: as root, none of them is left out.
RUNTIMES := crun runc podman busybox
runtimes:
	@missing=""; for name in $(RUNTIMES); do command -v $$name >/dev/null || missing="$$missing $$name"; done; \
	  [ -z "$$missing" ] || [ "$$(id -u)" != 0 ] || \
	  { echo "installing$$missing (Debian)"; apt-get -qq update && \
	    apt-get -qq install -y --no-install-recommends crun runc podman busybox-static >/dev/null; }

# The queue is tested on both databases that it runs on; the tests start a server of their own.
databases:
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || \
	  { echo "installing postgresql (Debian)"; apt-get -qq update && \
	    apt-get -qq install -y --no-install-recommends postgresql >/dev/null; }

clean:
	rm -rf $(VENV) build dist
