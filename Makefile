# `make run` and `make test` need Python >= 3.11 with its headers, a C++ compiler and make; they set
# up the rest in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--constraint constraints.txt
SOURCES := $(wildcard $(foreach suffix,pyx pxd hpp,kary_replay/core/*.$(suffix) \
	kary_replay/native/*.$(suffix)))

# `make wheel` builds a wheel for each version of these that is there.
WHEEL_PYTHONS ?= $(PYTHON) python3.10 python3.11 python3.12 python3.13 \
	$(wildcard $(HOME)/.pyenv/versions/3.*/bin/python3)

.PHONY: run test test-quick test-core test-ray test-rllib stress sanitize bench bench-full bench-smoke rivals \
	rivals-try solves solves-nightly learning docs wheel lint format clean

run: $(VENV)/recipes-installed $(VENV)/compiled
	$(BIN)/python docs/recipes/two_ways.py

# ------------------------------------------------------------------------------------------- tests

# A worker for each core; a worker that has nothing left to do takes tests from the others.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist worksteal

test: $(VENV)/built
	$(PYTEST)

# What to run at a desk after each change: less than a minute on two cores.
test-quick: $(VENV)/built
	HYPOTHESIS_PROFILE=quick $(PYTEST) \
		tests/unit tests/property tests/golden tests/test_architecture.py

# The tests that need NumPy alone, with the wheel that `make wheel` built for this Python. They run
# in another folder, because in this one the sources would be imported.
CORE := $(addprefix $(CURDIR)/tests/, \
	unit property golden statistical concurrency release test_architecture.py)
test-core:
	$(PYTHON) -m venv --clear build/core
	build/core/bin/python -m pip install --quiet "hypothesis>=6.100" "pytest>=8" \
		$$(build/core/bin/python -c \
			'import sys; print("dist/*-cp%d%d-*.whl" % sys.version_info[:2])')
	cd build/core && bin/pytest -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) $(CORE)

# What can happen to a cluster, twenty times each, and Ray Tune; half an hour on two cores. `make
# test` has the short form.
test-ray: $(VENV)/built .venv-rivals/rllib/installed
	RAY_REPETITIONS=20 .venv-rivals/rllib/bin/python -m pytest tests/cluster

# The adapter for RLlib beside the very versions that RLlib asks for, and its tuned examples. `make
# test` has the former, with the versions that everybody else asks for.
test-rllib: $(VENV)/built .venv-rivals/rllib/installed
	RLLIB_EXAMPLES=1 .venv-rivals/rllib/bin/python -m pytest tests/rllib

# ------------------------------------------------------------------------------------------ set-up

# The set-up fetches torch while the compiler works. Several targets in one command are still made
# one after another.
ifeq ($(filter-out 0 1,$(words $(MAKECMDGOALS))),)
MAKEFLAGS += --jobs=2
endif

TOO_OLD = $(PYTHON) is older than Python 3.11, which Tianshou needs
NAME_ANOTHER = name another Python: make PYTHON=python3.12 ...

$(VENV)/tools-installed:
	@command -v $(PYTHON) > /dev/null || \
		{ echo "there is no $(PYTHON) here; $(NAME_ANOTHER)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(TOO_OLD); $(NAME_ANOTHER)"; exit 1; }
	$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(PIP_INSTALL) --upgrade "setuptools>=77" wheel "Cython>=3.1" "numpy>=2.0"
	touch $@

# Torch comes by itself, so that no other package may choose another build of it.
$(VENV)/torch-installed: constraints.txt | $(VENV)/tools-installed
	$(PIP_INSTALL) torch
	touch $@

$(VENV)/compiled: setup.py $(SOURCES) | $(VENV)/tools-installed
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

# The package is installed after it was compiled, so that pip does not compile it again.
$(VENV)/%-installed: pyproject.toml constraints.txt | $(VENV)/torch-installed $(VENV)/compiled
	$(PIP_INSTALL) --no-build-isolation --editable ".[$*]"
	touch $@

$(VENV)/built: $(VENV)/dev-installed $(VENV)/compiled
	touch $@

# --------------------------------------------------------------------------------------- long runs

STRESS = tests/concurrency/stress.py

stress: $(VENV)/built
	$(BIN)/python $(STRESS) --operations 1e7
	$(BIN)/python tests/concurrency/stress_processes.py --transitions 1e7 --kills 1000
	$(BIN)/python tests/concurrency/kill_points.py --each 7
	$(BIN)/python tests/concurrency/stress_saves.py --kills 150
	$(BIN)/python tests/runner/kill_workers.py --kills 50
	$(BIN)/python tests/runner/kill_workers.py --kills 50 --kind policy_worker

