# Every target prepares what it needs by itself; `make test` or `make demo` is enough on a fresh machine.
BIN := .venv/bin
PYTHON_READY := .venv/.python-ready
JAVA_READY := .venv/.java-ready

# Only set-up with Homebrew makes this link (tools/setup.sh).
JAVA_HOME ?= $(shell [ ! -x .tools/java/bin/java ] || echo "$(CURDIR)/.tools/java")
export JAVA_HOME PYTHON
PROCESSES ?= 2

# Compiled files go to build, also where the environment asks not to write them beside the sources: otherwise each
# worker of the tests, and each process that they start, compiles everything again.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache

# $(call tests,OPTIONS) runs the tests in several processes; conftest.py says which run together.
tests = @$(BIN)/pytest -q $(if $(filter-out 0,$(PROCESSES)),-n $(PROCESSES)) $(1)

# uv trusts its own list of authorities; one that a company has added is only in the system's.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/ssl/cert.pem /etc/pki/tls/certs/ca-bundle.crt),)
export UV_SYSTEM_CERTS ?= true
endif

# $(call step,NAME,COMMAND) prints one line if the command passes, and all of its output if not.
step = @if out=$$($(2) 2>&1); then echo "$(1): ok"; else echo "$(1): failed"; echo "$$out"; exit 1; fi

# The packages in .venv come from the lock: if they satisfy pyproject.toml, so does the lock. Needs no network.
lock_fits = $(BIN)/uv pip install --offline --dry-run --python $(BIN)/python --group dev -r pyproject.toml 2>&1 \
	| grep -q "no changes" || { echo "requirements.lock does not fit pyproject.toml; run: make lock"; false; }

.PHONY: help setup demo test test-fast test-crash test-all lint format bench chaos docs lock clean
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(JAVA_READY) ## Prepare everything: Python packages in .venv, and Java
	@echo "setup: ready"

demo: $(JAVA_READY) ## Run the demo on a local Spark
	@$(BIN)/python -m floodmark.demo

test: $(JAVA_READY) ## Run the tests but for long ones and the crash tier, in two processes (PROCESSES=0 for one)
	$(call tests,-m "not crash and not long or smoke")

test-fast: $(PYTHON_READY) ## Run the tests that need no server and no JVM
	$(call tests,-m "not crash and not server and not spark" tests/unit src)

test-crash: $(JAVA_READY) ## Run the tests that kill processes, and the long ones on Spark
	$(call tests,-m "crash or long" tests/crash tests/spark)

test-all: $(JAVA_READY) ## Run every test on every backend, with all examples
	$(call tests,--full)

lint: $(PYTHON_READY) ## Check style, types, import directions and the lock
	$(call step,style,$(BIN)/ruff check --quiet --output-format concise)
	$(call step,format,$(BIN)/ruff format --check)
	$(call step,types,$(BIN)/mypy)
	$(call step,imports,$(BIN)/lint-imports --no-logo)
	$(call step,privacy,$(BIN)/python tools/check_privacy.py)
	$(call step,lock,$(lock_fits))

format: $(PYTHON_READY) ## Format the code and fix what can be fixed
	@$(BIN)/ruff check --quiet --fix-only
	@$(BIN)/ruff format --quiet

bench: $(JAVA_READY) ## Measure, and write bench/RESULTS.md
	@$(BIN)/python bench/run.py

chaos: $(JAVA_READY) ## Kill drivers, tasks and the broker of queries that write exactly once, for five minutes
	@PYTHONPATH=tests $(BIN)/python -m support.spark.sink_rounds --seconds 90
	@PYTHONPATH=tests $(BIN)/python -m support.spark.sink_rounds --seconds 90 --parallel

docs: $(PYTHON_READY) ## Build the documentation in build/docs
	@$(BIN)/python tools/docs.py

lock: $(PYTHON_READY) ## Renew requirements.lock (UPGRADE=1 also moves to newer versions)
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		$(if $(UPGRADE),--upgrade) --group dev --output-file requirements.lock pyproject.toml
	@printf '%s\n' '# Exact versions of everything that pyproject.toml asks for, with its dev group.' \
		'# Written by `make lock`; do not edit.' | cat - requirements.lock > requirements.lock.new
	@mv requirements.lock.new requirements.lock

clean: ## Remove caches and build output, but not .venv
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse
	@find src tests bench tools -name __pycache__ -prune -exec rm -rf {} +

$(PYTHON_READY): pyproject.toml requirements.lock tools/setup.sh
	@tools/setup.sh python
	@touch $@

$(JAVA_READY): $(PYTHON_READY)
	@tools/setup.sh java
	@touch $@
