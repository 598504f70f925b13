# Every target sets up .venv by itself; with nothing missing that takes a blink.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
# On all cores; of what takes all of them by itself, one at a time.
PYTEST = $(BIN)/python -m pytest -q -n auto --dist loadgroup

export HF_HUB_OFFLINE = 1
export VLLM_NO_USAGE_STATS = 1
# Or each of a run's dozens of processes compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-dev demo test check soak docs hooks lock clean

help: ## Say what the targets do
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile | expand -t 18

setup: ## Set up .venv with what runs need
	@$(PYTHON) scripts/setup_env.py

setup-dev: ## Set up .venv with what tests and checks need besides
	@$(PYTHON) scripts/setup_env.py --dev

demo: setup ## Train SmolLM2-135M on sums, on the CPU; ARGS="--ckpt.load_enable" goes on after Ctrl-C
	@model=$$($(BIN)/python scripts/fetch_smollm2.py) && \
	exec $(BIN)/turngym train --config examples/demo.yaml --actor.model_name_or_path "$$model" $(ARGS)

test: setup-dev ## Run the whole suite but the soak (15 minutes)
	$(PYTEST) -m "not soak" $(ARGS)

check: setup-dev ## Check format, lint and types, and run the quick tests (3 minutes)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(PYTEST) -m "not slow and not soak" $(ARGS)

soak: setup-dev ## Run the tests that take minutes each
	$(BIN)/python -m pytest -m soak $(ARGS)

docs: setup-dev ## Check README and docs: links lead somewhere, snippets run, commands exist
	$(BIN)/python -m pytest -q tests/test_readme.py $(ARGS)

hooks: setup-dev ## Let git run the quick checks before each commit
	$(BIN)/pre-commit install

lock: setup-dev ## Bring the lock files in line with pyproject.toml (needs network; see CONTRIBUTING.md)
	$(PYTHON) scripts/setup_env.py --lock

clean: ## Remove .venv, caches and build results; leave runs/ and the model
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache src/turngym.egg-info
