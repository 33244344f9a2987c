"""What save and load do to directories: which they take, what they leave, failing steps."""

import errno
import os
import resource
import shutil
import types

import numpy as np
import pytest
from checkpoints import listing, rows, state, used_buffer

import kary_replay as kr
from kary_replay import checkpoint, checkpoint_files
from kary_replay.errors import CheckpointError, ClosedError


@pytest.mark.parametrize(
    "as_path", [str, os.fsencode, lambda path: path], ids=["str", "bytes", "Path"]
)
def test_directories_are_made_and_replaced(as_path, tmp_path):
    target = tmp_path / "runs" / "ünter 1" / "saved"
    buffer = used_buffer()
    for first in (0, 40):
        buffer.add(**rows(first, 2))
        buffer.save(as_path(target))
        names = sorted(path.name for path in target.iterdir())
        assert (
            names[0] == "checkpoint.json"
            and names[1].startswith("data-")
            and names[2:] == ["kary-replay.lock"]
        )
        assert state(kr.PrioritizedReplayBuffer.load(as_path(target))) == state(buffer)


def test_beside_a_damaged_manifest_a_failed_save_leaves_nothing_either(tmp_path, monkeypatch):
    buffer = used_buffer()
    buffer.save(tmp_path)
    path = tmp_path / "checkpoint.json"
    path.write_bytes(path.read_bytes()[:-1])
    names, sync = {one.name for one in tmp_path.iterdir()}, os.fsync

    def full(file):
        if os.readlink(f"/proc/self/fd/{file}").endswith(".new"):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files.os, "fsync", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                buffer.save(tmp_path)
            assert {one.name for one in tmp_path.iterdir()} == names
    (tmp_path / "checkpoint.json.new").touch()  # of one that was killed
    buffer.save(tmp_path)
    assert state(kr.PrioritizedReplayBuffer.load(tmp_path)) == state(buffer)


def test_leftovers_are_removed_and_other_things_stay(tmp_path):
    buffer = used_buffer()
    buffer.save(tmp_path)
    (tmp_path / "data-0123456789abcdef").mkdir()
    (tmp_path / "data-0123456789abcdef" / "rows.bin").write_bytes(b"half a f")
    (tmp_path / "checkpoint.json.new").write_bytes(b"{")
    mine = {
        tmp_path / "notes.txt": b"mine",
        tmp_path / "data-mine": None,
        tmp_path / "data-mine" / "x": b"mine",
    }
    (tmp_path / "data-mine").mkdir()
    for path, content in mine.items():
        if content:
            path.write_bytes(content)
    assert state(kr.PrioritizedReplayBuffer.load(tmp_path)) == state(buffer)
    buffer.save(tmp_path)
    found = listing(tmp_path)
    assert mine.items() <= found.items() and len(found) == len(mine) + 6
    assert state(kr.PrioritizedReplayBuffer.load(tmp_path)) == state(buffer)


def test_a_moved_checkpoint_and_one_that_may_not_be_written(tmp_path):
    buffer = used_buffer()
    buffer.save(tmp_path / "one")
    (tmp_path / "one" / "kary-replay.lock").unlink()
    (tmp_path / "one").rename(tmp_path / "two")
    (tmp_path / "two").chmod(0o500)
    before = listing(tmp_path)
    assert state(kr.PrioritizedReplayBuffer.load(tmp_path / "two")) == state(buffer)
    assert listing(tmp_path) == before
    (tmp_path / "two").chmod(0o700)
    buffer.save(tmp_path / "two")


@pytest.mark.parametrize("what", ["file", "checkpoint.json", "other files"])
@pytest.mark.parametrize(
    "call",
    [lambda path: used_buffer().save(path), kr.PrioritizedReplayBuffer.load],
    ids=["save", "load"],
)
def test_foreign_things_are_refused_and_left_alone(what, call, tmp_path):
    target = tmp_path / "theirs"
    if what == "file":
        target.write_bytes(b"theirs")
    else:
        target.mkdir()
        (target / (what if what == "checkpoint.json" else "model.zip")).write_bytes(b'{"step": 1}')
    before = listing(tmp_path)
    with pytest.raises(NotADirectoryError if what == "file" else CheckpointError, match="theirs"):
        call(target)
    assert listing(tmp_path) == before


