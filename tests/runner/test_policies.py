"""The policies that a run keeps, the best and the last, each reproduces its evaluation."""

import json
import shutil

import gymnasium
import numpy as np
import pytest
import torch
from failing_algorithms import Collapsing
from runs import SMALL, config, copied_checkpoints, hosted, run, stopped, worker

from kary_replay.runner import ConfigError, Runner, RunnerConfig, play
from kary_replay.runner.messages import Evaluated
from kary_replay.runner.policies import checkpoint_policy as policies
from kary_replay.runner.policies.checkpoint_policy import checkpoint_policy
from kary_replay.runner.policies.export import export
from kary_replay.runner.records.run_directory import RunDirectory, load_state
from kary_replay.runner.workers import evaluator

EVALUATED = {"evaluate": "during", "evaluation_interval": 200, "evaluation_episodes": 3}
TASKS = {"dqn": "CartPole-v1", "sac": "Pendulum-v1", "ddpg": "Pendulum-v1"}


class Sized(gymnasium.Env):
    """Whose observations are as wide as one wants."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, width=3):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (width,))


class Bounded(Sized):
    """Whose actions are none that algorithms choose."""

    def __init__(self, action_space):
        super().__init__()
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 0.0, False, bool(self.np_random.random() < 0.1), {}


ACTIONS = {
    "box": gymnasium.spaces.Box(np.array([-2.0, 5.0]), np.array([2.0, 9.0]), (2,), np.float64),
    "low": gymnasium.spaces.Box(-0.1, 0.1, (1, 2)),
    "five": gymnasium.spaces.Discrete(3, start=5),
    "minus one": gymnasium.spaces.Discrete(3, start=-1),
}


def bounded(name):
    return Bounded(ACTIONS[name])


@pytest.fixture(autouse=True)
def no_film(monkeypatch):
    monkeypatch.setattr(
        play, "_rendered", lambda make, mode, seed: (make(), "the film is not looked at")
    )


def played(directory, **options):
    return tuple(play.play(directory, episodes=3, **options))


@pytest.fixture
def worse_every_time(monkeypatch):
    """Each evaluation has returns lower by 1000 than the one before: the first is the best."""
    original, offsets = evaluator.play, []

    def fall(*arguments):
        returns, n_cut = original(*arguments)
        offsets.append(1000.0 * len(offsets))
        return [value - offsets[-1] for value in returns], n_cut

    monkeypatch.setattr(evaluator, "play", fall)
    return offsets


@pytest.mark.parametrize(
    ("algorithm", "name"), [("sac", "box"), ("ppo", "low"), ("dqn", "five"), ("ppo", "minus one")]
)
def test_a_policy_of_a_program_takes_actions_of_the_environment(algorithm, name, tmp_path):
    directory, space = tmp_path / "run", ACTIONS[name]
    settings = {"env_options": {"name": name}, "total_env_steps": 300}
    run(algorithm, "test_policies:bounded", directory, **settings)
    policy = checkpoint_policy(directory)
    seen = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    actions = policy.act(seen)
    assert actions.dtype == space.dtype and all(space.contains(action) for action in actions)
    assert (policy.player(50).act(seen) == actions).all()
    if isinstance(space, gymnasium.spaces.Box):
        chosen = policy.algorithm.act(torch.from_numpy(seen), np.zeros(50, np.float32), None)
        expected = space.low + (chosen.clip(-1, 1) + 1) / 2 * (space.high - space.low)
        np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", TASKS)
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_run_that_reaches_its_target_keeps_the_policy_that_did(backend, algorithm, tmp_path):
    """The learner has gone on meanwhile: what is published is older than what it has."""
    settings = {
        "total_env_steps": 100_000,
        "target_return": -1e6,
        "publish_interval": 30,
        "backend": backend,
        **EVALUATED,
    }
    result = run(algorithm, TASKS[algorithm], tmp_path / "run", **settings)
    assert len(result.evaluations) == 1 and result.env_steps < 100_000
    returns = result.evaluations[0].returns
    assert played(tmp_path / "run") == returns
    assert result.best_return == result.last_return == np.mean(returns)
    assert (
        played(tmp_path / "run", which="last") == played(tmp_path / "run", which="best") == returns
    )


def test_no_policy_is_evaluated_after_the_one_that_reached_the_target(tmp_path):
    """Though a run takes a while to end, as when its buffer is large."""
    settings = config(
        "dqn",
        "CartPole-v1",
        tmp_path / "run",
        target_return=1.0,
        total_env_steps=3_000,
        **EVALUATED,
    )
    flow, reports = hosted(settings), []
    kinds = "actor", "learner", "evaluator"
    actor, learner, judge = (worker(flow, kind, report=reports.append) for kind in kinds)
    while flow.board.env_steps < 2_000:
        assert actor.work(0) | learner.work(0)
        judge.work(0)
    assert sum(isinstance(report, Evaluated) for report in reports) == 1 and judge.reached_target
    flow.close()


def test_the_best_policy_and_the_last_one_are_kept(worse_every_time, tmp_path, capsys):
    result = run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=1_000, **EVALUATED)
    first, *_, last = result.evaluations
    assert result.best_return == first.mean_return > last.mean_return == result.last_return
    assert played(tmp_path / "run") == played(tmp_path / "run", which="best") == first.returns
    assert played(tmp_path / "run", which="last") == tuple(
        value + worse_every_time[-1] for value in last.returns
    )
    assert (
        f"the policy of step {first.env_steps:,}, evaluated at {first.mean_return:.1f} in 3"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_policies_evaluated_after_the_run_are_kept_too(backend, tmp_path):
    settings = {**EVALUATED, "evaluate": "after", "total_env_steps": 1_000, "backend": backend}
    result = run("dqn", "CartPole-v1", tmp_path / "run", **settings)
    best = max(result.evaluations, key=lambda found: found.mean_return)
    assert played(tmp_path / "run") == best.returns and result.best_return == best.mean_return
    assert played(tmp_path / "run", which="last") == result.evaluations[-1].returns
    assert (
        result.last_return == result.evaluations[-1].mean_return
        and result.evaluations[-1].updates == result.updates
    )


def test_a_run_that_is_interrupted_and_goes_on_keeps_its_best_policy(worse_every_time, tmp_path):
    directory = tmp_path / "run"
    runner = Runner(config("dqn", "CartPole-v1", directory, total_env_steps=100_000, **EVALUATED))
    first = stopped(runner, lambda: (directory / "best_policy.pt").exists())
    assert first.interrupted and first.best_return == first.evaluations[0].mean_return
    assert played(directory) == first.evaluations[0].returns
    runner = Runner.resume(directory)
    second = stopped(runner, lambda: len(worse_every_time) > len(first.evaluations))
    assert (
        len(second.evaluations) > len(first.evaluations) and second.best_return == first.best_return
    )
    assert second.last_return == second.evaluations[-1].mean_return < first.last_return
    assert played(directory) == first.evaluations[0].returns


def test_a_policy_that_outlived_a_crash_stays_the_best(tmp_path):
    """Its evaluation came after the checkpoint, so that the records have it no more."""
    with copied_checkpoints(tmp_path, before=600) as copies:
        run(
            "dqn",
            "CartPole-v1",
            tmp_path / "whole",
            total_env_steps=600,
            checkpoint_interval_env_steps=300,
            **EVALUATED,
        )
    content = load_state(tmp_path / "whole" / "last_policy.pt")
    for name in ("best", "last"):
        torch.save({**content, "mean_return": 1e6}, copies[0] / f"{name}_policy.pt")
    result = Runner.resume(copies[0]).run()
    assert (
        result.best_return == 1e6 and max(found.mean_return for found in result.evaluations) < 1e6
    )
    assert result.last_return == result.evaluations[-1].mean_return


def test_play_takes_the_best_policy_of_a_run_that_collapsed(tmp_path, capsys):
    options = {"hidden": (), "batch_size": 32}
    settings = RunnerConfig(
        "failing_algorithms:Collapsing",
        "CartPole-v1",
        options=Collapsing.options_class(**options),
        directory=str(tmp_path / "run"),
        **{**SMALL, **EVALUATED, "samples_per_insert": 4.0, "total_env_steps": 1_000},
    )
    result = Runner(settings).run()
    assert result.best_return > 5 * result.last_return
    assert result.best.env_steps < result.last.env_steps
    assert played(tmp_path / "run") == result.best.returns
    assert f"the policy of step {result.best.env_steps:,}" in capsys.readouterr().out
    assert played(tmp_path / "run", which="last") == result.last.returns


def test_without_evaluations_the_policy_of_the_last_checkpoint_is_played(tmp_path, capsys):
    result = run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=400)
    assert result.best is result.last is None
    assert np.isnan(result.best_return) and result.last_return > 0
    assert played(tmp_path / "run") == played(tmp_path / "run", which="last")
    assert "the policy of the last checkpoint, for none was evaluated" in capsys.readouterr().out


def test_a_policy_that_is_missing_is_said_to_be(tmp_path, capsys):
    result = run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=400, **EVALUATED)
    (tmp_path / "run" / "best_policy.pt").unlink()
    assert played(tmp_path / "run") == result.evaluations[-1].returns
    assert "for best_policy.pt is missing" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "run" / "last_policy.pt").unlink()
    assert played(tmp_path / "run")
    out = " ".join(capsys.readouterr().out.split())
    assert "the policy of the last checkpoint, for best_policy.pt is missing" in out


@pytest.mark.parametrize("former", [None, -1.0], ids=["the first", "a better one"])
def test_a_policy_is_the_best_one_even_if_a_crash_came_between(former, tmp_path):
    """That is, between the two files: of the last policy, and of the best one."""
    path, settings = tmp_path / "run", {**EVALUATED, "evaluation_interval": 400}
    first = run("dqn", "CartPole-v1", path, total_env_steps=400, **settings)
    kept = RunDirectory.existing(path)[0].policy("last")
    content = load_state(path / "best_policy.pt")
    (path / "best_policy.pt").unlink()
    if former is not None:
        torch.save({**content, "mean_return": former}, path / "best_policy.pt")
    Runner.resume(path, total_env_steps=800).run()
    best = RunDirectory.existing(path)[0].policy("best")
    assert best.evaluation.mean_return >= kept.evaluation.mean_return
    assert first.last_return == kept.evaluation.mean_return


def test_a_policy_is_played_where_there_is_no_checkpoint_yet(tmp_path):
    result = run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=400, **EVALUATED)
    (tmp_path / "run" / "checkpoint.json").unlink()
    assert played(tmp_path / "run", which="last") == result.evaluations[-1].returns
    pytest.importorskip("stable_baselines3")
    with pytest.raises(ConfigError, match="has no checkpoint"):  # of the target networks
        export(tmp_path / "run")


@pytest.mark.parametrize("which", ["best", "last"])
def test_a_policy_is_played_without_the_checkpoint(which, tmp_path):
    """As of a run that was copied without it, for it is large."""
    directory = tmp_path / "run"
    run("dqn", "CartPole-v1", directory, total_env_steps=400, **EVALUATED)
    returns = played(directory, which=which)
    shutil.rmtree(next(directory.glob("checkpoint-*")))
    assert played(directory, which=which) == returns


def test_export_takes_the_policy_that_is_asked_for(worse_every_time, tmp_path):
    sb3 = pytest.importorskip("stable_baselines3")
    run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=1_000, **EVALUATED)
    networks = []
    for name in ("best", "last"):
        model = sb3.DQN.load(export(tmp_path / "run", which=name))
        ours = checkpoint_policy(tmp_path / "run", name).algorithm.q.state_dict()
        networks.append(torch.cat([part.reshape(-1) for part in model.policy.q_net.parameters()]))
        assert torch.equal(networks[-1], torch.cat([part.reshape(-1) for part in ours.values()]))
    assert not torch.equal(*networks)


def test_evaluations_and_play_have_an_environment_of_their_own(tmp_path):
    settings = {"env_options": {"length": 9}, "eval_env_options": {"length": 4, "reward": 3.0}}
    path = tmp_path / "run"
    result = run("dqn", "faulty_envs:make", path, total_env_steps=600, **settings, **EVALUATED)
    assert result.best.returns == played(path) == (12.0, 12.0, 12.0)
    assert 0 < result.recent_return <= 9.0


def test_an_environment_of_evaluations_with_other_spaces_is_refused(tmp_path):
    other = {"eval_env_options": {"width": 7}}
    message = r"with eval_env_options={'width': 7} must have the spaces that it has in training"
    with pytest.raises(ConfigError, match=message):
        run("dqn", "test_policies:Sized", tmp_path / "run", **other)
    assert not (tmp_path / "run").exists()


def test_only_the_best_and_the_last_can_be_asked_for(tmp_path):
    pytest.importorskip("stable_baselines3")
    run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=400)
    for ask in (play.play, export):
        with pytest.raises(ConfigError, match="which must be best or last, got 'first'"):
            ask(tmp_path / "run", which="first")


DAMAGES = {
    "cut off": (
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        r"best_policy\.pt is damaged: .*; remove it",
    ),
    "other widths": (
        lambda path: torch.save({**load_state(path), "parameters": torch.zeros(3)}, path),
        r"best_policy\.pt is of other networks than config\.json",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_policy_is_named(damage, tmp_path):
    run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=400, **EVALUATED)
    change, message = DAMAGES[damage]
    change(tmp_path / "run" / "best_policy.pt")
    with pytest.raises(ConfigError, match=message) as caught:
        played(tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert played(tmp_path / "run", which="last")


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_evaluation_episodes_that_do_not_end_are_cut_off_and_that_is_said(backend, tmp_path, capfd):
    settings = {**EVALUATED, "evaluation_max_steps": 50, "total_env_steps": 600, "backend": backend}
    endless = {"length": 10**9}
    result = run("dqn", "faulty_envs:make", tmp_path / "run", env_options=endless, **settings)
    assert {found.n_cut for found in result.evaluations} == {3} and result.best_return <= 50
    out = " ".join("".join(capfd.readouterr()).split())
    assert (
        out.count("3 of 3 evaluation episodes were cut off after evaluation_max_steps=50 steps")
        == 1
    )
    records = [
        json.loads(line)
        for line in (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    ]
    assert [record["n_cut"] for record in records] == [3] * len(records)
    assert (
        played(tmp_path / "run")
        == max(result.evaluations, key=lambda found: found.mean_return).returns
    )
    assert "cut off after evaluation_max_steps=50 steps" in capfd.readouterr().out


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_anew(tmp_path, monkeypatch):
    """As by a run that goes on: its next checkpoint takes the place of the one before."""
    run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=300)
    named, read, seen = tmp_path / "run" / "checkpoint.json", policies.saved_algorithm, []

    def replaced(folder, *others):
        if not seen:
            later = folder.with_name(folder.name + "b")
            folder.rename(later)
            content = json.loads(named.read_text())
            named.write_text(json.dumps({**content, "folder": later.name}))
        seen.append(folder.name)
        return read(folder, *others)

    monkeypatch.setattr(policies, "saved_algorithm", replaced)
    assert checkpoint_policy(tmp_path / "run").algorithm is not None
    assert seen == [seen[0], seen[0] + "b"]
    content = named.read_bytes()
    named.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigError, match="has no checkpoint to go on from"):
        checkpoint_policy(tmp_path / "run")
    named.write_bytes(content)
    shutil.rmtree(named.with_name(seen[1]))
    with pytest.raises(ConfigError, match="which is gone"):
        checkpoint_policy(tmp_path / "run")


class Parted(Sized):
    """Whose observations have two parts."""

    def __init__(self):
        super().__init__()
        parts = {"eye": gymnasium.spaces.Box(-1, 1, (2, 3)), "foot": gymnasium.spaces.Box(-1, 1)}
        self.observation_space = gymnasium.spaces.Dict(parts)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, bool(self.np_random.random() < 0.1), {}


def test_acting_takes_n_observations_and_says_so(tmp_path):
    run("dqn", "CartPole-v1", tmp_path / "pole", total_env_steps=120)
    policy = checkpoint_policy(tmp_path / "pole")
    assert policy.act(np.zeros((3, 4), np.float32)).shape == (3,)
    for wrong in (np.zeros(4), np.zeros((3, 5)), np.float32(1), np.zeros((2, 3, 4))):
        with pytest.raises(ValueError, match=r"must be of the shape \[N, 4\], got .*ion\[None\]"):
            policy.act(wrong.astype(np.float32))
    run("dqn", "test_policies:Parted", tmp_path / "parted", total_env_steps=120)
    policy = checkpoint_policy(tmp_path / "parted")
    parts = {"foot": np.zeros((5, 1), np.float32), "eye": np.zeros((5, 2, 3), np.float32)}
    assert policy.act(parts).shape == (5,)
    with pytest.raises(ValueError, match=r"observation\['eye'\] must be of the shape \[N, 2, 3\]"):
        policy.act({key: part[0] for key, part in parts.items()})
    for wrong in ({"eye": parts["eye"]}, parts["eye"]):
        with pytest.raises(ValueError, match="observation must be a dict of eye, foot"):
            policy.act(wrong)
