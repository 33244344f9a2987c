"""What is said where a run on a cluster cannot begin. No Ray is needed here."""

from __future__ import annotations

import socket
import sys
import types

import pytest
import runs

from kary_replay.runner import ConfigError, Runner
from kary_replay.runner.backends.ray import connect
from kary_replay.runner.backends.site import Site
from kary_replay.runner.environments.env_factory import env_factory
from kary_replay.runner.streams import Part


@pytest.fixture(autouse=True)
def no_address(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def ray_of(version="2.60.0", is_initialized=False, error=None):
    """What stands in for Ray."""
    module = types.ModuleType("ray")
    module.__version__ = version
    module.is_initialized = lambda: is_initialized

    def init(**options):
        module.options = options
        if error is not None:
            raise error

    module.init = init
    return module


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'pip install "kary-replay\[ray\]"'):
        connect(None)


@pytest.mark.parametrize("version", ["2.9.3", "1.13.0", "2.59.1"])
def test_a_ray_that_is_too_old(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "ray", ray_of(version))
    with pytest.raises(ConfigError, match=rf"needs Ray 2\.60 or newer, {version} is installed"):
        connect(None)


def test_a_program_that_is_in_a_cluster_stays_there(monkeypatch):
    module = ray_of("3.0.0.dev0", is_initialized=True)
    monkeypatch.setitem(sys.modules, "ray", module)
    assert connect("192.0.2.1:6379") == (module, False)


def test_an_address_that_nobody_answers(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", ray_of())
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"ray_address='127.0.0.1:{port}': nobody answers"):
            connect(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:", ":6379", "head:port"])
def test_what_is_no_address(monkeypatch, address):
    monkeypatch.setitem(sys.modules, "ray", ray_of())
    with pytest.raises(ConfigError, match="ray_address must be 'auto' or HOST:PORT"):
        connect(address)


def test_a_cluster_that_refuses_says_why(monkeypatch):
    error = ConnectionError("Could not find any running Ray instance.")
    monkeypatch.setitem(sys.modules, "ray", ray_of(error=error))
    with pytest.raises(ConfigError, match="leads to no cluster: Could not find any running"):
        connect("auto")


@pytest.mark.parametrize("address", ["ray://head:10001", "127.0.0.1:1"])
def test_the_address_of_the_environment_is_looked_at_first(monkeypatch, address):
    """Ray itself would try for minutes."""
    monkeypatch.setitem(sys.modules, "ray", ray_of())
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match="ray_address"):
        connect(None)


def test_nothing_is_created_where_there_is_no_cluster(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    settings = runs.config("dqn", "CartPole-v1", tmp_path / "run", backend="ray")
    with pytest.raises(ConfigError, match="needs Ray"):
        Runner(settings).run()
    assert not (tmp_path / "run").exists()


def test_an_environment_that_other_nodes_do_not_find(monkeypatch, tmp_path):
    def make():
        raise AssertionError

    make.__module__, make.__qualname__ = "__main__", "make"
    monkeypatch.setattr(sys.modules["__main__"], "make", make, raising=False)
    settings = runs.config("dqn", make, tmp_path / "run", backend="ray")
    with pytest.raises(ConfigError, match="which other nodes do not import"):
        env_factory(settings)


def test_a_node_with_another_version():
    part = Part(1, 0.5, bytes(32))
    with pytest.raises(RuntimeError, match="install the same on all nodes"):
        Site("0.0.1", b"", 1, part, {}, "127.0.0.1", [])