sanitize: $(VENV)/built
	PYTHON=$(BIN)/python tests/concurrency/sanitize.sh thread $(STRESS) --operations 1e6
	PYTHON=$(BIN)/python tests/concurrency/sanitize.sh address $(STRESS) --operations 1e6
	PYTHON=$(BIN)/python tests/concurrency/sanitize.sh address -m pytest -q \
		tests/algorithms/test_native.py

# Every part in its short form, less than a quarter of an hour on two cores. Results and pages are
# in bench/results/short/.
bench: $(VENV)/built rivals-try
	$(BIN)/python -m bench

# Do the benchmarks still run? Every call once, on small buffers.
bench-smoke: $(VENV)/built
	$(BIN)/python -m pytest bench --benchmark-disable -q

# Every part in its long form, which takes hours. Results are in bench/results/, pages in docs/.
# PARTS="buffers scaling" picks some parts, RESUME=1 goes on with runs that were cut off.
bench-full: $(VENV)/built rivals-try
	$(if $(filter convergence,$(or $(PARTS),convergence)),$(BOX2D))
	$(BIN)/python -m bench --full $(if $(PARTS),--parts $(PARTS)) $(if $(RESUME),--resume)

# Rivals whose requirements clash have environments of their own, which share torch and NumPy with
# the main one.
RIVALS := rllib torchrl sbx reverb sample_factory
BOX2D = $(PIP_INSTALL) "gymnasium[box2d]>=1.0"  # for LunarLander

rivals: $(RIVALS:%=.venv-rivals/%/installed)

# Without a network, or without a wheel for this Python, the rest is measured all the same, and the
# pages say which rival is missing.
rivals-try: $(VENV)/built
	-@$(MAKE) --no-print-directory --keep-going rivals

PURELIB := import sysconfig; print(sysconfig.get_path("purelib"))
.venv-rivals/%/installed: bench/rivals/requirements-%.txt $(VENV)/built
	test -x $(@D)/bin/python || $(BIN)/python -m venv --without-pip $(@D)
	main=$$($(BIN)/python -c '$(PURELIB)') && its_own=$$($(@D)/bin/python -c '$(PURELIB)') && \
		echo "import site; site.addsitedir('$$main')" > $$its_own/main.pth
	$(BIN)/python -m pip --python $(@D)/bin/python install --quiet \
		$(if $(filter reverb sample_factory,$*),,--constraint constraints.txt) --requirement $<
	touch $@

# Do the presets solve their tasks? It takes minutes; the nightly one takes longer than the others
# together.
solves: $(VENV)/built
	$(BOX2D)
	$(BIN)/python -m bench.runs.solves

solves-nightly: $(VENV)/built
	$(BIN)/python -m bench.runs.solves --tasks sac_halfcheetah ppo_halfcheetah --seeds 1

# Every task of bench/runs/learning/tasks.py, seed by seed. It goes on with the runs that are
# missing. With MINUTES=60 none of its three campaigns begins a run after an hour.
LEARNING := cartpole acrobot mountaincar lunarlander pendulum pendulum_td3 frozenlake doorkey \
	breakout bits lunarlander_gentle
CURVES := $(BIN)/python -m bench.runs.learning.curves
LIMIT := $(if $(MINUTES),--minutes $(MINUTES))
CLIFFWALK := bench/results/learning/cliffwalk.json

learning: $(VENV)/learning-installed $(CLIFFWALK)
	$(CURVES) $(LEARNING) --seeds 10 $(LIMIT)
	$(CURVES) lunarlander --seeds 5 --buffers "prioritized, in plain Python" $(LIMIT)
	$(CURVES) $(LEARNING) --seeds 5 --buffers "uniform, n = 3" "where it pays, n = 3" $(LIMIT)
	$(BIN)/python -m bench.runs.learning.report

$(CLIFFWALK): | $(VENV)/built
	$(BIN)/python -m bench.runs.learning.cliffwalk

# -------------------------------------------------------------------------------------- to release

wheel: $(VENV)/built
	$(BIN)/python tests/release/wheels.py $(WHEEL_PYTHONS)

# ----------------------------------------------------------------------------------- documentation

docs: $(VENV)/built
	$(BIN)/python -m sphinx -W --keep-going -n -q docs build/docs
	@echo "the documentation is in build/docs/index.html"

# ---------------------------------------------------------------------------------------- the code

lint: export PATH := $(CURDIR)/$(BIN):$(PATH)
lint: $(VENV)/built
	ruff check .
	ruff format --check .
	cython-lint kary_replay
	mypy
	lint-imports

format: $(VENV)/built
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-rivals build dist *.egg-info kary_replay/*/*.so
