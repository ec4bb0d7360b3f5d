SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --warn-undefined-variables
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Looked up only when an environment has to be made.
PYTHON ?= $(shell python3.11 --version >/dev/null 2>&1 && echo python3.11 || echo python3)
# Passed on by `make demo`, `make test` and others: make test ARGS='-x -k codec'
ARGS ?=
# Which rows `make bench` runs: make bench ROWS=echo
ROWS ?=
# Looked up only when containers are started.
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

BIN := .venv/bin
READY := .venv/.ready
DOCS_READY := .venv/.docs
PROTO_READY := .venv-proto/.ready
SUITE_READY := .venv/.torch-suite
TORCHREC_READY := .venv-torchrec/.ready
RAY_READY := .venv-ray/.ready
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: help
help:  ## Say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY)  ## Make .venv with everything that runs, tests and checks the project
	@echo ".venv is ready"

.PHONY: demo
demo: $(READY)  ## Train on handwritten digits against a parameter server (ARGS=...)
	@exec $(BIN)/python -m examples.digits $(ARGS)

.PHONY: recommender
recommender: $(READY)  ## Train a DLRM with tables over two owners, beside local torch (ARGS=...)
	@exec $(BIN)/python -m examples.recommender $(ARGS)

.PHONY: recommender-on-ray
recommender-on-ray: $(RAY_READY)  ## Train the same on a Ray cluster of three machines, one of which is lost (ARGS=...)
	@exec .venv-ray/bin/python -m examples.recommender.on_ray $(ARGS)

.PHONY: token-vectors
token-vectors: $(READY)  ## Learn vectors of Python's identifiers in growing tables (ARGS=...)
	@exec $(BIN)/python -m examples.token_vectors $(ARGS)

.PHONY: docs
docs: $(DOCS_READY)  ## Make the site of the pages in out/docs, and check its links and its search
	@echo "== $@"
	@rm -rf out/docs
	@$(BIN)/python -m sphinx -q -W --keep-going -c docs/site -d out/docs-cache . out/docs
	@$(BIN)/python docs/site/check.py out/docs

# Bytecode is kept for the many processes that import the same, also where the environment asks for none.
.PHONY: test
test: $(READY)  ## Run the tests (ARGS=...)
	@echo "== $@"
	@PYTHONDONTWRITEBYTECODE= exec $(BIN)/pytest --numprocesses 5 --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: check
check: format-check lint types layers protos test  ## Run every check below and the tests

.PHONY: cluster
cluster:  ## Train in containers, two trainers on three owners, until Ctrl-C (see deploy/README.md)
	@cd deploy && $(COMPOSE) build directory && exec $(COMPOSE) up

.PHONY: browser-test
browser-test: $(READY)  ## Test the live page in Chromium (ARGS=...)
	@echo "== $@"
	@PYTHONDONTWRITEBYTECODE= exec $(BIN)/pytest -m browser $(ARGS) tests/ps_service/monitoring/chromium

.PHONY: cluster-test
cluster-test: $(READY)  ## Test a cluster of containers; fails where there is no Docker engine (ARGS=...)
	@echo "== $@"
	@exec $(BIN)/pytest -m cluster -s -o faulthandler_timeout=2100 $(ARGS) tests/cluster

.PHONY: crash-test
crash-test: $(READY)  ## Kill owners and trainers for five minutes, and look for what is lost (ARGS=...)
	@echo "== $@"
	@exec $(BIN)/python -m tests.crash $(ARGS)

.PHONY: fuzz
fuzz: $(READY)  ## Send an owner and its readers changed messages for five minutes, beside an innocent trainer (ARGS=...)
	@echo "== $@"
	@exec $(BIN)/python -m tests.fuzz $(ARGS)

.PHONY: attack
attack: $(READY)  ## Attack owners with tokens and certificates, and print what holds (ARGS=...)
	@echo "== $@"
	@exec $(BIN)/python -m tests.attack $(ARGS)

.PHONY: simulation
simulation: $(READY)  ## Try thousands of orders of what may happen to the keepers of a directory and to owners (ORDERS=...)
	@echo "== $@"
	@ORDERS=$(or $(ORDERS),1000) exec $(BIN)/pytest --numprocesses 2 $(ARGS) tests/ps_service/group/test_directory_simulation.py

.PHONY: torchrec-test
torchrec-test: $(TORCHREC_READY)  ## Run the tests beside TorchRec's own modules, in an environment with TorchRec (ARGS=...)
	@echo "== $@"
	@exec .venv-torchrec/bin/pytest $(ARGS) tests/torchrec

.PHONY: ray-test
ray-test: $(RAY_READY)  ## Run the tests of owners on Ray, with raylets as machines (ARGS=...)
	@echo "== $@"
	@exec .venv-ray/bin/pytest $(ARGS) tests/ray

