"""How many cores a process may keep busy: its affinity, and what its container allows."""

import os

import pytest

from kary_replay import cores

V2 = "0::/docker/ab\n"
V1 = "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/docker/ab\n"


def laid_out(tmp_path, monkeypatch, groups, files, affinity=16):
    """Let a process be in these groups, with these files of theirs."""
    (tmp_path / "cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    monkeypatch.setattr(cores, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "MOUNTED", tmp_path / "mounted")
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
    monkeypatch.setattr(cores, "GROUPS", tmp_path / "nowhere")
    assert cores.n_cores() == os.cpu_count()
