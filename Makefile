# Every target works on a fresh machine with Python 3.10+, pip, make and a C++
# compiler; the first one run makes the virtual environment in $(VENV).

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
JOBS ?= 2
TESTS ?= tests
SOURCES = $(shell find memplan/native -name '*.cpp' -o -name '*.h')
PYTHON_H = $(shell $(BIN)/python -c \
	'import sysconfig; print(sysconfig.get_path("include"))')
NATIVE_TESTS = $(wildcard tests/*/*.cpp tests/*/*.h)
# Prints what to install if a tool is missing.
needs = PATH="$(abspath $(BIN)):$$PATH" command -v $(1) || \
	{ echo "$(1) is not installed: run $(BIN)/pip install $(1)" >&2; exit 1; }

.DEFAULT_GOAL := help
.PHONY: help setup test test-busy mutants test-gpu lint format tidy warnings sanitize coverage wheel demo \
	soak bench traces clean

help:  ## List the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | \
		awk -F ':.*## ' '{ printf "  %-9s %s\n", $$1, $$2 }'

setup: $(VENV)/ready  ## Make the virtual environment and build the native code.

$(VENV)/ready: pyproject.toml constraints.txt CMakeLists.txt $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[torch,dev]'
	@touch $@

test: setup  ## Lint, check types and run the tests.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m 'not soak'

test-busy: setup  ## Run the tests beside 16 busy loops on 2 cores.
	$(BIN)/python scripts/busy.py

mutants: setup  ## Change 60 random places, and count those that the tests notice.
	$(BIN)/python scripts/mutate.py --count 60

test-gpu: setup  ## Run the tests that need a GPU.
	$(BIN)/pytest tests/gpu -rs

lint: setup  ## Run only the linter and the type checker.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## Format the Python and the C++.
	$(BIN)/ruff format .
	tool=$$($(call needs,clang-format)) && $$tool -i $(SOURCES) $(NATIVE_TESTS)

tidy: setup  ## Check the C++ with clang-tidy.
	tool=$$($(call needs,clang-tidy)) && printf '%s\n' $(SOURCES) | \
		grep '\.cpp$$' | grep -v /bindings/ | xargs -P $(JOBS) -n 4 \
		sh -c "$$tool --quiet \"\$$@\" -- \
			-std=c++20 -Imemplan/native -isystem $(PYTHON_H)" tidy

warnings:  ## Compile the C++ with warnings as errors.
	printf '%s\n' $(SOURCES) $(NATIVE_TESTS) | grep '\.cpp$$' | \
		grep -v -e /bindings/ -e /kernels/ | xargs -P $(JOBS) -n 4 \
		$(CXX) -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Werror \
			-Wno-deprecated-declarations -Wno-bitwise-instead-of-logical \
			-Imemplan/native -isystem $$($(PYTHON) -c \
				'import sysconfig; print(sysconfig.get_path("include"))')

sanitize: setup  ## Run the native code's tests under ASan, UBSan and TSan.
	$(BIN)/python scripts/sanitize.py address
	$(BIN)/python scripts/sanitize.py thread

coverage: setup  ## Measure line and branch coverage, of TESTS=tests/core too.
	$(BIN)/coverage erase
	# Tests that fill a disk or kill a process fail where coverage writes its own data.
	-$(BIN)/coverage run -m pytest -n $(JOBS) -m 'not soak' $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

wheel: setup  ## Build sdist and wheel, and test the wheel.
	$(BIN)/python scripts/check_wheel.py

demo: setup  ## Record, plan, plot and apply ResNet-50 training.
	$(BIN)/python scripts/demo.py --output demo

soak: setup  ## Run the long tests.
	$(BIN)/pytest -m soak

bench: setup  ## Time recording, solvers and plans; takes an hour.
	$(BIN)/python scripts/benchmark.py record
	$(BIN)/python scripts/benchmark.py solve
	$(BIN)/python scripts/benchmark.py apply

traces: setup  ## Record the samples in traces/ again.
	$(BIN)/python scripts/make_traces.py

clean:  ## Remove all build results.
	rm -rf $(VENV) build dist demo memplan/native/*.so
