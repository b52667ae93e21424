# Each target does all the set-up it needs, once: `make train` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Training libraries whose scripts are tested, in an environment of their own.
FRAMEWORKS       := .venv-frameworks
FRAMEWORKS_READY := $(FRAMEWORKS)/.ready

# Each interpreter that the tests start would compile samestep again: a tenth of its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup train test test-long test-units test-ranks test-processes test-commands check format docs bench exact chaos fuzz random matrix score gpu gpu-bundle oldest newest clean

help:
	@echo "make setup   environment in $(VENV), from requirements.lock"
	@echo "make train   train the digits recipe on 2 workers"
	@echo "make test    run the tests; 15 minutes on 2 cores"
	@echo "make test-long  run the tests that repeat these at other sizes and on other scripts; 45 minutes"
	@echo "make check   lint, format, types, layers"
	@echo "make docs    build the documentation, warnings are errors"
	@echo "make exact   equal weights at any number of workers, by the commands that a user types; some minutes"
	@echo "make chaos   a training and scripts with helpers under 60 faults each; they end with the undisturbed weights"
	@echo "make fuzz    feed every reader of files, variables and flags with 500 wrong cases; some minutes"
	@echo "make random  compare 2,000 random scripts on 1, 2 and 3 ranks; about 100 minutes"
	@echo "make matrix  run every kind of script under every launcher, and write the table of docs/guide; 10 minutes"
	@echo "make score   run samestep verify on public faults of trainings, and write docs/reference/score.md; 30 minutes"
	@echo "make gpu     check all that the GPUs of this machine allow; GPU_PYTHON is a Python whose torch has them"
	@echo "make gpu-bundle  write build/gpu-bundle, which runs these checks on a machine without a network"
	@echo "make oldest  tests of one process, and a training, with torch 2.6 from Debian's packages; needs root; 20 minutes"
	@echo "make newest  the same, and tests of rank processes, with the newest torch that pip offers"
	@echo "make bench   measure against the peers on a quiet machine; DATA_DIR=DIR holds mnist, cifar10"

setup: $(READY)

$(READY): requirements.lock pyproject.toml lab/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable . --editable lab
	@touch $@

$(FRAMEWORKS_READY): requirements-frameworks.lock
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-frameworks.lock
	@touch $@

train: $(READY)
	$(BIN)/samestep train digits -n 2

# The tests that run: "not long", or "long".
TESTS ?= not long

# Two parts at a time, since tests often wait: three at a time exceed time limits on 2 cores. The two slow parts begin,
# and the two quick ones follow, so that both jobs end at about the same time.
test: $(READY) $(FRAMEWORKS_READY)
	@$(MAKE) --no-print-directory --jobs=2 --keep-going test-commands test-processes test-units test-ranks

test-long: $(READY) $(FRAMEWORKS_READY)
	@$(MAKE) --no-print-directory --jobs=2 --keep-going test-commands test-processes TESTS=long

test-units: $(READY)
	$(BIN)/python -m pytest tests --ignore=tests/ranks --ignore=tests/process --ignore=tests/end_to_end -m "$(TESTS)"

test-ranks: $(READY)
	$(BIN)/python -m pytest tests/ranks -m "$(TESTS)"

test-processes: $(READY)
	$(BIN)/python -m pytest tests/process -m "$(TESTS)"

test-commands: $(READY) $(FRAMEWORKS_READY)
	$(BIN)/python -m pytest tests/end_to_end -m "$(TESTS)"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)
	$(BIN)/mkdocs build --strict

bench: $(READY)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/sync_step.py
	$(BIN)/python benchmarks/exact.py
	$(BIN)/python benchmarks/loader.py $(if $(DATA_DIR),--data-dir $(DATA_DIR))
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/precision.py
	$(BIN)/python benchmarks/accuracy.py digits
	$(BIN)/python benchmarks/autopilot.py
	$(BIN)/python benchmarks/baseline.py
	PYTHONPATH=tests $(BIN)/python benchmarks/baseline.py --nodes 2
	$(BIN)/python benchmarks/scaling.py
	PYTHONPATH=tests $(BIN)/python benchmarks/exposed.py
ifdef DATA_DIR
	$(BIN)/python benchmarks/mnist.py --data-dir $(DATA_DIR)
	$(BIN)/python benchmarks/cifar10.py --data-dir $(DATA_DIR)
	PYTHONPATH=tests $(BIN)/python benchmarks/launchers.py --data-dir $(DATA_DIR)
endif

exact: $(READY)
	$(BIN)/python benchmarks/same_bits.py

chaos: $(READY)
	PYTHONPATH=tests $(BIN)/python -m support.chaos --faults 60
	PYTHONPATH=tests $(BIN)/python -m support.helper_chaos --faults 60

fuzz: $(READY)
	PYTHONPATH=tests $(BIN)/python -m support.fuzz --count 500

random: $(READY)
	PYTHONPATH=tests $(BIN)/python -m support.random_scripts --count 2000

matrix: $(READY) $(FRAMEWORKS_READY)
	mkdir -p build
	SAMESTEP_MATRIX=build/matrix.json $(BIN)/python -m pytest tests/end_to_end/systems/test_script_kinds.py
	PYTHONPATH=tests $(BIN)/python -m support.script_kinds_page build/matrix.json

score: $(READY)
	PYTHONPATH=tests $(BIN)/python -m score

# The pinned torch of the environment has no GPUs: an installed one that has them is used instead.
GPU_PYTHON ?= $(PYTHON)
GPU_FLAGS  ?=

gpu:
	PYTHONPATH=src:tests/gpu $(GPU_PYTHON) -m gpu_checks --json build/gpu.json $(GPU_FLAGS)

# The version of Python of the machine with the GPU, for which wheels are downloaded.
GPU_BUNDLE_PYTHON ?= 3.12

gpu-bundle: $(READY)
	$(BIN)/python tests/gpu/bundle/make.py build/gpu-bundle $(GPU_BUNDLE_PYTHON)

oldest:
	.ci/oldest

newest:
	PYTHON=$(PYTHON) .ci/newest

clean:
	rm -rf $(VENV) $(FRAMEWORKS) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache site
