# make demo   discover the categories of 498 photographs            make check   everything that must hold: lint, test
# make test   run the tests                                         make lint    formatting, lint, types, spelling
# make docs   write docs/cli.md from --help, build the site           make bench   the speed benchmarks
# make figures   draw the figures of docs/concepts.md from a real run
# make fuzz   a minute of mutated files, kills and full disks; SECONDS=3600 for an hour, SEED=1 for other ones
# Each sets up .venv first, from constraints.txt; the second time that costs nothing.

# What is compiled is kept, also where the environment forbids it: else two processes compile every test on every run.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.ready-bench
DOCS_READY := $(VENV)/.ready-docs
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Three processes on two cores: tests of pages wait for a browser much of the time.
TESTS := $(BIN)/python -m pytest -q --numprocesses 3 --dist worksteal

.PHONY: demo test lint check format docs figures bench fuzz clean

demo: $(READY)
	$(BIN)/shoal demo

test: $(READY)
	$(TESTS)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file benchmarks/mypy.ini benchmarks
	$(BIN)/codespell

check: lint test

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) $(DOCS_READY)
	$(BIN)/python docs/make_cli.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

figures: $(READY)
	$(BIN)/python docs/make_figures.py

SECONDS ?= 60
SEED ?= 0
fuzz: $(READY)
	$(BIN)/python benchmarks/fuzz.py --seconds $(SECONDS) --seed $(SEED)

bench: $(READY) $(BENCH_READY)
	$(BIN)/python benchmarks/pixels.py
	$(BIN)/python benchmarks/ward.py
	$(BIN)/python benchmarks/clustering.py knn

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(f"shoal needs Python 3.11 or newer, found {sys.version.split()[0]}; set PYTHON=…" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	@touch $@

$(BENCH_READY): $(READY)
	$(PIP) --editable '.[bench]'
	@touch $@

$(DOCS_READY): $(READY)
	$(PIP) --editable '.[docs]'
	@touch $@

clean:
	rm -rf site $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
