"""Environments that break and processes that are killed: named, started anew, none left behind."""

import contextlib
import fcntl
import getpass
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import warnings
from pathlib import Path

import kill_workers
import pytest
from runs import HANG_SECONDS, SMALL, config, descendants, size_of, stopped, wait_until

from kary_replay import fork_server
from kary_replay.runner import RunFailedError, Runner, RunnerConfig
from kary_replay.runner.backends import supervisor
from kary_replay.runner.records.monitor import Monitor

HERE = Path(__file__).parent
NEVER_SECONDS = 10 * HANG_SECONDS
SLOW_SECONDS = 60.0  # after which a program that is still there writes down what it does


def faulty(directory, fault, *, learning_starts=64, **settings):
    env_options = {"fault": fault, **settings.pop("env_options", {})}
    small = {
        "total_env_steps": 4_000,
        "environment_timeout_seconds": 1.0 if "hangs" in fault else HANG_SECONDS,
        "max_restarts": 2,
        "samples_per_insert": 4.0,
    }
    return config(
        "dqn",
        "faulty_envs:make",
        directory,
        env_options=env_options,
        learning_starts=learning_starts,
        **{"backend": "process", **small, **settings},
    )


OTHERS = set()  # descendants when a test began, such as a fork server of other tests


@pytest.fixture(autouse=True)
def others():
    OTHERS.clear()
    OTHERS.update(descendants(os.getpid()))


def workers():
    """Processes that this test started, but not Python's own helper and the fork server.

    A worker that has been forked has the server's command line and a name of its own.
    """
    new = [pid for pid in descendants(os.getpid()) if pid not in OTHERS]
    return [pid for pid in new if not is_helper(pid) and name_of(pid)]


def is_helper(pid):
    """Whether a process is a resource tracker or a fork server of multiprocessing."""
    command = told(pid, "cmdline")
    return "resource_tracker" in command or ("forkserver" in command and "-" not in name_of(pid))


def name_of(pid):
    return told(pid, "comm").strip()


def told(pid, file):
    """What /proc says about a process; nothing once it has ended, be it while it is asked."""
    try:
        return Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return ""


def await_end(processes):
    """Wait until they have all ended."""

    def running(pid):
        state = told(pid, "stat").rpartition(")")[2].split()
        return bool(state) and state[0] != "Z"

    wait_until(lambda: not any(map(running, processes)))


CAUSES = {
    "raises": "the bottle is empty",
    "nan": "step returned the observation",
    "nan reward": "step returned reward=nan",
    "shape": r"observation of shape \(2,\), the space has \(3,\)",
    "hangs": "hung: no step or reset ended for",
    "reset hangs": "hung: no step or reset ended for",
}


@pytest.mark.parametrize("fault", CAUSES)
def test_a_broken_environment_ends_the_run_if_told_so(fault, tmp_path):
    with pytest.raises(RunFailedError, match=CAUSES[fault]) as caught:
        Runner(faulty(tmp_path / "run", fault, on_environment_error="stop")).run()
    assert "faulty_envs:make" in str(caught.value) and "actor-0" in str(caught.value)
    assert workers() == []


@pytest.mark.parametrize("fault", ["raises", "hangs", "dies"])
def test_an_actor_is_started_anew(fault, tmp_path, capfd):
    options = {"once": str(tmp_path / "once")}
    result = Runner(faulty(tmp_path / "run", fault, env_options=options)).run()
    assert result.env_steps >= 4_000 and (tmp_path / "once").exists()
    assert "actor-0 is started anew" in "".join(capfd.readouterr())
    assert workers() == []


def test_an_actor_that_fails_every_time_ends_the_run(tmp_path):
    with pytest.raises(
        RunFailedError, match=r"actor-0 failed 3 times in a row.*the bottle is empty"
    ):
        Runner(faulty(tmp_path / "run", "raises", env_options={"at": 10})).run()
    assert workers() == []