def test_a_directory_that_is_missing_or_empty_holds_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        kr.ReplayBuffer.load(tmp_path / "missing")
    with pytest.raises(CheckpointError, match=r"holds no checkpoint: it has no checkpoint\.json"):
        kr.ReplayBuffer.load(tmp_path)
    for path in (3, None):
        with pytest.raises(TypeError):
            kr.ReplayBuffer.load(path)
        with pytest.raises(TypeError):
            used_buffer().save(path)
    assert not list(tmp_path.iterdir())


def test_a_closed_buffer_is_not_saved(tmp_path):
    buffer = used_buffer()
    buffer.close()
    with pytest.raises(ClosedError):
        buffer.save(tmp_path / "saved")
    assert not list(tmp_path.iterdir())


def test_one_save_at_a_time(tmp_path, monkeypatch):
    buffer, other = used_buffer(), used_buffer(n_rows=3)
    copy_all = checkpoint._RowsFile.copy_all

    def save_meanwhile(file):
        monkeypatch.setattr(checkpoint._RowsFile, "copy_all", copy_all)
        with pytest.raises(BlockingIOError, match="saving to this directory"):
            other.save(tmp_path)
        copy_all(file)

    monkeypatch.setattr(checkpoint._RowsFile, "copy_all", save_meanwhile)
    buffer.save(tmp_path)
    assert state(kr.PrioritizedReplayBuffer.load(tmp_path)) == state(buffer)
    other.save(tmp_path)
    assert state(kr.PrioritizedReplayBuffer.load(tmp_path)) == state(other)


def test_a_save_while_another_loads(tmp_path, monkeypatch):
    buffer = used_buffer()
    buffer.save(tmp_path)
    open_data = checkpoint.open_data
    turns = iter(["before", "after"])

    def save_around(*arguments):
        turn = next(turns, None)
        if turn == "before":  # the files just named are gone
            buffer.add(**rows(60, 1))
            buffer.save(tmp_path)
        files = open_data(*arguments)
        if turn == "after":  # the open ones have lost their names
            used_buffer(n_rows=2).save(tmp_path)
        return files

    monkeypatch.setattr(checkpoint, "open_data", save_around)
    assert state(kr.PrioritizedReplayBuffer.load(tmp_path)) == state(buffer)


def test_a_file_that_may_not_grow(tmp_path):
    """A real write that is cut short, as on a full disk."""
    buffer = kr.ReplayBuffer(100, {"body": kr.Field((10_000,), "uint8")}, seed=0)
    buffer.add(body=np.ones((10, 10_000), np.uint8))
    buffer.save(tmp_path)
    before, saved = listing(tmp_path), state(buffer)
    buffer.add(body=np.ones((90, 10_000), np.uint8))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            buffer.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert listing(tmp_path) == before
    assert state(kr.ReplayBuffer.load(tmp_path)) == saved


# ---------------------------------------------------------------------------------- steps that fail

STEPS = ["mkdir", "open", "pwrite", "fsync", "replace", "close"]


class Steps:
    """Counts a save's requests to the system, and does something before or instead of each."""

    def __init__(self, monkeypatch):
        self.calls, self.disturb = [], None
        watched = types.ModuleType("os")
        watched.__dict__.update(vars(os))
        for name in STEPS:
            setattr(watched, name, self._watched(name, getattr(os, name)))
        monkeypatch.setattr(checkpoint_files, "os", watched)
        monkeypatch.setattr(
            checkpoint_files,
            "shutil",
            types.SimpleNamespace(rmtree=self._watched("rmtree", shutil.rmtree)),
        )

    def _watched(self, name, function):
        def call(*arguments, **options):
            if name == "open" and os.path.basename(arguments[0]) == "checkpoint.json":
                return function(*arguments, **options)  # to read it, which is no step of the save
            self.calls.append((name, arguments))
            if self.disturb is not None:
                self.disturb(len(self.calls))
            return function(*arguments, **options)

        return call

    def save(self, buffer, directory, disturb=None):
        """Save, calling disturb(number) before each step; return how many steps there were."""
        self.calls.clear()
        self.disturb = disturb
        try:
            buffer.save(directory)
        finally:
            self.disturb = None
        return len(self.calls)


