"""A run's directory: one run at a time, of one version; and what a full disk does."""

import errno
import fcntl
import json
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runs import config, parameters, run, same, stopped

from kary_replay.runner import (
    ConfigError,
    RunFailedError,
    Runner,
    RunnerCallback,
    run_directory,
)
from kary_replay.runner.flow import HostedFlow
from kary_replay.runner.policies.export import export
from kary_replay.runner.policies.play import play
from kary_replay.runner.records import run_directory as directories
from kary_replay.runner.records.run_directory import RunDirectory, load_state, save_state
from kary_replay.runner.workers import evaluator

QUICK = {"total_env_steps": 400, "checkpoint_interval_env_steps": 100}


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_run_that_is_interrupted_before_it_begins_leaves_nothing(backend, tmp_path):
    runner = Runner(config("dqn", "CartPole-v1", tmp_path / "run", backend=backend))
    runner.stop()
    result = runner.run()
    assert result.interrupted and result.env_steps == 0 and not list(tmp_path.iterdir())


def test_two_runs_cannot_share_a_directory(tmp_path):
    directory = run("dqn", "CartPole-v1", tmp_path / "run", **QUICK).directory
    before = sorted(directory.rglob("*"))
    busy, _ = RunDirectory.existing(directory)
    busy.lock()
    with pytest.raises(ConfigError, match=r"a run is going on in .*run: wait for its end"):
        Runner.resume(directory).run()
    assert sorted(directory.rglob("*")) == before
    busy.unlock()
    assert Runner.resume(directory).run().env_steps >= 400
    busy.lock()
    with pytest.raises(ConfigError, match="a run is going on"):
        Runner.resume(directory, total_env_steps=500).run()
    assert sorted(directory.rglob("*")) == before
    busy.unlock()


def test_a_run_whose_settings_change_stays_locked(tmp_path, monkeypatch):
    """Though config.json, which is locked, is replaced by another file."""
    directory, locks = run("dqn", "CartPole-v1", tmp_path / "run", **QUICK).directory, []
    begin = RunDirectory.begin_checkpoint

    def try_to_lock(self, env_steps):
        with pytest.raises(ConfigError, match="a run is going on"):
            RunDirectory(directory).lock()
        locks.append(env_steps)
        return begin(self, env_steps)

    monkeypatch.setattr(RunDirectory, "begin_checkpoint", try_to_lock)
    assert Runner.resume(directory, total_env_steps=600).run().env_steps == 600
    assert locks
    RunDirectory(directory).lock()


def test_a_run_that_cannot_go_on_lets_its_directory_go(tmp_path):
    directory = run("dqn", "CartPole-v1", tmp_path / "run", **QUICK).directory
    (directory / "episodes.jsonl.new").symlink_to("/dev/full")
    runner = Runner.resume(directory, total_env_steps=600)
    with pytest.raises(
        ConfigError, match=r"cannot go on: episodes\.jsonl cannot be written: .*No space left"
    ):
        runner.run()
    assert len((directory / "episodes.jsonl").read_text().splitlines()) > 3
    assert json.loads((directory / "config.json").read_text())["total_env_steps"] == 400
    (directory / "episodes.jsonl.new").unlink()
    assert runner.run().env_steps >= 600


def test_of_two_runs_that_begin_in_one_directory_the_second_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(RunDirectory, "check_free", lambda *_: None)  # both have looked
    settings = config("dqn", "CartPole-v1", tmp_path / "run", **QUICK)
    first = RunDirectory.new(settings)
    content = (first.path / "config.json").read_text()
    with pytest.raises(ConfigError, match=r"cannot be made: .*File exists"):
        RunDirectory.new(replace(settings, seed=1))
    assert (first.path / "config.json").read_text() == content
    first.unlock()


def test_a_run_may_go_on_with_fewer_actors(tmp_path):
    settings = {"actors": 3, "samples_per_insert": 8.0, **QUICK}
    directory = run("dqn", "CartPole-v1", tmp_path / "run", **settings).directory
    content = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(
        json.dumps({**content, "actors": 2, "total_env_steps": 600})
    )
    result = Runner.resume(directory).run()
    assert 600 <= result.env_steps < 620 and result.updates == pytest.approx(500 * 8 / 32, abs=5)


