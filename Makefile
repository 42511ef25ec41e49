# Two commands do everything on a fresh machine: `make demo` and `make test`. `make` alone lists the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A folder of its own: the package pins versions of others that clash with ours.
GENERATORS := .generators
GENERATORS_PIN := reasoning-gym==0.1.25
# Words for the program that a target runs, as in: make test ARGS="tests/test_imports.py -n 0"
ARGS ?=
# The run folder or export that is rehearsed with and packed.
CHECKPOINT ?= runs/arc2

SHELL := bash
.SHELLFLAGS := -e -u -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test lint bench gpu gpu-kit sanity generators rehearse package push submit clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## install into .venv (about two minutes, 1.8 GB); nothing to do when up to date

demo: install ## solve real ARC-AGI-1 tasks with a small model: a scored submission.json and a report
	$(BIN)/python -m submission.demo $(ARGS)

test: install ## run all tests
	$(BIN)/python -m pytest $(ARGS)

lint: install ## check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install ## run the benchmarks and print their table (ARGS="NAME ...": only those)
	$(BIN)/python -m tests.benchmarks $(ARGS)

gpu: install ## measure on a GPU what works and how fast (docs/gpu.md); ARGS="--call 1": a third of it
	$(BIN)/python -m tests.gpu $(ARGS)

gpu-kit: install ## gather what a machine with a GPU and without network needs: gpu-kit/
	$(BIN)/python -m tests.gpu.kit $(ARGS)

sanity: install ## train small Sudoku and maze models and say whether they learned; ARGS="--out DIR"
	$(BIN)/python -m arc_trm.sanity $(if $(findstring --out,$(ARGS)),,--out runs/sanity) $(ARGS)

generators: $(GENERATORS)/.$(GENERATORS_PIN) ## fetch the generators of RE-ARC for data_prep.generate (18 MB): .generators/

rehearse: install ## solve and score public tasks that CHECKPOINT has not seen, if there are any: rehearsal/
	$(BIN)/python -m submission.solve --rehearse --checkpoint $(CHECKPOINT) --out rehearsal/submission.json $(ARGS)

package: install ## pack CHECKPOINT and this program for a notebook without internet: bundle/
	$(BIN)/python -m submission.package --checkpoint $(CHECKPOINT) $(ARGS)

push: install ## upload bundle/ to Kaggle, run its notebook there, fetch what it made
	$(BIN)/python -m submission.kaggle push $(ARGS)

submit: install ## hand the pushed notebook in for the scored rerun, one try a day
	$(BIN)/python -m submission.kaggle submit $(ARGS)

clean: ## remove the environments, caches, demo/, bundle/ and rehearsal/; datasets and runs stay
	rm -rf $(VENV) $(GENERATORS) build dist demo bundle rehearsal *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Without what it depends on: the generators need the standard library only. The stamp carries the version.
$(GENERATORS)/.$(GENERATORS_PIN): | $(VENV)/.installed
	@rm -rf $(GENERATORS)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-compile \
		--target $(GENERATORS) $(GENERATORS_PIN) || \
		{ rm -rf $(GENERATORS); echo "error: $(GENERATORS_PIN) could not be installed" >&2; exit 1; }
	@touch $@
	@echo "installed $(GENERATORS_PIN)"

# The stamp is written last, so an installation that was interrupted is done again.
# pip runs quietly but for one dot a package; everything it says is kept in install.log.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is missing or older than Python 3.11; name another: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || \
		{ echo "error: $(PYTHON) cannot make environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing into $(VENV) (about two minutes, 1.8 GB)"
	@$(BIN)/python -m pip install --disable-pip-version-check --no-input -c constraints.txt -e '.[dev]' \
		2>&1 | tee $(VENV)/install.log | awk ' \
			/^ *Collecting / { printf "."; fflush() } \
			/^Installing collected/ { printf "\nall packages found, copying them\n"; fflush() }' || \
		{ echo; tail -n 20 $(VENV)/install.log; echo "error: the installation failed; see $(VENV)/install.log" >&2; exit 1; }
	@touch $@
	@echo "installed"
