"""The stream of rollouts: each is used once, oldest first, and none that is too old."""

import pickle
import shutil

import gymnasium
import numpy as np
import pytest
import torch
from runs import config, hosted, run, size_of, stopped, worker

from kary_replay.algorithms import PPO, PPOOptions, Share
from kary_replay.core.ordered import store
from kary_replay.runner import ConfigError, Runner, RunnerCallback
from kary_replay.runner.backends import Supervisor
from kary_replay.runner.backends.memory import OwnMemory
from kary_replay.runner.flow import HostedFlow
from kary_replay.runner.streams import Checkpoint, RolloutStream
from kary_replay.runner.streams.board import BoardStream
from kary_replay.runner.streams.rollout import Rollouts, RolloutWriter

LENGTH, N_ENVS = 3, 2
SPACE = gymnasium.spaces.Dict(
    {
        "camera": gymnasium.spaces.Box(0, 255, (2, 2), np.uint8),
        "place": gymnasium.spaces.Box(-9, 9, (1,), np.float32),
    }
)
ALGORITHM = PPO(SPACE, gymnasium.spaces.Discrete(2), PPOOptions(hidden=(4,)))


class Version:
    """Stands for an inference stream: by which parameters actions are chosen."""

    updates = 0


def stream(n_groups=2, **settings):
    columns = ALGORITHM.columns()
    given = {"n_together": n_groups, "max_staleness": 0, **settings}
    return RolloutStream(columns, LENGTH, N_ENVS, n_groups, **given)


class Pipe:
    """A stream in this process, with a writer for each group, and the sources of all learners."""

    def __init__(self, checkpoint=None, **settings):
        self.stream = stream(**settings)
        self.hosted = self.stream.host(OwnMemory(), checkpoint or Checkpoint())
        self.sink, self.versions = self.hosted.sink(), []
        self.writers = []
        for group in range(self.stream.n_groups):
            self.versions.append(Version())
            self.writers.append(self.sink.writer(ALGORITHM, N_ENVS, group, self.versions[group]))
        n_together, n_parts = self.stream.n_learners, self.stream.n_parts
        self.sources = []
        for index in range(n_together * n_parts):
            share = Share() if n_parts > 1 else Share(index, n_together)
            source = self.hosted.source()
            source.blank(0)
            source.prepare(0, torch.device("cpu"), 0, share, index)
            self.sources.append(source)
        self.rollouts = self.sources[0]._rollouts

    def add(self, group, value, truncated=(False, False)):
        """Write one step, whose numbers tell which one it is."""
        n = np.arange(N_ENVS)
        self.writers[group].add(
            observation=self.seen(value + n / 10),
            action=n,
            reward=value + n / 10,
            next_observation=self.seen(-(value + n / 10)),
            terminated=np.zeros(N_ENVS, bool),
            truncated=np.array(truncated),
            log_prob=np.full(N_ENVS, -0.5, np.float32),
        )

    @staticmethod
    def seen(numbers):
        camera = np.zeros((len(numbers), 2, 2), np.uint8)
        return {"camera": camera, "place": numbers.astype(np.float32)[:, None]}

    def fill(self, group, value, version=None):
        """Write a whole rollout, by the newest parameters unless told otherwise."""
        self.versions[group].updates = self.rollouts.n_updates if version is None else version
        for step in range(LENGTH):
            assert self.sink.next_group([group], N_ENVS, 0.0) == group
            self.add(group, value + step)

    def draw(self):
        """Draw as all learners do, in turns, and let the rollouts go; the rewards of each."""
        assert self.sources[0].may_draw(0, 0.0)
        drawn = [source.draw() for source in self.sources]
        rewards = [batch.reward.copy() for batch in drawn]
        for source in self.sources:
            source.release(self.rollouts.n_updates + 1)
        return rewards

    @property
    def figures(self):
        return self.hosted.figures()


def test_what_was_written_is_drawn_once_and_in_order():
    pipe = Pipe()
    for value in (10, 20):
        assert pipe.hosted.is_used_up() and not pipe.sources[0].may_draw(0, 0.0)
        pipe.fill(0, value)
        assert pipe.hosted.is_used_up() and not pipe.sources[0].may_draw(0, 0.0)
        pipe.fill(1, value + 100)
        assert not pipe.hosted.is_used_up()
        (rewards,) = pipe.draw()
        steps = np.arange(LENGTH)[:, None]
        np.testing.assert_allclose(rewards, value + steps + [0, 0.1, 100, 100.1], rtol=1e-6)