def test_a_run_keeps_its_directory_locked(tmp_path):
    directory, found = tmp_path / "run", []
    runner = Runner(
        config(
            "dqn",
            "CartPole-v1",
            directory,
            total_env_steps=100_000,
            checkpoint_interval_env_steps=100,
        )
    )

    def try_to_go_on():
        while not (directory / "checkpoint.json").exists():
            time.sleep(0.01)
        try:
            RunDirectory(directory).lock()
        except ConfigError as error:
            found.append(error)
        runner.stop()

    thread = threading.Thread(target=try_to_go_on)
    thread.start()
    runner.run()
    thread.join()
    assert found


def test_a_run_of_another_version_does_not_go_on(tmp_path):
    directory = run("dqn", "CartPole-v1", tmp_path / "run", **QUICK).directory
    content = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**content, "version": "0.0.1"}))
    with pytest.raises(
        ConfigError,
        match=r"was written by kary-replay 0.0.1, this is .*: a run goes on only with the version",
    ):
        Runner.resume(directory)


@pytest.mark.parametrize("path", ["/proc/nowhere/run", "/dev/null/run"])
def test_a_directory_that_cannot_be_made(path):
    with pytest.raises(ConfigError, match=f"directory='{path}' cannot be made"):
        run("dqn", "CartPole-v1", path, **QUICK)


@pytest.fixture
def full_disk(monkeypatch):
    """No learner can write its state."""
    begin = RunDirectory.begin_checkpoint

    def begin_on_a_full_disk(self, env_steps):
        folder = begin(self, env_steps)
        (folder / "learner-0.new").symlink_to("/dev/full")
        return folder

    monkeypatch.setattr(RunDirectory, "begin_checkpoint", begin_on_a_full_disk)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_full_disk_costs_checkpoints_and_not_the_training(backend, tmp_path, full_disk, capfd):
    settings = {**QUICK, "total_env_steps": 20_000 if backend == "process" else 400}
    with pytest.raises(
        RunFailedError, match=r"the last checkpoint could not be made: .*\nNo checkpoint yet"
    ):
        run("dqn", "CartPole-v1", tmp_path / "run", backend=backend, **settings)
    assert "no checkpoint, the one before stays" in " ".join("".join(capfd.readouterr()).split())
    assert not list((tmp_path / "run").glob("checkpoint*"))


def test_a_full_disk_costs_tensorboards_scalars_and_not_the_training(tmp_path, monkeypatch, capfd):
    def full(self, *arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", full)
    monkeypatch.setattr("kary_replay.runner.records.monitor.SCALARS_SECONDS", 0.0)
    settings = {**QUICK, "evaluate": "during", "evaluation_interval": 200, "evaluation_episodes": 1}
    result = run("dqn", "CartPole-v1", tmp_path / "run", **settings)
    assert result.env_steps == 400 and result.evaluations
    assert "".join(capfd.readouterr()).count("records are incomplete: [Errno 28]") == 1


def test_a_full_disk_is_an_error_also_of_a_run_that_is_stopped(tmp_path, full_disk):
    """Nobody may take it for one that can go on."""

    class Stops(RunnerCallback):
        def on_evaluation(self, evaluation):
            runner.stop()

    settings = {"evaluate": "during", "evaluation_interval": 200, "evaluation_episodes": 1}
    runner = Runner(config("dqn", "CartPole-v1", tmp_path / "run", **settings), callback=Stops())
    with pytest.raises(RunFailedError, match=r"could not be made: .*No space left.*learner-0\.pt"):
        runner.run()


def test_memory_that_there_is_not_costs_a_checkpoint_and_not_the_training(
    tmp_path, monkeypatch, capfd
):
    save, calls = HostedFlow.save, []

    def save_without_memory(self, folder):
        calls.append(folder)
        if len(calls) == 2:
            raise MemoryError("Unable to allocate 3.1 GiB")
        save(self, folder)

    monkeypatch.setattr(HostedFlow, "save", save_without_memory)
    settings = {**QUICK, "total_env_steps": 2_000, "checkpoint_interval_env_steps": 400}
    assert run("dqn", "CartPole-v1", tmp_path / "run", **settings).env_steps == 2_000
    said = " ".join("".join(capfd.readouterr()).split())
    assert said.count("the one before stays: Unable to allocate 3.1 GiB") == 1 and len(calls) > 3


def test_a_directory_that_could_not_be_made_whole_is_none(tmp_path, monkeypatch):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def write(self, text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def on_a_full_disk(path, *mode, opened=Path.open):
        return opened(path, *mode).close() or Full() if mode == ("x",) else opened(path, *mode)

    monkeypatch.setattr(Path, "open", on_a_full_disk)
    with pytest.raises(ConfigError, match=r"cannot be made: .*No space left"):
        run("dqn", "CartPole-v1", tmp_path / "run", **QUICK)
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())
    assert run("dqn", "CartPole-v1", tmp_path / "run", **QUICK).env_steps == 400


def test_a_state_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "actor-0.pt"
    save_state(path, {"turn": 1})
    (tmp_path / "actor-0.new").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"actor-0\.pt"):
        save_state(path, {"turn": 2})
    assert load_state(path) == {"turn": 1}


