"""How much of a machine a process has: by its affinity, and by what its container allows."""

import os

import pytest

import kary_replay as kr
from kary_replay import control_groups, cores
from kary_replay.core import shared_memory

V2 = "0::/docker/ab\n"
V1 = "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/docker/ab\n"


def laid_out(tmp_path, monkeypatch, groups, files, affinity=16):
    """Let a process be in these groups, with these files of theirs."""
    (tmp_path / "cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(control_groups, "MOUNTED", tmp_path / "mounted")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)), raising=False)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (V2, {}, 16),
        (V2, {"cpu.max": "max 100000"}, 16),
        (V2, {"cpu.max": "400000 100000"}, 4),
        (V2, {"cpu.max": "350000 100000"}, 4),
        (V2, {"cpu.max": "20000 100000"}, 1),
        (V2, {"cpu.max": "6400000 100000"}, 16),
        (V2, {"docker/ab/cpu.max": "max 100000", "docker/cpu.max": "300000 100000"}, 3),
        (V2, {"docker/ab/cpu.max": "200000 100000", "docker/cpu.max": "300000 100000"}, 2),
        (V2, {"elsewhere/cpu.max": "200000 100000"}, 16),
        (V2, {"unified/docker/ab/cpu.max": "200000 100000"}, 2),
        (V2, {"cpu.max": ""}, 16),
        (V2, {"cpu.max": "0 0"}, 16),
        (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 16),
        (V1, {"cpu/cpu.cfs_quota_us": "500000", "cpu/cpu.cfs_period_us": "100000"}, 5),
        (
            V1,
            {
                "cpu,cpuacct/docker/ab/cpu.cfs_quota_us": "150000",
                "cpu,cpuacct/docker/ab/cpu.cfs_period_us": "50000",
            },
            3,
        ),
        ("", {"cpu.max": "200000 100000"}, 16),
    ],
)
def test_a_container_is_no_larger_than_its_quota(tmp_path, monkeypatch, groups, files, expected):
    laid_out(tmp_path, monkeypatch, groups, files)
    assert cores.n_cores() == expected


def test_the_affinity_counts_where_it_is_less(tmp_path, monkeypatch):
    laid_out(tmp_path, monkeypatch, V2, {"cpu.max": "400000 100000"}, affinity=2)
    assert cores.n_cores() == 2


def test_other_systems_have_all_their_cores(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path / "nowhere")
    assert cores.n_cores() == os.cpu_count()


V2_MEMORY = {"memory.max": "1000000", "memory.current": "400000", "memory.stat": "inactive_file 9"}
V1_MEMORY = {
    "memory.limit_in_bytes": "1000000",
    "memory.usage_in_bytes": "400000",
    "memory.stat": "inactive_file 5\ntotal_inactive_file 9",
}


def inside(folder, files, **changes):
    return {f"{folder}/{name}": text for name, text in {**files, **changes}.items()}


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="shared buffers need Linux")
@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (V2, {}, None),
        (V2, V2_MEMORY, 600_009),
        (V2, {**V2_MEMORY, "memory.max": "max"}, None),
        (V2, {**V2_MEMORY, "memory.current": "2000000"}, 0),
        (V2, {**V2_MEMORY, "memory.stat": ""}, 600_000),
        (V2, inside("docker/ab", V2_MEMORY), 600_009),
        (V2, inside("docker", V2_MEMORY), 600_009),
        (V2, inside("elsewhere", V2_MEMORY), None),
        (
            V2,
            inside("docker/ab", V2_MEMORY)
            | inside("docker", V2_MEMORY, **{"memory.current": "900000"}),
            100_009,
        ),
        (V1, inside("memory", V1_MEMORY), 600_009),
        (V1, inside("memory/docker/ab", V1_MEMORY), 600_009),
        (V1, inside("cpu/docker/ab", V1_MEMORY), None),
    ],
)
def test_a_job_has_no_more_memory_than_its_group(tmp_path, monkeypatch, groups, files, expected):
    laid_out(tmp_path, monkeypatch, groups, files)
    free = shared_memory.free_memory()
    assert free > 2_000_000 if expected is None else free == expected
    if expected is not None:
        with pytest.raises(MemoryError, match="GiB of memory are free"):
            kr.ReplayBuffer(10_000, {"x": kr.Field((100,), "uint8")}, shared=True)
