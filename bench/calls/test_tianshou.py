"""Tianshou, its buffers against ours: a learner's two calls, updates, and whole training runs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("kary_replay.adapters.tianshou")

from bench.harness.timing import Bar
from bench.rivals.tianshou_prioritized import OURS, STOCK, build, cycle
from bench.rivals.tianshou_training import SETTINGS, Training

CYCLE_BAR, ATARI_BAR, TRAINING_BAR = 3.0, 2.0, 1.1
POINTS = [
    ("HalfCheetah", 1_000_000, 256),
    ("HalfCheetah, 10 environments", 20_000, 64),
    ("Atari 4×84×84", 20_000, 32),
    ("Atari 4×84×84, stack_num=4", 20_000, 32),
]
MORE_POINTS = [
    ("HalfCheetah", 100_000, 256),
    ("HalfCheetah", 1_000_000, 32),
    ("Atari 4×84×84", 20_000, 256),
]
SHORT_POINTS = [
    (kind, min(slots, 100_000 if kind == "HalfCheetah" else 5_000), batch)
    for kind, slots, batch in POINTS
]
SMOKE_POINTS = [(kind, 1_000, batch) for kind, _, batch in POINTS]
# transitions in the buffer when a training run is timed: the examples' smallest buffer, full; what
# the short form has time for
FILLED, SHORT_FILLED, SMOKE_FILLED = 20_000, 5_000, 1_000
WINDOW = 2  # training windows are this many times longer than those of the threads


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "buffers" in metafunc.fixturenames:
        points = POINTS + (MORE_POINTS if metafunc.config.getoption("--full") else [])
        points = SHORT_POINTS if metafunc.config.getoption("--short") else points
        points = SMOKE_POINTS if metafunc.config.getoption("--benchmark-disable") else points
        ids = [
            f"{kind.replace(' ', '_')}-{slots:.0e}-{batch}".replace("+0", "")
            for kind, slots, batch in points
        ]
        metafunc.parametrize(
            ("buffers", "drawn"), [(p[:2], p[2]) for p in points], indirect=["buffers"], ids=ids
        )


@pytest.fixture
def buffers(request: pytest.FixtureRequest) -> Iterator[tuple[str, int, Any, Any]]:
    kind, slots = request.param
    yield kind, slots, build(kind, slots, ours=True), build(kind, slots, ours=False)
    gc.collect()


def test_cycle(compare, buffers, drawn):
    kind, slots, ours, stock = buffers
    parameters = {"rows": kind, "slots": slots, "batch": drawn}
    contenders = [
        cycle(buffer, slots, drawn, name) for buffer, name in ((ours, OURS), (stock, STOCK))
    ]
    bars = [Bar((STOCK,), ATARI_BAR if kind.startswith("Atari") else CYCLE_BAR)]
    compare.times(
        "Tianshou: sample + update_weight", parameters, contenders[0], contenders[1:], bars
    )


@pytest.fixture(scope="module", params=SETTINGS)
def runs(
    request: pytest.FixtureRequest, short: bool, smoke: bool
) -> Iterator[tuple[str, dict[str, Training]]]:
    torch.set_num_threads(1)
    filled = SMOKE_FILLED if smoke else SHORT_FILLED if short else FILLED
    yield (
        request.param,
        {
            OURS: Training(request.param, True, filled),
            STOCK: Training(request.param, False, filled),
        },
    )
    gc.collect()


def windows(
    trainings: dict[str, Training], measure: str, unit: int, seconds: float
) -> dict[str, Callable[[], float]]:
    """One window per buffer, about `seconds` long: environment steps, or updates, per second."""
    result = {}
    for name, training in trainings.items():
        rate = getattr(training, measure)
        n = max(1, round(rate(20 * unit) * seconds / unit)) * unit
        result[name] = lambda rate=rate, n=n: rate(n)
    return result


def test_updates(compare, request, runs):
    """For context: what an update gains, networks included, without environments or trainer."""
    name, trainings = runs
    measured = windows(trainings, "update", 1, WINDOW / 2 * request.config.getoption("--window"))
    compare.rates("Tianshou: updates", {"run": name}, OURS, measured, unit="updates/s")


def test_training(compare, request, runs):
    """The bar: environment steps per second of Tianshou's own trainer, with all that it does."""
    name, trainings = runs
    unit = SETTINGS[name].steps_per_collect
    measured = windows(trainings, "train", unit, WINDOW * request.config.getoption("--window"))
    compare.rates(
        "Tianshou: training",
        {"run": name},
        OURS,
        measured,
        [Bar((STOCK,), TRAINING_BAR)],
        unit="steps/s",
    )
