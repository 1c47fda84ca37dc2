# Every target works alone on a fresh machine that has make and Python 3.11 or newer. `make` lists them.
# Other Python: make demo PYTHON=python3.12     More for pytest: make test PYTEST_ARGS='-k layout'

PYTHON ?= python3
PYTEST_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip -qq --disable-pip-version-check install -c constraints.txt
# A file stays on one worker, so that what its tests share is made once. (Groups need node ids that pytest 9 keeps.)
PYTEST := $(BIN)/pytest -n 2 --dist loadfile

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-long test-engines check docs clean

help:
	@echo "make demo          walk the toy model through all stages on a simulated device"
	@echo "make test          what CI runs: make check, then the tests"
	@echo "make test-long     make test, and the tests that take minutes"
	@echo "make test-engines  the export in vLLM and SGLang; fetches gigabytes, takes half an hour"
	@echo "make check         lint, format, types and import arrows"
	@echo "make docs          the documentation as a site, build/site/index.html"
	@echo "make clean         remove $(VENV), build products and caches; runs/ stays"

demo: $(VENV)/.ready-demo
	@echo "demo: walking the toy model through all stages on the simulated device"
	@$(BIN)/day0 run playbooks/toy-on-sim.yaml

test: check
	@echo "test: running the tests, without those that take minutes (make test-long has them)"
	@$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-long: check
	@echo "test: running all tests, also those that take minutes"
	@$(PYTEST) $(PYTEST_ARGS)

ENGINES ?= vllm sglang
test-engines: $(VENV)/.ready-dev
	@tests/engines/run.sh runs/engines $(ENGINES)

check: $(VENV)/.ready-dev
	@echo "check: ruff looks for mistakes"
	@$(BIN)/ruff check --quiet .
	@echo "check: ruff looks at the format"
	@$(BIN)/ruff format --check --quiet .
	@echo "check: mypy looks at the types"
	@$(BIN)/mypy
	@echo "check: import-linter looks at the arrows between folders"
	@$(BIN)/lint-imports --no-logo

docs: $(VENV)/.ready-dev
	@echo "docs: writing build/site; a link that leads nowhere ends it"
	@# Not --quiet: it hides the warnings that --strict is about.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "docs: open build/site/index.html"

clean:
	@echo "clean: removing $(VENV), build products and caches; runs/ stays"
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps make the set-up happen once, and again when what it depends on has changed.
$(VENV)/.ready-demo: pyproject.toml constraints.txt
	$(call set_up,hf)
	@touch $@

$(VENV)/.ready-dev: pyproject.toml constraints.txt requirements-nodeps.txt
	$(call set_up,hf$(comma)dev)
	@$(PIP_INSTALL) --no-deps -r requirements-nodeps.txt
	@touch $@ $(VENV)/.ready-demo

comma := ,

# setuptools first and no build isolation, so that the release that builds day0 is the one in constraints.txt.
define set_up
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { $(make_venv); }
	@$(BIN)/python -c '$(require_python)'
	@echo "set-up: installing day0[$(1)] and what it needs into $(VENV); PyTorch is large, the first time takes minutes"
	@$(PIP_INSTALL) setuptools
	@$(PIP_INSTALL) --no-build-isolation --editable '.[$(1)]'
endef

define make_venv
	command -v "$(PYTHON)" >/dev/null || { \
		echo "error: make: there is no program '$(PYTHON)'" >&2; \
		echo "hint: install Python 3.11 or newer, or name it: make demo PYTHON=/path/to/python3.11" >&2; exit 2; }; \
	"$(PYTHON)" -c '$(require_python)' || exit 2; \
	echo "set-up: creating $(VENV) with $(PYTHON)"; \
	rm -rf $(VENV); "$(PYTHON)" -m venv $(VENV)
endef

define require_python
import sys; sys.version_info >= (3, 11) or sys.exit("error: make: %s is Python %d.%d, and day0 needs 3.11 or newer\nhint: name a newer one: make clean; make demo PYTHON=/path/to/python3.11" % ((sys.executable,) + sys.version_info[:2]))
endef
