# Headwater's targets. They need make, Python 3.11 to 3.14 and a JDK 17 or newer; everything else goes into .venv.

VENV := .venv
BIN := $(VENV)/bin
JARS := $(VENV)/share/headwater/jars
SITE := .lake/site
PYTEST := $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder
COMPILE := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --no-header --quiet
SUITABLE := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3.14 python3,\
	$(shell $(name) -c '$(SUITABLE)' 2>/dev/null && echo $(name))))
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
JAVA_VERSION = $(shell "$(JAVA)" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p')

# Compiled modules are kept, whatever the environment says: a third of make quick is spent on making them.
export PYTHONDONTWRITEBYTECODE :=

NEEDS_PYTHON = $(if $(PYTHON),,$(error Python 3.11 to 3.14 with its venv module is needed: \
	apt install python3 python3-venv, brew install python@3.13, or make PYTHON=/path/to/python3))
NEEDS_JAVA = $(if $(shell test "0$(JAVA_VERSION)" -ge 17 && echo yes),,$(error a JDK 17 or newer is needed, \
	$(JAVA) is $(or $(JAVA_VERSION),missing): apt install openjdk-17-jdk-headless, brew install openjdk@17, or set JAVA_HOME))

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-kafka quick test test-airflow test-kafka test-postgres test-http test-singer test-sharing test-redis test-opensearch test-s3 test-cluster test-sinks test-webhook laws soak lint docs audit bench bench-kinds bench-large bench-huge bench-http bench-sources bench-sinks load workloads airflow kafka postgres opensearch s3 lock clean
.DELETE_ON_ERROR:

help: ## these lines
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

setup: $(VENV)/.packages $(VENV)/.headwater $(VENV)/.jars ## everything into .venv, pinned and verified
	@:

demo: setup ## the flights of 2013 from landing files to a published gold table; DAYS=7 for its first week
	$(BIN)/python infra/flights.py landing $(if $(DAYS),--days $(DAYS))
	$(BIN)/lake run
	$(BIN)/lake sql 'select * from carrier_league order by rank'

demo-kafka: setup $(VENV)/.kafka ## the same flights by a Kafka broker, with aborted transactions: the same tables; DAYS=7
	$(BIN)/python -m infra.kafka.demo --compare $(if $(DAYS),--days $(DAYS))

quick: lint ## linters, then the tests that take neither a JVM nor a second: under a minute
	$(PYTEST) -m "not long and not spark and not smoke and not slow"

test: lint $(VENV)/.kafka $(VENV)/.opensearch $(VENV)/.s3 ## linters, then the tests
	@infra/strace.sh
	$(PYTEST)

test-airflow: setup ## what asks Airflow: whole runs of every DAG
	$(BIN)/pytest -m airflow

test-kafka: setup $(VENV)/.kafka ## what asks a Kafka broker: transactions, gaps, a broker that dies
	$(BIN)/pytest -m kafka

test-postgres: setup $(VENV)/.pgjdbc ## what asks PostgreSQL, which is installed where it is missing
	@infra/postgres/install.sh
	$(BIN)/pytest -m postgres

test-http: setup ## intake by HTTP: what is acknowledged is on the disk, and stays, whoever is killed
	infra/strace.sh
	$(BIN)/pytest -m http

test-singer: setup ## a real Singer tap, in an environment of its own
	infra/singer/install.sh
	$(BIN)/pytest -m singer

test-sharing: setup ## the official client of Delta Sharing, in an environment of its own, reads from lake serve http
	infra/sharing/install.sh
	$(BIN)/pytest -m sharing

test-redis: setup ## what asks Redis, which is installed where it is missing: keys of one edition, whoever dies
	@infra/redis/install.sh
	$(BIN)/pytest -m redis

test-opensearch: setup $(VENV)/.opensearch ## what asks OpenSearch: an index of one edition, whoever dies
	$(BIN)/pytest -m opensearch

test-s3: setup $(VENV)/.s3 ## a warehouse in a bucket: races, answers that are lost, the same fingerprints as in a folder
	$(BIN)/pytest -m s3

test-cluster: setup $(VENV)/.s3 ## Spark on a cluster of another user, a warehouse in a bucket: the same fingerprints as on one machine
	$(BIN)/pytest -m cluster

test-sinks: setup $(VENV)/.kafka $(VENV)/.opensearch $(VENV)/.pgjdbc ## all that fills what sinks and alerts are declared for
	@infra/postgres/install.sh
	@infra/redis/install.sh
	$(BIN)/pytest -m "" tests/sinks

test-webhook: setup ## what asks a receiver of webhooks, which fails in every way: nothing is lost, and every message has one id
	$(BIN)/pytest -m webhook

laws: setup $(VENV)/.kafka $(VENV)/.opensearch $(VENV)/.s3 ## the tests, and all further turns of the laws
	$(PYTEST) -m ""

soak: setup ## processes and JVMs killed at every point of their writing, a state machine, hostile files: MINUTES=30, SEED=1
	$(BIN)/python -m tests.crash --minutes $(or $(MINUTES),30) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.crash.costs --minutes $(or $(MINUTES),5) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.crash.intake --kills 200 --seed $(or $(SEED),1)
	$(BIN)/python -m tests.crash.commands --kills 200 --seed $(or $(SEED),1)

lint: setup ## ruff, mypy --strict and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: setup ## the documentation as a site, .lake/site/index.html: no page needs a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir $(SITE)
	@echo $(SITE)/index.html

audit: setup ## known vulnerabilities, the hashes of the jars, the licences of everything
	@$(BIN)/python infra/audit.py $(JARS)

bench: setup ## the figures: rebuilds, micro-batches and queries beside hand-written ones
	$(BIN)/python -m tests.bench

bench-kinds: setup ## the figures: a million events in a table of each kind beside hand-written ones
	$(BIN)/python -m tests.bench.kinds

bench-large: setup ## the figures: ten million events of a million keys, and a micro-batch's cost after 1,000 commits
	$(BIN)/python -m tests.bench.large --growth

bench-huge: setup ## the figures: 8 GB of log against 1 GiB of JVM and 512 MiB of client, and what of it each command reads: GB=1
	$(BIN)/python -m tests.bench.huge --gb $(or $(GB),8)

bench-http: setup ## the figures: events a second that lake serve http acknowledges, each on the disk
	$(BIN)/python -m tests.bench.http

bench-sources: setup $(VENV)/.kafka ## the figures: Kafka and PostgreSQL into the log, beside programs by hand; INSERT to edition
	@infra/postgres/install.sh
	$(BIN)/python -m tests.bench.sources

bench-sinks: setup $(VENV)/.opensearch ## the figures: a first sync and changes into each target, beside programs by hand
	@infra/redis/install.sh
	$(BIN)/python -m tests.bench.sinks

load: setup ## ten minutes of lake run --follow beside a producer that never waits; MINUTES=60 for an hour
	$(BIN)/python -m tests.bench.load --minutes $(or $(MINUTES),10)

workloads: setup $(VENV)/.kafka ## a broker and a database under load beside lake run --follow, both killed: MINUTES=10, SEED=1
	@infra/postgres/install.sh
	$(BIN)/python -m tests.workloads.kafka --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.workloads.postgres --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1)

