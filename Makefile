# Every target makes .venv itself when it is missing, or when what it is made from changed.
#
#   make test ARGS='-k barrier -x'      hands ARGS to the program behind the target
#   make test WORKERS=0 ARGS='-s'       tests one after the other, in one process (0), or by so many at once
#   make test PYTHON=python3.12         makes .venv with another Python

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
ARGS ?=
# More than the two cores of a small machine: much of a test's time is waiting. Each has a broker and a Spark of its own,
# 2 GB with the drivers that it starts.
WORKERS ?= 3
# Of `make matrix`, whose tests wait more.
MATRIX_WORKERS ?= 4
# Of `make simulate`, `make faults` and `make soak`.
MINUTES ?= 10

VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Spark's classes, parsed once: drivers start in two thirds of the time.
ARCHIVE := $(VENV)/spark-classes.jsa
CHECKED := barrier_kafka transactional connector shims tests integration
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)

# Spark starts its workers with the python3 of the PATH unless it is told.
export PYSPARK_PYTHON := $(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(BIN)/python

# Some containers set it: then hundreds of short processes would compile the same modules again, some 0.15 s each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(STAMP) java ## 336,776 flights through an exactly-once query that is killed three times
	@$(BIN)/python -m integration.demo $(ARGS)

.PHONY: demo-transfers
demo-transfers: $(STAMP) java ## transfers through three queries that are killed: checkpoints that agree, beside some that do not
	@$(BIN)/python -m integration.transfers $(ARGS)

.PHONY: test
test: $(STAMP) java $(ARCHIVE) ## unit and integration tests, every crash point once
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: lint
lint: $(STAMP) ## ruff, mypy --strict, who may import whom, and the words of texts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(CHECKED)
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.words

.PHONY: matrix
matrix: $(STAMP) java $(ARCHIVE) ## the whole crash matrix, on all sinks (long); ARGS=--resume goes on after an interruption
	@$(BIN)/python -m pytest -m matrix --numprocesses $(MATRIX_WORKERS) --dist worksteal -p tests.passed $(ARGS)

.PHONY: versions
versions: $(STAMP) java $(ARCHIVE) ## other versions of PySpark and of brokers than the suite's own, into docs/proof/versions.json
	@$(BIN)/python -m pytest -m version --numprocesses 2 --dist loadfile -p tests.versions $(ARGS)
	@$(BIN)/python -m tests.versions

.PHONY: docs
docs: $(STAMP) ## the site of docs/, into build/site (or ARGS=FOLDER, a site with other versions); no page loads anything from elsewhere
	@test -f docs/javascripts/mermaid.min.js || { \
	    folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; mkdir -p docs/javascripts; \
	    (cd "$$folder" && npm pack --silent mermaid@11 > /dev/null && tar -xzf mermaid-*.tgz package/dist/mermaid.min.js) \
	        || { echo "npm is needed once, for the script that draws the diagrams." >&2; exit 1; }; \
	    mv "$$folder/package/dist/mermaid.min.js" docs/javascripts/; \
	}
	@$(BIN)/python -m tests.site $(ARGS)

.PHONY: mutants
mutants: $(STAMP) ## one-line bugs planted in copies of the product: how many the quick suite finds
	@$(BIN)/python -m tests.mutants $(ARGS)

.PHONY: simulate
simulate: $(STAMP) ## the real protocol on a simulated Spark, stores and brokers, for MINUTES: new seeds, and a reproducer of what is found
	@$(BIN)/python -m tests.simulation $(MINUTES) $(ARGS)

.PHONY: faults
faults: $(STAMP) java $(ARCHIVE) ## faults of brokers, networks, disks, clocks and databases, for MINUTES: root, on Linux
	@$(BIN)/python -m integration.faults --minutes $(MINUTES) --record docs/proof/faults.json $(ARGS)

.PHONY: soak
soak: $(STAMP) java $(ARCHIVE) ## kill -9 at random moments, likewise
	@$(BIN)/python -m integration.faults --minutes $(MINUTES) --kills --record docs/proof/soak.json $(ARGS)

.PHONY: bench
bench: $(STAMP) java ## rows per second beside Spark's own connector (ARGS=--with-flink: Flink SQL too), and what costs what
	@$(BIN)/python -m integration.benchmarks.peers $(ARGS)
	@$(BIN)/python -m integration.benchmarks
	@$(BIN)/python -m integration.benchmarks.delta
	@$(BIN)/python -m integration.benchmarks.source
	@$(BIN)/python -m integration.benchmarks.plane

.PHONY: bench-stores
bench-stores: $(STAMP) java ## PostgreSQL beside Spark's own JDBC writer, several sinks beside one
	@$(BIN)/python -m integration.benchmarks.stores $(ARGS)

.PHONY: bench-alignment
bench-alignment: $(STAMP) java ## what it costs to follow other queries' barriers, and how long a slow one holds up a join
	@$(BIN)/python -m integration.benchmarks.alignment $(ARGS)

.PHONY: bench-latency
bench-latency: $(STAMP) java ## how long a row takes from its producer to a read_committed reader, beside the same
	@$(BIN)/python -m integration.benchmarks.latency $(ARGS)

.PHONY: bench-long
bench-long: $(STAMP) java ## 24 GB through one query: every row once, and no growth of memory
	@$(BIN)/python -m integration.benchmarks.long_run $(ARGS)

.PHONY: bench-growth
bench-growth: $(STAMP) java ## more rows, more partitions, larger rows, more transactions, beside Spark's own connector
	@$(BIN)/python -m integration.benchmarks.growth $(ARGS)
	@$(BIN)/python -m integration.benchmarks.fields

.PHONY: bench-tuning
bench-tuning: $(STAMP) java ## one setting changed at a time
	@$(BIN)/python -m integration.benchmarks.tuning $(ARGS)

.PHONY: wheel
wheel: $(STAMP) ## an sdist, and a wheel with the compiled helper for any Linux of this processor, in dist/
	@rm -rf build dist
	@$(BIN)/python -m build --outdir build/raw
	@PATH=$(BIN):$$PATH $(BIN)/python -m auditwheel repair --strip --wheel-dir dist build/raw/*.whl
	@cp build/raw/*.tar.gz dist/
	@ls dist

.PHONY: release
release: wheel java ## checks and tries what `make wheel` has built, and describes it, in dist/ (ARGS='--python python3.13': with that Python)
	@$(BIN)/python -m integration.release $(ARGS)

.PHONY: mariadb
mariadb: $(STAMP) ## fetch the MariaDB server that tests use (Debian's package, unpacked below the cache folder)
	@$(BIN)/python -m integration.mariadb

.PHONY: broker
broker: $(STAMP) java ## run a Kafka broker until Ctrl-C and print its address
	@$(BIN)/python -m integration.broker $(ARGS)

.PHONY: services
services: $(STAMP) java ## run a Kafka broker and a PostgreSQL server for the tutorial until Ctrl-C
	@$(BIN)/python -m integration.services

.PHONY: clean
clean: ## remove what make and the tools made; the broker's jars stay in their cache
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find barrier_kafka connector transactional tests integration -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: java
java:
	@version=$$("$(JAVA)" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' || true); \
	if [ "$${version:-0}" -lt 17 ]; then \
	    echo "Java 17 or newer is missing: '$(JAVA)' $$([ -n "$$version" ] && echo "is $$version" || echo "does not run")." >&2; \
	    echo "Install a JRE 17 (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME to one." >&2; \
	    exit 1; \
	fi

# An editable install has its modules found by a hook, and PySpark lists only folders: the .pth file names both roots,
# so that the formats are discovered, and new files are seen at once.
$(STAMP): setup.cfg setup.py pyproject.toml connector/kafka/native/columns.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "Python 3.10 or newer is missing: '$(PYTHON)' says: $$($(PYTHON) --version 2>&1 | head -1)" >&2; \
	    echo "Install one, or name it: make PYTHON=python3.12" >&2; \
	    exit 1; \
	}
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "Python's venv is missing (Debian: apt-get install python3-venv)." >&2; \
	    exit 1; \
	}
	@echo "Installing into .venv: minutes the first time."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	printf '%s\n' '$(CURDIR)' '$(CURDIR)/shims' > "$$site/barrier-kafka-checkout.pth"
	@$(BIN)/barrier compile-pyspark
	@touch $@

# Tests run without it, too.
$(ARCHIVE): $(STAMP) | java
	@$(BIN)/python -m integration.class_archive || touch $@
