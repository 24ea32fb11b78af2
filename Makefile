# Needs Python 3.11 or later with pip, and make. Everything else is installed into $(VENV).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TRAIN_STAMP := $(VENV)/.installed-train
KUBERNETES_STAMP := $(VENV)/.installed-kubernetes
TESTS_STAMP := $(VENV)/.compiled-tests
# Python's container images set it to keep layers small. Here it would make thousands of processes compile the sources.
unexport PYTHONDONTWRITEBYTECODE

# Options of the suites
SUITE ?= default
EXAMPLE ?= live
FUZZ_SECONDS ?= 3600
API_EXAMPLES ?= 30
TRAIN ?= train or ray
KUBERNETES ?= kubernetes
PROPERTIES ?= $$(grep -rl support.examples tests --include 'test_*.py')

PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
# pip compiles on one processor. Errors are ignored because some installed files are templates, or for other Python versions.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
PYTEST := $(BIN)/python -m pytest
# Files run in the order of collection: xdist would run files of few tests last, and those are often the longest.
BY_FILE := --dist loadfile --no-loadscope-reorder
VERBOSE := -rfEsR --tb=short
# Tests that need nothing beyond the development environment
PLAIN_FILES := --ignore tests/train --ignore tests/on_ray --ignore tests/kubernetes
PLAIN := not browser and not postgres and not train and not ray and not kubernetes and not compiles

# The suites of `make test SUITE=NAME`: about.NAME is the help text, run.NAME the command, needs.NAME what make builds first.
#
# Six workers on two cores: the tests that drive processes mostly wait for them.
about.default := what needs no other software, but for the tests that take longest
needs.default := $(TESTS_STAMP)
run.default = $(BIN)/shadowprice warm && $(PYTEST) -n 6 $(BY_FILE) $(PLAIN_FILES) -m '$(PLAIN) and not extended'

about.extended := the tests without other software that take longest
needs.extended := $(TESTS_STAMP)
run.extended = $(PYTEST) -n 2 $(BY_FILE) $(PLAIN_FILES) -m '$(PLAIN) and extended'

about.properties := random tests with all their examples, and all hostile inputs (PROPERTIES: files); the default suite runs a sixth of them
run.properties = SHADOWPRICE_TEST_EXAMPLES=all $(PYTEST) -n 2 $(BY_FILE) $(PLAIN_FILES) -m '$(PLAIN)' $(PROPERTIES)

about.kernels := kernels compiled in fresh processes
run.kernels = $(PYTEST) -n 2 --dist worksteal -m compiles tests/unit/kernels

about.interpreted := kernels without the compiler
run.interpreted = $(PYTEST) tests/integration/test_interpreted.py && NUMBA_DISABLE_JIT=1 $(PYTEST) -n 2 tests/unit/kernels

about.fuzz := random calls of the whole command line for FUZZ_SECONDS (3600), or FUZZ_CALLS calls from FUZZ_SEED
run.fuzz = $(BIN)/python -m tests.hostile.fuzz $(if $(FUZZ_CALLS),--calls $(FUZZ_CALLS),--seconds $(FUZZ_SECONDS)) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED))

about.fuzz-api := valid and invalid requests drawn from the OpenAPI document, API_EXAMPLES (30) of each
run.fuzz-api = API_EXAMPLES=$(API_EXAMPLES) $(PYTEST) -n 0 tests/integration/test_api_schema.py tests/integration/test_service_stateful.py tests/integration/test_service_strength.py

about.soak := 100,000 jobs on a service that is killed every minute, then a sample of injected faults (half an hour)
run.soak = $(BIN)/python -m tests.support.soak && $(BIN)/python -m tests.support.simulated_hours --faults 300 --apart 14 && $(BIN)/python -m tests.support.crash_points --every 40

about.smoke := both wheels, built and used in clean environments
run.smoke = PYTHON=$(PYTHON) tools/smoke.sh

about.debian := tests that need Chromium or PostgreSQL from Debian
run.debian = $(PYTEST) -n 2 $(BY_FILE) -rs -m 'browser or postgres'

# One thread per process: the processes of a test share few cores, and torch's threads would wait for each other for minutes.
about.train := tests that need torch and Ray (TRAIN: which)
needs.train := $(TRAIN_STAMP)
run.train = OMP_NUM_THREADS=1 $(PYTEST) -n 3 $(BY_FILE) $(VERBOSE) -m '(train or ray) and ($(TRAIN))'

about.families := training of the six model families of the papers' testbed (half an hour; continues after an interruption)
needs.families := $(TRAIN_STAMP)
run.families = OMP_NUM_THREADS=1 SHADOWPRICE_TEST_FAMILIES=runs/families.json $(PYTEST) $(VERBOSE) --durations=6 tests/train/servers/test_families.py