def test_all_columns_come_along_and_what_follows_where_it_is_needed():
    pipe = Pipe(n_groups=1)
    for step, truncated in enumerate([(False, False), (False, True), (False, False)]):
        pipe.add(0, 10 + step, truncated)
    batch = pipe.sources[0].draw()
    assert set(batch.keys()) == set(pipe.stream.columns)
    assert batch.observation["camera"].shape == (LENGTH, N_ENVS, 2, 2)
    place = batch.observation["place"][:, :, 0]
    np.testing.assert_allclose(place, batch.reward)
    np.testing.assert_array_equal(batch.truncated, [[0, 0], [0, 1], [0, 0]])
    np.testing.assert_array_equal(batch.action, [[0, 1]] * LENGTH)
    after = batch.next_observation["place"][:, :, 0]
    np.testing.assert_allclose(after[1:], -place[1:])  # a cut, and the last step
    assert (after[0] == 0).all()  # not needed: it is the next step's


def test_updates_of_others_take_nothing_away_that_was_about_to_be_drawn():
    pipe = Pipe(n_groups=2, n_together=1, n_parts=2, max_staleness=1)
    first, second = pipe.sources
    for group in (0, 1):
        for step in range(LENGTH):
            pipe.add(group, 10 * group + step)
    assert first.may_draw(0, 0.0) and second.may_draw(0, 0.0)
    first.draw()
    first.release(5)
    assert second.draw()["reward"][0, 0] == 10
    assert pipe.figures["max_staleness"] == 0 and pipe.figures["dropped_steps"] == 0


@pytest.mark.parametrize("max_staleness", [0, 1, 5])
def test_a_group_waits_for_learners_when_it_has_no_room(max_staleness):
    pipe = Pipe(n_groups=1, max_staleness=max_staleness)
    room = min(2, max_staleness + 1)
    for number in range(room):
        pipe.fill(0, 10 * number)
    for _ in range(2):
        assert all(pipe.sink.next_group([0], N_ENVS, wait) is None for wait in (0.0, 0.01))
        pipe.draw()
        pipe.fill(0, 100)


def test_room_is_there_only_when_new_parameters_are():
    pipe = Pipe(n_groups=1)
    pipe.fill(0, 10)
    pipe.sources[0].draw()
    pipe.sources[0].learned(None, np.zeros(3))
    assert not pipe.sink.may_choose(0) and pipe.sink.next_group([0], N_ENVS, 0.0) is None
    pipe.sources[0].release(1)
    assert pipe.sink.may_choose(0) and pipe.sink.next_group([0], N_ENVS, 0.0) == 0


def test_staleness_is_measured_row_by_row():
    pipe = Pipe(n_groups=1, max_staleness=9)
    pipe.rollouts.n_updates = 7
    for step, version in enumerate((3, 5, 7)):
        pipe.versions[0].updates = version
        pipe.add(0, step)
    pipe.draw()
    assert (pipe.figures["staleness"], pipe.figures["max_staleness"]) == (2.0, 4.0)
    assert pipe.figures["dropped_steps"] == 0


def test_what_is_too_old_is_dropped_and_counted():
    pipe = Pipe(n_groups=2, max_staleness=2)
    pipe.fill(0, 10, version=0)
    pipe.fill(0, 20, version=3)
    pipe.fill(1, 30, version=2)
    pipe.rollouts.n_updates = 4
    (rewards,) = pipe.draw()
    assert {int(value) for value in rewards[0]} == {20, 30}
    assert pipe.figures["dropped_steps"] == LENGTH * N_ENVS and pipe.figures["waiting"] == 0


def test_the_oldest_come_first():
    pipe = Pipe(n_groups=3, n_together=2, max_staleness=9)
    for group, version in ((0, 4), (1, 2), (2, 3)):
        pipe.fill(group, 10 * group, version)
    firsts = [sorted({int(value) for value in pipe.draw()[0][0]})]
    pipe.fill(2, 40, version=5)
    firsts.append(sorted({int(value) for value in pipe.draw()[0][0]}))
    assert firsts == [[10, 20], [0, 40]]


