# Every target makes what it needs: a virtual environment in .venv and the extras it runs with.
# An install happens once, and again only when pyproject.toml has changed.
# `make test ARGS="-k sample"` hands ARGS to pytest, and `make bench ARGS=...` to the benchmarks.

VENV ?= .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
EXCHANGE := .venv-exchange
LEROBOT := .venv-lerobot
ADAPTERS := .venv-adapters
ARCHIVE := .venv-archive
RAY := .venv-ray
DOCS := .venv-docs
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)

# Without its bytecode each of the hundreds of processes that the tests start compiles the package
# again, and each worker rewrites the asserts of every test.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test quick test-deep test-adapters test-exchange test-lerobot test-archive \
    test-browser test-distributed examples \
    dist test-versions learning docs crash lint format types bench bench-peers clean
.NOTPARALLEL:  # two pips in one environment break it

help:
	@echo 'make demo       record 20,000 steps of Breakout, verify them, sample from them; the film of the best episode, the page'
	@echo 'make test       run the tests'
	@echo 'make quick      run those of the engine and the oracle: half a minute'
	@echo 'make test-deep  run those that can look deeper, deeper: some minutes more'
	@echo 'make test-exchange  import and export with the libraries whose formats these are: 4 GB of packages'
	@echo 'make test-lerobot  the same with LeRobot, which wants older ones: 2 GB of packages'
	@echo 'make test-archive  push to object storage and pull: 0.3 GB of packages'
	@echo 'make test-browser  look at the page of `mmreplay view` in Chromium'
	@echo 'make test-adapters  run those of mmreplay.adapters: 2 GB of packages, two minutes'
	@echo 'make test-distributed  kill actors, receivers and nodes of Ray: 2 GB of packages, five minutes'
	@echo 'make examples   run the examples, shortly, with the packages of test-adapters: two minutes'
	@echo 'make learning   run those that learn, for an hour, and write examples/results'
	@echo 'make docs       build the site of the documents into build/site: 50 MB of packages'
	@echo 'make crash      try for long to lose or tear a row, and write tests/crash/results'
	@echo 'make dist       build what is published, and check it; make test-versions installs it'
	@echo '                with each Python from 3.11 that is found, and old and new dependencies'
	@echo 'make lint       check style and the order of rooms; make format repairs what can be repaired'
	@echo 'make types      check types (mypy)'
	@echo 'make bench      measure, and write benchmarks/results'
	@echo 'make bench-peers  measure other libraries beside it: 2.5 GB of packages, twenty minutes'
	@echo 'make clean      remove the environment, builds, caches and the demo'

# The page is served for an hour, apart from make, which ends: also where nobody presses Ctrl-C.
demo: $(VENV)/.extras-demo
	rm -rf demo
	mkdir demo
	$(BIN)/mmreplay record ALE/Breakout-v5 demo/breakout.zarr --steps 20000 --envs 8
	$(BIN)/mmreplay info demo/breakout.zarr
	$(BIN)/mmreplay verify demo/breakout.zarr
	$(BIN)/mmreplay bench demo/breakout.zarr
	@best=$$($(BIN)/mmreplay episodes demo/breakout.zarr --sort return --limit 1 | awk 'NR == 2 { print $$1 }'); \
	set -x; $(BIN)/mmreplay render demo/breakout.zarr --episode $$best --out demo/best.gif
	@timeout 1h $(BIN)/mmreplay view demo/breakout.zarr --no-browser </dev/null >demo/page.log 2>&1 & \
	echo $$! >demo/page.pid; \
	until grep -q '^http' demo/page.log; do \
	    kill -0 $$! 2>/dev/null || { cat demo/page.log >&2; exit 1; }; sleep 0.1; \
	done; \
	echo; \
	echo 'demo/best.gif is a film of the best episode. A page shows every step:'; \
	cat demo/page.log; \
	echo "It is served for an hour, or until: kill $$!"

# Built and checked as they are published: the workflow takes them from here.
dist: $(VENV)/.extras-dev
	rm -rf dist build *.egg-info
	$(BIN)/python -m build --installer uv --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

