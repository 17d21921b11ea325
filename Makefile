# The commands people type. Each sets up what it needs; nothing outside this folder is changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The playground takes .venv where it is there, and else less, which is installed in a third of the time.
PLAY := .playground
PLAY_EXTRAS := spark,cli
PLAY_READY := $(if $(wildcard $(READY)),$(READY),$(PLAY)/.ready)
WORKERS ?= 3
SOAK_SECONDS ?= 3600
# Tests that share a JVM or a browser stay in one process (conftest.py says which), and begin first; the others go to
# whichever process is free.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup
# test-core is part of test, and test of test-all; test-slow runs what is left.
FAST := not thorough and not slow and not versions
CORE := $(FAST) and not medium and not crash and not spark and not interop and not browser
# Those of them that ask what the core does, and nothing about the project.
PLATFORM_TESTS := --ignore=tests/kafkalog/connector $(addprefix tests/,cli equivalence following format inspect kafkalog live query read source \
	storage store systems write test_copy.py test_exchange.py test_hostile_files.py test_open_cluster.py \
	test_remote_copy.py test_store.py)
# A file that is named is never left out, so these are folders: the core and the connector.
WING_TESTS := tests $(addprefix --ignore=tests/test_,docs.py packaging.py layering.py prose.py mistakes.py typing.py)
WINGS ?= live replica kafka report all
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/)java

.DEFAULT_GOAL := help

.PHONY: help
help: ## print this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: env
env: $(READY) ## set up .venv with everything that development needs

# $(1): the folder of the environment; $(2): the extras that it has. What Python imports it compiles by itself; compiling everything
# takes a third of the time.
define environment
	@command -v $(PYTHON) >/dev/null || { echo "rmqstore needs Python 3.11 or later: install it, or set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rmqstore needs Python 3.11 or later, $(PYTHON) is $$($(PYTHON) -V 2>&1): set PYTHON=/path/to/a newer python3"; exit 1; }
	$(PYTHON) -m venv --clear $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[$(2)]' -c conf/constraints.txt
	@touch $@
endef

$(READY): pyproject.toml conf/constraints.txt
	$(call environment,$(VENV),dev)

$(PLAY)/.ready: pyproject.toml conf/constraints.txt
	$(call environment,$(PLAY),$(PLAY_EXTRAS))

.PHONY: java
java:
	@command -v "$(JAVA)" >/dev/null || { echo "Spark and RocketMQ need Java 17 or later and none was found: install a JDK 17 (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"; exit 1; }
	@"$(JAVA)" -version 2>&1 | awk -F'"' '/version/ {split($$2, v, "."); if (v[1] < 17) {print "Spark and RocketMQ need Java 17 or later, " $$2 " was found: install a JDK 17 or set JAVA_HOME"; exit 1}}'

.PHONY: demo
demo: java env ## read a store that a real RocketMQ broker wrote, through Spark
	$(BIN)/python examples/demo.py

.PHONY: playground
playground: java $(PLAY_READY) ## start a real RocketMQ with messages to look at; Ctrl-C ends it
	@$(dir $(PLAY_READY))bin/python examples/playground.py

.PHONY: test
test: java env ## run what any change may break, a few minutes (Java 17)
	$(PYTEST) -m '$(FAST)'

.PHONY: test-core
test-core: env ## run a minute of tests that need no Spark, no RocketMQ and no browser
	$(PYTEST) -m '$(CORE)'

# macOS and Windows by tests/simulated.py: what they lack is taken away, and tests/simulated.toml names what does not hold.
.PHONY: test-platforms
test-platforms: env ## run the tests of test-core as if this were macOS, then Windows
	for system in darwin win32; do RMQSTORE_SIMULATE=$$system $(PYTEST) -m '$(CORE)' $(PLATFORM_TESTS) || exit 1; done

# Live brokers, live copies, Kafka's logs and the report by tests/wings.py: their modules cannot be imported.
.PHONY: test-wings
test-wings: env ## run the tests of the core without each of its wings, then without all
	for wing in $(WINGS); do RMQSTORE_WITHOUT=$$wing $(PYTEST) -m '$(CORE)' $(WING_TESTS) || exit 1; done

.PHONY: test-here
test-here: env ## run the same tests as they are, for a computer that is no Linux
	$(PYTEST) -m '$(CORE)' $(PLATFORM_TESTS)

.PHONY: test-interop
test-interop: java env ## run all tests against the real RocketMQ and Kafka but the slow ones, or those of FILES
	$(PYTEST) -m 'interop and not slow' $(FILES)

.PHONY: test-all
test-all: java env ## run all tests but the longest tables, soak and versions
	$(PYTEST) -m 'not slow and not versions'

.PHONY: test-slow
test-slow: java env ## run the long tables that the other tests only sample; before each release
	$(PYTEST) -m slow

N ?= 100
SEED ?= 0
.PHONY: judge
judge: java env ## break N random stores, from SEED on, and hold what we say of them against the real RocketMQ
	PYTHONPATH=tests $(BIN)/python -m judge N=$(N) SEED=$(SEED)

.PHONY: tiers
tiers: java env ## time all tests but the slow ones, and divide them among the tiers again
	rm -rf .times && mkdir .times
	$(PYTEST) -m 'not slow and not versions' --times=$(CURDIR)/.times
	$(BIN)/python tests/tier_table.py .times

.PHONY: soak
soak: java env ## run a stream beside a live writer for SOAK_SECONDS, an hour, and see that nothing grows
	SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -m slow -rP tests/soak

# Needs some 4 GB under .versions, and the network for pip; a Python that is not there is reported as not run.
.PHONY: test-versions
test-versions: java env ## run a smoke check with the oldest and newest versions that are allowed
	$(BIN)/python -m pytest -m versions -rP

.PHONY: lint
lint: env ## check style, types and imports: ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

.PHONY: docs
docs: env ## build the manual into docs/_build/html; warnings are errors
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

.PHONY: release-notes
release-notes: env ## put the fragments of docs/changelog.d into CHANGELOG.md, for VERSION
	$(BIN)/towncrier build --yes --version $(VERSION)

.PHONY: bench
bench: java env ## repeat the measurements of docs/performance.md
	$(BIN)/python benchmarks/run.py

.PHONY: bench-growth
bench-growth: java env ## repeat the measurements of docs/performance.md, and draw its plot again
	$(BIN)/python benchmarks/bench_growth.py > growth.jsonl
	$(BIN)/python benchmarks/plot_growth.py growth.jsonl docs/performance.md

.PHONY: clean
clean: ## remove what these commands made, .venv too
	rm -rf $(VENV) $(PLAY) .tutorial .versions .times .rocketmq .judge .kafka .demo .mypy_cache .ruff_cache .pytest_cache spark-warehouse docs/_build lake report.html
