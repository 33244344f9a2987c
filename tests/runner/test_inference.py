"""Actions by policy workers are those of actors that compute them themselves."""

import json
import threading

import audit
import gymnasium
import kill_workers
import numpy as np
import pytest
import torch
from rich.console import Console
from runs import config, hosted, parameters, run, same, worker

from kary_replay.algorithms import ALGORITHMS
from kary_replay.fields import fields_of_space
from kary_replay.runner import ConfigError, Runner
from kary_replay.runner.backends import Supervisor
from kary_replay.runner.backends.memory import OwnMemory, SharedMemory
from kary_replay.runner.environments.env_factory import env_factory
from kary_replay.runner.flow import HostedFlow
from kary_replay.runner.streams import Checkpoint, InferenceStream, Part
from kary_replay.runner.streams import parameters as published

CONTINUOUS = "ddpg", "td3", "sac"
SPACE = gymnasium.spaces.Dict(
    {
        "camera": gymnasium.spaces.Box(0, 255, (2, 2), np.uint8),
        "place": gymnasium.spaces.Box(-9, 9, (1,), np.float32),
    }
)


class Decides:
    """Stands for an algorithm: the outputs are the actions."""

    def decide(self, outputs, exploration, rng):
        return {"action": outputs, "exploration": exploration}


class Seat:
    """Stands for an actor's seat."""

    def __init__(self, index, groups):
        self.index, self.config = index, type("Config", (), {"groups": groups})


def stream(n_actors=2, groups=2, n_envs=3, n_workers=1, medium=None):
    """A hosted stream, and the clients of all actors."""
    observation = fields_of_space(SPACE, "observation")
    described = InferenceStream(observation, 2, n_envs, n_actors * groups, n_workers)
    hosted = described.host(medium or OwnMemory(), Checkpoint())
    clients = [
        hosted.sink().client(Seat(index, groups), Decides(), None) for index in range(n_actors)
    ]
    return hosted, clients


def seen(value, n=3):
    camera = np.full((n, 2, 2), value, np.uint8)
    return {"camera": camera, "place": np.full((n, 1), value, np.float32)}


def answer(source, number=0, updates=7):
    """Answer as a policy worker does whose networks double what they see; the groups."""
    groups, observation, state = source.gather(number, 0.0)
    if groups:
        place = observation["place"]
        assert (observation["camera"][:, 0, 0] == place[:, 0]).all()
        source.answer(number, groups, np.concatenate([place, 2 * place], 1), state + 1, updates)
    return groups


def explored(n=3):
    return np.arange(n, dtype=np.float32)


class Underway:
    """Stands for parameters that have been published, and are being written whenever one looks."""

    def __init__(self, looks):
        self.version, self.looks, self.vector = 1, looks, np.zeros(0, np.float32)

    def newest(self):
        self.looks -= 1
        return None if self.looks >= 0 else (self.vector, 7)


@pytest.mark.parametrize(("looks", "seconds", "updates"), [(0, 0.0, 7), (3, 1e9, 7), (99, 0.0, 0)])
def test_who_comes_later_does_not_act_by_weights_of_its_own(looks, seconds, updates, monkeypatch):
    """It waits while the first parameters that it sees are being written, but not for ever."""
    monkeypatch.setattr(published, "FIRST_SECONDS", seconds)
    spaces = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)
    algorithm = ALGORITHMS["ppo"](*spaces, ALGORITHMS["ppo"].options_class(hidden=(4,)))
    vectors = published.published(algorithm, False)
    parameters = Underway(looks)
    parameters.vector = published.as_vector(vectors) + 1
    newest = published.Newest(algorithm, parameters, False, (0,))
    assert newest.take_up() == updates
    assert (published.as_vector(vectors) == parameters.vector).all() == (updates == 7)
    parameters.version, parameters.looks = 2, 1
    if updates:  # it has some by now
        assert newest.take_up() == 7 and parameters.looks == 0


def test_noise_is_another_one_for_each_actor_and_each_newer_parameters(tmp_path):
    settings = config("dqn", "CartPole-v1", tmp_path / "run", {"noisy": True}, actors=2)
    flow = hosted(settings, n_actors=2)
    learner, *actors = [worker(flow, "learner"), *(worker(flow, "actor", i) for i in range(2))]

    def noises():
        return [
            (actor.inference._newest.take_up(), actor.algorithm.acting_noise.clone())[1]
            for actor in actors
        ]

    seen = noises()
    learner.row.updates = 1
    learner.publish()
    seen += noises()
    assert len({tuple(noise.tolist()) for noise in seen}) == 4
    again = worker(flow, "actor", 1)
    again.inference._newest.take_up()
    assert torch.equal(again.algorithm.acting_noise, seen[3])
    flow.close()