# Two clusters at once: about half of the time the tests wait for kubelets, which act once a minute.
about.kubernetes := tests on a real Kubernetes on this machine (after make testbed; root; KUBERNETES: which)
needs.kubernetes := $(KUBERNETES_STAMP)
run.kubernetes = { $(BIN)/python -m tools.testbed.build --check || true; } && $(PYTEST) -n 2 --dist worksteal $(VERBOSE) --durations=15 -m 'kubernetes and ($(KUBERNETES))'

about.image := the service's image, built and run by its chart on a real Kubernetes (after make testbed; root on Debian 12)
needs.image := $(KUBERNETES_STAMP)
run.image = $(BIN)/python -m tools.testbed.service_image && $(PYTEST) $(VERBOSE) -m kubernetes tests/kubernetes/test_image.py

SUITES := $(sort $(patsubst about.%,%,$(filter about.%,$(.VARIABLES))))
ifeq ($(filter $(SUITE),$(SUITES)),)
$(error unknown suite '$(SUITE)'; use one of: $(SUITES))
endif

.PHONY: help demo live test hdfs testbed lint docs charts bench clean
.DEFAULT_GOAL := help

help: ## List the targets and the test suites
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1	\2/' | expand -t 20
	@echo "Suites of make test SUITE=NAME:"
	@$(foreach suite,$(SUITES),printf '  %-16s  %s\n' '$(suite)' "$(about.$(suite))";)

$(STAMP): pyproject.toml packages/training/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "requires Python 3.11 or later; run make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@echo "Setting up $(VENV) (a minute or two, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) --editable packages/training --editable '.[dev]'
	@$(COMPILE)
	@touch $@

$(TRAIN_STAMP): $(STAMP)
	@echo "Setting up torch and Ray in $(VENV) (a few minutes, once)"
	@$(PIP_INSTALL) --editable packages/training --editable '.[dev-train]'
	@$(COMPILE)
	@touch $@

$(KUBERNETES_STAMP): $(STAMP)
	@echo "Setting up Helm in $(VENV) (a minute, once)"
	@$(PIP_INSTALL) --editable '.[dev-kubernetes]'
	@$(COMPILE)
	@touch $@

# pytest compiles tests itself, to rewrite their assertions: once here instead of once in every worker.
$(TESTS_STAMP): $(STAMP)
	@$(PYTEST) --collect-only $(PLAIN_FILES) -m '$(PLAIN)' >/dev/null || true  # the suite itself reports collection errors
	@touch $@

demo: $(STAMP) ## Simulate a generated workload under six schedulers; tables and pages in runs/demo
	@$(BIN)/shadowprice generate --preset calibrated --arrivals bursty --jobs 200 --slots 100 --seed 3 --out runs/demo/workload
	@$(BIN)/shadowprice compare -c runs/demo/workload/cluster.yaml -j runs/demo/workload/jobs.jsonl --until '100 slots' \
		-p 'rolling,oasis,oasis?preset=paper,fifo,drf,rrh,dorm?window=4&adjustable=4' --bound --out runs/demo/compared
	@echo "Open runs/demo/compared/compare.html. This explains why a job was refused:"
	@$(BIN)/shadowprice explain runs/demo/compared/oasis job-1

live: $(if $(filter-out live,$(EXAMPLE)),$(TRAIN_STAMP),$(STAMP)) ## Run the live service with small jobs for half a minute; EXAMPLE=training: with torch, for minutes
	@$(BIN)/python tools/live.py --example $(EXAMPLE) $(if $(filter-out live,$(EXAMPLE)),--limit 1800)

test: $(STAMP) $(needs.$(SUITE)) ## Run the tests, or those of another suite: make test SUITE=NAME
	@$(run.$(SUITE))

hdfs: $(STAMP) ## Install a small HDFS for the tests of data sets, once (Java; root on Debian; 220 MB)
	@$(BIN)/python -m tools.hdfs

testbed: $(STAMP) ## Build Kubernetes from Debian's packages into the cache, once (root on Debian 12; ten minutes or more)
	@$(BIN)/python -m tools.testbed.build

lint: $(STAMP) ## Check style, types and the dependencies between packages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(STAMP) ## Build the documentation into site/
	@# Without --quiet, which hides warnings from --strict.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

charts: ## Build the chart library that pages embed, from its npm packages (node and npm)
	@cd tools/charts && npm ci --silent && npm run --silent build

bench: $(STAMP) ## Run every benchmark beside its slow twin
	@for file in benchmarks/bench_*.py; do \
		name=$$(basename $$file .py); echo "== $$name"; $(BIN)/python -m benchmarks.$$name || exit 1; \
	done

clean: ## Remove everything that make built
	rm -rf $(VENV) site dist build
