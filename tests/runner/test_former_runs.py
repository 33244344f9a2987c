"""The directory of a run that 0.1.0 wrote, before the runner was made of flows: it goes on.

The run was serial: dqn on CartPole-v1 in episodes of at most 30 steps, two actors, 300 environment
steps, initial priorities by TD error, parameters published after every fifth update.
"""

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from kary_replay import PrioritizedReplayBuffer
from kary_replay.runner import Runner
from kary_replay.runner.policies.checkpoint_policy import checkpoint_policy

HERE = Path(__file__).parent / "version_0_1_0"


@pytest.fixture
def directory(tmp_path):
    return Path(shutil.copytree(HERE, tmp_path / "run"))


def test_a_finished_run_says_what_it_came_to(directory):
    result = Runner.resume(directory, console=Console(quiet=True)).run()
    assert (result.env_steps, result.updates) == (300, 124)
    assert [found.env_steps for found in result.evaluations] == [100, 200, 300, 300]
    assert result.best_return == result.last_return == 9.5


def test_it_keeps_to_the_settings_that_there_were(directory):
    config = Runner.resume(directory, console=Console(quiet=True)).config
    assert config.uniform_share == 0
    assert config.options.prioritize_by == "td_error"


def test_it_goes_on_with_its_buffer_counters_and_episodes(directory):
    before = PrioritizedReplayBuffer.load(directory / "checkpoint-000000000300" / "replay")
    assert before.n_added == 284
    changes = {"total_env_steps": 400, "console": Console(quiet=True)}
    result = Runner.resume(directory, **changes).run()
    assert result.env_steps == 400
    checkpoint = json.loads((directory / "checkpoint.json").read_text())
    assert checkpoint["n_actors"] == 2 and checkpoint["origin"] == [40, 0]
    assert sum(checkpoint["actor_env_steps"]) == 400
    buffer = PrioritizedReplayBuffer.load(directory / checkpoint["folder"] / "replay")
    # The last two steps of each of eight environments may wait to become rows, before and after.
    assert abs(buffer.n_added - (before.n_added + 100)) <= 16
    # Each row allows half an update of 16 rows.
    assert result.updates == pytest.approx(124 + (buffer.n_added - before.n_added) / 2, abs=8)


def test_its_policies_are_read(directory):
    for name in "best", "last":
        policy = checkpoint_policy(directory, name)
        assert policy.evaluation.mean_return == 9.5
        assert policy.algorithm.options.n_step == 3
