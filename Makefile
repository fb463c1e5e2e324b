# Every target sets itself up on a bare Debian 12 (root; git, make, python3 there), says what it does, and is quiet
# about what went well.
SUITE ?= bookworm
ARGS ?=
# A node mostly waits, so that two cores bear three tests at a time.
WORKERS ?= 3
QUICK = tests/test_linters.py tests/test_floors.py tests/test_complexity.py tests/test_types.py \
	tests/test_words.py \
	tests/unit tests/service tests/engine tests/stories

.DEFAULT_GOAL := help
.PHONY: help demo check test test-vm test-gpu lint bench deb node-shell vm soak clean set-up-check set-up-node set-up-test set-up-vm

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: set-up-node ## a GPU node boots without the gate and with it, and the difference is shown
	@tests/node/tree.py bookworm
	@python3 tests/node/demo.py $(ARGS)

check: set-up-check ## the inner loop, in a minute and without root: layout, lint, types, unit, service, quick stories
	@.venv/bin/pytest -q -rfE -m "not exhaustive" --timeout=300 --numprocesses=2 $(QUICK) $(ARGS)

test: set-up-test ## every test but those of whole machines and of a real GPU; ARGS="-k name" for some
	@tests/node/tree.py bookworm trixie
	@.venv/bin/pytest -m "not gpu and not vm" --timeout=900 --numprocesses=$(WORKERS) $(ARGS)

test-vm: set-up-test set-up-vm ## whole machines, emulated, boot and live through it: ten minutes and more
	@.venv/bin/pytest -m vm --timeout=1200 $(ARGS) tests/vm

test-gpu: set-up-test ## on a machine with a GPU and its driver: the probe beside nvidia-smi
	@.venv/bin/pytest -m gpu --timeout=600 $(ARGS) tests/gpu

lint: set-up-test ## ruff on the whole tree, mypy, shellcheck, systemd-analyze verify, lintian
	@CI=true .venv/bin/pytest -q tests/test_linters.py tests/test_units.py tests/test_package.py $(ARGS)

bench: set-up-test ## what it costs, beside a polling loop and a fixed sleep
	@tests/node/tree.py bookworm
	@.venv/bin/python tests/bench/run.py $(ARGS)

deb: set-up-node ## the Debian package, below .cache/deb
	@packaging/deb/build

node-shell: set-up-node ## a shell on a node with the package and the stand-ins; SUITE=trixie for systemd 257
	@tests/node/shell.py $(SUITE)

vm: set-up-node set-up-vm ## such a machine on this terminal; ARGS= more words for its kernel
	@tests/vm/shell.py $(ARGS)

soak: set-up-test ## the stories, over and over, for SOAK_SECONDS (600 unless given)
	@SOAK_SECONDS=$${SOAK_SECONDS:-600} .venv/bin/pytest tests/stories --timeout=0 $(ARGS)

clean: ## removes all that the targets made, nodes of dead runs included
	@tests/node/remains.py clean-all
	@rm -rf .cache .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +

set-up-check:
	@[ "$$(id -u)" != 0 ] || tests/tools/setup check
	@tests/tools/venv

set-up-node:
	@tests/tools/setup node

set-up-test:
	@tests/tools/setup node test
	@tests/tools/venv

set-up-vm:
	@tests/tools/setup vm
