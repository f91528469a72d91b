# SPDX-License-Identifier: BSD-3-Clause
# The commands of this project; `make` alone lists them.
#
# PYTHON chooses the interpreter that .venv is made with, MPICC, CUDA_HOME and
# WARPMPI_CUDA what is built with (see setup.py), ARGS goes to pytest,
# RUN_ARGS to tests/run.py: `make test RUN_ARGS="unit -- -k streams"`.
# Where .venv is of another version than the PYTHON that is asked for, .venv-3.12
# and the like is used.

PYTHON ?= python3
VERSION = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2] + \
    sys.abiflags)' 2>/dev/null)
ifneq ($(origin PYTHON),file)
ASKED := $(or $(call VERSION,$(PYTHON)),$(notdir $(PYTHON)))
VENV ?= .venv$(addprefix -,$(if $(filter-out $(ASKED),$(call \
    VERSION,.venv/bin/python)),$(ASKED)))
MADE := $(filter-out $(ASKED),$(call VERSION,$(VENV)/bin/python))
$(if $(MADE),$(error warpmpi: $(VENV) is of Python $(MADE), and PYTHON is \
    $(PYTHON): set VENV to another folder, or unset it))
endif
VENV ?= .venv
PY = $(VENV)/bin/python
# Says TEXT, and every few seconds that COMMAND still runs.
TELL = $(PY) build_tools/progress.py
# Nothing is compiled to bytecode that may never be imported.
PIP = $(PY) -m pip install --quiet --disable-pip-version-check --no-compile
SIMCUDA = build/simcuda
SIMNCCL = build/simnccl
SIMUCX = build/simucx
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
        docs format simcuda sdist wheel clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' \
	    $(MAKEFILE_LIST)

# --- the virtual environment ---------------------------------------------

$(VENV)/.made:
	@$(PYTHON) -c '' || { echo "warpmpi: $(PYTHON) does not run: install it \
	with 'apt install python3', or set PYTHON" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	echo "warpmpi: $(PYTHON) is older than Python 3.10: set PYTHON to a newer \
	one" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "warpmpi: \
	$(PYTHON) cannot make virtual environments: install that with 'apt \
	install python3-venv'" >&2; exit 1; }
	@$(PYTHON) build_tools/progress.py "making $(VENV)" $(PYTHON) -m venv $(VENV)
	@touch $@

# What a build asks for, an MPI and a CUDA compiler included where there are
# none. Its own step, as the build runs in this environment.
$(VENV)/.build-tools: $(VENV)/.made pyproject.toml build_tools/backend.py
	@needs=$$($(PY) build_tools/backend.py) && \
	    $(TELL) "installing what the build needs" $(PIP) $$needs
	@touch $@

# Editable: the extension is built into warpmpi/, Python files are used from
# there as they are.
$(VENV)/.built: $(VENV)/.build-tools $(C_FILES) $(BUILD_FILES)
	@$(PY) setup.py --quiet build_ext --inplace
	@touch $@

