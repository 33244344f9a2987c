# `make run` and `make test` need Python >= 3.11 with its headers, a C++ compiler and make; they set
# up the rest in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(wildcard kary_replay/core/*.pyx kary_replay/core/*.pxd kary_replay/core/*.hpp)

# wheels are built for those of these that are there, one for each version
WHEEL_PYTHONS ?= $(PYTHON) python3.10 python3.11 python3.12 python3.13 $(wildcard $(HOME)/.pyenv/versions/3.*/bin/python3)

.PHONY: run test test-core stress sanitize bench bench-full bench-smoke rivals rivals-try solves solves-nightly learning \
	docs wheel lint format clean

run: $(VENV)/built
	$(BIN)/python docs/recipes/two_ways.py

test: $(VENV)/built
	$(BIN)/python -m pytest

# what NumPy alone is enough for, with the wheel that `make wheel` built for this Python; not in
# this folder, or the sources would be imported
CORE := $(addprefix $(CURDIR)/tests/,unit property golden statistical concurrency release test_architecture.py)
test-core:
	$(PYTHON) -m venv --clear build/core
	build/core/bin/python -m pip install --quiet "hypothesis>=6.100" "pytest>=8" \
		$$(build/core/bin/python -c 'import sys; print("dist/*-cp%d%d-*.whl" % sys.version_info[:2])')
	cd build/core && bin/pytest -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) $(CORE)

# ------------------------------------------------------------------------------------------- set-up

$(VENV)/installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) > /dev/null || { echo "there is no $(PYTHON) here; name a Python: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11, which Tianshou needs; name a newer one: make PYTHON=python3.12 ..."; exit 1; }
	$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "setuptools>=77" wheel "Cython>=3.1" "numpy>=2.0"
	# torch first and by itself, so that nothing else may choose another build of it
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	touch $(VENV)/compiled
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable ".[dev]"
	touch $@

# once after an installation, which has compiled every source that was not changed since it began,
# there is nothing to do
$(VENV)/built: $(VENV)/installed setup.py $(SOURCES)
	if test -e $(VENV)/compiled && test -z "$$(find setup.py $(SOURCES) -newer $(VENV)/compiled)"; \
		then rm $(VENV)/compiled; else $(BIN)/python setup.py --quiet build_ext --inplace; fi
	touch $@

# ---------------------------------------------------------------------------------------- long runs

stress: $(VENV)/built
	$(BIN)/python tests/concurrency/stress.py --operations 1e7
	$(BIN)/python tests/concurrency/stress_processes.py --transitions 1e7 --kills 1000
	$(BIN)/python tests/concurrency/kill_points.py --each 7
	$(BIN)/python tests/concurrency/stress_saves.py --kills 150
	$(BIN)/python tests/runner/kill_actors.py --kills 50

sanitize: $(VENV)/built
	PYTHON=$(BIN)/python tests/concurrency/sanitize.sh thread --operations 1e6
	PYTHON=$(BIN)/python tests/concurrency/sanitize.sh address --operations 1e6

# every part in its short form, under a quarter of an hour on two cores; results and pages in
# bench/results/short/
bench: $(VENV)/built rivals-try
	$(BIN)/python -m bench

# every call of the benchmarks once, on small buffers: do they still run?
bench-smoke: $(VENV)/built
	$(BIN)/python -m pytest bench --benchmark-disable -q

# every part in its long form, hours; results in bench/results/, pages in docs/. PARTS="buffers
# scaling" picks some, RESUME=1 goes on
bench-full: $(VENV)/built rivals-try
	$(if $(filter convergence,$(or $(PARTS),convergence)),$(BOX2D))
	$(BIN)/python -m bench --full $(if $(PARTS),--parts $(PARTS)) $(if $(RESUME),--resume)

# environments of their own for rivals whose requirements clash; they share torch and numpy with the
# main one
RIVALS := rllib torchrl
BOX2D = $(BIN)/python -m pip install --quiet --constraint constraints.txt "gymnasium[box2d]>=1.0"  # for LunarLander

rivals: $(RIVALS:%=.venv-rivals/%/installed)

# without network, or without a wheel for this Python, the rest is measured all the same, and the
# pages say who is missing
rivals-try: $(VENV)/installed
	-@$(MAKE) --no-print-directory --keep-going rivals

.venv-rivals/%/installed: bench/rivals/requirements-%.txt $(VENV)/installed
	test -x $(@D)/bin/python || $(BIN)/python -m venv --without-pip $(@D)
	site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
		echo "import site; site.addsitedir('$$site')" > $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/main.pth
	$(BIN)/python -m pip --python $(@D)/bin/python install --quiet --constraint constraints.txt --requirement $<
	touch $@

# do the presets solve their tasks? minutes; the nightly one takes longer than these together
solves: $(VENV)/built
	$(BOX2D)
	$(BIN)/python -m bench.solves

solves-nightly: $(VENV)/built
	$(BIN)/python -m bench.solves --tasks sac_halfcheetah --seeds 1

LEARNING := cartpole pendulum lunarlander lunarlander_gentle

learning: $(VENV)/built
	$(BIN)/python -m pip install --quiet --constraint constraints.txt ".[learning]"
	$(BIN)/python -m bench.learning.cliffwalk
	for task in $(LEARNING); do $(BIN)/python -m bench.learning.curves $$task || exit 1; done
	$(BIN)/python -m bench.learning.curves lunarlander --buffers "prioritized, in plain Python"
	$(BIN)/python -m bench.learning.report

# --------------------------------------------------------------------------------------- to release

wheel: $(VENV)/built
	$(BIN)/python tests/release/wheels.py $(WHEEL_PYTHONS)

# ------------------------------------------------------------------------------------ documentation

docs: $(VENV)/built
	$(BIN)/python -m sphinx -W --keep-going -n -q docs build/docs
	@echo "the documentation is in build/docs/index.html"

# ----------------------------------------------------------------------------------------- the code

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
	rm -rf $(VENV) .venv-rivals build dist *.egg-info kary_replay/core/*.so