def test_noise_is_another_one_for_the_policy_workers_of_each_machine(tmp_path):
    settings = config("dqn", "CartPole-v1", tmp_path / "run", {"noisy": True}, inference="worker")
    factory, seen = env_factory(settings), set()
    for part in (None, Part(1, 0.5, bytes(32)), Part(2, 0.5, bytes(32))):
        flow = HostedFlow(settings, factory, 3, SharedMemory(part), Checkpoint())
        one, learner = worker(flow, "policy_worker"), worker(flow, "learner")
        learner.publish()
        one.newest.take_up()
        seen.add(tuple(one.algorithm.acting_noise.tolist()))
        flow.close()
    assert len(seen) == 3


def test_all_that_have_asked_are_answered_together():
    hosted, (one, two) = stream()
    source = hosted.source()
    assert answer(source) == []
    one.request(0, seen(10), explored())
    one.request(1, seen(11), explored())
    two.request(1, seen(13), explored())
    assert not one.is_ready(0, 0.0) and not two.is_ready(1, 0.01)
    assert answer(source) == [0, 1, 3] and answer(source) == []
    for client, group, value in ((one, 0, 10), (one, 1, 11), (two, 1, 13)):
        assert client.is_ready(group, 0.0)
        chosen = client.collect(group)
        np.testing.assert_array_equal(chosen["action"], [[value, 2 * value]] * 3)
        np.testing.assert_array_equal(chosen["exploration"], explored())
        assert client.updates == 7
    assert hosted.figures() == {"rows_together": 9.0}


def test_policy_workers_have_groups_of_their_own():
    hosted, clients = stream(n_workers=3)
    for client in clients:
        for group in range(2):
            client.request(group, seen(group), explored())
    source = hosted.source()
    assert [answer(source, number) for number in range(3)] == [[0, 3], [1], [2]]


def test_what_was_asked_and_not_answered_a_successor_answers():
    hosted, (one, two) = stream()
    one.request(0, seen(1), explored())
    two.request(0, seen(2), explored())
    hosted.source().gather(0, 0.0)  # and dies
    assert answer(hosted.source()) == [0, 2]
    assert one.is_ready(0, 0.0) and two.is_ready(0, 0.0)


def test_an_actor_that_is_started_anew_gets_no_answer_to_its_predecessor():
    hosted, (one, _) = stream()
    source = hosted.source()
    one.request(0, seen(1), explored())
    groups, _, state = source.gather(0, 0.0)  # what its predecessor saw
    successor = hosted.sink().client(Seat(0, 2), Decides(), None)
    successor.request(0, seen(5), explored())
    source.answer(0, groups, np.ones((3, 2), np.float32), state, 3)
    assert not successor.is_ready(0, 0.0)
    assert answer(source) == [0] and successor.is_ready(0, 0.0)
    assert successor.collect(0)["action"][0, 0] == 5


def test_answers_are_not_overwritten_by_deciding():
    hosted, (one, _) = stream()
    one.request(0, seen(1), explored())
    answer(hosted.source())
    one.collect(0)["action"][:] = 99
    assert (hosted.source()._requests.columns["outputs"][0] != 99).all()


def test_many_threads_ask_and_get_their_own():
    """Actors in threads, which step at a pace of their own, and a policy worker in another one."""
    n_actors, n_steps = 4, 200
    hosted, clients = stream(n_actors=n_actors, medium=SharedMemory())
    source, failures, is_over = hosted.source(), [], threading.Event()

    def act(index):
        try:
            for step in range(n_steps):
                value = (index * n_steps + step) % 251
                clients[index].request(step % 2, seen(value), explored())
                while not clients[index].is_ready(step % 2, 1.0):
                    assert not is_over.is_set()
                action = clients[index].collect(step % 2)["action"]
                assert (action == [value, 2 * value]).all()
        except BaseException as error:
            failures.append(error)

    def serve():
        while not is_over.is_set():
            answer(source)

    server = threading.Thread(target=serve)
    server.start()
    actors = [threading.Thread(target=act, args=(index,)) for index in range(n_actors)]
    for thread in actors:
        thread.start()
    for thread in actors:
        thread.join()
    is_over.set()
    server.join()
    assert not failures, failures[0]