def test_whoever_presses_ctrl_c_twice_keeps_a_checkpoint(tmp_path, monkeypatch):
    """The second time while the checkpoint that was replaced is being removed."""
    runner = Runner(
        config(
            "dqn",
            "CartPole-v1",
            tmp_path / "run",
            total_env_steps=1_000,
            checkpoint_interval_env_steps=100,
        )
    )
    remove, removed = shutil.rmtree, []

    def interrupted(path, **options):
        removed.append(path)
        remove(path, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(run_directory.shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    monkeypatch.undo()
    assert len(removed) == 1
    assert Runner.resume(tmp_path / "run").run().env_steps >= 1_000
    assert len(list((tmp_path / "run").glob("checkpoint-*"))) == 1


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_policies_that_wait_for_their_evaluation_survive_an_interruption(
    backend, tmp_path, monkeypatch
):
    monkeypatch.setattr("kary_replay.runner.records.monitor.LOOK_SECONDS", 0.0)
    settings = {
        "evaluate": "after",
        "evaluation_interval": 1_000,
        "evaluation_episodes": 2,
        "learning_starts": 64,
    }
    runner = Runner(
        config(
            "dqn",
            "CartPole-v1",
            tmp_path / "run",
            backend=backend,
            total_env_steps=20_000,
            **settings,
        )
    )

    first = stopped(runner, lambda: runner_steps(tmp_path / "run") >= 2_000)
    assert first.interrupted and not first.evaluations
    second = Runner.resume(tmp_path / "run").run()
    assert second.evaluations[0].env_steps < first.env_steps
    assert second.evaluations[-1].env_steps >= 20_000
    seconds = [found.wall_seconds for found in second.evaluations]
    assert seconds == sorted(seconds) and 0 < seconds[0] < first.wall_seconds


@pytest.mark.parametrize("evaluate", ["during", "after"])
def test_no_policy_is_evaluated_twice(evaluate, tmp_path, monkeypatch):
    """Neither when evaluations are interrupted, nor when a finished run goes on."""
    settings = {"evaluate": evaluate, "evaluation_interval": 100, "evaluation_episodes": 1}
    runner = Runner(config("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=600, **settings))
    play, played = evaluator.play, []

    def play_three(*arguments):
        played.append(play(*arguments))
        if len(played) == 3:
            runner.stop()
        return played[-1]

    monkeypatch.setattr(evaluator, "play", play_three)
    first = runner.run()
    assert first.interrupted and len(first.evaluations) == 3
    second = Runner.resume(tmp_path / "run").run()
    third = Runner.resume(tmp_path / "run").run()
    updates = [found.updates for found in third.evaluations]
    assert len(updates) >= 5 and updates == sorted(set(updates))
    assert len(played) == len(updates) and third.evaluations == second.evaluations


@pytest.mark.parametrize("evaluate", ["during", "after"])
def test_a_policy_that_waits_is_not_kept_again_when_the_run_goes_on(evaluate, tmp_path):
    """Of an algorithm with fewer updates than evaluations that are due."""
    options = {"n_envs": 4, "rollout_length": 100, "batch_size": 100}
    settings = {"evaluate": evaluate, "evaluation_interval": 100, "evaluation_episodes": 2}
    task = "ppo", "CartPole-v1"
    whole = run(*task, tmp_path / "whole", options, total_env_steps=1_600, **settings)
    settings |= {"checkpoint_interval_env_steps": 100, "total_env_steps": 1_600}
    runner = Runner(config(*task, tmp_path / "run", options, **settings))
    path = tmp_path / "run" / "checkpoint.json"
    first = stopped(
        runner, lambda: path.exists() and json.loads(path.read_text())["env_steps"] >= 600
    )
    assert first.interrupted and first.updates
    resumed = Runner.resume(tmp_path / "run").run()
    ends = [[(one.env_steps, one.updates) for one in run.evaluations] for run in (whole, resumed)]
    assert ends[0] == ends[1] and len(ends[0]) == whole.updates > 2


def test_a_policy_that_no_update_has_led_to_is_not_evaluated(tmp_path):
    """The learner has done some, but has not published."""
    settings = {"publish_interval": 500, "evaluation_interval": 110, "evaluation_episodes": 1}
    settings |= {"evaluate": "during", "total_env_steps": 400}
    result = run("dqn", "CartPole-v1", tmp_path / "run", **settings)
    assert [found.updates for found in result.evaluations] == [result.updates] != [0]


@pytest.mark.parametrize("evaluate", ["during", "after"])
def test_an_evaluation_is_given_up_and_made_when_the_run_goes_on(evaluate, tmp_path, monkeypatch):
    """In the serial backend, where nobody else could end it; the run stays the same bit for bit."""
    settings = {
        "evaluate": evaluate,
        "evaluation_interval": 100,
        "evaluation_episodes": 2,
        "total_env_steps": 600,
    }
    whole = run("dqn", "CartPole-v1", tmp_path / "whole", **settings)
    runner = Runner(config("dqn", "CartPole-v1", tmp_path / "run", **settings))
    play, begun, steps = evaluator.play, [], []

    def play_in_part(algorithm, envs, n_episodes, max_steps, each_step):
        begun.append(len(steps))

        def one_more():
            steps.append(len(begun))
            if len(begun) == 3 and steps.count(3) == 4:
                runner.stop()
            each_step()

        return play(algorithm, envs, n_episodes, max_steps, one_more)

    monkeypatch.setattr(evaluator, "play", play_in_part)
    first = runner.run()
    assert first.interrupted and len(first.evaluations) == 2 and len(begun) == 3
    assert steps.count(3) == 4, "it was played on"
    second = Runner.resume(tmp_path / "run").run()
    assert [e[:2] + e[3:] for e in second.evaluations] == [e[:2] + e[3:] for e in whole.evaluations]
    assert same(parameters(tmp_path / "run"), parameters(tmp_path / "whole"))


def test_the_last_policy_is_not_evaluated_twice_if_no_update_came_after_it(tmp_path):
    """602 steps are an odd number of a group's; the last one's rows are too few for an update."""
    settings = {
        "evaluate": "after",
        "evaluation_interval": 301,
        "evaluation_episodes": 1,
        "total_env_steps": 602,
    }
    result = run("dqn", "CartPole-v1", tmp_path / "run", **settings)
    updates = [found.updates for found in result.evaluations]
    assert updates == sorted(set(updates)) and updates[-1] == result.updates


def runner_steps(directory):
    """Environment steps by the records of a run."""
    try:
        return json.loads((directory / "episodes.jsonl").read_text().splitlines()[-1])["env_steps"]
    except (OSError, IndexError, ValueError):
        return 0


def test_episodes_of_something_else_are_named(tmp_path):
    path, good = tmp_path / "episodes.jsonl", {"episode_return": 1.0, "wall_seconds": 0.5}
    directory = RunDirectory(tmp_path)
    path.write_bytes(b'{"env_steps": 3, "epi\xff\n' + json.dumps({"env_steps": 5, **good}).encode())
    assert [record["env_steps"] for record in directory.records("episodes.jsonl")] == [5]
    for lacking in good:
        bad = {name: value for name, value in good.items() if name != lacking}
        path.write_text(json.dumps({"env_steps": 5, **bad}))
        with pytest.raises(ConfigError, match=r"episodes\.jsonl is damaged: line 1"):
            list(directory.records("episodes.jsonl"))


@pytest.mark.parametrize("name", ["updates", "seconds", "env_steps", "folder"])
def test_a_checkpoint_without_its_counters_is_named(name, tmp_path):
    run("dqn", "CartPole-v1", tmp_path / "run", **QUICK)
    path = tmp_path / "run" / "checkpoint.json"
    content = json.loads(path.read_text())
    del content[name]
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"checkpoint\.json is damaged"):
        Runner.resume(tmp_path / "run")


@pytest.mark.parametrize("line", ['{"env_steps": 5}', "[1]", '{"env_steps": "5"}', "7"])
def test_records_of_something_else_are_named(line, tmp_path):
    directory = RunDirectory(tmp_path)
    (tmp_path / "evaluations.jsonl").write_text(line + "\n")
    with pytest.raises(ConfigError, match=r"evaluations\.jsonl"):
        list(directory.evaluations())


@pytest.mark.parametrize(
    "change",
    [
        {"mean_return": "20"},
        {"env_steps": 5.0},
        {"returns": ["a"]},
        {"parameters": torch.tensor([1.0, float("nan")])},
    ],
)
def test_a_policy_that_is_none_is_named(change, tmp_path):
    state = {
        "env_steps": 5,
        "updates": 1,
        "wall_seconds": 1.0,
        "mean_return": 2.0,
        "returns": [2.0],
        "n_cut": 0,
    }
    state["parameters"] = torch.zeros(2)
    save_state(tmp_path / "best_policy.pt", state)
    assert RunDirectory(tmp_path).policy("best").evaluation.mean_return == 2.0
    save_state(tmp_path / "best_policy.pt", {**state, **change})
    with pytest.raises(ConfigError, match=r"best_policy\.pt is damaged"):
        RunDirectory(tmp_path).policy("best")


def locks_of_other_machines(file, operation, flock=fcntl.flock):
    """As of NFS, where locks are those of bytes, and need a file that is open for writing."""
    if operation & fcntl.LOCK_EX and not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_RDWR:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    flock(file, operation)


def test_a_directory_on_another_machine_is_locked(tmp_path, monkeypatch):
    directory = run("dqn", "CartPole-v1", tmp_path / "run", **QUICK).directory
    monkeypatch.setattr(fcntl, "flock", locks_of_other_machines)
    busy, _ = RunDirectory.existing(directory)
    busy.lock()
    with pytest.raises(ConfigError, match="a run is going on"):
        Runner.resume(directory, total_env_steps=500).run()
    busy.change({"seed": 3})
    with pytest.raises(ConfigError, match="a run is going on"):
        RunDirectory(directory).lock()
    busy.unlock()


def test_locks_that_fail(tmp_path, monkeypatch):
    directory, why = run("dqn", "CartPole-v1", tmp_path / "run", **QUICK).directory, []

    def fail(file, operation):
        raise OSError(why[-1], os.strerror(why[-1]))

    monkeypatch.setattr(fcntl, "flock", fail)
    for number, message in ((errno.ENOLCK, "No locks available"), (errno.EIO, "Input/output")):
        why.append(number)
        with pytest.warns(RuntimeWarning, match=rf"cannot be locked \({message}.*see to it that"):
            RunDirectory(directory).lock()
    monkeypatch.undo()
    RunDirectory(directory).lock()


def test_a_finished_run_that_is_kept_read_only_says_so(tmp_path, monkeypatch):
    directory, opened = run("dqn", "CartPole-v1", tmp_path / "run", **QUICK).directory, Path.open

    def read_only(path, mode="r", *args, **kwargs):
        if directory in path.parents and mode != "r":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", read_only)
    assert Runner.resume(directory).run().env_steps == 400


def test_a_run_goes_on_from_what_another_session_has_left_meanwhile(tmp_path):
    directory = run("dqn", "CartPole-v1", tmp_path / "run", **QUICK).directory
    late = Runner.resume(directory, total_env_steps=600)
    assert Runner.resume(directory, total_env_steps=500).run().env_steps == 500
    assert late.run().env_steps == 600
    late = Runner.resume(directory, total_env_steps=700)
    assert Runner.resume(directory, total_env_steps=700).run().env_steps == 700
    assert late.run().env_steps == 700  # which is said, and nothing else done


def test_all_files_of_a_checkpoint_are_on_the_disk_before_it_counts(tmp_path, monkeypatch):
    synced = []

    def noted(path, sync=directories.sync):
        synced.append(path)
        sync(path)

    monkeypatch.setattr(directories, "sync", noted)
    directory = run("ppo", "CartPole-v1", tmp_path / "run", **QUICK).directory
    (folder,) = (path for path in directory.glob("checkpoint-*") if path.is_dir())
    files = {path for path in folder.iterdir() if path.is_file()}
    assert files | {directory / "config.json"} <= set(synced) and {
        path.suffix for path in files
    } >= {".pt", ".npz"}


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("named", [True, False])
def test_an_environment_may_change_the_working_directory(backend, named, tmp_path, monkeypatch):
    """Paths are of where the runner was made, for the run and for those who use it."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    settings = config(
        "dqn",
        "faulty_envs:make_elsewhere",
        "named",
        env_options={"folder": str(tmp_path / "elsewhere")},
        backend=backend,
        evaluate="during",
        **QUICK,
    )
    runner = Runner(settings if named else replace(settings, directory=None))
    assert Path.cwd() == tmp_path / "elsewhere"
    directory = runner.run().directory
    name = Path("named" if named else "runs/dqn_faulty_envs_make_elsewhere_s0")
    assert directory == tmp_path / name and (directory / "learning_curve.png").exists()
    monkeypatch.chdir(tmp_path)
    assert Runner.resume(name, total_env_steps=800).run().env_steps >= 800
    monkeypatch.chdir(tmp_path)
    play(name, episodes=1)
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("stable_baselines3")
    assert export(name, to="sb3", output=Path("model.zip")) == tmp_path / "model.zip"
    assert (tmp_path / "model.zip").exists() and not list((tmp_path / "elsewhere").iterdir())


def test_a_link_that_leads_nowhere_is_no_place_for_runs(tmp_path, monkeypatch):
    """It is no run of that name, after which one would look for the next number."""
    monkeypatch.chdir(tmp_path)
    Path("runs").symlink_to(tmp_path / "not mounted")
    settings = replace(config("dqn", "CartPole-v1", "run", **QUICK), directory=None)
    with pytest.raises(ConfigError, match=r"directory='runs/dqn_CartPole-v1_s0' cannot be made"):
        RunDirectory.new(settings)


@pytest.mark.parametrize("is_link", [True, False])
def test_a_folder_that_was_there_before_a_run_that_does_not_begin_stays(is_link, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o750)
    path = tmp_path / "run" if is_link else folder
    if is_link:
        path.symlink_to(folder)
    for _ in range(2):
        runner = Runner(config("dqn", "CartPole-v1", path))
        runner.stop()
        assert runner.run().env_steps == 0
        assert not list(folder.iterdir()) and path.is_symlink() == is_link
    assert folder.stat().st_mode & 0o777 == 0o750


def test_a_run_that_was_stopped_may_begin_anew(tmp_path):
    runner = Runner(config("dqn", "CartPole-v1", tmp_path / "run", **QUICK))
    runner.stop()
    assert runner.run().interrupted
    result = runner.run()
    assert result.env_steps == 400 and not result.interrupted
