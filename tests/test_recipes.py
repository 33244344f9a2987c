"""Every recipe under docs/recipes runs, in a short form, and is listed in docs/recipes.md."""

import runpy
import sys
from pathlib import Path

import pytest

import kary_replay

ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.py"))
SHORT = {  # what makes a recipe short enough for a test, where it can be told
    "cleanrl_dqn": ["--total-timesteps", "1500", "--learning-starts", "200"],
    "native_loop": ["--steps", "1500"],
    "new_algorithm": ["--steps", "1500"],
    "sb3_cartpole": ["--steps", "2048", "--threshold", "501", "--output", "plots"],
    "rllib_cartpole": ["--steps", "2000"],
    "two_ways": ["--steps", "1200", "--threshold", "501", "--backend", "serial"],
}
EXIT_CODES = {"sb3_cartpole": 1, "two_ways": 1}  # the steps run out, for nothing reaches 501
LEAVES = {
    "sb3_cartpole": {"plots/learning_curve.png", "plots/priorities.png"},
    "two_ways": {"runs/two_ways"},
}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe(path, monkeypatch, tmp_path):
    """A user runs it in an empty folder; and TD errors reach a tree, for almost every batch."""
    needed = {"tianshou": "tianshou", "rllib": "ray.rllib"}.get(path.stem.partition("_")[0])
    pytest.importorskip(needed or "stable_baselines3", exc_type=ImportError)
    if "tianshou" in path.stem:
        import kary_replay.adapters.tianshou as adapter

        ways = [
            (adapter.PrioritizedReplayBuffer, "update_weight"),
            (adapter.PrioritizedVectorReplayBuffer, "update_weight"),
        ]
    else:
        ways = [(kary_replay.PrioritizedReplayBuffer, "update_priorities")]
    counts = [count_calls(monkeypatch, *way) for way in ways]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.setattr(sys, "argv", [path.name, *SHORT.get(path.stem, [])])
    code = 0
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as stop:
        code = stop.code
    assert code == EXIT_CODES.get(path.stem, 0)
    wanted = LEAVES.get(path.stem, set())
    left = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert {
        next((name for name in wanted if Path(file).is_relative_to(name)), file) for file in left
    } == wanted
    assert sum(count["calls"] for count in counts) > 50


def count_calls(monkeypatch, cls, name):
    """Count the calls of a method, which works as before."""
    original, counts = getattr(cls, name), {"calls": 0}

    def counted(self, *args, **kwargs):
        counts["calls"] += 1
        return original(self, *args, **kwargs)

    monkeypatch.setattr(cls, name, counted)
    return counts


def test_every_recipe_is_listed():
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert not [path.name for path in RECIPES if f"(recipes/{path.name})" not in page]
