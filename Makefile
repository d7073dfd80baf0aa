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
# Prints what to install where a tool is not there.
needs = PATH="$(abspath $(BIN)):$$PATH" command -v $(1) || \
	{ echo "there is no $(1) here: $(BIN)/pip install $(1)" >&2; exit 1; }

.DEFAULT_GOAL := help
.PHONY: help setup test test-gpu lint format tidy warnings sanitize coverage wheel demo \
	soak bench traces clean

help:  ## List the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | \
		awk -F ':.*## ' '{ printf "  %-8s %s\n", $$1, $$2 }'

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
	$(BIN)/pytest -n $(JOBS) -m 'not soak'

test-gpu: setup  ## The tests that need a GPU, with the reason where there is none.
	$(BIN)/pytest tests/gpu -rs

lint: setup  ## Only the linter and the type checker.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## Lay out the Python and the C++ anew.
	$(BIN)/ruff format .
	tool=$$($(call needs,clang-format)) && $$tool -i $(SOURCES) $(NATIVE_TESTS)

tidy: setup  ## Look through the C++ with clang-tidy.
	tool=$$($(call needs,clang-tidy)) && printf '%s\n' $(SOURCES) | \
		grep '\.cpp$$' | grep -v /bindings/ | xargs -P $(JOBS) -n 4 \
		sh -c "$$tool --quiet \"\$$@\" -- \
			-std=c++20 -Imemplan/native -isystem $(PYTHON_H)" tidy

warnings:  ## Let $(CXX) look at the C++; its warnings are errors.
	printf '%s\n' $(SOURCES) $(NATIVE_TESTS) | grep '\.cpp$$' | \
		grep -v -e /bindings/ -e /kernels/ | xargs -P $(JOBS) -n 4 \
		$(CXX) -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Werror \
			-Wno-deprecated-declarations -Wno-bitwise-instead-of-logical \
			-Imemplan/native -isystem $$($(PYTHON) -c \
				'import sysconfig; print(sysconfig.get_path("include"))')

sanitize: setup  ## The tests of the native code under ASan, UBSan and TSan.
	$(BIN)/python scripts/sanitize.py address
	$(BIN)/python scripts/sanitize.py thread

coverage: setup  ## Lines and branches run by the tests, or by TESTS=tests/core.
	$(BIN)/coverage erase
	# Tests that fill a disk or kill a process fail where coverage writes its own data.
	-$(BIN)/coverage run -m pytest -n $(JOBS) -m 'not soak' $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

wheel: setup  ## Build sdist and wheel, and try the wheel in a fresh environment.
	$(BIN)/python scripts/check_wheel.py

demo: setup  ## Record, plan, plot and apply ResNet-50 training; takes some minutes.
	$(BIN)/python scripts/demo.py --output demo

soak: setup  ## The long-running tests.
	$(BIN)/pytest -m soak

bench: setup  ## Time solver, recorder, loader and blocking; takes a while.
	$(BIN)/python scripts/bench_bestfit.py
	$(BIN)/python scripts/bench_record.py
	$(BIN)/python scripts/bench_apply.py
	$(BIN)/python scripts/bench_blocking.py
	$(BIN)/python scripts/bench_caches.py

traces: setup  ## Record the samples in traces/ anew.
	$(BIN)/python scripts/make_traces.py

clean:  ## Remove what was built.
	rm -rf $(VENV) build dist demo memplan/native/*.so