# -------------------------------------------------------------------------------------- whole runs


def env_of(algorithm):
    return "Pendulum-v1" if algorithm in CONTINUOUS else "CartPole-v1"


LSTM = {"lstm_hidden_size": 6}
KINDS = [
    # nobody else has the noise of an actor
    *((name, {"noisy": False} if name == "rainbow" else {}) for name in ALGORITHMS),
    *((name, LSTM) for name, cls in ALGORITHMS.items() if cls.learns_from == "rollouts"),
]


@pytest.mark.parametrize("exploration", [0.0, 0.3])
@pytest.mark.parametrize(("algorithm", "options"), KINDS)
def test_actions_are_those_that_an_actor_chooses_itself(algorithm, options, exploration, tmp_path):
    """To the bit, by the same parameters and random numbers."""
    normalized = {"normalize_observations": True}
    how = {"inference": "worker", "groups": 1, **normalized}
    flow = hosted(config(algorithm, env_of(algorithm), tmp_path / "run", options, **how))
    learner, policy = worker(flow, "learner"), worker(flow, "policy_worker")
    generator = torch.Generator().manual_seed(0)
    for vector in learner.tensors:  # as if it had learned
        vector += 0.1 * torch.randn(vector.shape, generator=generator)
    learner.row.updates = 3
    learner.publish()
    seat = flow.seat(next(role for role in flow.roles if role.kind == "actor"), 0)
    client = seat.streams["inference"].client(seat, seat.algorithm(), np.random.default_rng(3))
    rng = np.random.default_rng(3)
    shape = 4, *flow.env_factory.observation_space.shape
    for seed in range(3):
        observation = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        explored = np.full(4, exploration, np.float32)
        state = np.random.default_rng(seed).normal(size=(4, learner.algorithm.state_size))
        state = state.astype(np.float32)
        client.request(0, observation, explored, state)
        assert not client.is_ready(0, 0.0)
        assert policy.work(0.0) and client.is_ready(0, 0.0) and not policy.work(0.0)
        expected = learner.algorithm.choose(torch.from_numpy(observation), explored, rng, state)
        chosen = client.collect(0)
        assert chosen.keys() == expected.keys() and client.updates == 3
        assert all((chosen[name] == expected[name]).all() for name in chosen)
    flow.close()


@pytest.mark.parametrize("options", [{}, LSTM])
@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
def test_a_run_with_a_policy_worker_is_the_same_to_the_bit(algorithm, options, tmp_path):
    """Where actors wait for each update, and one group asks at a time."""
    for inference in "local", "worker":
        how = {"inference": inference, "groups": 1, "total_env_steps": 400}
        run(algorithm, env_of(algorithm), tmp_path / inference, options, **how)
    assert same(parameters(tmp_path / "local"), parameters(tmp_path / "worker"))


@pytest.mark.parametrize(
    ("algorithm", "options"), [("dqn", {}), ("sac", {}), ("ppo", {}), ("ppo", LSTM), ("appo", LSTM)]
)
def test_a_run_with_a_policy_worker_goes_on_to_the_bit(algorithm, options, tmp_path):
    """Answers that have not been collected are of older parameters than there are."""
    how = {"inference": "worker", "actors": 2, "normalize_observations": True, "options": options}
    if algorithm == "appo":
        how |= {"max_staleness": 4, "options": {**options, "envs_per_update": 2}}
    total, env = 720, env_of(algorithm)
    run(algorithm, env, tmp_path / "whole", total_env_steps=total, **how)
    half = config(algorithm, env, tmp_path / "half", total_env_steps=total, **how)
    runner = Runner(half)
    steps = []

    def stop(supervisor, seconds, poll=Supervisor.poll):
        steps.append(supervisor._flow.board.env_steps)
        if steps[-1] >= total // 2:
            runner.stop()
        return poll(supervisor, seconds)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Supervisor, "poll", stop)
        assert runner.run().interrupted
    Runner.resume(tmp_path / "half").run()
    assert same(parameters(tmp_path / "whole"), parameters(tmp_path / "half"))


@pytest.mark.parametrize("algorithm", ["dqn", "sac", "ppo", "impala"])
def test_processes_with_policy_workers(algorithm, tmp_path):
    result = run(
        algorithm,
        env_of(algorithm),
        tmp_path / "run",
        backend="process",
        actors=2,
        groups=2,
        inference="worker",
        policy_workers=2,
        total_env_steps=800,
        max_staleness=None if algorithm in ("dqn", "sac") else 1,
    )
    assert result.env_steps >= 800 and result.updates > 0
    assert set(result.waited) == {"actors", "learners", "policy_workers"}
    assert result.waited["policy_workers"] > 0