def test_an_actor_that_hangs_does_not_hold_up_ctrl_c(tmp_path, monkeypatch):
    """Not even where a checkpoint waits for its state, here for longer than this test does."""
    once, directory = tmp_path / "once", tmp_path / "run"
    monkeypatch.setattr(supervisor, "SAVE_SECONDS", NEVER_SECONDS)
    settings = {
        "environment_timeout_seconds": NEVER_SECONDS,
        "checkpoint_interval_seconds": 0.2,
        "env_options": {"once": str(once)},
    }
    runner = Runner(faulty(directory, "hangs", **settings))
    is_saving = lambda: once.exists() and list(directory.glob("checkpoint-*"))  # noqa: E731
    assert stopped(runner, is_saving).interrupted
    assert (directory / "checkpoint.json").exists() and workers() == []


def test_checkpoints_do_not_excuse_an_actor_that_hangs(tmp_path, monkeypatch):
    """They wait for its state longer than it may be away."""
    monkeypatch.setattr(supervisor, "AWAY_SECONDS", 0.5)
    monkeypatch.setattr(supervisor, "SAVE_SECONDS", 3.0)
    with pytest.raises(RunFailedError, match="hung: no step or reset ended for"):
        Runner(
            faulty(
                tmp_path / "run",
                "hangs",
                on_environment_error="stop",
                checkpoint_interval_seconds=0.2,
            )
        ).run()
    assert workers() == []


def test_what_an_environment_started_ends_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("CHILD_FILE", str(tmp_path / "child"))
    Runner(faulty(tmp_path / "run", "child", env_options={"once": str(tmp_path / "once")})).run()
    pid = int((tmp_path / "child").read_text())
    await_end([pid])


def test_a_run_goes_on_whatever_happens_to_its_actors(tmp_path):
    """The long form, which must solve CartPole, is kill_workers.py."""
    result, killed, _ = kill_workers.main(5, 30_000, 0, tmp_path / "run", longest_pause=0.3)
    assert killed == 5 and result.env_steps >= 30_000
    assert result.samples_per_insert == pytest.approx(32, rel=0.02)
    assert workers() == []


