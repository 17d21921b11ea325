# The commands people type. Each sets up what it needs; nothing outside this folder is changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/)java

.PHONY: env demo test test-slow test-versions lint bench clean
.DEFAULT_GOAL := demo

env: $(READY)

$(READY): pyproject.toml conf/constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "rmqstore needs Python 3.11 or later: install it, or set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rmqstore needs Python 3.11 or later, $(PYTHON) is $$($(PYTHON) -V 2>&1): set PYTHON=/path/to/a newer python3"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c conf/constraints.txt
	@touch $@

.PHONY: java
java:
	@command -v "$(JAVA)" >/dev/null || { echo "Spark needs Java 17 or later and none was found: install a JDK 17 (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"; exit 1; }
	@"$(JAVA)" -version 2>&1 | awk -F'"' '/version/ {split($$2, v, "."); if (v[1] < 17) {print "Spark needs Java 17 or later, " $$2 " was found: install a JDK 17 or set JAVA_HOME"; exit 1}}'

demo: java env
	$(BIN)/python examples/demo.py

test: java env
	$(BIN)/python -m pytest -m 'not slow and not versions'

test-slow: java env
	$(BIN)/python -m pytest -m slow

# Needs some 4 GB under .versions, and the network for pip; a Python that is not there is reported as not run.
test-versions: java env
	$(BIN)/python -m pytest -m versions -rP

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: java env
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) .versions .rocketmq .demo .mypy_cache .ruff_cache .pytest_cache spark-warehouse
