# Each target sets up what it needs in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test test-long lint types tables clean

PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

# A stamp carries an install, so a second `make` starts at once; a changed dependency list reinstalls.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[serve]'
	touch $@

# What tests need besides, among it a browser's driver and ONNX: nobody else should wait for it.
$(VENV)/tools: $(VENV)/installed
	$(PIP) -e '.[test,lint]'
	touch $@

install: $(VENV)/installed

demo: $(VENV)/installed
	$(BIN)/pathaware demo --out demo

lint: $(VENV)/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/tools
	$(BIN)/mypy

test: lint types
	$(BIN)/pytest -n 2 -m 'not slow'

test-long: $(VENV)/tools
	$(BIN)/pytest -n 2

# Renders tables from results/ and the API reference from docstrings; a test fails if they are out of date.
tables: $(VENV)/installed
	$(BIN)/python -m tools.documents . results
	$(BIN)/python -m tools.api_reference docs/api.md

clean:
	rm -rf $(VENV) demo