def test_a_learner_that_is_killed_ends_the_run_and_the_checkpoint_is_named(tmp_path):
    directory = tmp_path / "run"
    runner = Runner(
        faulty(directory, "none", total_env_steps=1_000_000, checkpoint_interval_env_steps=500)
    )

    def kill():
        wait_until((directory / "checkpoint.json").exists)
        [learner] = [pid for pid in workers() if "learner" in name_of(pid)]
        os.kill(learner, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(
        RunFailedError,
        match=f"(?s)learner-0 failed: killed by SIGKILL.*{directory}: go on with --resume",
    ):
        runner.run()
    thread.join()
    assert workers() == []


def test_a_learner_that_hangs_ends_the_run(tmp_path, monkeypatch):
    runner = Runner(faulty(tmp_path / "run", "none", total_env_steps=1_000_000))

    def hang():
        signalled("learner", signal.SIGSTOP, tmp_path / "run")
        monkeypatch.setattr(supervisor, "UPDATE_SECONDS", 1.0)

    thread = threading.Thread(target=hang)
    thread.start()
    with pytest.raises(RunFailedError, match="learner-0 failed: it hung: no update ended for"):
        runner.run()
    thread.join()
    assert workers() == []


def test_a_run_outlives_a_checkpoint_for_which_its_learner_is_too_slow(tmp_path, monkeypatch):
    """It says so, and the next checkpoint is whole."""
    slow, warned = tmp_path / "slow", []
    slow.touch()
    monkeypatch.setenv("SLOW_FILE", str(slow))
    monkeypatch.setattr(supervisor, "SAVE_SECONDS", 0.2)

    def warn(self, message):
        warned.append(message)
        slow.unlink(missing_ok=True)

    monkeypatch.setattr(Monitor, "warn", warn)
    settings = RunnerConfig(
        "failing_algorithms:SlowToSave",
        "CartPole-v1",
        directory=str(tmp_path / "run"),
        **{**SMALL, "backend": "process", "checkpoint_interval_env_steps": 200},
        total_env_steps=2_000,
    )
    result = Runner(settings).run()
    assert "learner-0 did not save its state" in warned[0]
    [folder] = (tmp_path / "run").glob("checkpoint-*/")
    assert result.env_steps >= 2_000 and (folder / "learner-0.pt").exists()
    assert workers() == []


def test_a_run_goes_on_without_evaluations(tmp_path, capfd):
    settings = {
        "evaluate": "during",
        "evaluation_interval": 500,
        "evaluation_episodes": 2,
        "max_restarts": 0,
    }
    runner = Runner(faulty(tmp_path / "run", "none", total_env_steps=20_000, **settings))
    thread = threading.Thread(
        target=lambda: signalled("evaluator", signal.SIGKILL, tmp_path / "run")
    )
    thread.start()
    result = runner.run()
    thread.join()
    assert result.env_steps >= 20_000
    assert "The run goes on without evaluations" in " ".join("".join(capfd.readouterr()).split())
    assert workers() == []


def signalled(name, number, directory):
    """Send a signal to the worker of that name once there are records of episodes."""
    wait_until(lambda: size_of(directory / "episodes.jsonl") > 0)
    [worker] = [pid for pid in workers() if name in name_of(pid)]
    os.kill(worker, number)


PROGRAM = """
import faulthandler
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_faults import faulty
from unittest.mock import patch
from kary_replay.runner import Runner
from kary_replay.runner.backends import supervisor
if __name__ == "__main__":
    here = Path(__file__).parent
    faulthandler.dump_traceback_later({slow}, file=open(here / "stacks", "w"))
    settings = {{"total_env_steps": 1_000_000, "learners": {learners}}}
    limits = "GRACE_SECONDS", "FINISH_SECONDS", "SAVE_SECONDS", "SPARE_SAVE_SECONDS"
    with patch.multiple(supervisor, **dict.fromkeys(limits, {never})):
        result = Runner(faulty({directory!r}, {fault!r}, **settings)).run()
    outcome = f"interrupted {{result.interrupted}}"
    (here / "outcome").write_text(outcome)
    print(outcome, flush=True)
"""


def started(tmp_path, learners=1, fault="none", **options):
    """A run in a process of its own, once it has begun to learn."""
    tmp_path.mkdir(exist_ok=True)
    directory, program = tmp_path / "run", tmp_path / "program.py"
    program.write_text(
        PROGRAM.format(
            here=str(HERE),
            directory=str(directory),
            learners=learners,
            fault=fault,
            never=NEVER_SECONDS,
            slow=SLOW_SECONDS,
        )
    )
    usual = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    process = subprocess.Popen(
        [sys.executable, str(program)], text=True, start_new_session=True, **{**usual, **options}
    )
    wait_until(lambda: process.poll() is not None or size_of(directory / "episodes.jsonl") > 2000)
    assert process.poll() is None, process.stdout and process.stdout.read()
    return process, directory


@pytest.mark.parametrize("learners", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_with_a_checkpoint_and_waits_for_no_time_out(number, learners, tmp_path):
    """Time-outs are longer there than this test waits."""
    process, directory = started(tmp_path, learners)
    children = descendants(process.pid)
    assert len(children) >= 2 + learners
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=HANG_SECONDS)
    assert "interrupted True" in output and "Traceback" not in output, output
    await_end(children)
    assert Runner.resume(directory)


def test_sigterm_to_every_process_saves_all_the_same(tmp_path):
    """As service managers and cluster schedulers send it."""
    process, directory = started(tmp_path)
    for pid in [process.pid, *descendants(process.pid)]:
        with contextlib.suppress(ProcessLookupError):  # the first has ended the others
            os.kill(pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=HANG_SECONDS)
    assert "interrupted True" in output and "Traceback" not in output, output
    assert Runner.resume(directory)


def test_a_terminal_that_is_closed_ends_a_run_with_a_checkpoint(tmp_path):
    """The system tells it so, and nothing can be written there any more."""
    terminal, theirs = pty.openpty()
    with read(terminal):
        process, directory = started(
            tmp_path,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=in_a_terminal,
        )
    children = descendants(process.pid)
    os.close(theirs)
    os.close(terminal)
    process.wait(HANG_SECONDS)
    await_end(children)
    if stacks := (tmp_path / "stacks").read_text():
        warnings.warn(f"slow, though not too slow:\n{stacks}", stacklevel=1)
    assert (tmp_path / "outcome").read_text() == "interrupted True"
    assert Runner.resume(directory)


def in_a_terminal():
    """Make standard input the terminal of a process, as a shell does, also under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextlib.contextmanager
def read(terminal):
    """Read what is written there, as people do: whoever writes to a full terminal waits."""
    ends = threading.Event()

    def go_on():
        while not ends.is_set():
            if select.select([terminal], [], [], 0.05)[0]:
                os.read(terminal, 1 << 16)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


@pytest.fixture
def short_folder(monkeypatch):
    """Where temporary files go; the paths of sockets have 107 characters at most."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_a_killed_supervisor_leaves_nothing(
    tmp_path, short_folder, monkeypatch, no_shared_memory_is_left
):
    """Not even what environments have started."""
    monkeypatch.setenv("CHILD_FILE", str(tmp_path / "child"))
    process, _ = started(tmp_path, fault="child")
    children = descendants(process.pid)
    assert list(short_folder.glob("pymp-*"))
    assert int((tmp_path / "child").read_text()) in children
    process.kill()
    process.wait()
    await_end(children)
    caches = {"torchinductor_" + getpass.getuser()}  # which torch keeps there for the next process
    wait_until(lambda: {found.name for found in short_folder.iterdir()} <= caches)


