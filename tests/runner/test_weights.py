"""Learners that do updates of their own lose none of them."""

import threading

import numpy as np
import pytest
import torch
from runs import config, hosted, run, size_of, stopped, worker

from kary_replay.algorithms import ALGORITHMS
from kary_replay.runner import ConfigError, Runner
from kary_replay.runner.backends.memory import OwnMemory, SharedMemory
from kary_replay.runner.flow import HostedFlow
from kary_replay.runner.streams import Checkpoint, WeightStream, weights
from kary_replay.runner.streams.weights import Weights, weights_of

N_WEIGHTS = 1_001


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch):
    """So few weights would be exchanged in one piece, as those of whole runs here are."""
    monkeypatch.setattr(weights, "LEAST_WEIGHTS", 50)


class Vectors:
    """Stands for an algorithm: two vectors that are trained, and a target."""

    def __init__(self):
        self.minimizers = {"a": Minimized(1_000), "b": Minimized(1)}
        self.targets = {"a": torch.zeros(2)}


class Minimized:
    """Stands for a minimizer."""

    def __init__(self, n):
        self.flat = torch.zeros(n)


def learners(n, medium=None, kind=Weights):
    """The algorithms of learners, and their ends of one stream."""
    stream = WeightStream(N_WEIGHTS, n)
    hosted = stream.host(medium or OwnMemory(), Checkpoint())
    first = hosted.sink()
    made = []
    for index in range(n):
        algorithm = Vectors()
        end = kind(stream, *first._memory, first._locks)
        assert end.share(index, "cpu").count == 1
        end.begin(algorithm)
        made.append((algorithm, end))
    return hosted, made


def add(algorithm, number):
    for vector in weights_of(algorithm).values():
        vector += number


def all_are(algorithm, number):
    return all((vector == number).all() for vector in weights_of(algorithm).values())


def test_changes_of_all_add_up():
    hosted, ((one, first), (two, second)) = learners(2)
    add(one, 1.0)
    first.exchange()
    assert all_are(one, 1.0) and all_are(two, 0.0)
    add(two, 2.0)
    second.exchange()
    assert all_are(two, 3.0) and all_are(one, 1.0)
    first.exchange()
    assert all_are(one, 3.0)
    assert hosted.figures() == {"updates_between": pytest.approx(2 / 3)}


def test_the_weights_at_the_beginning_are_those_of_the_first():
    _, ((one, first), (two, second)) = learners(2)
    for algorithm, end in ((one, first), (two, second)):
        add(algorithm, 5.0)
        end.begin(algorithm)
    add(two, 1.0)
    second.exchange()
    first.exchange()
    assert all_are(one, 6.0) and all_are(two, 6.0)


def test_target_networks_that_copy_the_same_weights_do_not_add_up():
    """Each learner's is its own; sums of both copies would be twice as far."""
    _, made = learners(2)
    for _ in range(3):
        for algorithm, _ in made:  # both updates are under way before either is exchanged
            add(algorithm, 1.0)
            algorithm.targets["a"].copy_(algorithm.minimizers["a"].flat[:2])
        for _, end in made:
            end.exchange()
    assert [algorithm.targets["a"].tolist() for algorithm, _ in made] == [[4.0, 4.0], [5.0, 5.0]]


def test_catching_up_is_no_update():
    """A checkpoint has what all have done, also where the first learner stands still."""
    hosted, ((one, first), (two, second)) = learners(2)
    add(two, 2.0)
    second.exchange()
    first.catch_up()
    assert all_are(one, 2.0) and hosted.figures() == {"updates_between": 0.0}
    add(one, 1.0)
    first.exchange()
    second.exchange()
    assert all_are(two, 3.0)


class WithoutLocks(Weights):
    """Takes a chunk, and puts it back a moment later."""

    def catch_up(self):
        changed = self._together() - self._before
        shared = self.shared.clone()
        threading.Event().wait(1e-4)
        self.shared.copy_(shared + changed)
        self._before = self.shared.clone()
        begin = 0
        for vector in self._own:
            vector.copy_(self._before[begin : begin + len(vector)])
            begin += len(vector)


@pytest.mark.parametrize(("kind", "loses"), [(Weights, False), (WithoutLocks, True)])
def test_no_change_is_lost_however_they_meet(kind, loses, run_threaded):
    """Whole numbers add up exactly; and a planted race is seen."""
    n, n_updates = 3, 100
    _, made = learners(n, SharedMemory(), kind)

    def learn(index):
        algorithm, end = made[index]
        for _ in range(n_updates):
            add(algorithm, 4.0**index)
            end.exchange()

    run_threaded(learn, n)
    expected = float(n_updates * sum(4**index for index in range(n)))
    assert bool((made[0][1].shared == expected).all()) != loses


def test_weights_are_all_that_is_trained():
    import gymnasium

    spaces = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    for name, cls in ALGORITHMS.items():
        is_continuous = name in ("ddpg", "td3", "sac")
        actions = spaces if is_continuous else gymnasium.spaces.Discrete(2)
        algorithm = cls(spaces, actions, cls.options_class(hidden=(4,)))
        assert weights_of(algorithm).keys() == set(algorithm.minimizers)


