# SPDX-License-Identifier: BSD-3-Clause
# The commands of this project; `make` alone lists them.
#
# PYTHON chooses the interpreter that .venv is made with, MPICC, CUDA_HOME and
# WARPMPI_CUDA what is built with (see setup.py), ARGS goes to pytest,
# RUN_ARGS to tests/run.py: `make test RUN_ARGS="unit -- -k streams"`.

PYTHON ?= python3
VENV ?= .venv
PY = $(VENV)/bin/python
# Nothing is compiled to bytecode that may never be imported.
PIP = $(PY) -m pip install --quiet --disable-pip-version-check --no-compile
PIP_WHEEL = $(PY) -m pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps
SIMCUDA = build/simcuda
ARGS ?=
RUN_ARGS ?=
ALL_ARGS = $(RUN_ARGS) $(if $(ARGS),$(if $(filter --,$(RUN_ARGS)),,--) $(ARGS))

# A wheel is for all GPUs, the rest for this machine's.
WHEEL_ARCHS := $(WARPMPI_CUDA_ARCHS)
export WARPMPI_CUDA_ARCHS ?= native

# What a rebuild depends on.
C_FILES := $(shell find src -type f 2>/dev/null)
BUILD_FILES := setup.py pyproject.toml $(wildcard build_tools/*.py)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo build for-tests test test-full test-asan test-wheel gpu-test lint \
        format simcuda sdist wheel clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' \
	    $(MAKEFILE_LIST)

# --- the virtual environment ---------------------------------------------

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { echo "warpmpi: $(PYTHON) is not \
	there: install it with 'apt install python3', or set PYTHON" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	echo "warpmpi: $(PYTHON) is older than Python 3.10: set PYTHON to a newer \
	one" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "warpmpi: \
	$(PYTHON) cannot make virtual environments: install that with 'apt \
	install python3-venv'" >&2; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# What a build asks for, an MPI and a CUDA compiler included where there are
# none. Its own step, as the build runs in this environment.
$(VENV)/.build-tools: $(VENV)/.made pyproject.toml build_tools/backend.py
	@echo "installing what the build needs"
	@needs=$$($(PY) build_tools/backend.py) && $(PIP) $$needs
	@touch $@

# Editable: the extension is built into warpmpi/, Python files are used from
# there as they are.
$(VENV)/.built: $(VENV)/.build-tools $(C_FILES) $(BUILD_FILES)
	@$(PY) setup.py --quiet build_ext --inplace
	@touch $@

$(VENV)/.installed: $(VENV)/.built
	@echo "installing warpmpi into $(VENV)"
	@$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.extras-%: $(VENV)/.made pyproject.toml
	@echo "installing what $(subst -, and ,$*) needs"
	@needs=$$($(PY) build_tools/backend.py $(subst -, ,$*)) && $(PIP) $$needs
	@touch $@

build: export WARPMPI_WERROR ?= 1
build: $(VENV)/.build-tools ## build the extension in place, into warpmpi/
	@$(PY) setup.py --quiet build_ext --inplace

# --- the demo --------------------------------------------------------------

# Small enough for two cores without a GPU. mpirun hides the terminal.
DEMO_ARGS ?= -nx 512 -ny 512 --progress --plot jacobi.png

# What is downloaded comes while it is compiled.
demo: $(VENV)/.build-tools ## run the Jacobi example on 2 ranks; makes .venv
	@$(MAKE) -s --no-print-directory -j 2 $(VENV)/.built $(VENV)/.extras-demo
	@$(MAKE) -s --no-print-directory $(VENV)/.installed
	$(PY) build_tools/mpirun.py -n 2 examples/jacobi.py $(DEMO_ARGS)

# --- tests -------------------------------------------------------------------

simcuda: $(VENV)/.build-tools ## the simulated driver, into build/simcuda
	@cuda=$$($(PY) build_tools/toolchain.py) && $(MAKE) -s -j 4 \
	    --no-print-directory -C tests/simcuda OUT=$(abspath $(SIMCUDA)) \
	    CUDA_HOME="$$cuda"

# What is downloaded comes while it is compiled.
for-tests: $(VENV)/.build-tools
	@$(MAKE) -s --no-print-directory -j 3 $(VENV)/.built \
	    $(VENV)/.extras-test-lint simcuda
	@$(MAKE) -s --no-print-directory $(VENV)/.installed

test: for-tests ## a sample of every suite, and lint; makes .venv
	@$(PY) tests/run.py $(ALL_ARGS)

test-full: for-tests ## every suite whole, with faults at every n-th call, and lint
	@WARPMPI_TEST_FULL=1 $(PY) tests/run.py --limit 7200 $(ALL_ARGS)

# Address and undefined-behaviour sanitizers. Leaks are found by counts, in
# tests of their own: Python's and MPI's would drown ours.
ASAN = $(shell $(CC) -print-file-name=libasan.so)
ASAN_ENV = PYTHONPATH=$(abspath build/asan/lib) PYTHONMALLOC=malloc \
    LD_PRELOAD=$(ASAN) \
    ASAN_OPTIONS=detect_leaks=0:protect_shadow_gap=0:abort_on_error=1 \
    UBSAN_OPTIONS=print_stacktrace=1

test-asan: $(VENV)/.build-tools $(VENV)/.extras-test simcuda ## unit suites and 2 ranks with ASan and UBSan
	@WARPMPI_ABIS=installed WARPMPI_WERROR= WARPMPI_SANITIZE=address,undefined \
	    $(PY) setup.py --quiet build --build-base build/asan --build-lib build/asan/lib
	@$(ASAN_ENV) $(PY) tests/run.py unit mpi --ranks 2 --share 2 $(ALL_ARGS)

test-wheel: wheel simcuda ## the wheel on MPICH, Open MPI 4.1 and 5; makes .venv-wheel-*
	@$(PYTHON) tests/wheels.py dist/warpmpi-*.whl $(ALL_ARGS)

# With the machine's own Python, MPI and CUDA; nothing is downloaded.
gpu-test: ## the same suites on real GPUs, with what the machine has
	@$(PYTHON) setup.py --quiet build_ext --inplace
	@PYTHONPATH=$(CURDIR) $(PYTHON) tests/run.py --gpu unit mpi $(ALL_ARGS)

lint: $(VENV)/.installed $(VENV)/.extras-lint ## formatters and type checkers
	@$(PY) tests/run.py lint

format: $(VENV)/.extras-lint ## let ruff and clang-format rewrite the tree
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .
	@find src tests/simcuda -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp' \
	    | xargs $(VENV)/bin/clang-format -i

# --- distribution --------------------------------------------------------------

sdist: $(VENV)/.build-tools ## dist/warpmpi-*.tar.gz
	@rm -rf dist
	@$(PY) setup.py --quiet sdist
	@ls dist/*

# From the source distribution, so that this is known to be complete.
wheel: sdist ## dist/warpmpi-*.whl, for every MPI and GPU
	@WARPMPI_CUDA_ARCHS="$(WHEEL_ARCHS)" WARPMPI_KERNELS=$(abspath build/kernels) $(PIP_WHEEL) --wheel-dir dist dist/warpmpi-*.tar.gz
	@ls -l dist

clean: ## remove what was built
	@rm -rf build dist *.egg-info warpmpi/*.so
	@rm -f $(VENV)/.built $(VENV)/.installed $(VENV)/.extras-*
	@find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean ## and the virtual environments
	@rm -rf .venv .venv-*
