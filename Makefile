# Each target sets up what it needs in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-long lint types tables clean

# The stamp carries the install, so a second `make` starts at once; a changed dependency list reinstalls.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/pathaware demo --out demo

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed
	$(BIN)/mypy

test: lint types
	$(BIN)/pytest -n 2 -m 'not slow'

test-long: $(VENV)/installed
	$(BIN)/pytest -n 2

# The tables of these documents come from the files in results/; a test fails when they differ.
tables: $(VENV)/installed
	$(BIN)/python -m pathaware.reproduce.document . results
	$(BIN)/python -m pathaware.bench.document docs/performance.md results

clean:
	rm -rf $(VENV) demo
