"""Damaged checkpoints: whatever byte is wrong, load names the file, and makes nothing."""

import json
import os
import shutil
import socket

import numpy as np
import pytest
from checkpoints import listing, state, used_buffer

import kary_replay as kr
from kary_replay import checkpoint, checkpoint_files
from kary_replay.errors import CheckpointError

FILES = ["checkpoint.json", "rows.bin", "mass.bin", "priority.bin"]


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """The directory of a checkpoint whose files have several chunks."""
    monkeypatch.setattr(checkpoint, "CHUNK_NBYTES", 64)
    used_buffer(n_rows=40, capacity=30).save(tmp_path)
    return tmp_path


def find(saved, name):
    return next(saved.rglob(name))


def refused(saved, name, what="damaged"):
    """Load has to fail with an error that names this file."""
    before = listing(saved)
    with pytest.raises(CheckpointError, match=what) as raised:
        kr.PrioritizedReplayBuffer.load(saved)
    assert f"/{name}'" in str(raised.value), raised.value
    assert listing(saved) == before


@pytest.mark.parametrize("name", FILES)
def test_any_bit(name, saved, rng):
    path = find(saved, name)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.integers(8)]) + whole[at + 1 :])
        refused(saved, name)
    path.write_bytes(whole)
    kr.PrioritizedReplayBuffer.load(saved)


@pytest.mark.parametrize("name", FILES)
def test_any_length(name, saved):
    path = find(saved, name)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        refused(saved, name)
    for more in (b"\0", b"\n", whole):
        path.write_bytes(whole + more)
        refused(saved, name)


@pytest.mark.parametrize("name", FILES)
def test_bytes_that_changed_places_or_became_zero(name, saved, rng):
    path = find(saved, name)
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    for _ in range(200):
        start, n = rng.integers(len(whole)), int(2 ** rng.uniform(0, 9))
        for damaged in (whole.copy(), whole.copy()):
            damaged[start : start + n] = (
                0
                if damaged is not whole and rng.random() < 0.5
                else rng.permutation(damaged[start : start + n])
            )
            if (damaged != whole).any():
                path.write_bytes(damaged.tobytes())
                refused(saved, name)
    path.write_bytes(np.concatenate([whole[64:128], whole[:64], whole[128:]]).tobytes())
    refused(saved, name)


@pytest.mark.parametrize("name", ["rows.bin", "mass.bin"])
def test_the_part_is_named(name, saved):
    path = find(saved, name)
    whole = bytearray(path.read_bytes())
    whole[130] ^= 1
    path.write_bytes(whole)
    size = checkpoint_files.read_manifest(saved)["files"][name]["chunk_nbytes"]
    refused(saved, name, f"chunk {130 // size} of [0-9]+, from byte {130 // size * size} on")


def test_missing_files(saved):
    for name in ("rows.bin", "mass.bin"):
        path = find(saved, name)
        path.rename(saved / "aside")
        refused(saved, name, "is missing, which .*checkpoint.json' names")
        path.mkdir()
        with pytest.raises((CheckpointError, IsADirectoryError), match=name):
            kr.PrioritizedReplayBuffer.load(saved)
        path.rmdir()
        (saved / "aside").rename(path)
    shutil.rmtree(find(saved, "rows.bin").parent)
    refused(saved, "rows.bin", "is missing")
    (saved / "checkpoint.json").unlink()
    with pytest.raises(
        CheckpointError, match="holds no checkpoint: no save to it has come to its end"
    ):
        kr.PrioritizedReplayBuffer.load(saved)


def test_a_damaged_checkpoint_can_be_replaced(saved):
    for name in FILES:
        path = find(saved, name)
        path.write_bytes(path.read_bytes()[:-1])
        buffer = used_buffer()
        buffer.save(saved)
        assert state(kr.PrioritizedReplayBuffer.load(saved)) == state(buffer)
        assert len(list(saved.rglob("*"))) == 6


