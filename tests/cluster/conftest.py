"""A Ray cluster of several nodes on this machine, and runs on it.

Nodes are processes of their own, so placement, deaths and arrivals are real; the network is not.
No site attaches to another one's memory, so rows of other nodes come by sockets.
"""

from __future__ import annotations

import multiprocessing.util
import os
import secrets
import sys
import tempfile
from pathlib import Path

import pytest
from ray_runs import MARK

# for environments that break; a cluster's workers look where their driver does
sys.path.append(str(Path(__file__).resolve().parents[1] / "runner"))

os.environ["RAY_AUTH_MODE"] = "disabled"  # a cluster of this test alone, on loopback
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# By default Ray makes its workers give way to everything else here, as to the tests beside these.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (as Ray spells it)
ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray")

STORE_BYTES = 80 * 2**20


class Nodes:
    """A cluster, whose nodes come and go."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster()
        self.head = self.add(2)
        self.others: list = []

    def add(self, n_cpus: int):
        return self.cluster.add_node(
            num_cpus=n_cpus, object_store_memory=STORE_BYTES, include_dashboard=False
        )

    def have(self, n: int, n_cpus: int = 2) -> None:
        """Let there be so many nodes beside the head."""
        while len(self.others) > n:
            self.kill()
        while len(self.others) < n:
            self.others.append(self.add(n_cpus))
        self.cluster.wait_for_nodes()

    def kill(self) -> None:
        """End a node without warning."""
        self.cluster.remove_node(self.others.pop(), allow_graceful=False)


@pytest.fixture(scope="session")
def nodes():
    """A cluster whose processes and folders can be told from those of tests beside this one."""
    multiprocessing.util.get_temp_dir()  # which outlives this cluster
    # pytest's own folders have names too long for the sockets of a cluster
    with tempfile.TemporaryDirectory(prefix="kr-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", None)
        patch.setenv(MARK, secrets.token_hex(8))
        made = Nodes()
        try:
            yield made
        finally:
            ray.shutdown()
            made.cluster.shutdown()


@pytest.fixture
def cluster(nodes):
    """A cluster of three nodes, to which this process belongs during the test."""
    nodes.have(2)
    ray.init(address=nodes.cluster.address, logging_level="warning", log_to_driver=False)
    yield nodes
    ray.shutdown()
