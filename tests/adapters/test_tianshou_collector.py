"""What collectors put into prioritized buffers, Tianshou's and ours: environments that count."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import tianshou.data
from tianshou.data import AsyncCollector, Batch, Collector
from tianshou.data.collector import EpisodeRolloutHookMCReturn
from tianshou.env import DummyVectorEnv, SubprocVectorEnv
from tianshou_rows import BOTH, TIANSHOU_1, ours, step

if TIANSHOU_1:
    from tianshou.policy import BasePolicy as Policy
else:
    from tianshou.algorithm.algorithm_base import Policy

LENGTHS = (2, 3, 4, 5)


class Count(gym.Env):
    """Counts to `length`, where an episode ends with reward 1."""

    def __init__(self, length, kind="plain"):
        self.length, self.kind, self.agents = length, kind, 3 if kind == "agents" else None
        self.action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.spaces.Box(0, 99, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.see(), {"key": 1}

    def step(self, action):
        self.at += 1
        ends = self.at == self.length
        return (
            self.see(),
            np.full(self.agents, float(ends)) if self.agents else float(ends),
            ends,
            False,
            {"key": 1},
        )

    def see(self):
        if self.kind == "frames":  # the last three of what has been seen, each a picture of 2 x 2
            return np.maximum(np.arange(-2, 1) + self.at, 0)[:, None, None] * np.ones((3, 2, 2))
        if self.kind == "ragged":
            return np.full(self.length, self.at)
        return (
            {"at": np.array([self.at]), "noise": self.np_random.random()}
            if self.kind == "dict"
            else np.array([self.at])
        )


class Ones(Policy):
    """Always the same action, with a hidden state that counts its steps."""

    def __init__(self):
        super().__init__(action_space=gym.spaces.Discrete(2))

    def forward(self, batch, state=None, **kwargs):
        n = len(batch.obs)
        hidden = np.zeros((n, 1)) if state is None else state.hidden + 1
        return Batch(act=np.ones(n, int), state=Batch(hidden=hidden), policy=Batch(), dist=None)

    def learn(self, batch, *args, **kwargs):
        raise NotImplementedError


def collector_for(
    module, lengths=LENGTHS, kind="plain", size=20, cls=Collector, env=None, **options
):
    """A collector from one environment per length, with room for `size` rows of each."""
    env = env or DummyVectorEnv([lambda length=length: Count(length, kind) for length in lengths])
    options = {"alpha": 0.6, "beta": 0.4} | options
    buffer = (
        module.PrioritizedReplayBuffer(size, **options)
        if len(lengths) == 1
        else module.PrioritizedVectorReplayBuffer(size * len(lengths), len(lengths), **options)
    )
    hooks = {"on_episode_done_hook": EpisodeRolloutHookMCReturn(0.5)} if kind == "hook" else {}
    collector = cls(Ones(), env, buffer, **hooks)
    collector.reset()
    return collector, buffer


def counts(buffer, length, ring, n):
    """Return the rows of a ring of 20, which holds n rows of episodes of `length` and no others."""
    t = np.arange(n) % length
    rows = np.arange(n) + 20 * ring
    assert (
        buffer.obs[rows, 0].tolist() == t.tolist()
        and buffer.obs_next[rows, 0].tolist() == (t + 1).tolist()
    )
    assert (
        buffer.done[rows].tolist() == (t + 1 == length).tolist()
        and buffer.rew[rows].tolist() == (t + 1.0 == length).tolist()
    )
    assert (
        (buffer.info.env_id[rows] == ring).all()
        and (buffer.info.key[rows] == 1).all()
        and (buffer.act[rows] == 1).all()
    )
    assert (buffer.weight[rows] == 1).all() and not buffer.weight[
        np.arange(20 * ring + n, 20 * ring + 20)
    ].any()
    return rows


@BOTH
def test_steps_and_episodes_of_one_environment(module):
    collector, buffer = collector_for(module, (2,))
    stats = collector.collect(n_step=3)
    assert (stats.n_collected_steps, stats.n_collected_episodes, len(buffer)) == (3, 1, 3)
    counts(buffer, 2, 0, 3)
    assert collector.collect(n_episode=3).lens.tolist() == [2, 2, 2]  # the first of them goes on
    counts(buffer, 2, 0, 8)
    collector.collect(n_step=3, random=True)
    assert len(buffer) == 11
    collector.reset()
    assert len(buffer) == 0 and buffer.sample_indices(0).size == 0
    collector.collect(n_episode=2)
    assert buffer.obs[:4, 0].tolist() == [0, 1, 0, 1] and len(buffer) == 4


@BOTH
def test_steps_and_episodes_of_several(module):
    collector, buffer = collector_for(module)
    collector.collect(n_step=8)
    for ring, length in enumerate(LENGTHS):
        counts(buffer, length, ring, 2)
    stats = collector.collect(n_episode=4)
    assert stats.n_collected_episodes == 4 and set(stats.returns) == {1.0}
    kept = [len(ring) for ring in buffer.buffers]
    assert sum(kept) == len(buffer) == 8 + stats.n_collected_steps
    rows = np.concatenate(
        [
            counts(buffer, length, ring, n)
            for ring, (length, n) in enumerate(zip(LENGTHS, kept, strict=True))
        ]
    )
    assert buffer.sample_indices(0).tolist() == rows.tolist()
    assert set(buffer.sample_indices(400)) == set(rows)
    collector.collect(n_step=120)  # and round
    assert len(buffer) == buffer.weight.reduce() == 80


@BOTH
def test_misfits_are_refused(module):
    env = DummyVectorEnv([lambda: Count(2), lambda: Count(3)])
    for buffer in (
        module.PrioritizedReplayBuffer(10, 0.5, 0.5),
        module.PrioritizedVectorReplayBuffer(10, 1, alpha=0.5, beta=0.5),
    ):
        with pytest.raises(ValueError, match="env_num"):
            Collector(Ones(), env, buffer)
    collector, _ = collector_for(module)
    with pytest.raises(ValueError, match="n_step"):
        collector.collect()


@BOTH
def test_observations_by_name_and_into_one_buffer(module):
    collector, buffer = collector_for(module, kind="dict")
    stats = collector.collect(n_episode=8)
    assert stats.n_collected_episodes == 8
    single, target = collector_for(module, (5,), kind="dict", size=60)
    single.collect(n_step=7)
    target.update(buffer)
    expected = [t % 5 for t in range(7)] + buffer[:].obs.at[:, 0].tolist()
    assert target[:].obs.at[:, 0].tolist() == expected and len(target) == 7 + len(buffer)
    np.testing.assert_array_equal(target[:].obs_next.at - target[:].obs.at, 1)
    batch, index = target.sample(30)
    np.testing.assert_array_equal(batch.obs.noise, target.obs.noise[index])


@BOTH
def test_rewards_of_several_agents(module):
    collector, buffer = collector_for(module, kind="agents")
    returns = collector.collect(n_episode=8).returns
    assert returns.shape == (8, 3) and (returns == 1).all()
    batch, _ = buffer.sample(10)
    assert batch.rew.shape == (10, 3)
    np.testing.assert_array_equal(batch.rew, np.repeat(batch.done[:, None], 3, 1))


@BOTH
@pytest.mark.parametrize("lengths", [(5,), LENGTHS])
def test_frames_are_stacked_as_the_environment_stacks_them(module, lengths):
    whole = collector_for(module, lengths, "frames")
    single = collector_for(module, lengths, "frames", ignore_obs_next=True)
    thin = collector_for(
        module, lengths, "frames", stack_num=3, ignore_obs_next=True, save_only_last_obs=True
    )
    for collector, _ in (whole, single, thin):
        collector.collect(n_step=8)
        collector.collect(n_episode=2 * len(lengths))
    assert whole[1].obs.shape[1:] == (3, 2, 2) and thin[1].obs.shape[1:] == (2, 2)
    with pytest.raises(AttributeError):
        thin[1].obs_next  # noqa: B018
    expected, separate, stacked = (buffer[:] for _, buffer in (whole, single, thin))
    np.testing.assert_array_equal(separate.obs, expected.obs)
    np.testing.assert_array_equal(stacked.obs, expected.obs)
    inside = ~expected.done.astype(bool)
    inside[np.isin(whole[1].sample_indices(0), whole[1].unfinished_index())] = False
    np.testing.assert_array_equal(stacked.obs_next[inside], expected.obs_next[inside])
    np.testing.assert_array_equal(separate.obs_next[inside], expected.obs_next[inside])
    # beyond the last there is nothing
    np.testing.assert_array_equal(stacked.obs_next[~inside], expected.obs[~inside])


@BOTH
def test_observations_of_several_shapes(module):
    collector, buffer = collector_for(module, kind="ragged")
    # when an episode ends, Tianshou's collector no longer knows what to do with them
    collector.collect(n_step=4)
    assert buffer.obs.dtype == object
    batch, index = buffer.sample(12)
    for i, obs, following in zip(index, batch.obs, batch.obs_next, strict=True):
        assert following.tolist() == (obs + 1).tolist() == [obs[0] + 1] * LENGTHS[i // 20]


@BOTH
def test_what_an_episode_hook_adds(module):
    collector, buffer = collector_for(module, kind="hook")
    collector.collect(n_episode=4)
    for ring, length in enumerate(LENGTHS):
        rows = np.arange(length) + 20 * ring
        np.testing.assert_array_equal(
            buffer[rows].mc_return_to_go, 0.5 ** np.arange(length - 1.0, -1.0, -1.0)
        )
    collector.collect(n_episode=4)
    assert buffer[np.array([2])].mc_return_to_go.tolist() == [0.5]


def copied_by_a_file(buffer, path):
    buffer.save_hdf5(path / "buffer.hdf5")
    return type(buffer).load_hdf5(path / "buffer.hdf5")


@pytest.mark.parametrize("lengths", [LENGTHS, LENGTHS[:1]], ids=["vector", "single"])
@pytest.mark.parametrize("copied", [copied_by_a_file, None], ids=["file", "deepcopy"])
@BOTH
def test_what_an_episode_hook_adds_is_copied(module, copied, lengths, tmp_path):
    collector, buffer = collector_for(module, lengths, kind="hook")
    collector.collect(n_episode=2 * len(lengths))
    twin = copied(buffer, tmp_path) if copied else copy.deepcopy(buffer)
    rows = buffer.sample_indices(0)
    np.testing.assert_array_equal(twin.sample_indices(0), rows)
    np.testing.assert_array_equal(twin[rows].mc_return_to_go, buffer[rows].mc_return_to_go)
    np.testing.assert_array_equal(twin[rows].obs, buffer[rows].obs)
    if len(lengths) > 1 and module is not tianshou.data:
        for one, start in zip(twin.buffers, twin._offset, strict=True):
            assert np.shares_memory(one._meta.rew, twin.rew)
            np.testing.assert_array_equal(one.rew, twin.rew[start : start + 20])


def test_one_environment_answers_with_a_field_that_a_hook_has_added():
    """Then the row goes to the ring of that environment, and the field is left out as before."""
    theirs, mine = (vector_with_a_field(module) for module in (tianshou.data, ours))
    for buffer in (theirs, mine):
        for t in range(3):
            row = step(t, 1)
            row.mc = np.array([7.0])
            buffer.add(row, buffer_ids=[0])
    assert mine.last_index.tolist() == theirs.last_index.tolist() == [4, 11]
    assert len(mine) == len(theirs) == 7
    for name in ("obs", "rew", "done", "mc"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
    assert (mine.weight[mine.sample_indices(0)] == 1).all()


def vector_with_a_field(module):
    buffer = module.PrioritizedVectorReplayBuffer(20, 2, alpha=0.6, beta=0.4)
    for t in range(2):
        buffer.add(step(t, 2))
    buffer.set_array_at_key(np.zeros(20), "mc")
    return buffer


@pytest.mark.filterwarnings("ignore::UserWarning")
@BOTH
def test_environments_that_answer_out_of_turn(module):
    env = SubprocVectorEnv([lambda length=length: Count(length) for length in LENGTHS], wait_num=3)
    collector, buffer = collector_for(module, cls=AsyncCollector, env=env)
    for n_episode in range(1, 4):
        assert collector.collect(n_episode=n_episode).n_collected_episodes >= n_episode
    assert collector.collect(n_step=7).n_collected_steps >= 7
    for ring, length in enumerate(LENGTHS):
        counts(buffer, length, ring, len(buffer.buffers[ring]))
    env.close()