class Trial:
    """A checkpoint, and a buffer with other rows to take its place."""

    def __init__(self, tmp_path, monkeypatch):
        self.folder, self.buffer, self.steps = tmp_path / "saved", used_buffer(), Steps(monkeypatch)
        self.steps.save(self.buffer, self.folder)
        self.renew()

    def renew(self):
        """Save without disturbance, and add a row."""
        self.n_steps = self.steps.save(self.buffer, self.folder)
        assert self.n_entries() == 6
        self.saved = state(self.buffer)
        self.buffer.add(**rows(77, 1))

    def n_entries(self):
        return len(list(self.folder.rglob("*")))

    def outcome(self):
        """Which checkpoint there is: the old or the new one, and nothing else."""
        found = state(kr.PrioritizedReplayBuffer.load(self.folder))
        assert found in (self.saved, state(self.buffer))
        return "old" if found == self.saved else "new"


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()],
    ids=["full", "interrupt"],
)
def test_when_a_step_fails_the_checkpoint_stays_and_the_new_files_go(error, tmp_path, monkeypatch):
    trial, outcomes = Trial(tmp_path, monkeypatch), []
    assert trial.n_steps > 20
    for fail_at in range(1, trial.n_steps + 1):

        def fail(number, fail_at=fail_at):
            if number == fail_at:
                raise error

        raised = None
        try:
            trial.steps.save(trial.buffer, trial.folder, fail)
        except type(error) as caught:
            raised = caught
        # old files that stay are no failure; the next save removes them
        assert raised is error or trial.steps.calls[fail_at - 1][0] == "rmtree"
        outcomes.append(trial.outcome())
        if outcomes[-1] == "old":
            assert trial.n_entries() == 6
        else:
            trial.renew()
    assert outcomes == sorted(outcomes, reverse=True) and set(outcomes) == {"old", "new"}


def test_whoever_dies_at_any_step_leaves_one_or_the_other_whole(tmp_path, monkeypatch):
    trial, outcomes = Trial(tmp_path, monkeypatch), []
    for die_at in range(1, trial.n_steps + 1):
        pid = os.fork()
        if pid == 0:
            try:
                die = lambda number, at=die_at: number == at and os._exit(9)  # noqa: E731
                trial.steps.save(trial.buffer, trial.folder, die)
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        outcomes.append(trial.outcome())
        if outcomes[-1] == "new" or die_at % 2:  # else the next victim finds what this one left
            trial.renew()
    assert outcomes == sorted(outcomes, reverse=True) and set(outcomes) == {"old", "new"}


def test_everything_is_on_the_disk_before_the_switch(tmp_path, monkeypatch):
    """The data, their names, the manifest, its name and the switch; then the old data go."""
    trial, events = Trial(tmp_path, monkeypatch), []
    old = next(path for path in trial.folder.iterdir() if path.name.startswith("data-"))

    def note(_):
        name, arguments = trial.steps.calls[-1]
        if name in ("pwrite", "fsync"):
            events.append((name, os.path.basename(os.readlink(f"/proc/self/fd/{arguments[0]}"))))
        elif name in ("replace", "rmtree"):
            events.append((name, os.path.basename(arguments[-1])))
        assert (old / "rows.bin").exists() or events[-1][0] == "rmtree"

    trial.steps.save(trial.buffer, trial.folder, note)
    data = next(path.name for path in trial.folder.iterdir() if path.name.startswith("data-"))
    written = {name for what, name in events if what == "pwrite"}
    assert written == {"rows.bin", "mass.bin", "priority.bin", "checkpoint.json.new"}
    switch = events.index(("replace", "checkpoint.json"))
    for name in written:
        last = max(i for i, event in enumerate(events) if event == ("pwrite", name))
        assert last < events.index(("fsync", name)) < switch
    assert events.index(("fsync", "mass.bin")) < events.index(("fsync", data)) < switch
    assert ("fsync", trial.folder.name) in events[
        events.index(("fsync", "checkpoint.json.new")) : switch
    ]
    assert (
        events[switch + 1 :] == [("fsync", trial.folder.name), ("rmtree", old.name)]
        and not old.exists()
    )
