# Everything a fresh machine needs: Python 3.11 or later with pip, and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TRAIN_STAMP := $(VENV)/.installed-train
KUBERNETES_STAMP := $(VENV)/.installed-kubernetes
FUZZ_SECONDS ?= 3600
API_EXAMPLES ?= 30
# Images of Python set it for what they hold; here, each of thousands of processes would read its sources anew.
unexport PYTHONDONTWRITEBYTECODE
TESTS_STAMP := $(VENV)/.compiled-tests
# Tests that need nothing but what is installed first.
SMALL := --ignore tests/train --ignore tests/on_ray --ignore tests/kubernetes -m 'not browser and not postgres and not train and not ray and not kubernetes and not compiles'
# What pip does on one processor, file by file. Some files are templates, or for other versions of Python.
COMPILED := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

.PHONY: help demo live live-train test test-properties test-debian test-train test-families hdfs testbed test-kubernetes image test-image test-nojit test-kernels smoke lint docs charts fuzz fuzz-api bench clean
.DEFAULT_GOAL := help

help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1	\2/' | expand -t 20

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@echo "Setting up $(VENV) (a minute or two, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@$(COMPILED)
	@touch $@

$(TRAIN_STAMP): $(STAMP)
	@echo "Setting up torch and Ray in $(VENV) (a few minutes, once)"
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[dev-train]'
	@$(COMPILED)
	@touch $@

$(KUBERNETES_STAMP): $(STAMP)
	@echo "Setting up Helm in $(VENV) (a minute, once)"
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[dev-kubernetes]'
	@$(COMPILED)
	@touch $@

demo: $(STAMP) ## Run a generated workload under six schedulers; table, runs and pages in runs/demo
	@$(BIN)/shadowprice generate --preset calibrated --arrivals bursty --jobs 200 --slots 100 --seed 3 --out runs/demo/workload
	@$(BIN)/shadowprice compare -c runs/demo/workload/cluster.yaml -j runs/demo/workload/jobs.jsonl --until '100 slots' \
		-p 'rolling,oasis,oasis?preset=paper,fifo,drf,rrh,dorm?window=4&adjustable=4' --bound --out runs/demo/compared
	@echo "Open runs/demo/compared/compare.html, or ask why a job was refused:"
	@$(BIN)/shadowprice explain runs/demo/compared/oasis job-1

live: $(STAMP) ## Start the live service here, let two tenants' jobs train for half a minute, stop it
	@$(BIN)/python tools/live.py

live-train: $(TRAIN_STAMP) ## The same with torch: an image classifier and a small GPT, for some minutes
	@$(BIN)/python tools/live.py --example training --limit 1800

# Pytest compiles tests in its own way, and each of its processes would for itself.
$(TESTS_STAMP): $(STAMP)
	@$(BIN)/python -m pytest --collect-only $(SMALL) >/dev/null || true  # what cannot be collected is said by what runs
	@touch $@

test: $(STAMP) $(TESTS_STAMP) ## Run the tests
	@$(BIN)/shadowprice warm  # once, on all processors: each worker of pytest would compile for itself
	@# In the order of files: those of few tests are often the longest, and xdist would keep them for the end.
	@# Six at once, though processors are few: what drives real processes waits for them most of the time.
	@$(BIN)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder $(SMALL)

test-properties: $(STAMP) ## Run the tests of properties with all their draws, and all hostile inputs; make test has half of them
	@SHADOWPRICE_TEST_DRAWS=all $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/integration/test_hostile_inputs.py tests/properties

test-debian: $(STAMP) ## Run the tests that need Chromium and PostgreSQL, which Debian has
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -rs -m 'browser or postgres'

test-train: $(TRAIN_STAMP) ## Run the tests that need torch and Ray, which are large
	@# Several processes of a test share few processors: torch's threads would wait for each other, minutes of a
	@# test that takes seconds. Three at once: much of the time passes in waiting for slots and nodes.
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -rfEsR --tb=short --timeout 600 -m 'train or ray'

test-families: $(TRAIN_STAMP) ## Train the six families of the papers' testbed, resized and not, over seeds (half an hour, on a busy machine 45 minutes; cut off, it goes on)
	@OMP_NUM_THREADS=1 SHADOWPRICE_TEST_FAMILIES=runs/families.json $(BIN)/python -m pytest -rfEsR --tb=short --durations=6 tests/train/servers/test_families.py

hdfs: $(STAMP) ## Fetch a small HDFS for the tests of data sets, once (Java; root on Debian; 220 MB)
	@$(BIN)/python -m tools.hdfs

testbed: $(STAMP) ## Build Kubernetes from Debian's packages into the cache, once (root on Debian 12; ten minutes or more)
	@$(BIN)/python -m tools.testbed.build

test-kubernetes: $(KUBERNETES_STAMP) ## Run the tests on a real Kubernetes on this machine (after make testbed; root)
	@$(BIN)/python -m tools.testbed.build --check || true
	@# Two clusters at once: most of the time passes in waiting for what old kubelets do once a minute.
	@$(BIN)/python -m pytest -n 2 --dist worksteal -rfEsR --tb=short --durations=15 -m kubernetes

image: $(STAMP) ## Build the service's image by its recipe into the cache of make testbed (root on Debian 12; minutes)
	@$(BIN)/python -m tools.testbed.service_image

test-image: $(KUBERNETES_STAMP) image ## Run two replicas of the image, by the chart, on a real Kubernetes (after make testbed; root)
	@$(BIN)/python -m pytest -rfEsR --tb=short -m kubernetes tests/kubernetes/test_image.py

test-nojit: $(STAMP) ## Run every file of kernels interpreted, without the compiler, as `make test` does too
	@$(BIN)/python -m pytest tests/integration/test_interpreted.py
	@NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n 2 tests/unit/kernels

test-kernels: $(STAMP) ## Run the tests that compile kernels anew, and kernels without numba's private parts, as with a version that is not known
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m compiles tests/unit/kernels
	@SHADOWPRICE_PLAIN_NUMBA=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests/unit/kernels/test_rounding.py tests/unit/kernels/test_revision.py

smoke: ## Build the wheel, install it into a clean environment, and use it there
	@PYTHON=$(PYTHON) tools/smoke.sh

lint: $(STAMP) ## Check style, types and the arrows between packages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(STAMP) ## Build the documentation into site/
	@# Not --quiet: then it counts no warnings, and --strict fails for none.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

charts: ## Build the chart library that pages embed, from its npm packages (needs node and npm)
	@cd tools/charts && npm ci --silent && npm run --silent build

fuzz: $(STAMP) ## Fuzz the whole command line for an hour (make fuzz FUZZ_SECONDS=60: a minute)
	@$(BIN)/python -m tests.hostile.fuzz $(if $(FUZZ_CALLS),--calls $(FUZZ_CALLS),--seconds $(FUZZ_SECONDS)) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED))

fuzz-api: $(STAMP) ## Ask the live service what its OpenAPI document allows, and what it does not (API_EXAMPLES=200: longer)
	@API_EXAMPLES=$(API_EXAMPLES) $(BIN)/python -m pytest -n 0 tests/integration/test_api_schema.py tests/integration/test_service_stateful.py tests/integration/test_service_strength.py

bench: $(STAMP) ## Run every benchmark beside its slow twin
	@for file in benchmarks/bench_*.py; do \
		name=$$(basename $$file .py); echo "== $$name"; $(BIN)/python -m benchmarks.$$name || exit 1; \
	done

clean: ## Remove what was built
	rm -rf $(VENV) site dist build
