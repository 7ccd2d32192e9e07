# Every target sets up .venv by itself; `make` alone lists what there is.
#
# PYTHON=…   interpreter for .venv (3.11 or newer; by default the first that is)
# WORKERS=…  processes for the tests (default: one per core)
# OPTIONS=…  more for pytest, such as -k or a path
# WING=…     tests of one wing alone: core, workloads, wafer, measured or report

PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo "$$name" && break; done)
WORKERS ?= auto
VENV := .venv
BIN := $(VENV)/bin
# Measured runs to read the accuracy from; see docs/accuracy.md for the columns.
RUNS ?= $(wildcard ../shared/data/e2e/dev_training_runs.csv)

.DEFAULT_GOAL := help
.PHONY: help demo test test-long browser lint types format docs bench accuracy clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## Sweep Llama-3.1-70B on 1,024 H100 into sweep.nc and print the best strategies
	$(BIN)/perfmodel sweep --model llama-3.1-70b --hardware dgx-h100 --devices 1024 \
		--seq-len 8192 --global-batch 2048 -o sweep.nc

test: $(VENV)/.test ## Run the tests
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not browser" $(if $(WING),--wing $(WING)) $(OPTIONS)

test-long: ## Run the tests with all their random cases, as before a release (half an hour)
	@$(MAKE) test OPTIONS="--long $(OPTIONS)"

browser: $(VENV)/.browser ## Test the report's page in headless Chromium (CHROMIUM=/path/to/it)
	$(BIN)/pytest tests/browser -rs $(OPTIONS)

lint: $(VENV)/.dev ## Check style, format and the floors that modules may import from
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(VENV)/.dev ## Check types
	$(BIN)/mypy

format: $(VENV)/.dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs ## Build the documentation into site/, notebooks run, any warning an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html"

bench: $(VENV)/.test ## Measure strategies and kernel predictions per second and core
	$(BIN)/python benchmarks/speed/first_run.py
	$(BIN)/python benchmarks/speed/sweep.py
	$(BIN)/python benchmarks/speed/kernels.py
	$(BIN)/python benchmarks/speed/collectives.py
	$(BIN)/python benchmarks/speed/simulate.py
	$(BIN)/python benchmarks/speed/chakra.py
	$(BIN)/python benchmarks/speed/serving.py
	$(BIN)/python benchmarks/speed/schedules.py
	$(BIN)/python benchmarks/speed/sensitivity.py
	$(BIN)/python benchmarks/speed/search.py --devices 1024 --seconds 120
	$(BIN)/python benchmarks/speed/ui.py

accuracy: $(VENV)/.demo ## Compare projections with measured runs (RUNS=table.csv)
	@test -n "$(RUNS)" || { echo "name a table of measured runs: make accuracy RUNS=table.csv" >&2; exit 2; }
	$(BIN)/perfmodel compare training $(RUNS)

clean: ## Remove .venv, caches and build products
	rm -rf $(VENV) build dist site .cache ./*.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per set of extras, newer than pyproject.toml once it is installed; `dev` has all others.
$(VENV)/.demo: EXTRAS :=
$(VENV)/.test: EXTRAS := [test]
$(VENV)/.browser: EXTRAS := [browser]
$(VENV)/.docs: EXTRAS := [docs]
$(VENV)/.dev: EXTRAS := [dev]
$(VENV)/.dev: MET := $(VENV)/.demo $(VENV)/.test $(VENV)/.browser $(VENV)/.docs
$(VENV)/.demo $(VENV)/.test $(VENV)/.browser $(VENV)/.docs $(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing perfmodel$(EXTRAS) into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.$(EXTRAS)'
	@touch $@ $(MET)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "perfmodel needs Python 3.11 or newer; none was found. Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "perfmodel needs Python 3.11 or newer; '$(PYTHON)' is not" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV) \
		|| { rm -rf $(VENV); echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu, install the package python3-venv" >&2; exit 1; }
