# Every target sets itself up: it makes its own virtual environment in .venv with the pinned versions of
# constraints.txt (by the hashes of requirements.txt), and redoes that only when these files or pyproject.toml change.
#
#   make demo PYTHON=python3.12      another interpreter (3.11 or newer)
#   make test ARGS="-k simplex -x"   more arguments for the tool behind a target

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=
CHROMIUM ?= chromium

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# One thread per process. Most of our tensors are small: on a busy machine two threads spend their time waiting
# for each other and are many times slower than one. Tests use processes instead (WORKERS).
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export CHROMIUM
# Tools keep what they store inside the environment, and do not ask the network whether they are the newest.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PRE_COMMIT_HOME := $(CURDIR)/$(VENV)/pre-commit
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

# pytest's exit code 5: no test has that marker.
NONE_YET = { code=$$?; [ $$code = 5 ] && echo "There is no such test yet." || exit $$code; }

.DEFAULT_GOAL := help
.PHONY: help demo test slow reliability reliability-kills reliability-mutants reliability-claims reliability-ranks reliability-modes browser bench pieces lint format size docs package coverage types pictures pins clean distclean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## Find the wrong labels in a small data set (10 s; 2.5 minutes the first time, with set-up)
	@$(BIN)/bilevel demo $(ARGS)

test: $(STAMP) ## Run the fast tests (about 5 minutes on two idle cores)
	@$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not reliability and not browser" $(ARGS)

slow: $(STAMP) ## Run the slow tests
	@$(BIN)/python -m pytest -n $(WORKERS) -m "slow and not browser" $(ARGS)

reliability: $(STAMP) ## Run long runs, interruptions and fault injection
	@$(BIN)/python -m pytest -m "reliability and not browser" $(ARGS) || $(NONE_YET)

# The parts of `make reliability` behind the figures of docs/trust.md; each prints what it found and how long it took.
reliability-kills: FILES = tests/reliability/test_killed_*.py tests/reliability/test_sweeps.py
reliability-mutants: FILES = tests/reliability/test_mutants.py
reliability-claims: FILES = tests/reliability/test_broken_problems.py
reliability-ranks: FILES = tests/reliability/test_lost_ranks.py tests/test_ranks.py
reliability-modes: FILES = tests/reliability/test_modes.py
reliability-kills reliability-mutants reliability-claims reliability-ranks reliability-modes: $(STAMP)
	@$(BIN)/python -m pytest -m "reliability and not browser" $(FILES) $(ARGS)

browser: $(STAMP) ## Run the tests that open pages in Chromium (installs Debian's chromium when it can)
	@command -v "$(CHROMIUM)" >/dev/null || $(MAKE) --no-print-directory chromium
	@$(BIN)/python -m pytest -m browser $(ARGS) || $(NONE_YET)

bench: $(STAMP) ## Measure speed, as ratios taken side by side
	@$(BIN)/python -m benchmarks $(ARGS)

pieces: $(STAMP) ## Time small pieces of a step, by pytest-benchmark
	@$(BIN)/python -m pytest -q benchmarks/test_pieces.py $(ARGS)

lint: $(STAMP) ## Run all checks of .pre-commit-config.yaml: style, types, layers
	@$(BIN)/pre-commit run --all-files --show-diff-on-failure $(ARGS)

format: $(STAMP) ## Format the code and repair what can be repaired mechanically
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

size: $(STAMP) ## Count the lines of code per package and compare them with their budgets
	@$(BIN)/python -m benchmarks.code_size

docs: $(STAMP) ## Build the manual in docs/_build/html
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html $(ARGS)
	@echo "Open docs/_build/html/index.html"

