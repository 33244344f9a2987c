"""What pytest-benchmark needs of bench.harness: options, the `compare` fixture, table and JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from bench.harness import campaign, grid, machine
from bench.harness.paths import RESULTS
from bench.harness.table import render
from bench.harness.timing import Bar, Contender, Record, interleave, interleave_windows
from bench.rivals import remote

SHORT_WINDOWS = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kary-replay benchmarks")
    group.addoption(
        "--full",
        action="store_true",
        help="every grid point: slots 1e4 … 1e7 × batch 32, 256, 4096",
    )
    group.addoption(
        "--short", action="store_true", help="few repetitions and short windows, for `make bench`"
    )
    group.addoption(
        "--rounds", type=int, help="repetitions of each comparison (default: 51, with --short 9)"
    )
    group.addoption(
        "--window",
        type=float,
        help="seconds of one window of the thread scenarios (0.5, with --short 0.1)",
    )
    group.addoption("--results", metavar="NAME", help="write bench/results/NAME.json")
    group.addoption("--enforce-bars", action="store_true", help="a missed bar fails its test")


class Session:
    """What the run has gathered so far."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.machine = machine.describe()
        self.neighbours = machine.Neighbours()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SESSION] = Session()
    short, smoke = config.option.short, config.getoption("benchmark_disable")
    config.option.rounds = config.option.rounds or (9 if short else 51)
    config.option.window = config.option.window or (0.01 if smoke else 0.1 if short else 0.5)


SESSION: pytest.StashKey[Session] = pytest.StashKey()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Fill in the grid: tests ask for `slots`, or `slots` and `batch`, and get what --full says."""
    full, smoke = (
        metafunc.config.getoption("--full"),
        metafunc.config.getoption("--benchmark-disable"),
    )
    names = metafunc.fixturenames
    if "batch" in names:
        points = grid.points(full, smoke)
        metafunc.parametrize(
            ("slots", "batch"), points, indirect=["slots"], scope="module", ids=grid.ids(points)
        )
    elif "slots" in names:
        slots = grid.slots(full, smoke)
        metafunc.parametrize(
            "slots", slots, indirect=True, scope="module", ids=[f"{n:.0e}" for n in slots]
        )


@pytest.fixture(scope="module")
def slots(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="session")
def short(request: pytest.FixtureRequest) -> bool:
    return request.config.getoption("--short")


@pytest.fixture(scope="session")
def smoke(request: pytest.FixtureRequest) -> bool:
    """Whether every call is made once, only to see that it works."""
    return request.config.getoption("--benchmark-disable")


@pytest.fixture
def one_core() -> Iterator[None]:
    """Keep this process on one core, and with it those that start meanwhile.

    A rival's libraries then find one core and start no threads for others, and whoever waits leaves
    the core to the one whose turn it is.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture(autouse=True)
def _seed() -> None:
    np.random.seed(0)  # the rivals draw from the global stream


class Compare:
    """What the `compare` fixture offers. One call per test."""

    def __init__(self, request: pytest.FixtureRequest, benchmark: Any) -> None:
        self._request = request
        self._benchmark = benchmark
        self._rounds: int = request.config.getoption("--rounds")
        self._short: bool = request.config.getoption("--short")

    def times(
        self,
        scenario: str,
        parameters: dict[str, Any],
        ours: Contender,
        rivals: Sequence[Contender],
        bars: Sequence[Bar] = (),
        notes: dict[str, str] | None = None,
        cold: bool = False,
    ) -> Record:
        """Seconds per operation, interleaved; `cold` is explained at `interleave`."""
        # single calls are short and scatter more
        rounds = 4 * self._rounds if cold else self._rounds
        record = interleave(self._benchmark, ours, rivals, rounds, cold)
        return self._name(record, scenario, parameters, bars, notes)

    def rates(
        self,
        scenario: str,
        parameters: dict[str, Any],
        ours: str,
        windows: dict[str, Callable[[], float]],
        bars: Sequence[Bar] = (),
        rounds: int = 7,
        unit: str = "1/s",
        watch: bool = True,
    ) -> Record:
        """Operations per second over fixed windows, interleaved."""
        rounds = min(rounds, max(SHORT_WINDOWS, rounds // 7)) if self._short else rounds
        record = interleave_windows(self._benchmark, ours, windows, rounds, watch)
        record.unit = unit
        return self._name(record, scenario, parameters, bars, None)

    def _name(
        self,
        record: Record,
        scenario: str,
        parameters: dict[str, Any],
        bars: Sequence[Bar],
        notes: dict[str, str] | None,
    ) -> Record:
        record.scenario, record.parameters = scenario, parameters
        record.notes = {**(notes or {}), **record.notes}
        record.add_bars(bars)
        return self.keep(record)

    def keep(self, record: Record) -> Record:
        """Hands a finished record to the table, to the JSON file and to pytest-benchmark's own."""
        self._benchmark.group = record.scenario
        self._benchmark.extra_info.update(
            parameters=record.parameters,
            medians=record.medians(),
            ratios=record.ratios(),
            ratio_quartiles=record.ratio_quartiles(),
            bars=record.bars,
        )
        self._request.config.stash[SESSION].records.append(record)
        save(self._request.config)
        if self._request.config.getoption("--enforce-bars"):
            missed = [
                f"{bar['text']}: reached {bar['reached']:.2f}"
                for bar in record.bars
                if not bar["met"]
            ]
            assert not missed, "; ".join(missed)
        return record


@pytest.fixture
def compare(request: pytest.FixtureRequest, benchmark: Any) -> Compare:
    return Compare(request, benchmark)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    records = config.stash[SESSION].records
    if not records:
        return
    terminalreporter.section("ours against the others (medians, interleaved)")
    terminalreporter.write_line(render(records))
    others = config.stash[SESSION].neighbours.cores_used()
    if others > 0.1:
        terminalreporter.write_line(
            f"\nOther processes used {others:.2f} cores meanwhile: "
            "the thread scenarios are not to be trusted."
        )


def save(config: pytest.Config) -> None:
    """Write the results so far, if they are wanted, so that an interrupt loses only the rest."""
    name, gathered = config.getoption("--results"), config.stash[SESSION]
    if not name:
        return
    gathered.machine["rivals"] = remote.status
    gathered.machine["cores_used_by_others"] = round(gathered.neighbours.cores_used(), 2)
    campaign.write(
        campaign.partial_of(RESULTS / f"{name}.json"),
        gathered.machine,
        list(map(asdict, gathered.records)),
    )


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Let the results take the place of earlier ones, if nothing failed."""
    name = session.config.getoption("--results")
    if name and session.config.stash[SESSION].records and exitstatus == pytest.ExitCode.OK:
        campaign.complete(RESULTS / f"{name}.json")