def test_learners_have_parts_of_the_same_rollouts():
    pipe = Pipe(n_groups=3, n_learners=2, n_together=3)
    for group in range(3):
        pipe.fill(group, 10 * group)
    one, two = pipe.draw()
    assert one.shape == two.shape == (LENGTH, 3)
    np.testing.assert_allclose(one[0], [0, 0.1, 10], rtol=1e-6)
    np.testing.assert_allclose(two[0], [10.1, 20, 20.1], rtol=1e-6)


def test_a_rollout_that_another_process_began_is_dropped():
    pipe = Pipe(n_groups=1)
    pipe.add(0, 10)
    pipe.add(0, 11)
    successor = RolloutWriter(pipe.rollouts, 0, pipe.versions[0])
    pipe.writers[0] = successor
    pipe.fill(0, 20)
    (rewards,) = pipe.draw()
    np.testing.assert_allclose(rewards[:, 0], [20, 21, 22])
    assert pipe.figures["dropped_steps"] == 2 * N_ENVS


def test_a_group_without_room_does_not_hold_up_another_one():
    """As after a failure in one of an actor's groups: the learner waits for the other one."""
    pipe = Pipe(n_groups=2)
    pipe.fill(0, 10)
    pipe.add(1, 20)
    pipe.writers[1] = RolloutWriter(pipe.rollouts, 1, pipe.versions[1])  # began anew
    assert pipe.sink.next_group([0, 1], N_ENVS, 0.0) == 1
    pipe.fill(1, 30)
    assert pipe.sink.next_group([0, 1], N_ENVS, 0.0) is None
    assert len(pipe.draw()) == 1 and pipe.sink.next_group([1, 0], N_ENVS, 0.0) == 1


def test_staleness_is_that_of_all_learners_rows():
    pipe = Pipe(n_groups=2, n_learners=2, max_staleness=9)
    pipe.rollouts.n_updates = 8
    pipe.fill(0, 10, version=0)
    pipe.fill(1, 20, version=8)
    pipe.draw()
    assert (pipe.figures["staleness"], pipe.figures["max_staleness"]) == (4.0, 8.0)


def test_a_checkpoint_is_of_one_moment(tmp_path, monkeypatch):
    """A learner gives back the place that is being copied, and the actor fills it again."""
    pipe = Pipe(n_groups=1, max_staleness=9)
    pipe.fill(0, 10)
    number, looks = pipe.rollouts.number, []

    def number_and_go_on(group, name):
        looks.append(name)
        if looks.count("used") == 2 and name == "used":  # the look after the first copy
            pipe.draw()
            pipe.fill(0, 20)
        return number(group, name)

    monkeypatch.setattr(pipe.rollouts, "number", number_and_go_on)
    pipe.hosted.save(tmp_path)
    monkeypatch.undo()
    again = Pipe(Checkpoint(tmp_path, {"updates": 1}), n_groups=1, max_staleness=9)
    (rewards,) = again.draw()
    np.testing.assert_allclose(rewards[:, 0], [20, 21, 22])
    assert again.figures["waiting"] == 0


def test_a_checkpoint_that_is_never_at_rest_goes_without_what_waits(tmp_path, monkeypatch):
    pipe = Pipe(n_groups=1, max_staleness=9)
    pipe.fill(0, 10)
    number = pipe.rollouts.number

    def number_and_go_on(group, name):
        found = number(group, name)
        if name == "used":
            store(pipe.rollouts.counts["used"], 0, found + 1)
            store(pipe.rollouts.counts["written"], 0, (found + 2) * LENGTH)
        return found

    monkeypatch.setattr(pipe.rollouts, "number", number_and_go_on)
    pipe.hosted.save(tmp_path)
    monkeypatch.undo()
    again = Pipe(Checkpoint(tmp_path, {"updates": 99}), n_groups=1, max_staleness=9)
    assert again.figures["waiting"] == 0
    assert again.figures["dropped_steps"] == LENGTH * N_ENVS


def test_what_newer_parameters_did_is_forgotten_with_them(tmp_path):
    pipe = Pipe(n_groups=2, max_staleness=9)
    pipe.fill(0, 10, version=4)
    pipe.add(0, 20)
    pipe.fill(1, 30, version=5)
    pipe.add(1, 40)
    pipe.hosted.save(tmp_path)
    again = Pipe(Checkpoint(tmp_path, {"updates": 4}), n_groups=2, max_staleness=9)
    assert again.figures["waiting"] == 1
    assert again.figures["dropped_steps"] == (LENGTH + 1) * N_ENVS


