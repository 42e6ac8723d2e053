# Each target bootstraps .venv by itself, through the pins of constraints.txt; a second call reuses it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := vision,report,demo,ray,zoo,onnx,runtime,docs,dev
READY := $(VENV)/.ready
# Real data and trained networks, where they are at hand, and where they are laid out.
SHARED ?= ../shared
DATA := .cache/data

# One thread a worker: torch's threads in two processes on two cores get in each other's way.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: help demo test tests docs study results check lint types bench bench-shared clean
.DEFAULT_GOAL := help

help:
	@echo "make demo     the whole story: terminal tables and an HTML page"
	@echo "make test     the tests that are quick and need no data: minutes"
	@echo "make tests    all tests"
	@echo "make docs     the documentation's site, with warnings as errors: site/index.html"
	@echo "make study    the study on digits: three seeds, seven rules, six sparsities, and its page"
	@echo "make results  README.md's tables, reproduction/README.md and its pages anew from reproduction/results"
	@echo "make check    lint, format, types, all tests, site, study, demo: exactly what CI runs"
	@echo "make bench    every benchmark, in ratios (an hour; those on real networks where ../shared is there)"
	@echo "make clean    remove everything generated"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "Python 3.10 or newer is needed, not " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/repairability demo

test: $(READY)
	$(PYTEST) -m "not slow"

tests: $(READY)
	$(PYTEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

study: $(READY)
	$(BIN)/repairability sweep reproduction/studies/digits.toml --store runs --executor processes --workers 2
	$(BIN)/repairability report --store runs --out runs/studies.html

results: $(READY)
	$(BIN)/repairability renew README.md --store reproduction/results
	$(BIN)/python -m reproduction pages

check: lint types tests docs study demo

bench: $(READY)
	for name in front_door allocation surgeon diagnose sparsity_point zoo transformer runtime; do $(BIN)/python benchmarks/$$name.py || exit 1; done
	@if [ -d $(SHARED)/data ]; then $(MAKE) --no-print-directory bench-shared; \
	else echo "skipped best, files, reconstruct, strong, transition: they need the data and networks of $(SHARED)"; fi

bench-shared: $(READY)
	$(BIN)/python $(SHARED)/data/prepare.py $(DATA) cifar10 cifar100 imagenet resnet50
	for name in reconstruct strong best transition files; do $(BIN)/python benchmarks/$$name.py $(SHARED) $(DATA) || exit 1; done

clean:
	rm -rf $(VENV) .cache demo runs site .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