airflow: setup ## Airflow on this machine with the DAGs loaded, loopback only
	infra/airflow.sh

kafka: setup $(VENV)/.kafka ## a Kafka broker on this machine, loopback only: PORT=9092
	$(BIN)/python -m infra.kafka.broker $(if $(PORT),--port $(PORT))

postgres: ## PostgreSQL on this machine whose changes can be read, loopback only; installed where it is missing
	@infra/postgres/install.sh
	infra/postgres/server.sh

opensearch: setup $(VENV)/.opensearch ## OpenSearch on this machine, loopback only: PORT=9200
	$(BIN)/python -m infra.opensearch.server $(if $(PORT),--port $(PORT))

s3: setup $(VENV)/.s3 ## an S3 server on this machine, loopback only: PORT=9000
	$(BIN)/python -m infra.s3.server $(if $(PORT),--port $(PORT))

lock: $(VENV)/.packages ## resolve pyproject.toml anew into the lock files
	$(COMPILE) --upgrade --all-extras --output-file requirements.lock pyproject.toml
	$(COMPILE) --upgrade --output-file infra/sharing/requirements.lock infra/sharing/requirements.in
	printf 'setuptools\nuv\n' | $(COMPILE) --upgrade --constraint requirements.lock --output-file infra/bootstrap.lock -

clean: ## remove .venv, the warehouse, landing files and caches
	rm -rf $(VENV) .lake landing spark-warehouse build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

# One stamp per list of things to install: touch nothing while the list is older than its stamp.
$(VENV)/.packages: requirements.lock infra/bootstrap.lock
	$(NEEDS_PYTHON)$(NEEDS_JAVA)
	@echo "packages: $$(grep -c == requirements.lock) pinned ones into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--requirement infra/bootstrap.lock
	$(BIN)/uv pip sync --python $(BIN)/python --require-hashes --no-build-isolation --compile-bytecode requirements.lock
	@touch $@

$(VENV)/.headwater: pyproject.toml $(VENV)/.packages
	$(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q lake
	@touch $@

$(VENV)/.kafka: infra/kafka/jars.txt infra/server.py $(VENV)/.headwater
	@$(BIN)/python -m infra.kafka.broker --fetch
	@touch $@

$(VENV)/.pgjdbc: infra/postgres/jars.txt infra/fetch.py $(VENV)/.headwater
	@$(BIN)/python -m infra.fetch infra/postgres/jars.txt $(VENV)/share/headwater/pgjdbc
	@touch $@

$(VENV)/.opensearch: infra/opensearch/jars.txt infra/server.py $(VENV)/.headwater
	@$(BIN)/python -m infra.opensearch.server --fetch
	@touch $@

$(VENV)/.s3: infra/s3/jars.txt infra/server.py lake/s3.txt $(VENV)/.jars
	@$(BIN)/python -m infra.s3.server --fetch
	@$(BIN)/lake setup --s3
	@touch $@

$(VENV)/.jars: lake/jars.txt lake/jars.py $(VENV)/.headwater
	@$(BIN)/lake setup
	@touch $@
