# Everything a person does here. The first target that needs it makes .venv; nothing is installed outside this folder.

PY ?= python3
UV := $(or $(shell uv --version >/dev/null 2>&1 && command -v uv),.tools/bin/uv)
BIN := .venv/bin
READY := .venv/.ready

export PIP_ROOT_USER_ACTION = ignore
export UV_PYTHON_DOWNLOADS = never

.DEFAULT_GOAL := help
.PHONY: help run chat team page browser sandbox searx pictures test check crash lint format bench structure docs texts lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: page ## Start the gateway with its page, and a model that answers
	$(BIN)/atlas serve

chat: $(READY) ## Talk to an agent in the terminal
	$(BIN)/atlas chat

team: page ## Start the example team with its documents, in a home of its own
	export ATLAS_HOME="$${ATLAS_HOME:-.cache/team}" ATLAS_CONFIG=examples/team/atlas.toml && \
	$(BIN)/atlas knowledge add examples/team/knowledge --category handbook && $(BIN)/atlas serve

page: $(READY) ## Build the page, if its sources have changed
	$(BIN)/python hatch_build.py

test: page browser sandbox searx ## Run all tests
	$(BIN)/pytest -n 2 --dist worksteal

check: lint sandbox ## Check format, lint, types and floors, then run the quick tests
	$(BIN)/pytest -n 2 --dist worksteal -q -m "not slow"

crash: $(READY) ## Kill, fail and stop turns 20,000 times and more; CRASH="--minutes 30 --seed 7" for less, or others
	cd tests/durable && ../../$(BIN)/python -m crash.long $(CRASH)

lint: $(READY) ## Check format, lint, types and floors
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

format: $(READY) ## Format the code and mend what can be mended
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

bench: $(READY) ## Measure CPU per turn beside the floor
	$(BIN)/python bench/run.py bench

structure: $(READY) ## Print figures of the code's structure: modules, imports, names, files that a turn crosses
	$(BIN)/python tests/structure.py

docs: $(READY) ## Build the pages into site/, warnings are errors
	$(BIN)/zensical build --clean --strict

pictures: page browser ## Make the pictures of the page for README and docs
	$(BIN)/python tests/page/pictures.py

texts: $(READY) ## Write the help of the command and the table of settings into their pages
	$(BIN)/python tests/help_texts.py
	$(BIN)/python tests/protocol_page.py
	$(BIN)/python tests/settings_table.py

lock: $(UV) ## Resolve the newest versions into requirements.lock
	$(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --group dev --generate-hashes \
		--no-annotate --no-header --no-emit-index-url --no-emit-find-links --output-file requirements.lock pyproject.toml

clean: ## Remove all that make made
	rm -rf web/node_modules web/dist web/src/wire.ts src/atlas_agents/gateway/page
	rm -rf .venv .tools .cache .hypothesis .import_linter_cache .pytest_cache .ruff_cache dist site
	find src tests docs bench -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# The tests of the page need a browser; where it can be installed, it is.
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		command -v $$name >/dev/null 2>&1 && exit 0; done; \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		echo "Installing Chromium for the tests of the page." && \
		{ apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1 || \
			{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; }; }; } || \
	{ echo "The tests of the page need Chromium: install it (Debian: apt install chromium) and say make test again." >&2; exit 1; }

# Commands and code of models are run for real in the tests; where bubblewrap can be installed, it is.
sandbox:
	@command -v bwrap >/dev/null 2>&1 && exit 0; \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		echo "Installing bubblewrap for the tests of the sandbox." && \
		{ apt-get install -y -qq --no-install-recommends bubblewrap >/dev/null 2>&1 || \
			{ apt-get update -qq && apt-get install -y -qq --no-install-recommends bubblewrap >/dev/null; }; }; } || \
	{ echo "The tests of the sandbox need bubblewrap: install it (Debian: apt install bubblewrap) and try again." >&2; exit 1; }

# The tests of web_search ask a real searx; where Debian has it, it is installed, elsewhere they are skipped.
searx:
	@command -v searx-run >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		echo "Installing searx for the tests of web_search." && \
		{ apt-get install -y -qq --no-install-recommends searx >/dev/null 2>&1 || \
			{ apt-get update -qq && apt-get install -y -qq --no-install-recommends searx >/dev/null 2>&1; }; }; } || \
	echo "There is no searx here, so some tests of web_search are skipped (Debian 12: apt install searx)." >&2

define NEED_PYTHON
$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	{ echo "Atlas Agents needs Python 3.11 or newer, and $(PY) is not: say make PY=/path/to/python3." >&2; exit 1; }
endef

# The environment, exactly as locked; made again only when the lock or the project file has changed.
$(READY): requirements.lock pyproject.toml | $(UV)
	@$(NEED_PYTHON)
	$(UV) venv --quiet --allow-existing --python "$$($(PY) -c 'import sys; print(sys.executable)')" .venv
	$(UV) pip sync --quiet --python .venv --require-hashes requirements.lock
	$(UV) pip install --quiet --python .venv --no-deps --editable .
	@touch $@

# A Python without pip may still have one to put into a virtual environment.
.tools/bin/uv:
	@$(NEED_PYTHON)
	@pip="$(PY) -m pip"; \
	$$pip --version >/dev/null 2>&1 || { $(PY) -m venv .tools/pip >/dev/null 2>&1 && pip=.tools/pip/bin/pip; } || \
		{ echo "No pip and no venv in $(PY): install either (Debian: apt install python3-venv) or uv itself." >&2; exit 1; }; \
	$$pip install --quiet --disable-pip-version-check --no-warn-script-location --upgrade --target .tools uv==0.13.7
