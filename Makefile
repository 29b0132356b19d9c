# Each target sets up what it needs in .venv; nothing else on the machine is touched.
PYTHON ?= python3
# Which build of PyTorch: auto takes the CPU build where there is no NVIDIA GPU, cpu and cuda decide by hand,
# keep leaves it to pip and what is installed.
TORCH ?= auto
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo check test test-long lint types tables docs docs-serve clean again

# What tools/torch_build.py wrote: constraints.txt with the build of PyTorch that is there.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt

# An environment that is already there, of `uv venv --seed` for example, is used as it is.
$(BIN)/python:
	@command -v $(PYTHON) > /dev/null || { \
	echo "There is no $(PYTHON): install Python 3.11 or newer, or name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) tools/python_check.py
	@$(PYTHON) -m venv $(VENV)

# A stamp carries an install, so a second `make` starts at once; a changed dependency list reinstalls.
$(VENV)/installed: pyproject.toml research/pyproject.toml constraints.txt | $(BIN)/python
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(BIN)/python -m ensurepip > /dev/null
	@$(BIN)/python tools/torch_build.py $(TORCH)
	@echo "Installing pathaware and what else it needs into $(VENV): about 120 MB"
	@$(PIP) -e '.[serve]' -e ./research
	@touch $@

# A build that is named counts where another was installed before, too.
ifneq ($(TORCH),auto)
$(VENV)/installed: again
endif

# What tests need besides, among it a browser's driver and ONNX: nobody else should wait for it.
$(VENV)/tools: $(VENV)/installed
	@echo "Installing what the tests need besides: about 300 MB"
	@$(PIP) -e '.[test,lint]'
	@touch $@

install: $(VENV)/installed

demo: $(VENV)/installed
	$(BIN)/pathaware demo --out demo

lint: $(VENV)/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/tools
	$(BIN)/mypy

# For every few minutes of work: the tests that need no training, no server and no process of their own.
QUICK := tests/core tests/models tests/data tests/test_architecture.py tests/test_documents.py tests/test_wording.py
check: lint types
	$(BIN)/pytest -q -n 2 -m 'not slow' $(QUICK)

test: lint types
	$(BIN)/pytest -n 2 -m 'not slow'

test-long: $(VENV)/tools
	$(BIN)/pytest -n 2

# Renders tables from results/ and a page per method; a test fails if they are out of date.
tables: $(VENV)/installed
	$(BIN)/python -m pathaware_research.pages.documents . results
	$(BIN)/python -m pathaware_research.pages.method_pages docs/methods results

$(VENV)/docs: $(VENV)/installed
	@echo "Installing what the site is built with"
	@$(PIP) -e '.[docs]'
	@touch $@

# The theme prints a notice about MkDocs 2, which is not a warning about this site.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

# Builds the site into site/; a warning is an error. `make docs-serve` shows it and rebuilds after every change.
docs: $(VENV)/docs
	$(MKDOCS) build --strict

docs-serve: $(VENV)/docs
	$(MKDOCS) serve --open

clean:
	rm -rf $(VENV) demo
