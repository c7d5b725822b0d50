# make demo: set up and run the main path. make test: set up and pass the tests.
PYTHON ?= python3.11
VENV ?= .venv
DEMO_VENV ?= .venv-demo
BIN := $(VENV)/bin
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: help demo test check lint types format lock docs bench bench-main-path bench-training test-soak clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

# A stamp per environment: set up once, and again when what it is made of changes.
$(VENV)/.ready: pyproject.toml requirements/bootstrap.txt requirements/dev.txt
	@sh scripts/setup-venv.sh "$(PYTHON)" "$(VENV)" requirements/dev.txt
	@touch $@

$(DEMO_VENV)/.ready: pyproject.toml requirements/bootstrap.txt requirements/demo.txt
	@sh scripts/setup-venv.sh "$(PYTHON)" "$(DEMO_VENV)" requirements/demo.txt
	@touch $@

demo: $(DEMO_VENV)/.ready ## set up and run the whole path on real digits
	$(DEMO_VENV)/bin/timonel demo

test: $(VENV)/.ready check ## set up, check and test everything that runs in minutes
	$(BIN)/python -m pytest

check: lint types ## format, lint, types and layers

lint: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(VENV)/.ready
	$(BIN)/mypy

format: $(VENV)/.ready ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-soak: $(VENV)/.ready ## long fault matrices; the figures go to benchmarks/results/soak.md
	TIMONEL_SOAK_REPORT=benchmarks/results/soak.md $(BIN)/python -m pytest -m soak --timeout 3600

bench: bench-main-path bench-training ## measure against the same work written by hand

bench-main-path: $(VENV)/.ready ## from raw files to the first answer
	$(BIN)/python benchmarks/main_path.py

bench-training: $(VENV)/.ready ## steps, stragglers, kills, checkpoints, numbers of workers
	$(BIN)/python benchmarks/training.py

docs: $(VENV)/.ready ## build the documentation into site/
	$(BIN)/mkdocs build --strict

lock: $(VENV)/.ready ## resolve the pinned requirements again
	sh scripts/lock.sh $(BIN)/uv

clean: ## remove what make made
	rm -rf $(VENV) $(DEMO_VENV) site dist build demo