.PHONY: torch-suite
torch-suite: $(SUITE_READY)  ## Run torch's own tests of its rpc on this project, and count (ARGS=...)
	@exec $(BIN)/python -m tests.torch_suite $(ARGS)

.PHONY: bench
bench: $(READY)  ## Measure against torch.distributed.rpc (ROWS=echo, ARGS=...)
	@exec $(BIN)/python -m benchmarks --rows '$(ROWS)' $(ARGS)

.PHONY: bench-scale
bench-scale: $(READY)  ## Measure how the cost of a step grows (ARGS=...)
	@exec $(BIN)/python -m benchmarks.scale $(ARGS)

.PHONY: bench-serving
bench-serving: $(READY)  ## Measure reads, exports that follow and look-ups in them (ARGS=...)
	@exec $(BIN)/python -m benchmarks.serving $(ARGS)

.PHONY: bench-peers
bench-peers: $(READY)  ## Measure against gRPC with pickle, Ray, TensorFlow and hivemind (ROWS=echo, ARGS=...)
	@exec $(BIN)/python -m benchmarks.peers --rows '$(ROWS)' $(ARGS)

.PHONY: format
format: $(READY)  ## Reformat the code and sort its imports
	@$(BIN)/ruff check --quiet --select I --fix .
	@$(BIN)/ruff format .

.PHONY: format-check
format-check: $(READY)  ## Check the format
	@echo "== $@"
	@$(BIN)/ruff format --check --output-format concise .

.PHONY: lint
lint: $(READY)  ## Check the code with ruff
	@echo "== $@"
	@$(BIN)/ruff check .

.PHONY: types
types: $(READY)  ## Check the types of the packages with mypy
	@echo "== $@"
	@$(BIN)/mypy

.PHONY: layers
layers: $(READY)  ## Check that imports only point down, and not in circles
	@echo "== $@"
	@$(BIN)/lint-imports --no-logo

.PHONY: protos
protos: $(PROTO_READY)  ## Check that the generated code is what the .proto files say
	@echo "== $@"
	@.venv-proto/bin/python proto/generate.py --check

.PHONY: proto
proto: $(PROTO_READY)  ## Generate the code of the .proto files anew
	@.venv-proto/bin/python proto/generate.py

.PHONY: pages
pages: $(READY)  ## Write the pages of docs that are generated from the code
	@$(BIN)/python docs/modules.py > docs/.page && mv docs/.page docs/modules.md
	@$(BIN)/python docs/options.py > docs/.page && mv docs/.page docs/options.md
	@$(BIN)/python docs/status.py > docs/.page && mv docs/.page docs/status.md
	@$(BIN)/python -m ps_service.functions > docs/.page && mv docs/.page docs/torch-functions.md

.PHONY: clean
clean:  ## Remove caches and builds; the environments stay
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are written last, so that an installation that failed half way is tried again.
$(READY): pyproject.toml constraints.txt
	@echo "Installing the project and its tools into .venv (a few minutes the first time)"
	@[[ -x $(BIN)/python ]] || $(PYTHON) -m venv .venv
	@$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e '.[server,compression,demo,test,dev]'
	@touch $@

$(DOCS_READY): pyproject.toml constraints.txt | $(READY)
	@echo "Installing Sphinx into .venv"
	@$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e '.[docs]'
	@touch $@

$(SUITE_READY): tests/torch_suite/requirements.txt | $(READY)
	@$(BIN)/python $(PIP_INSTALL) -r tests/torch_suite/requirements.txt
	@touch $@

# TorchRec asks for the build of FBGEMM for CUDA, gigabytes that would replace the one for the CPU: hence --no-deps.
$(TORCHREC_READY): pyproject.toml constraints.txt tests/torchrec/requirements.txt tests/torchrec/dependencies.txt
	@echo "Installing the project and TorchRec into .venv-torchrec"
	@[[ -x .venv-torchrec/bin/python ]] || $(PYTHON) -m venv .venv-torchrec
	@.venv-torchrec/bin/python $(PIP_INSTALL) -c constraints.txt -e '.[server,tables,test]' -r tests/torchrec/dependencies.txt
	@.venv-torchrec/bin/python $(PIP_INSTALL) --no-deps -r tests/torchrec/requirements.txt
	@touch $@

$(RAY_READY): pyproject.toml constraints.txt tests/ray/requirements.txt
	@echo "Installing the project and Ray into .venv-ray"
	@[[ -x .venv-ray/bin/python ]] || $(PYTHON) -m venv .venv-ray
	@.venv-ray/bin/python $(PIP_INSTALL) -c constraints.txt -e '.[server,tables,test,ray]' -r tests/ray/requirements.txt
	@touch $@

$(PROTO_READY): proto/requirements.txt
	@echo "Installing the protobuf compiler into .venv-proto"
	@[[ -x .venv-proto/bin/python ]] || $(PYTHON) -m venv .venv-proto
	@.venv-proto/bin/python $(PIP_INSTALL) -r proto/requirements.txt
	@touch $@