# Each environment is new: nothing of .venv helps. PYTHON chooses the version of Python that is tried.
package: ## Build sdist and wheel, check them, and try the wheel in empty environments, core only and [all]
	@rm -rf dist build/package && $(PYTHON) -m venv build/package/tools
	@build/package/tools/bin/pip install -qq build twine
	@build/package/tools/bin/python -m build --outdir dist . >build/package/build.log || { cat build/package/build.log; exit 1; }
	@build/package/tools/bin/twine check --strict dist/*
	@$(PYTHON) -m venv build/package/core && build/package/core/bin/pip install -qq -c constraints.txt dist/*.whl
	@cd build/package && core/bin/python -I ../../tests/package/core_only.py
	@$(PYTHON) -m venv build/package/all && build/package/all/bin/pip install -qq -c constraints.txt "$$(ls dist/*.whl)[all]"
	@cd build/package && all/bin/bilevel doctor && all/bin/bilevel example penguins && all/bin/bilevel clean \
	    penguins/train.csv --label Species --trusted penguins/checked.csv --report penguins/report.html
	@cd build/package && tar xzf ../../dist/*.tar.gz && test -e bilevel-*/docs/conf.py && test -e bilevel-*/results/zoo.json

coverage: $(STAMP) ## Measure which lines of src/bilevel the fast tests run, in build/coverage
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow and not reliability and not browser" \
	    --cov=bilevel --cov-branch --cov-report=term --cov-report=html:build/coverage $(ARGS)

types: $(STAMP) ## Check that the public names have complete types (95 %)
	@$(BIN)/python -m benchmarks.type_completeness

pictures: $(STAMP) ## Photograph the report of `bilevel clean` for README and manual, in Chromium
	@$(BIN)/python -m benchmarks.report_picture

# torch's CPU build calls itself 2.x.y+cpu; the pin must also fit the other builds of that release.
pins: $(STAMP) ## Write the versions now installed in .venv to constraints.txt, their hashes to requirements.txt
	@sed -n '/^#/p' constraints.txt > $(VENV)/pins.txt
	@$(BIN)/python -m pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/+cpu$$//' >> $(VENV)/pins.txt
	@cp $(VENV)/pins.txt constraints.txt && $(BIN)/python benchmarks/pin_hashes.py && touch $(STAMP)

clean: ## Remove what the targets wrote, except .venv
	rm -rf build dist docs/_build docs/_charts docs/_backreferences docs/_generated docs/auto_gallery .pytest_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## Remove .venv as well
	rm -rf $(VENV)

# Packages come by hash, torch (whose builds differ) by version, and this package without its dependencies. The build
# back end comes from the pins too, hence no build isolation (which would fetch its newest release).
$(STAMP): constraints.txt requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v >= (3, 11) else \
	    "bilevel needs Python 3.11 or newer, and $(PYTHON) is %d.%d: try  make PYTHON=python3.11 ..." % v)'
	@test -x $(BIN)/python || echo "Setting up $(VENV) with the pinned packages. This takes a few minutes, once."
	@test ! -e $@ || echo "The pins or pyproject.toml changed: updating $(VENV)."
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) \
	    || { echo "No virtual environment could be made (Debian and Ubuntu: apt-get install python3-venv)."; exit 1; }
	@if $(BIN)/python benchmarks/pin_hashes.py fits; then \
	    $(BIN)/python -m pip install -qq --require-hashes --no-deps -r requirements.txt \
	    && $(BIN)/python -m pip install -qq -c constraints.txt $$(grep '^torch==' constraints.txt) \
	    && $(BIN)/python -m pip install -qq --no-deps --no-build-isolation -e .; \
	else \
	    echo "requirements.txt has no hashes for this Python and platform: the pins are installed by version."; \
	    $(BIN)/python -m pip install -qq -c constraints.txt hatchling editables \
	    && $(BIN)/python -m pip install -qq -c constraints.txt --no-build-isolation -e ".[all,dev,docs]"; \
	fi
	@touch $@

.PHONY: chromium
chromium:
	@as_root=""; [ "$$(id -u)" = 0 ] || as_root="sudo -n"; \
	if [ "$(CHROMIUM)" = chromium ] && command -v apt-get >/dev/null && $$as_root true 2>/dev/null; then \
	    echo "Installing Debian's chromium."; \
	    $$as_root apt-get update -qq && $$as_root env DEBIAN_FRONTEND=noninteractive \
	        apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	else \
	    echo "make browser needs Chromium: $(CHROMIUM) is not there and cannot be installed from here."; \
	    echo "Install it (Debian: apt-get install chromium) or name one: make browser CHROMIUM=/path/to/chromium"; \
	    exit 1; \
	fi
