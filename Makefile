# make setup   a virtual environment in .venv with the package and all extras
# make test    lint, types and every test
# make lint    lint and types alone
# make demo    a real model answers questions over a whole play; needs nothing but the package index
# make bench   all benchmarks; results in bench/results
# make default-model   trains flan-t5-small-answers anew (an hour or two); needs QMSum's training split as qmsum/train.jsonl
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= 2.13.0
TESTS ?= tests

.PHONY: setup test lint demo bench default-model clean

setup: $(VENV)/.ready

# Without an NVIDIA GPU the CPU build of torch is tried first: the default one brings gigabytes of CUDA libraries.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	if command -v nvidia-smi >/dev/null 2>&1; then \
	  $(BIN)/python -m pip install --quiet "torch==$(TORCH)"; \
	else \
	  $(BIN)/python -m pip install --quiet "torch==$(TORCH)+cpu" 2>/dev/null \
	  || $(BIN)/python -m pip install --quiet "torch==$(TORCH)"; \
	fi
	$(BIN)/python -m pip install --quiet --editable ".[all,dev]"
	touch $@

lint: setup
	$(BIN)/ruff check src tests bench examples
	$(BIN)/ruff format --check src tests bench examples
	$(BIN)/mypy

# Each of the two workers has a core; more threads than cores only wait for each other.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(TESTS)

demo: setup
	$(BIN)/unlimiformer demo

bench: setup
	$(BIN)/unlimiformer bench decode --lengths 1024,16384,131072,1000000 --json bench/results/decode.json
	$(BIN)/unlimiformer bench search --json bench/results/search.json
	$(BIN)/python bench/index_growth.py
	$(BIN)/unlimiformer bench encode --json bench/results/encode.json
	$(BIN)/unlimiformer bench train --json bench/results/train.json
	$(BIN)/unlimiformer bench needle --lengths 2000,8000,32000,128000 --speed --json bench/results/needle.json
	$(BIN)/unlimiformer bench run --json bench/results/run.json
	$(BIN)/python bench/scale.py
	$(BIN)/python bench/provenance.py
	$(BIN)/python bench/serve_load.py

default-model: setup
	$(BIN)/unlimiformer models get flan-t5-small
	$(BIN)/unlimiformer train --recipe default-model -o build/default-model
	$(BIN)/python bench/pack_default_model.py build/default-model

clean:
	rm -rf $(VENV) build src/*.egg-info