@pytest.fixture
def killed(monkeypatch):
    """Have a policy worker killed after every 200 steps of a run or more, up to nine times."""
    found, poll = [], Supervisor.poll

    def poll_and_kill(self, seconds):
        reports = poll(self, seconds)
        if len(found) < min(self._flow.board.env_steps // 200, 9):
            workers = [m for m in self._members if m.role.kind == "policy_worker"]
            member = workers[len(found) % len(workers)]
            if member.handle is not None and member.owes is None:
                found.append(member.handle.process.pid)
                member.handle.process.kill()
        return reports

    monkeypatch.setattr(Supervisor, "poll", poll_and_kill)
    return found


def test_a_killed_policy_worker_is_followed_by_one_that_answers(tmp_path, killed):
    processes = {"actors": 2, "groups": 2, "backend": "process", "inference": "worker"}
    processes["max_restarts"] = 50  # in a row
    result = run("ppo", "CartPole-v1", tmp_path / "run", **processes, total_env_steps=2_000)
    assert killed and result.env_steps >= 2_000 and result.updates == 50


@pytest.mark.parametrize(
    ("algorithm", "policy_workers", "groups"), [("ppo", 2, 1), ("impala", 1, 2)]
)
def test_steps_are_learned_from_once_whatever_happens_to_policy_workers(
    algorithm, policy_workers, groups, tmp_path, killed, monkeypatch
):
    """The long form, with kills at random moments, is kill_workers.py."""
    monkeypatch.setenv(audit.FILE, str(tmp_path / "found.json"))
    how = {"policy_workers": policy_workers, "groups": groups}
    settings = kill_workers.audited(algorithm, tmp_path / "run", 2_500, **how)
    result = Runner(settings, console=Console(quiet=True)).run()
    found = json.loads((tmp_path / "found.json").read_text())
    steps = audit.check(tmp_path / "run", settings.rows_per_update, found)
    assert killed and steps["taken"] == result.env_steps >= 2_500
    if algorithm == "ppo":
        assert steps["dropped"] == 0 and steps["updates"] == 2_500 // settings.rows_per_update


def test_the_audit_notices_steps_that_are_used_twice_or_missing(tmp_path, monkeypatch):
    monkeypatch.setenv(audit.FILE, str(tmp_path / "found.json"))
    env, seen = audit.Counted(), audit.Audit()
    first = [env.reset()[0], *(env.step(0)[0] for _ in range(7))]
    batch = torch.from_numpy(np.array(first)[:, None])
    seen.take(batch[:3])
    assert seen.found == {"rows": 3, "missed": 0, "updates": 1}
    with pytest.raises(AssertionError, match="learned from before"):
        seen.take(batch[2:4])
    with pytest.raises(AssertionError, match="do not follow one another"):
        seen.take(batch[[3, 5]])
    seen.take(batch[5:])
    assert seen.found == {"rows": 6, "missed": 2, "updates": 2}


REFUSED = [
    ({"policy_workers": 2}, "policy_workers is for inference='worker'"),
    ({"inference_device": "cpu"}, "inference_device is for inference='worker'"),
    ({"inference": "remote"}, "inference must be one of local, worker"),
    ({"inference": "worker", "policy_workers": 0}, "policy_workers must be an integer of at least"),
    ({"inference": "worker", "policy_workers": 3}, "at most actors · groups = 2"),
    ({"inference": "worker", "inference_device": "gpu"}, "inference_device must be one of torch's"),
    (
        {"inference": "worker", "backend": "ray", "inference_device": "cuda"},
        "inference_device must be 'cpu' with backend='ray'",
    ),
    (
        {"inference": "worker", "initial_priority": "td_error"},
        "initial_priority='td_error' needs inference='local'",
    ),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_settings_without_meaning_are_refused(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        config("dqn", "CartPole-v1", tmp_path / "run", **settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused(tmp_path):
    settings = {"inference": "worker", "inference_device": "cuda"}
    with pytest.raises(ConfigError, match="inference_device must be there, got 'cuda'"):
        Runner(config("dqn", "CartPole-v1", tmp_path / "run", **settings))
    assert not (tmp_path / "run").exists()