# -------------------------------------------------------------------------------------- whole runs

TWO = {"learners": 2, "optimization": "asynchronous", "backend": "process"}
ASYNCHRONOUS = {**TWO, "actors": 2}


@pytest.fixture
def closed(monkeypatch):
    """What flows say when they are closed: updates of each learner, of all, and their figures."""
    kept, close = [], HostedFlow.close

    def keep_and_close(flow):
        each = flow.board.column("learner", "updates").tolist()
        streams = {name: stream.figures() for name, stream in flow.streams.items()}
        kept.append((each, flow.board.updates, flow.board.env_steps, streams))
        close(flow)

    monkeypatch.setattr(HostedFlow, "close", keep_and_close)
    return kept


@pytest.mark.parametrize("algorithm", ["dqn", "sac", "ppo", "impala"])
def test_learners_that_do_not_wait_for_each_other(algorithm, closed, tmp_path):
    settings = dict(ASYNCHRONOUS)
    if ALGORITHMS[algorithm].learns_from == "rollouts":
        settings |= {"groups": 1, "max_staleness": 4}
    env = "Pendulum-v1" if algorithm == "sac" else "CartPole-v1"
    result = run(algorithm, env, tmp_path / "run", **settings, total_env_steps=4_000)
    ((each, updates, env_steps, streams),) = closed
    assert result.updates == updates == sum(each) and min(each) > 0
    figures = streams["experience"]
    if "groups" in settings:
        # each update is of 2 environments' 10 steps
        assert env_steps - 20 * updates - figures["dropped_steps"] in range(3 * 40)
        assert figures["max_staleness"] <= 4
    else:
        asked = {"dqn": 16.0, "sac": 32.0}[algorithm]  # by the presets of these tasks
        assert figures["samples_per_insert"] == pytest.approx(asked, rel=0.1)


def test_a_run_goes_on_with_all_its_updates(closed, tmp_path):
    directory = tmp_path / "run"
    runner = Runner(config("dqn", "CartPole-v1", directory, total_env_steps=10**7, **ASYNCHRONOUS))
    first = stopped(runner, lambda: size_of(directory / "episodes.jsonl") > 1000)
    assert first.interrupted and first.updates > 0
    total = first.env_steps + 1_000
    resumed = Runner.resume(directory, total_env_steps=total).run()
    assert resumed.updates > first.updates
    assert closed[1][1] == sum(closed[1][0]) == resumed.updates


def test_a_checkpoint_has_what_was_learned_while_the_first_learner_stood_still(tmp_path):
    settings = config("ppo", "CartPole-v1", tmp_path / "run", groups=1, max_staleness=2, **TWO)
    flow = hosted(settings, 2)
    first, second = (worker(flow, "learner", index) for index in range(2))
    kind, arguments = first.learning.__reduce__()  # as a process of its own has it
    first.learning = kind(*arguments)
    first.learning.share(0, "cpu")
    first.learning.begin(first.algorithm)
    actor = worker(flow, "actor", 1)
    for _ in range(3):
        while not second.work(0.0):
            assert actor.work(0.0)
    state = first.state_dict()
    saved = state["algorithm"]["minimizers"]["policy_and_value"]["parameters"]
    learned = second.algorithm.minimizers["policy_and_value"].flat
    assert state["updates"] == 3 and torch.equal(saved, learned.detach())
    flow.close()


REFUSED = [
    ("dqn", {"optimization": "hogwild"}, "optimization must be one of synchronous, asynchronous"),
    ("dqn", {"optimization": "asynchronous"}, "needs learners of at least 2"),
    ("dqn", {**ASYNCHRONOUS, "backend": "ray"}, "is for backend='process'"),
    ("ppo", {**ASYNCHRONOUS, "max_staleness": 1}, "needs max_staleness of at least 2, got 1"),
    (
        "impala",
        {**ASYNCHRONOUS, "max_staleness": 3, "options": {"envs_per_update": 2}},
        "learners=2 and updates from 2 of n_envs=4 .* needs max_staleness of at least 4, got 3",
    ),
    (
        "ppo",
        {**ASYNCHRONOUS, "max_staleness": 2, "options": {"batch_size": 40}},
        "batch_size=40 must divide the 20 rows .*: 20 would do",
    ),
]


@pytest.mark.parametrize(("algorithm", "settings", "message"), REFUSED)
def test_settings_without_meaning_are_refused(algorithm, settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        config(algorithm, "CartPole-v1", tmp_path / "run", **settings)


def test_learners_need_groups_of_their_own(tmp_path):
    settings = {**ASYNCHRONOUS, "learners": 4, "groups": 1, "max_staleness": 9}
    with pytest.raises(ConfigError, match="learners=4 must divide the groups of environments"):
        run("a2c", "CartPole-v1", tmp_path / "run", **settings, total_env_steps=100)