def rewrite(saved, change):
    """Change what the manifest says, and seal it again."""
    content = checkpoint_files.read_manifest(saved)
    change(content)
    body = checkpoint_files.HEAD + json.dumps(content).encode()
    (saved / "checkpoint.json").write_bytes(checkpoint_files._sealed(body))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            {"format": 3, "version": "9.9"},
            r"saved by kary-replay 9\.9 in format 3; version .* reads formats 1 and 2",
        ),
        ({"byte_order": "big"}, "big-endian machine, this one is little-endian"),
        ({"kind": "FrameBuffer"}, r"holds a FrameBuffer: load it with FrameBuffer\.load"),
        (
            {"offsets": [8, 16, 24, 32], "version": "0.0.7"},
            r"saved by kary-replay 0\.0\.7, which lays rows out differently",
        ),
    ],
)
def test_other_formats_machines_and_kinds(change, what, saved):
    rewrite(saved, lambda content: content.update(change))
    before = listing(saved)
    with pytest.raises(CheckpointError, match=what):
        kr.PrioritizedReplayBuffer.load(saved)
    assert listing(saved) == before


@pytest.mark.parametrize(
    "change",
    [
        *[
            {name: value}
            for name in ("capacity", "n_touched", "n_started", "position")
            for value in (-1, 29 if name == "capacity" else 31, "ten", None, [])
        ],
        *[
            {"capacity": 0},
            {"n_started": 29},
            {"n_touched": 29},
            {"position": 30},
            {"n_added": 2**64},
            {"n_sampled": -1},
        ],
        *[
            {name: value}
            for name in ("alpha", "beta", "uniform_share")
            for value in (-0.1, 1.1, float("nan"), "half", None)
        ],
        *[{"max_priority": value} for value in (0.0, -1.0, float("nan"), float("inf"))],
        *[{"noise": value} for value in ([], [0.0], [-1.0] * 11, [None] * 11)],
        *[{"random": value} for value in ([], [1, 2], [1, 2, -3], [1, 2, 2**64], None)],
        *[
            {"fields": value}
            for value in ({}, [], {"x": 3}, {"x": []}, {"x": [[3], "object"]}, {"x": [[0], "int8"]})
        ],
        *[{"data": value} for value in ("", "..", "../x", "data-XYZ", None)],
        *[{"files": value} for value in ({}, [], None, {"../../etc/passwd": {"nbytes": 1}})],
        *[{"files.more": {"..": {"nbytes": 4096, "chunk_nbytes": 1, "crc32": []}}}],
        *[
            {"row_nbytes": 8},
            {"options": None},
            {"options": []},
            {"options": [["prioritization", "rank"]]},
        ],
        *[{"options": {name: value}} for name, value in (("prioritization", "rank"), ("stack", 4))],
        *[{"priority_epsilon": value} for value in (-5.0, 0.0, float("nan"), "1", True, None)],
        *[{name: True} for name in ("format", "capacity", "position", "n_added", "alpha", "beta")],
        *[{name: 30.0} for name in ("capacity", "n_touched", "n_started", "n_added", "n_sampled")],
        *[
            {"n_started": 10**15},
            {"n_touched": 10**15},
            {"capacity": 2**45},
            {"n_added": -5},
            {"n_added": "9"},
        ],
        *[{"max_priority": value} for value in (0.5, 1e308, True, "2")],
        *[{"random": value} for value in ([1, 2, 3, 4], [1, 2, 3.0], [1, 2, True], "123", {})],
        *[{"fields": {"x": [value, "int8"]}} for value in ([True], [2.0], 5, None)],
        *[
            {"fields": {name: value}}
            for name, value in (("index", [[], "i1"]), ("x", [[2], "i1", 3]))
        ],
        *[{"files.rows.bin": {"nbytes": value}} for value in (-1, "1200", 1200.0, None, [])],
        *[{"files.rows.bin": {"chunk_nbytes": value}} for value in (0, -1, 1, 10**9, None)],
        *[{"files.mass.bin": {"crc32": value}} for value in ([], ["00000000"] * 3, None)],
    ],
    ids=str,
)
def test_a_manifest_that_contradicts_itself(change, saved):
    def apply(content):
        for name, value in change.items():
            if name == "files.more":
                content["files"].update(value)
            elif name.startswith("files."):
                content["files"][name.removeprefix("files.")].update(value)
            else:
                content[name] = value

    rewrite(saved, apply)
    with pytest.raises(CheckpointError, match=r"checkpoint\.json'|mass\.bin'|rows\.bin'"):
        kr.PrioritizedReplayBuffer.load(saved)


