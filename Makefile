# make setup          create a virtual environment in .venv with the package and all extras
# make test           run lint, type checks and all tests (TESTS=tests/memory for a part of them)
# make test-processors  run the tests of training, stores and attention as on other processors (PROCESSORS="avx2 no-kernels")
# make lint           run lint and type checks only
# make demo           ask a real model questions about a whole novel; needs nothing but the package index
# make bench          run the benchmarks, write bench/results and the tables of README and docs
# make fuzz           10,000 random requests to the server, and thousands of damaged files of every kind
# make chaos          kill commands, fill disks and flip bits for an hour, write bench/results/chaos.json (CHAOS="--minutes 5")
# make adapters       train our two adapters again (about an hour each); needs the data files that their recipes name
# make docs           write the generated parts of README and docs
# make site           build the documentation site in build/site
# make lowest         run tests on the lowest declared versions of Python, torch and transformers
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= 2.13.0
TESTS ?= tests
DEMO ?=
CHAOS ?=

.PHONY: setup test test-processors lint demo bench chaos fuzz adapters docs site lowest clean

setup: $(VENV)/.ready

# Without an NVIDIA GPU, torch's CPU build is tried first: the default build brings gigabytes of CUDA libraries.
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
	$(BIN)/ruff check --no-cache setup.py src tests bench examples docs_site
	$(BIN)/ruff format --no-cache --check setup.py src tests bench examples docs_site
	$(BIN)/mypy

# Two test processes with one thread each: with more threads than cores, they only wait for each other.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(TESTS)

# torch, oneDNN and MKL can be told to use an older instruction set than the processor has; a newer one is ignored, but our
# kernels refuse one that the processor does not have.
PROCESSORS ?= default avx2 $(shell grep -qs avx512_vnni /proc/cpuinfo && echo avx512) no-kernels
NUMERIC_TESTS := tests/training tests/datastore tests/engines/seq2seq tests/test_functional.py
test-processors: setup
	for processor in $(PROCESSORS); do \
	  case $$processor in \
	    default) set -- UNLIMIFORMER_KERNELS=scalar ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2;; \
	    avx2) set -- UNLIMIFORMER_KERNELS=avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2;; \
	    avx512) set -- UNLIMIFORMER_KERNELS=avx512 ATEN_CPU_CAPABILITY=avx512;; \
	    no-kernels) set -- UNLIMIFORMER_NATIVE=0;; \
	    *) echo "PROCESSORS has $$processor; expected default, avx2, avx512 or no-kernels" >&2; exit 2;; \
	  esac; \
	  echo "--- $$processor"; \
	  env "$$@" OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal $(NUMERIC_TESTS) || exit 1; \
	done

demo: setup
	$(BIN)/unlimiformer demo $(DEMO)

bench: setup
	$(BIN)/unlimiformer bench decode --lengths 1024,16384,131072,1000000 -o bench/results/decode.json
	$(BIN)/unlimiformer bench search --text shakespeare/hamlet,shakespeare/lear,shakespeare/othello --tokens 131072 --top-k 1024 -o bench/results/search.json
	$(BIN)/unlimiformer bench encode -o bench/results/encode.json
	$(BIN)/unlimiformer bench train -o bench/results/train.json
	$(BIN)/unlimiformer bench needle --model smollm2-135m-instruct --lengths 2000,8000,32000,128000 --depths 10 --speed -o bench/results/needle.json
	$(BIN)/unlimiformer bench needle --model flan-t5-small-answers --lengths 600,8000,32000,128000 --depths 8 -o bench/results/needle_answers.json
	$(BIN)/unlimiformer bench run -o bench/results/run.json
	$(BIN)/python bench/index_growth.py
	$(BIN)/python bench/scale.py
	$(BIN)/python bench/provenance.py
	$(BIN)/python bench/serve_load.py
	$(BIN)/python bench/readme_table.py

# One thread for each process; as root, small disks are mounted, otherwise the size of files is limited.
chaos: setup
	$(BIN)/python bench/chaos.py $(CHAOS)

fuzz: setup
	UNLIMIFORMER_FUZZ=10000 $(BIN)/python -m pytest -q -s tests/server/test_fuzz.py
	UNLIMIFORMER_FUZZ=2500 $(BIN)/python -m pytest -q tests/test_parsers.py tests/text/formats/test_damaged_documents.py tests/memory/test_odd_descriptions.py

docs: setup
	$(BIN)/python bench/readme_table.py
	$(BIN)/python bench/cli_reference.py
	$(BIN)/python docs_site/drawings.py

site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lowest: setup
	$(BIN)/python bench/lowest_versions.py

adapters: setup
	$(BIN)/unlimiformer train --recipe flan-t5-small-answers -o build/flan-t5-small-answers
	$(BIN)/python bench/pack_adapter.py build/flan-t5-small-answers
	$(BIN)/unlimiformer train --recipe qwen2.5-coder-0.5b-answers -o build/qwen2.5-coder-0.5b-answers
	$(BIN)/python bench/pack_adapter.py build/qwen2.5-coder-0.5b-answers

clean:
	rm -rf $(VENV) build src/*.egg-info