def test_a_killed_fork_server_is_named(tmp_path, capfd):
    """All workers end with it, and no environment is accused."""
    options = {"total_env_steps": 1_000_000, "on_environment_error": "stop"}
    runner = Runner(faulty(tmp_path / "run", "none", **options))

    def kill():
        wait_until(lambda: size_of(tmp_path / "run" / "episodes.jsonl") > 0)
        os.kill(fork_server._SERVER._forkserver_pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    message = "learner-0 failed: the process from which workers are forked was killed"
    with pytest.raises(RunFailedError, match=message):
        runner.run()
    thread.join()
    assert "environment" not in "".join(capfd.readouterr()) and workers() == []
    small = {"total_env_steps": 200, "learning_starts": 100}
    assert Runner(faulty(tmp_path / "next", "none", **small)).run().env_steps >= 200


ORPHAN = """
import os
from multiprocessing import get_context
from kary_replay.runner.backends import worker_process

if __name__ == "__main__":
    worker_process.SERVER = os.getppid()
    process = get_context("fork").Process(target=worker_process.leave_no_orphan, args=["actor-0"])
    process.start()
    process.join()
"""


def test_a_worker_that_has_no_server_says_so(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(ORPHAN)
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    message = "kary-replay: actor-0 ends, for the process from which it is forked has ended"
    assert message in ended.stderr


HANGS = """
import time

from kary_replay.fork_server import WorkerProcess
from kary_replay.runner.backends.worker_process import leave_no_orphan

def hang():
    leave_no_orphan("actor-0")
    print("hangs", flush=True)
    time.sleep(1000)

if __name__ == "__main__":
    process = WorkerProcess(1, target=hang)
    process.start()
    time.sleep(1000)
"""


def test_a_worker_that_hangs_ends_with_a_killed_supervisor(tmp_path, short_folder):
    """It never looks at its pipe: its parent, the fork server, must end, and take it along."""
    program = tmp_path / "program.py"
    program.write_text(HANGS)
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "hangs\n"
    children = [pid for pid in descendants(process.pid) if is_worker(pid) or is_helper(pid)]
    assert any(map(is_worker, children))
    process.kill()
    process.wait()
    process.stdout.close()
    await_end(children)


def is_worker(pid):
    return name_of(pid) == "actor-0"
