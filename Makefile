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

# The jars of the servers are fetched while mypy runs.
MAKEFLAGS += --jobs=4
unexport MAKEFLAGS

# Compiled modules are kept, whatever the environment says: a third of make quick is spent on making them.
export PYTHONDONTWRITEBYTECODE :=

NEEDS_PYTHON = $(if $(PYTHON),,$(error Python 3.11 to 3.14 with its venv module is needed: \
	apt install python3 python3-venv, brew install python@3.13, or make PYTHON=/path/to/python3))
NEEDS_JAVA = $(if $(shell test "0$(JAVA_VERSION)" -ge 17 && echo yes),,$(error a JDK 17 or newer is needed, \
	$(JAVA) is $(or $(JAVA_VERSION),missing): apt install openjdk-17-jdk-headless, brew install openjdk@17, or set JAVA_HOME))

# A server of infra/ has a list of jars, fetched into the environment, or a script that installs its programs, or both.
SERVERS := $(patsubst tests/servers/%.py,%,$(wildcard tests/servers/[a-z]*.py))
SETUP := http kafka opensearch s3
SETUP_cluster := s3
SETUP_peers := bench/peers
SETUP_sinks := kafka opensearch postgres redis webhook
SETUP_sources := http kafka postgres singer
SETUP_workloads.kafka := kafka
SETUP_workloads.postgres := postgres
define NEWLINE


endef
fetched = $(foreach server,$(1),$(if $(wildcard infra/$(server)/jars.txt),$(VENV)/.$(server)))
installed = $(foreach server,$(1),$(if $(wildcard infra/$(server)/install.sh),@infra/$(server)/install.sh$(NEWLINE)))
used = $(or $(SETUP_$(S)$(W)),$(S)$(W),$(1))
one_of = $(if $(2),$(if $(filter $(2),$(3)),,$(error $(1)=$(2) is not known. It is one of: $(3))))

START_airflow := infra/airflow.sh
START_kafka := $(BIN)/python -m infra.kafka.broker
START_opensearch := $(BIN)/python -m infra.opensearch.server
START_postgres := infra/postgres/server.sh
START_s3 := $(BIN)/python -m infra.s3.server
DEMOS := kafka
BENCHES := compare http huge kinds large load orders peers queries sinks sources
SOAKS := crash crash.costs crash.intake crash.commands workloads.kafka workloads.postgres
STARTED := $(patsubst START_%,%,$(filter START_%,$(.VARIABLES)))
FOLDERS := $(patsubst tests/%/,%,$(wildcard tests/*/))

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test long laws soak bench lint docs audit server lock clean
.DELETE_ON_ERROR:

help: ## these lines; ARGS='…' is handed to what a target starts
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-13s %s\n", $$1, $$2 }'
	@printf '\n  %-10s %s' 'demo S=' '$(DEMOS)' 'test S=' '$(SERVERS)' 'long S=' 'a folder of tests' 'soak W=' '$(SOAKS)' \
		'bench W=' '$(BENCHES)' 'server S=' '$(sort $(STARTED))'; echo

setup: $(VENV)/.packages $(VENV)/.headwater $(VENV)/.jars ## everything into .venv, pinned and verified
	@:

demo: setup $(call fetched,$(S)) ## the flights of 2013 to a published gold table, DAYS=7 for a week; S=kafka by a Kafka broker
	$(call one_of,S,$(S),$(DEMOS))
ifeq ($(S),kafka)
	$(BIN)/python -m infra.kafka.demo --compare $(if $(DAYS),--days $(DAYS)) $(ARGS)
else
	$(BIN)/python infra/flights.py landing $(if $(DAYS),--days $(DAYS))
	$(BIN)/lake run
	$(BIN)/lake sql 'select * from carrier_league order by rank'
endif

quick: lint ## linters, then the tests that need no JVM and take less than a second
	$(PYTEST) --ignore tests/source -m "not long and not spark and not smoke and not slow" $(ARGS)

test: $(if $(S),setup,lint) $(call fetched,$(call used,$(SETUP))) ## linters, then the tests; S=kafka all that ask this server
	$(call one_of,S,$(S),$(SERVERS))
	$(call installed,$(call used,$(SETUP)))
	$(if $(S),$(BIN)/pytest -m $(S),$(PYTEST) --ignore tests/source) $(ARGS)

long: setup $(call fetched,$(call used,$(SETUP))) ## the further turns that make test leaves out; S=sinks those of tests/sinks
	$(call one_of,S,$(S),$(FOLDERS))
	$(call installed,$(call used,$(SETUP)))
	$(PYTEST) -m long $(if $(S),tests/$(S)) $(ARGS)

laws: setup $(call fetched,$(SETUP)) ## all tests with all further turns: before a release
	$(call installed,$(SETUP))
	$(PYTEST) -m "" $(ARGS)

soak: setup $(call fetched,$(call used,kafka postgres)) ## processes, JVMs, a broker, a database killed at every point, for an hour; W=crash that part
	$(call one_of,W,$(W),$(SOAKS))
	$(call installed,$(call used,kafka postgres))
	$(foreach part,$(or $(W),$(SOAKS)),$(BIN)/python -m tests.$(part) $(ARGS)$(NEWLINE))

bench: setup $(call fetched,$(call used)) ## the figures: flights beside hand-written jobs; W=sinks those of sinks
	$(call one_of,W,$(W),$(BENCHES))
	$(call installed,$(call used))
	$(BIN)/python -m infra.bench$(if $(W),.$(W)) $(ARGS)

lint: .types .source ## ruff, mypy --strict, the layers, tests/source: words, imports, figures

.types: setup
	$(BIN)/mypy

.source: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(PYTEST) tests/source
	@$(BIN)/pytest --collect-only >/dev/null # else both processes of the tests rewrite all assertions, while mypy runs here

docs: setup ## the documentation as a site, .lake/site/index.html: no page needs a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir $(SITE)
	@echo $(SITE)/index.html

audit: setup ## known vulnerabilities, the hashes of the jars, the licences of everything
	@$(BIN)/python infra/audit.py $(JARS)

server: setup $(call fetched,$(S)) ## a server on this machine, loopback only, until Ctrl-C: S=kafka
	$(if $(S),$(call one_of,S,$(S),$(STARTED)),$(error name a server: S=kafka, or another of: $(STARTED)))
	$(call installed,$(S))
	$(START_$(S)) $(ARGS)

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

$(VENV)/.postgres: infra/postgres/jars.txt infra/fetch.py $(VENV)/.headwater
	@$(BIN)/python -m infra.fetch infra/postgres/jars.txt $(VENV)/share/headwater/pgjdbc
	@touch $@

$(VENV)/.opensearch: infra/opensearch/jars.txt infra/server.py $(VENV)/.headwater
	@$(BIN)/python -m infra.opensearch.server --fetch
	@touch $@

$(VENV)/.s3: $(VENV)/.s3-server $(VENV)/.s3-storage
	@touch $@

$(VENV)/.s3-server: infra/s3/jars.txt infra/server.py $(VENV)/.headwater
	@$(BIN)/python -m infra.s3.server --fetch
	@touch $@

$(VENV)/.s3-storage: lake/connect/s3/jars.txt $(VENV)/.jars
	@$(BIN)/lake setup --s3
	@touch $@

$(VENV)/.jars: lake/jars.txt lake/session/jars.py $(VENV)/.headwater
	@$(BIN)/lake setup
	@touch $@
