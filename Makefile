# Every target sets up what it needs: a fresh machine needs Python 3.11+ and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test slow lint docs bench bench-check clean
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,onnx,docs]"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[lightning]" \
		|| echo "Lightning could not be installed: its tests will be skipped"
	touch $@

demo: $(STAMP)
	$(BIN)/posterity compare --out report

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m "not slow"

slow: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

bench: $(STAMP)
	$(BIN)/python -m benchmarks.speed

bench-check: $(STAMP)
	$(BIN)/python -m benchmarks.speed.check

clean:
	rm -rf $(VENV) site report