# With each Python that is found, or with PYTHONS=...; with the oldest dependencies that pyproject.toml
# allows and that have wheels for that Python, and with the newest. In a folder of its own, from which
# nothing finds the source tree.
test-versions: dist
	@set -eu; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; n=0; \
	uv=$$PWD/$(BIN)/uv; wheel=$$(echo $$PWD/dist/*.whl); program=$$PWD/tests/packaging/installed.py; \
	cp "$$program" pyproject.toml "$$folder"; cd "$$folder"; \
	pythons=$$(for v in 3.11 3.12 3.13 3.14; do \
	    for python in python$$v $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$v.*/bin/python; do \
	        ! $$python -c '' 2>/dev/null || { echo $$python; break; }; \
	    done; done); \
	for python in $(or $(PYTHONS),$$pythons); do for versions in lowest-direct highest; do \
	    echo "$$python, $$versions"; rm -rf venv; "$$uv" venv --quiet --python $$python venv; \
	    "$$uv" pip install --quiet --python venv/bin/python --only-binary :all: \
	        --resolution $$versions --requirement pyproject.toml --extra gymnasium; \
	    "$$uv" pip install --quiet --python venv/bin/python --no-deps "$$wheel"; \
	    venv/bin/python -I installed.py; n=$$((n + 1)); \
	done; done; \
	"$$uv" pip install --quiet --python venv/bin/python mypy pyright; \
	venv/bin/mypy --strict installed.py; \
	venv/bin/pyright --pythonpath venv/bin/python installed.py; \
	[ $$n -gt 0 ]; echo "$$n passed, 0 failed"

SIDE_BY_SIDE = -n $(WORKERS) --maxprocesses 8 --dist worksteal

test: $(VENV)/.extras-test
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

QUICK = $(addprefix tests/unit/, writing reading episode_index batches sampling storage format)
quick: $(VENV)/.extras-test
	$(BIN)/python -m pytest $(QUICK) tests/property/test_oracle.py -m 'not deep' $(SIDE_BY_SIDE) $(ARGS)

test-deep: $(VENV)/.extras-test
	MMREPLAY_EFFORT=deep $(BIN)/python -m pytest -m deep $(SIDE_BY_SIDE) $(ARGS)

# What needs the frameworks, and the pages that show them. JAX, which Grain imports, has threads: what
# forks runs in a process without it, and its page last. 5: ARGS chose no test of these.
WITH_JAX = tests/unit/adapters/test_grain.py tests/unit/adapters/test_jax.py
test-adapters: $(ADAPTERS)/.installed
	$(ADAPTERS)/bin/python -m pytest tests/unit/adapters \
	    $(addprefix --ignore=, $(WITH_JAX)) $(ARGS) || [ $$? = 5 ]
	$(ADAPTERS)/bin/python -m pytest \
	    $(patsubst %, "tests/docs/test_readme.py::test_blocks_of_a_document_run[docs/train/%.md]", \
	        pytorch gpu stable-baselines3 torchrl huggingface learning jax) \
	    $(WITH_JAX) $(ARGS) || [ $$? = 5 ]

# Short settings; what a training reaches is in docs/train/learning.md, and from `make learning`.
examples: $(ADAPTERS)/.installed
	$(ADAPTERS)/bin/python -m pytest tests/examples $(ARGS)

learning: $(ADAPTERS)/.installed
	$(ADAPTERS)/bin/python examples/learning.py $(ARGS)

test-exchange: $(EXCHANGE)/.installed
	$(EXCHANGE)/bin/python -m pytest tests/exchange $(SIDE_BY_SIDE) $(ARGS)

test-lerobot: $(LEROBOT)/.installed
	$(LEROBOT)/bin/python -m pytest tests/exchange $(SIDE_BY_SIDE) $(ARGS)

# With the document that shows it.
test-archive: $(ARCHIVE)/.installed
	$(ARCHIVE)/bin/python -m pytest tests/archive \
	    "tests/docs/test_readme.py::test_blocks_of_a_document_run[docs/archive.md]" \
	    $(SIDE_BY_SIDE) $(ARGS) || [ $$? = 5 ]