def test_what_was_used_since_the_learner_was_saved_is_dropped_and_counted(tmp_path):
    """A checkpoint's rollouts are written last: the learner and the board may be of before."""
    pipe = Pipe(n_groups=2, max_staleness=1)
    for group in range(2):
        pipe.fill(group, 10)
    learner, counters = pipe.sources[0].state_dict(), {"updates": 0}
    pipe.draw()
    pipe.add(0, 20)
    pipe.hosted.save(tmp_path)
    again = Pipe(Checkpoint(tmp_path, counters), n_groups=2, max_staleness=1)
    again.sources[0].load_state_dict(learner)
    assert again.figures["dropped_steps"] == 2 * LENGTH * N_ENVS
    board = BoardStream({"actor": 1, "learner": 1})
    counted = board.host(OwnMemory(), Checkpoint(None, {"actor_env_steps": [2 * LENGTH * N_ENVS]}))
    again.hosted.meet({"board": counted})
    assert counted.source().env_steps == (2 * LENGTH + 1) * N_ENVS
    again.sources[0].load_state_dict(again.sources[0].state_dict())
    assert again.figures["dropped_steps"] == 2 * LENGTH * N_ENVS


@pytest.mark.parametrize(("n_together", "max_staleness"), [(1, 1), (1, 2), (1, 3), (2, 1)])
def test_nothing_gets_too_old_while_it_waits(n_together, max_staleness):
    """However far actors are ahead of the learner."""
    pipe = Pipe(n_groups=2, n_together=n_together, max_staleness=max_staleness)
    for _ in range(20):
        for group in range(2):
            while pipe.sink.may_choose(group):
                pipe.fill(group, 10)
        pipe.draw()
    assert pipe.figures["dropped_steps"] == 0


@pytest.mark.parametrize(("n_learners", "max_staleness"), [(2, 4), (2, 6), (2, 7), (4, 8)])
def test_nothing_gets_too_old_among_learners_of_their_own(n_learners, max_staleness):
    """However far actors are ahead; each learner learns from half of its groups at a time."""
    n_groups = 2 * n_learners
    pipe = Pipe(n_groups=n_groups, n_together=1, n_parts=n_learners, max_staleness=max_staleness)

    def fill():
        for group in range(n_groups):
            while pipe.sink.may_choose(group):
                pipe.fill(group, 10)

    fill()
    for source in pipe.sources:
        assert source.may_draw(0, 0.0)
        source.draw()
    for update in range(50):  # all have one under way, and end theirs by turns
        source = pipe.sources[update % n_learners]
        source.release(update + 1)
        fill()
        assert source.may_draw(0, 0.0)
        source.draw()
    assert pipe.figures["dropped_steps"] == 0


def test_a_writer_that_was_reset_begins_its_rollout_anew():
    pipe = Pipe(n_groups=1)
    pipe.add(0, 10)
    pipe.writers[0].reset(0)
    pipe.fill(0, 20)
    assert pipe.draw()[0][0, 0] == 20 and pipe.figures["dropped_steps"] == N_ENVS


def test_errors_must_be_finite():
    with pytest.raises(ValueError, match="finite"):
        Pipe().sources[0].learned(None, np.array([0.0, np.nan]))


def test_other_processes_see_the_same_memory():
    pipe = Pipe(n_groups=1)
    pipe.fill(0, 10)
    numbers = pipe.rollouts._memory
    other = Rollouts(pipe.stream, *numbers)
    assert other.waiting(0) == 1
    assert other.arrays["reward"].ctypes.data == pipe.rollouts.arrays["reward"].ctypes.data
    assert pickle.loads(pickle.dumps(pipe.stream)) == pipe.stream


def test_a_checkpoint_has_what_waits_and_what_is_begun(tmp_path):
    pipe = Pipe(n_groups=1, max_staleness=9)
    pipe.fill(0, 10, version=3)
    pipe.add(0, 20)
    pipe.hosted.save(tmp_path)
    state = pipe.sink.state_dict()
    again = Pipe(Checkpoint(tmp_path, {"updates": 4}), n_groups=1, max_staleness=9)
    again.sink.load_state_dict(state)
    again.add(0, 21)
    again.add(0, 22)
    assert [again.draw()[0][0, 0] for _ in range(2)] == [10, 20]
    assert again.figures["dropped_steps"] == 0
    # an actor whose state is of another moment begins its rollout anew
    other = Pipe(Checkpoint(tmp_path, {"updates": 4}), n_groups=1, max_staleness=9)
    other.sink.load_state_dict({"0": {"written": 1}})
    other.fill(0, 30)
    assert [other.draw()[0][0, 0] for _ in range(2)] == [10, 30]
    assert other.figures["dropped_steps"] == N_ENVS
    # and with other groups nothing of it can be used
    more = Pipe(Checkpoint(tmp_path, {"updates": 4}), n_groups=2, max_staleness=9)
    assert more.figures["waiting"] == 0
    assert more.figures["dropped_steps"] == (LENGTH + 1) * N_ENVS


