# make demo: set up and run the main path. make test: set up and pass the tests.
# PYTHON=/path/to/python names the interpreter of new environments; else it is the newest supported one.
export PYTHON
VENV ?= .venv
DEMO_VENV ?= .venv-demo
BEAM_VENV ?= .venv-beam
LOWEST_VENV ?= .venv-lowest
WHEEL_VENV ?= .venv-wheel
BIN := $(VENV)/bin
export TF_CPP_MIN_LOG_LEVEL ?= 2
# Tests start dozens of interpreters, each of which would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: FORCE help demo test test-all test-pythons lowest test-lowest mutation check lint types budget format lock wheel docs bench bench-main-path bench-training bench-serving bench-tuning bench-edge bench-workspace bench-kubernetes bench-endpoints bench-browser bench-conversion bench-reading bench-batch-prediction bench-peers lock-peers test-soak test-soak-serving test-browser test-beam test-buckets test-cluster clean

help: ## list these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

COMPILED := setup.py src/timonel/serving/codec/_numbers.c

# A stamp per environment: set up once, and again when its requirements change or PYTHON is given.
FORCE:
NAMED := $(if $(PYTHON),FORCE)

$(VENV)/.ready: pyproject.toml $(COMPILED) requirements/bootstrap.txt requirements/dev.txt $(NAMED)
	@sh scripts/setup-venv.sh "$(VENV)" requirements/dev.txt
	@touch $@

$(DEMO_VENV)/.ready: pyproject.toml $(COMPILED) requirements/bootstrap.txt requirements/demo.txt $(NAMED)
	@sh scripts/setup-venv.sh "$(DEMO_VENV)" requirements/demo.txt
	@touch $@

demo: $(DEMO_VENV)/.ready ## set up and run the whole path on real digits
	$(DEMO_VENV)/bin/python scripts/demo.py

# Which tests run where: "Tests" in CONTRIBUTING.md.
ELSEWHERE := not soak and not browser and not beam and not cluster
QUICK := $(ELSEWHERE) and (capability or not (process or slow))
REST := $(ELSEWHERE) and not capability and (process or slow or hypothesis)
# Tests of one file share what they set up, and much of their time is waiting for processes.
# SHUFFLE=1 runs them in random order.
WORKERS := $(shell nproc)
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
	$(if $(filter-out 0 no,$(SHUFFLE)),,-p no:randomly)

RUN_QUICK = $(PYTEST) -m "$(QUICK)" --hypothesis-profile quick --durations 5
REPORTS := .pytest_cache/quick.xml .pytest_cache/rest.xml

test: $(VENV)/.ready check ## check the code, run the quick tests and each capability once
	$(RUN_QUICK)

# Both parts run, whatever the first finds. The rest waits for processes much of its time.
test-all: $(VENV)/.ready check ## run all tests that need no service: make test, then the rest
	@rm -f $(REPORTS)
	$(RUN_QUICK) --junitxml $(word 1,$(REPORTS)); quick=$$?; \
	$(PYTEST) --numprocesses $$(($(WORKERS) + 1)) -m "$(REST)" --junitxml $(word 2,$(REPORTS)); rest=$$?; \
	$(BIN)/python scripts/summarise_tests.py $(REPORTS); [ $$quick = 0 ] && [ $$rest = 0 ]

test-pythons: ## run the demo and make test with each supported Python found
	sh scripts/test-pythons.sh

# The lowest versions that pyproject.toml allows, and what the tests need besides.
$(LOWEST_VENV)/.ready: pyproject.toml $(COMPILED) requirements/bootstrap.txt requirements/lowest.txt $(NAMED)
	@sh scripts/setup-venv.sh "$(LOWEST_VENV)" requirements/lowest.txt
	@$(LOWEST_VENV)/bin/uv pip install --quiet --compile-bytecode --python $(LOWEST_VENV)/bin/python \
		--group test --constraints requirements/lowest.txt
	@touch $@

lowest: $(LOWEST_VENV)/.ready ## import all modules with the lowest versions allowed
	$(LOWEST_VENV)/bin/python scripts/import_all.py

# Old releases trigger deprecation warnings in newer dependencies.
test-lowest: BIN := $(LOWEST_VENV)/bin
test-lowest: lowest ## run the quick tests with the lowest versions allowed
	$(RUN_QUICK) -W ignore::DeprecationWarning -W ignore::FutureWarning