test-browser: $(VENV)/.extras-browser $(VENV)/.chromium
	MMREPLAY_BROWSER=1 $(BIN)/python -m pytest tests/browser $(ARGS)

# PyTorch and MinAtar are for examples/ape_x.py alone.
test-distributed: $(RAY)/.installed
	$(RAY)/bin/python -m pytest tests/distributed/ray tests/examples/test_ape_x.py $(ARGS)

# The notice of mkdocs-material about the next mkdocs says nothing about these documents.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	@echo 'The site is build/site/index.html'

THOROUGHLY = MMREPLAY_EFFORT=thorough MMREPLAY_RESULTS=tests/crash/results $(BIN)/python -m pytest \
    --timeout=0
# These take all processors themselves, or measure how long something takes.
ALONE = $(addprefix tests/crash/test_, simulator.py hostile.py concurrency.py long_run.py \
    kill_recording.py)

# What the first part finds, or a machine that is too slow for it, does not keep the second from it.
crash: $(VENV)/.extras-test
	@status=0; set -x; \
	$(THOROUGHLY) $(ALONE) || status=1; \
	$(THOROUGHLY) tests/crash $(addprefix --ignore=, $(ALONE)) \
	    $(SIDE_BY_SIDE) $(ARGS) || status=1; \
	exit $$status

lint: $(VENV)/.extras-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.room_budgets
	@! grep -rnE 'isinstance\(.*(Writer|Lane|Index|Reader)\b' $(ABOVE_STORAGE) || \
	    { echo 'make: there is one kind of lane; ask it for what you need (docs/design.md)' >&2; exit 1; }