@pytest.mark.parametrize(
    "left_out",
    [
        *[
            "format",
            "byte_order",
            "kind",
            "capacity",
            "fields",
            "options",
            "data",
            "files",
            "offsets",
            "row_nbytes",
        ],
        *["n_touched", "n_started", "position", "n_added", "n_sampled", "random"],
        *["alpha", "beta", "priority_epsilon", "max_priority"],
    ],
)
def test_a_manifest_that_lacks_something(left_out, saved):
    rewrite(saved, lambda content: content.pop(left_out))
    refused(saved, "checkpoint.json", f"contradicts itself: KeyError: '{left_out}'")


def test_a_manifest_from_before_there_was_a_uniform_share(saved):
    for name in ("uniform_share", "adapts_share", "noise"):
        rewrite(saved, lambda content, name=name: content.pop(name))
    assert kr.PrioritizedReplayBuffer.load(saved).uniform_share == 0.0


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("mass.bin", 3, -1.0),
        ("mass.bin", 3, np.nan),
        ("mass.bin", 3, np.inf),
        ("rows.bin", 0, 3),
        ("rows.bin", 0, 0),
    ],
)
def test_contents_that_no_buffer_can_have(name, at, value, saved):
    """A checkpoint with forged checksums is refused where it would break the invariants."""
    path = find(saved, name)
    values = np.frombuffer(
        path.read_bytes(), np.float64 if name == "mass.bin" else np.uint64
    ).copy()
    values[at] = value
    path.write_bytes(values.tobytes())

    def reseal(content):
        about = content["files"][name]
        size, raw = about["chunk_nbytes"], values.tobytes()
        about["crc32"] = [
            f"{checkpoint_files.zlib.crc32(raw[i : i + size]):08x}"
            for i in range(0, len(raw), size)
        ]

    rewrite(saved, reseal)
    refused(saved, "checkpoint.json", "contradicts itself")


# --------------------------------------------------------- manifests and files of other kinds


def sealed(saved, body):
    (saved / "checkpoint.json").write_bytes(checkpoint_files._sealed(checkpoint_files.HEAD + body))


@pytest.mark.parametrize("depth", [500, 900, 100_000])
def test_a_manifest_that_is_nested_too_deeply(depth, saved):
    sealed(saved, b'{"a":' * depth + b"1" + b"}" * depth)
    refused(saved, "checkpoint.json", "contradicts itself|nested too deeply")
    content = checkpoint_files.read_manifest(used(saved / "again"))
    fields = b'{"a":' * depth + b'[[], "int8"]' + b"}" * depth
    before, after = json.dumps({**content, "fields": "here"}).encode().split(b'"here"')
    sealed(saved, before + fields + after)
    refused(saved, "checkpoint.json", "contradicts itself|nested too deeply|is missing")


def used(folder):
    used_buffer().save(folder)
    return folder


@pytest.mark.parametrize("body", [b"[]", b"3", b'"text"', b"null", b"[[1]]"])
def test_a_manifest_that_is_no_object(body, saved):
    sealed(saved, body)
    refused(saved, "checkpoint.json", "is no manifest")


def make_fifo(path):
    os.mkfifo(path)


def make_link(path):
    path.symlink_to(path.with_suffix(".aside"))


def make_link_to_nothing(path):
    path.symlink_to("nowhere")