$(VENV)/.installed: $(VENV)/.built
	@$(TELL) "installing warpmpi into $(VENV)" \
	    $(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.extras-%: $(VENV)/.made pyproject.toml
	@needs=$$($(PY) build_tools/backend.py $(subst -, ,$*)) && \
	    $(TELL) "installing what $(subst -, and ,$*) needs" $(PIP) $$needs
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

simcuda: $(VENV)/.build-tools ## the simulated driver, NCCL and UCX, into build/simcuda, simnccl, simucx
	@cuda=$$($(PY) build_tools/toolchain.py) && $(TELL) "compiling the \
	simulated driver" $(MAKE) -s -j 4 --no-print-directory -C tests/simcuda OUT=$(abspath $(SIMCUDA)) \
	    CUDA_HOME="$$cuda" && $(TELL) "compiling the \
	simulated NCCL" $(MAKE) -s -j 4 --no-print-directory -C tests/simnccl OUT=$(abspath $(SIMNCCL)) \
	    CUDA_HOME="$$cuda" && $(TELL) "compiling the \
	simulated UCX" $(MAKE) -s -j 4 --no-print-directory -C tests/simucx OUT=$(abspath $(SIMUCX)) \
	    CUDA_HOME="$$cuda"

# What is downloaded comes while it is compiled.
for-tests: $(VENV)/.build-tools
	@$(MAKE) -s --no-print-directory -j 3 $(VENV)/.built \
	    $(VENV)/.extras-test-lint-docs simcuda
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
    ASAN_OPTIONS=detect_leaks=0:protect_shadow_gap=0:abort_on_error=1:allocator_may_return_null=1 \
    UBSAN_OPTIONS=print_stacktrace=1

test-asan: $(VENV)/.build-tools $(VENV)/.extras-test simcuda ## unit suites and 2 ranks with ASan and UBSan
	@WARPMPI_ABIS=installed WARPMPI_WERROR= WARPMPI_SANITIZE=address,undefined WARPMPI_TOYS=1 \
	    $(PY) setup.py --quiet build --build-base build/asan --build-lib build/asan/lib
	@$(ASAN_ENV) $(PY) tests/run.py unit mpi --ranks 2 --share 2 $(ALL_ARGS)
	@$(ASAN_ENV) WARPMPI_TEST_EVERY=2 $(PY) tests/run.py mpi --ranks 1 -- \
	    tests/mpi/test_toys.py tests/mpi/test_toy_movers.py tests/mpi/test_hierarchy.py

test-wheel: wheel simcuda ## the wheel on MPICH, Open MPI 4.1 and 5; makes .venv-wheel-*
	@$(PY) tests/wheels.py $(DIST)/*.whl $(ALL_ARGS)

# With the machine's own Python, MPI and CUDA; nothing is downloaded.
gpu-test: ## the same suites on real GPUs, with what the machine has
	@$(PYTHON) setup.py --quiet build_ext --inplace
	@PYTHONPATH=$(CURDIR) $(PYTHON) tests/run.py --gpu unit mpi $(ALL_ARGS)

lint: $(VENV)/.installed $(VENV)/.extras-lint-docs ## formatters, type checkers, and the site of the documents
	@$(PY) tests/run.py lint

# DOCS_ONLINE=1 also links into Python's, NumPy's and mpi4py's documents.
docs: $(VENV)/.installed $(VENV)/.extras-docs ## the documentation site, into build/docs
	@$(TELL) "writing the site" \
	    $(PY) -m sphinx -q -W --keep-going -d build/doctrees docs build/docs
	@echo build/docs/index.html

format: $(VENV)/.extras-lint ## let ruff and clang-format rewrite the tree
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .
	@find src tests/simcuda tests/simnccl tests/simucx -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp' \
	    | xargs $(VENV)/bin/clang-format -i

# --- distribution --------------------------------------------------------------

# What this make has made, of which dist/ has copies beside those of others.
DIST = build/dist

sdist: $(VENV)/.build-tools ## dist/warpmpi-*.tar.gz
	@rm -rf $(DIST)
	@$(PY) setup.py --quiet sdist --dist-dir $(DIST)
	@mkdir -p dist && cp $(DIST)/*.tar.gz dist/
	@echo dist/$$(cd $(DIST) && echo *.tar.gz)

# From the source distribution, so that this is known to be complete. Not by
# pip, which shows nothing of minutes.
wheel: sdist ## dist/warpmpi-*.whl, for every MPI and GPU, of this Python
	@tar -xzf $(DIST)/*.tar.gz -C $(DIST)
	@cd $(DIST)/*/ && WARPMPI_CUDA_ARCHS="$(WHEEL_ARCHS)" \
	    WARPMPI_KERNELS=$(abspath build/kernels) $(abspath $(PY)) -W ignore \
	    setup.py --quiet bdist_wheel --dist-dir ..
	@cp $(DIST)/*.whl dist/
	@echo dist/$$(cd $(DIST) && echo *.whl)

clean: ## remove what was built
	@rm -rf build dist *.egg-info warpmpi/*.so
	@rm -f $(foreach v,$(VENV) $(wildcard .venv*),$(v)/.built $(v)/.installed $(v)/.extras-*)
	@find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean ## and the virtual environments
	@rm -rf .venv .venv-*