# Rooms in which nobody asks what kind a lane, a reader or an index is.
ABOVE_STORAGE = $(filter-out mmreplay/storage/, $(wildcard mmreplay/*/)) mmreplay/*.py cli

format: $(VENV)/.extras-dev
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

types: $(VENV)/.extras-dev
	$(BIN)/mypy

bench: $(VENV)/.extras-test
	$(BIN)/python -m benchmarks $(ARGS)

bench-peers: $(PEERS)/.installed
	$(PEERS)/bin/python -m benchmarks.peers $(ARGS)

clean:
	rm -rf .venv $(PEERS) $(ADAPTERS) $(ARCHIVE) $(EXCHANGE) $(LEROBOT) $(RAY) $(DOCS) build dist demo
	rm -rf *.egg-info .hypothesis
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find mmreplay cli tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

comma := ,
# uv installs in a sixth of pip's time; pip follows where uv finds no packages, as behind a mirror
# that only pip was told of. The stamp of an extra that holds others sets theirs too: dev holds test,
# test holds demo's.
define install
	@echo "Installing mmreplay[$(1)] into $(VENV): up to a minute the first time"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[$(1)]' || \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(1)]'
	@touch $@ $(2)
endef

$(VENV)/.extras-demo: pyproject.toml | $(BIN)/uv
	$(call install,atari$(comma)pictures$(comma)view)

$(VENV)/.extras-test: pyproject.toml | $(BIN)/uv
	$(call install,test,$(VENV)/.extras-demo)

$(VENV)/.extras-dev: pyproject.toml | $(BIN)/uv
	$(call install,dev,$(VENV)/.extras-test $(VENV)/.extras-demo)

$(VENV)/.extras-browser: pyproject.toml | $(BIN)/uv
	$(call install,browser,$(VENV)/.extras-test $(VENV)/.extras-demo)

$(BIN)/uv: | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile uv

# The system's own: what Playwright would download is another one, of 500 MB.
$(VENV)/.chromium: | $(BIN)/python
	@if command -v chromium chromium-browser google-chrome >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo 'Installing chromium: about a minute'; \
	    { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } >/dev/null; \
	else echo 'make: test-browser needs Chromium: apt-get install chromium' >&2; exit 1; fi
	@touch $@

# torch alone and first, so that what is there of it is kept; d3rlpy without its dependencies, of
# which requirements.txt says why.
$(PEERS)/.installed: benchmarks/peers/requirements.txt pyproject.toml
	@$(MAKE) --no-print-directory VENV=$(PEERS) $(PEERS)/bin/python
	@echo "Installing other libraries into $(PEERS): some minutes"
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check \
	    $$(grep '^torch==' $<)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check \
	    --requirement $< --editable .
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps d3rlpy==2.8.1
	@touch $@

# As above: torch first, and without their dependencies those that ask for what is older.
$(EXCHANGE)/.installed: tests/exchange/requirements.txt pyproject.toml
	@$(MAKE) --no-print-directory VENV=$(EXCHANGE) $(EXCHANGE)/bin/python
	@echo "Installing the libraries of tests/exchange into $(EXCHANGE): about two minutes"
	$(EXCHANGE)/bin/python -m pip install --quiet --disable-pip-version-check \
	    $$(grep '^torch==' $<)
	$(EXCHANGE)/bin/python -m pip install --quiet --disable-pip-version-check \
	    --requirement $< --editable .
	$(EXCHANGE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    d3rlpy==2.8.1 dopamine-rl==4.1.2 ogbench==1.2.2
	@touch $@

# As above. One of its dependencies, draccus, installs its own tests as a package called `tests`,
# which hides ours.
$(LEROBOT)/.installed: tests/exchange/requirements-lerobot.txt pyproject.toml
	@$(MAKE) --no-print-directory VENV=$(LEROBOT) $(LEROBOT)/bin/python
	@echo "Installing LeRobot into $(LEROBOT): about a minute"
	$(LEROBOT)/bin/python -m pip install --quiet --disable-pip-version-check \
	    $$(grep '^torch==' $<)
	$(LEROBOT)/bin/python -m pip install --quiet --disable-pip-version-check \
	    --requirement $< --editable .
	$(LEROBOT)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    lerobot==0.4.4 torchvision==0.28.0
	rm -rf $(LEROBOT)/lib/python*/site-packages/tests
	@touch $@

# torch alone and first, as above.
$(ADAPTERS)/.installed: tests/unit/adapters/requirements.txt pyproject.toml
	@$(MAKE) --no-print-directory VENV=$(ADAPTERS) $(ADAPTERS)/bin/python
	@echo "Installing what mmreplay.adapters and examples/ need into $(ADAPTERS): two minutes"
	$(ADAPTERS)/bin/python -m pip install --quiet --disable-pip-version-check \
	    $$(grep '^torch==' $<)
	$(ADAPTERS)/bin/python -m pip install --quiet --disable-pip-version-check \
	    --requirement $< --editable '.[atari,pictures]'
	@touch $@

$(ARCHIVE)/.installed: tests/archive/requirements.txt pyproject.toml
	@$(MAKE) --no-print-directory VENV=$(ARCHIVE) $(ARCHIVE)/bin/python
	@echo "Installing obstore and a server of S3 into $(ARCHIVE): half a minute"
	$(ARCHIVE)/bin/python -m pip install --quiet --disable-pip-version-check \
	    --requirement $< --editable .
	@touch $@

$(RAY)/.installed: pyproject.toml
	@$(MAKE) --no-print-directory VENV=$(RAY) $(RAY)/bin/python
	@echo "Installing Ray and PyTorch into $(RAY): some minutes"
	$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[ray,test]' pandas pyarrow \
	    $$(grep -E '^(torch|minatar)==' tests/unit/adapters/requirements.txt)
	@touch $@

$(DOCS)/.installed: pyproject.toml
	@$(MAKE) --no-print-directory VENV=$(DOCS) $(DOCS)/bin/python
	@echo "Installing mkdocs-material into $(DOCS): half a minute"
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

# PYTHON=... chooses another interpreter than the first of these that is new enough.
$(BIN)/python:
	@set -e; python='$(PYTHON)'; \
	for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	    [ -z "$$python" ] || break; \
	    $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && python=$$name || true; \
	done; \
	[ -n "$$python" ] || { echo 'make: mmreplay needs Python 3.11 or newer, and found none on PATH' >&2; exit 1; }; \
	echo "Making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "make: '$$python -m venv' failed; on Debian and Ubuntu it needs: apt-get install python3-venv" >&2; exit 1; }