mutation: $(VENV)/.ready ## check that quick tests detect small changes of decision modules
	$(BIN)/python scripts/mutate.py --report

check: lint types budget ## check format, lint, types, layers and budgets

lint: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(VENV)/.ready
	$(BIN)/mypy

budget: $(VENV)/.ready ## check lines and modules against budget.toml
	$(BIN)/python scripts/check_budget.py
	$(BIN)/python scripts/trace_paths.py

format: $(VENV)/.ready ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-soak: $(VENV)/.ready ## run long fault matrices and write their figures to benchmarks/results/
	TIMONEL_SOAK_REPORT=benchmarks/results/soak.md \
	TIMONEL_SERVING_SOAK_REPORT=benchmarks/results/serving_soak.md \
		$(BIN)/python -m pytest -m soak --timeout 3600

test-soak-serving: $(VENV)/.ready ## run only the fault matrices of serving
	TIMONEL_SERVING_SOAK_REPORT=benchmarks/results/serving_soak.md \
		$(BIN)/python -m pytest -m soak --timeout 3600 tests/serving

# A browser is the machine's own: Chromium as the system has it, or TIMONEL_BROWSER=/path/to/one.
$(VENV)/.browser: $(VENV)/.ready requirements/browser.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements/browser.txt
	@touch $@

test-browser: $(VENV)/.browser ## test pages in Chromium (Debian: apt install chromium)
	$(BIN)/python -m pytest -m browser --timeout 300 tests/serving/console/page tests/endpoints/test_browser.py tests/edge tests/data/inspection/test_browser.py

# In an environment of its own: Beam needs pillow 12.
$(BEAM_VENV)/.ready: pyproject.toml $(COMPILED) requirements/bootstrap.txt requirements/beam.txt $(NAMED)
	@sh scripts/setup-venv.sh "$(BEAM_VENV)" requirements/beam.txt
	@touch $@

# Prism, Flink and Spark are tested where Go, or Java and Maven, are installed.
BEAM_PARTS := $(if $(shell command -v go),$(BEAM_VENV)/bin/prism $(BEAM_VENV)/bin/boot) \
	$(if $(shell command -v mvn),$(BEAM_VENV)/jars/flink/.ready $(BEAM_VENV)/jars/spark/.ready)

$(BEAM_VENV)/bin/prism: $(BEAM_VENV)/.ready
	GOBIN=$(abspath $(BEAM_VENV)/bin) go install github.com/apache/beam/sdks/v2/go/cmd/prism@v2.77.0

# The program of Beam's containers that installs staged packages and starts workers.
$(BEAM_VENV)/bin/boot: $(BEAM_VENV)/.ready
	GOBIN=$(abspath $(BEAM_VENV)/bin) go install github.com/apache/beam/sdks/v2/python/container@v2.77.0
	mv $(BEAM_VENV)/bin/container $@

$(BEAM_VENV)/jars/%/.ready: tests/data/runners/java/%.xml $(BEAM_VENV)/.ready
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(abspath $(@D))
	@touch $@

test-beam: $(BEAM_VENV)/.ready $(BEAM_PARTS) ## test conversions with Apache Beam, on Prism, Flink and Spark too
	TIMONEL_PRISM=$(abspath $(BEAM_VENV)/bin/prism) TIMONEL_BEAM_BOOT=$(abspath $(BEAM_VENV)/bin/boot) \
		TIMONEL_BEAM_JARS=$(abspath $(BEAM_VENV)/jars) \
		$(BEAM_VENV)/bin/python -m pytest -m beam --timeout 1200 tests/data/runners tests/batch

# Go and what else kubelab's build needs; see test-cluster.
test-buckets: $(VENV)/.ready ## test buckets with MinIO instead of moto
	tests/cluster/kubelab/kubelab build
	TIMONEL_TEST_MINIO=$${KUBELAB_HOME:-/var/tmp/kubelab}/bin/minio $(BIN)/python -m pytest --timeout 600 \
		tests/storage tests/serving/manager/buckets tests/cli/test_bucket_workspace.py tests/tuning/test_bucket_studies.py \
		tests/training/test_staging.py tests/training/test_upload.py tests/data/test_remote.py tests/data/sources/test_remote.py