def test_what_was_dropped_stays_counted_when_the_groups_are_others(tmp_path):
    pipe = Pipe(n_groups=2, max_staleness=2)
    pipe.add(0, 0)
    pipe.writers[0].reset(0)
    pipe.fill(0, 10, version=0)
    pipe.fill(0, 20, version=3)
    pipe.fill(1, 30, version=2)
    pipe.rollouts.n_updates = 4
    pipe.draw()
    pipe.hosted.save(tmp_path)
    assert pipe.figures["dropped_steps"] == (1 + LENGTH) * N_ENVS  # begun anew, and too old
    more = Pipe(Checkpoint(tmp_path, {"updates": 5}), n_groups=3, max_staleness=2)
    assert more.figures["dropped_steps"] == pipe.figures["dropped_steps"]


def test_a_damaged_checkpoint_is_refused(tmp_path):
    pipe = Pipe()
    pipe.hosted.save(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises((OSError, ValueError, KeyError)):
        Pipe(Checkpoint(tmp_path, {}))


# -------------------------------------------------------------------------------------- whole runs

REFUSED = [
    ({"total_env_steps": 39}, "total_env_steps=39 must be at least 40"),
    (
        {"max_staleness": 1, "options": {"envs_per_update": 1, "batch_size": 10}},
        "envs_per_update=1 of n_envs=4 needs max_staleness of at least 3",
    ),
    (
        {"learners": 2, "backend": "process", "options": {"batch_size": 2}},
        "needs a batch_size above learners=2",
    ),
    (
        {"buffer_capacity": 1000},
        "buffer_capacity is a setting of algorithms that learn from replay",
    ),
    ({"alpha": 0.6}, "alpha is a setting"),
    ({"prefetch": 1}, "prefetch is a setting"),
    ({"envs_per_actor": 4}, "n_envs of the options is over all actors"),
    ({"max_staleness": -1}, "max_staleness must be"),
    ({"max_staleness": 1, "total_env_steps": 60}, "total_env_steps=60 must be at least 80"),
    ({"publish_interval": 2}, "publish_interval must be 1"),
    ({"actors": 3, "groups": 1}, "actors · groups = 3 must divide n_envs=4"),
    ({"groups": 3}, "groups must divide n_envs=4"),
    ({"learners": 3, "backend": "process"}, "learners must divide n_envs=4"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_settings_without_meaning_are_refused_by_name(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        config("ppo", "CartPole-v1", tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_settings_of_rollouts_are_refused_where_there_are_none(tmp_path):
    with pytest.raises(ConfigError, match="that learn from rollouts, and dqn"):
        config("dqn", "CartPole-v1", tmp_path / "run", max_staleness=1)


def books(flow):
    """Steps that were learned from, dropped, wait, or are of rollouts that are being filled."""
    rollouts = flow.streams["experience"]._rollouts
    counts = {name: int(count.sum()) for name, count in rollouts.counts.items()}
    used = counts["used"] * rollouts.n_steps
    left = counts["written"] * rollouts.stream.n_envs - used
    return used - counts["expired"], rollouts.n_dropped + left


@pytest.fixture
def books_of(monkeypatch):
    """What flows say when they are closed: `books`, environment steps, updates, figures."""
    kept, close = [], HostedFlow.close

    def keep_and_close(flow):
        kept.append((*books(flow), flow.board.env_steps, flow.board.updates, flow.figures))
        close(flow)

    monkeypatch.setattr(HostedFlow, "close", keep_and_close)
    return kept


@pytest.mark.parametrize(("learners", "max_staleness"), [(1, 0), (1, 1), (2, 0), (2, 1)])
def test_a_run_of_processes_learns_from_every_step(learners, max_staleness, books_of, tmp_path):
    processes = {"actors": 2, "groups": 1, "backend": "process", "learners": learners}
    how = {**processes, "total_env_steps": 1_000, "max_staleness": max_staleness}
    result = run("ppo", "CartPole-v1", tmp_path / "run", **how)
    ((learned, rest, env_steps, updates, figures),) = books_of
    assert result.updates == updates
    assert learned == updates * 40 and env_steps == learned + rest
    assert figures["max_staleness"] <= max_staleness and figures["dropped_steps"] == 0


def test_a_learner_that_goes_on_alone_publishes_what_it_learned(tmp_path):
    """Else its actors would act by ever older parameters, and their rollouts be dropped."""
    how = {"backend": "process", "learners": 2, "optimization": "asynchronous"}
    settings = config("ppo", "CartPole-v1", tmp_path / "run", groups=1, max_staleness=2, **how)
    flow = hosted(settings, 2)
    _, second = (worker(flow, "learner", index) for index in range(2))
    actor = worker(flow, "actor", 1)
    for _ in range(5):
        while not second.work(0.0):
            assert actor.work(0.0)
    assert second.parameters.newest()[1] == 5
    assert flow.figures["dropped_steps"] == 0
    flow.close()


@pytest.mark.parametrize("groups", [1, 2])
def test_killed_actors_leave_no_rollout_in_halves(groups, books_of, tmp_path, monkeypatch):
    """Every step is learned from once, or dropped and counted, and nobody waits for ever."""
    killed, poll = [], Supervisor.poll

    def poll_and_kill(self, seconds):
        reports = poll(self, seconds)
        due = self._flow.board.env_steps // 400
        if len(killed) < min(due, 10):
            member = next(m for m in self._members if m.name == f"actor-{due % 2}")
            if member.handle is not None and member.owes is None:
                killed.append(member.name)
                member.handle.process.kill()
        return reports

    monkeypatch.setattr(Supervisor, "poll", poll_and_kill)
    processes = {"actors": 2, "groups": groups, "backend": "process", "max_restarts": 50}
    run("a2c", "CartPole-v1", tmp_path / "run", **processes, total_env_steps=6_000)
    ((learned, rest, env_steps, updates, _),) = books_of
    assert killed  # ten of them, unless this process gets no turn for long
    assert learned == updates * 40
    # a step may be written when the kill comes, and not yet be on the board
    assert 0 <= learned + rest - env_steps <= len(killed) * 2


def test_an_interrupted_run_goes_on(tmp_path):
    directory = tmp_path / "run"
    processes = {"actors": 2, "groups": 1, "backend": "process"}
    runner = Runner(config("ppo", "CartPole-v1", directory, total_env_steps=10**7, **processes))
    first = stopped(runner, lambda: size_of(directory / "episodes.jsonl") > 1000)
    assert first.interrupted and first.updates > 0
    total = first.env_steps + 2_000
    resumed = Runner.resume(directory, total_env_steps=total).run()
    assert resumed.env_steps >= total and resumed.updates > first.updates


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_run_goes_on_with_another_number_of_actors(before, after, tmp_path):
    """As its config.json says: actors whose environments are others begin new episodes."""
    directory = tmp_path / "run"
    processes = {"actors": before, "groups": 1, "backend": "process", "max_staleness": 1}
    run("a2c", "CartPole-v1", directory, total_env_steps=1_000, **processes)
    path = directory / "config.json"
    path.write_text(path.read_text().replace(f'"actors": {before}', f'"actors": {after}'))
    result = Runner.resume(directory, total_env_steps=2_000).run()
    assert result.env_steps >= 2_000 and result.updates > 25


def test_periodic_checkpoints_of_groups_can_be_gone_on_with(books_of, tmp_path):
    """Whatever moment they are of: one group may be a rollout ahead of another one."""
    directory, copies = tmp_path / "run", []

    class Copies(RunnerCallback):
        def on_checkpoint(self, folder):
            if len(copies) < 5:
                copies.append(shutil.copytree(directory, tmp_path / f"copy{len(copies)}"))

    settings = config(
        "a2c",
        "CartPole-v1",
        directory,
        {"rollout_length": 3},
        backend="process",
        total_env_steps=3_000,
        checkpoint_interval_env_steps=300,
    )
    Runner(settings, callback=Copies()).run()
    assert copies
    for copy in copies:
        assert Runner.resume(copy).run().env_steps >= 3_000
        learned, rest, env_steps, updates, _ = books_of[-1]
        assert learned == updates * settings.rows_per_update
        assert env_steps == learned + rest