def make_device(path):
    path.symlink_to("/dev/zero")  # a node of its own would take a privilege


def make_socket(path):
    before = os.getcwd()
    os.chdir(path.parent)  # names of sockets must be short
    socket.socket(socket.AF_UNIX).bind(path.name)
    os.chdir(before)


NO_REGULAR_FILES = [
    *[make_fifo, make_link, make_link_to_nothing, make_device, make_socket, os.mkdir],
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("make", NO_REGULAR_FILES)
def test_what_is_no_regular_file_is_refused_at_once(name, make, saved):
    path = find(saved, name)
    path.rename(path.with_suffix(".aside"))
    make(path)
    refused(saved, name, "regular file|symbolic link|cannot be read")


def test_a_data_folder_elsewhere_is_refused(saved, tmp_path_factory):
    data = find(saved, "rows.bin").parent
    aside = tmp_path_factory.mktemp("aside") / "data"
    data.rename(aside)
    data.symlink_to(aside)
    refused(saved, data.name, "symbolic link")
    data.unlink()
    data.write_bytes(b"")
    refused(saved, data.name, "is no directory")


def test_a_link_to_the_checkpoint_is_as_good_as_its_name(saved, tmp_path_factory):
    link = tmp_path_factory.mktemp("links") / "newest"
    link.symlink_to(saved)
    assert len(kr.PrioritizedReplayBuffer.load(link)) == 30


def test_one_that_does_not_fit_into_memory_is_named(saved, monkeypatch):
    rewrite(saved, lambda content: content.update(capacity=2**40))
    with pytest.raises(MemoryError, match=f"'{saved}' cannot be loaded: capacity"):
        kr.PrioritizedReplayBuffer.load(saved)


@pytest.mark.parametrize(
    "options",
    [
        *[
            {},
            {"stack": 2},
            {"stack": 2, "n_step": 2, "padding": "ones"},
            {"stack": 2.0, "n_step": 2, "padding": "zeros"},
        ],
        *[
            {"stack": 0, "n_step": 2, "padding": "zeros"},
            {"stack": 2, "n_step": True, "padding": "zeros"},
        ],
        *[
            {"stack": 3, "n_step": 2, "padding": "zeros"},
            {"stack": 2, "n_step": 1, "padding": "zeros"},
        ],
        *[
            {"stack": 2, "n_step": 49, "padding": "zeros"},
            {"stack": 2, "n_step": 2, "padding": ["zeros"]},
        ],
        *[{"stack": 2, "n_step": 2, "padding": "zeros", "more": 1}],
    ],
    ids=str,
)
def test_a_frame_buffers_options(options, tmp_path):
    buffer = frame_buffer()
    buffer.save(tmp_path)
    assert kr.FrameReplayBuffer.load(tmp_path).padding == "zeros"
    rewrite(tmp_path, lambda content: content.update(options=options))
    with pytest.raises(CheckpointError, match=r"checkpoint\.json' contradicts itself"):
        kr.FrameReplayBuffer.load(tmp_path)


@pytest.mark.parametrize("change", ["frame", "history", "history elsewhere", "action", "reward"])
def test_a_frame_buffers_fields(change, tmp_path):
    def apply(content):
        if change == "history elsewhere":
            content["fields"] = dict(reversed(content["fields"].items()))
        elif change == "reward":
            content["fields"]["reward"] = content["fields"].pop("reward")  # the last one now
        else:
            del content["fields"][change]

    frame_buffer().save(tmp_path)
    rewrite(tmp_path, apply)
    with pytest.raises(CheckpointError, match=r"checkpoint\.json' contradicts itself"):
        kr.FrameReplayBuffer.load(tmp_path)


def frame_buffer():
    frame, action = kr.Field((4,), "uint8"), kr.Field((), "int64")
    options = {"stack": 2, "n_step": 2, "padding": "zeros"}
    return kr.FrameReplayBuffer(50, frame, {"action": action}, **options)
