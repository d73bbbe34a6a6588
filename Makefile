# Every target does its own set-up; as root on a Debian machine that includes the packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml README.md $(shell find shim hooks cffi_src -type f -not -path '*/__pycache__/*')

.PHONY: demo test bench fuzz lint clean packages-build packages-demo packages-test

demo: packages-demo $(VENV)/installed
	$(BIN)/python -m tests.demo

test: packages-test $(VENV)/installed
	$(BIN)/python -m pytest $(ARGS)

bench: packages-build $(VENV)/installed
	$(BIN)/python -m tests.bench

# What reads other people's bytes, with many more of them: FUZZ examples each.
fuzz: packages-build $(VENV)/installed
	FUZZ=$(or $(FUZZ),20000) $(BIN)/python -m pytest -m fuzz $(ARGS)

lint: $(VENV)/installed
	$(BIN)/python -m pytest tests/test_lint.py

packages-build packages-demo packages-test:
	@tests/packages $(@:packages-%=%) $(PYTHON)

$(BIN)/python: | packages-build
	$(PYTHON) -m venv $(VENV)

# The tests run what a user installs: the wheel, not the checkout.
$(VENV)/installed: $(SOURCES) $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group test
	$(BIN)/python -m pip install --quiet .
	touch $@

clean:
	rm -rf $(VENV) build dist