# The cluster of KUBECONFIG with the registry TIMONEL_TEST_REGISTRY, or one in network namespaces of this
# machine (root, Go, gcc, jq, zstd, openssl; the first build takes half an hour).
test-cluster: $(VENV)/.ready ## test on a real Kubernetes cluster
	$(BIN)/python -m pytest -m cluster --timeout 3600 tests/cluster

bench: bench-main-path bench-training bench-serving bench-tuning ## run all benchmarks

bench-main-path: $(VENV)/.ready ## measure the path from raw files to the first prediction
	$(BIN)/python benchmarks/main_path.py

bench-endpoints: $(VENV)/.ready ## measure the gateway and starts from zero (needs wrk and h2load)
	$(BIN)/python benchmarks/endpoints.py

bench-workspace: $(VENV)/.ready ## compare a workspace in a bucket with one in a folder
	$(BIN)/python benchmarks/workspace.py

# BENCH_KUBERNETES="--image HOST/REPOSITORY:TAG --workspace s3://BUCKET/PATH", with KUBECONFIG and AWS_*.
bench-kubernetes: $(VENV)/.ready ## compare jobs on a Kubernetes cluster with YAML by hand and with TFJobs, and measure a large one
	$(BIN)/python benchmarks/kubernetes_jobs.py $(BENCH_KUBERNETES)
	$(BIN)/python benchmarks/kubernetes_faults.py $(BENCH_KUBERNETES)
	$(BIN)/python benchmarks/kubernetes_scale.py

bench-batch-prediction: $(VENV)/.ready ## compare batch prediction with loops by hand and its bound (Beam's after test-beam)
	$(BIN)/python benchmarks/batch_prediction.py

bench-edge: $(VENV)/.ready ## compare LiteRT models with the plain recipes of TensorFlow's converter
	$(BIN)/python benchmarks/edge.py

bench-browser: $(VENV)/.browser ## measure models in Chromium: load time, time per image
	$(BIN)/python benchmarks/edge_browser.py

bench-tuning: $(VENV)/.ready ## measure tuning: best values, cost of a proposal, early stopping, parallel trials
	$(BIN)/python benchmarks/tuning.py
	$(BIN)/python benchmarks/tuning_jobs.py

bench-training: $(VENV)/.ready ## measure training: steps, stragglers, kills, checkpoints, scaling
	$(BIN)/python benchmarks/training.py

bench-serving: $(VENV)/.ready ## compare with other model servers (needs wrk and h2load)
	$(BIN)/python benchmarks/serving.py

bench-peers: $(VENV)/.ready ## install the other model servers, each in its own environment
	$(BIN)/python benchmarks/serving.py --setup

benchmarks/peers/datasets/.venv/.ready: benchmarks/peers/datasets/requirements.txt $(VENV)/.ready
	sh benchmarks/peers/setup.sh $(abspath $(BIN)/uv) $(abspath $(BIN)/python) datasets

bench-conversion: $(VENV)/.ready benchmarks/peers/datasets/.venv/.ready ## compare conversions with other tools (Beam's after test-beam)
	$(BIN)/python benchmarks/conversion.py

bench-reading: $(VENV)/.ready ## compare reading for training with other readers and with decoding alone
	$(BIN)/python benchmarks/reading.py

$(WHEEL_VENV)/.ready: requirements/bootstrap.txt $(NAMED)
	@sh scripts/setup-venv.sh "$(WHEEL_VENV)"
	@touch $@

# The wheel is built from the sdist, each in an environment that has setuptools and nothing else.
wheel: $(WHEEL_VENV)/.ready ## build an sdist and a wheel into dist/
	$(WHEEL_VENV)/bin/uv build --python $(WHEEL_VENV)/bin/python --out-dir dist .

docs: $(VENV)/.ready ## build the documentation into site/
	$(BIN)/mkdocs build --strict

lock: $(VENV)/.ready ## resolve the pinned requirements again
	sh scripts/lock.sh $(BIN)/uv

lock-peers: $(VENV)/.ready ## resolve the requirements of the other model servers
	sh benchmarks/peers/lock.sh $(BIN)/uv

clean: ## remove everything that make created
	for venv in $(VENV) $(DEMO_VENV) $(BEAM_VENV) $(LOWEST_VENV) $(WHEEL_VENV); do \
		[ ! -e "$$venv/.made-by-make" ] || rm -rf "$$venv"; \
	done
	rm -rf benchmarks/peers/*/.venv site dist build demo
	rm -rf src/*.egg-info src/timonel/serving/codec/_numbers*.so
