"""Pong until a mean return of 18, in pieces: `python -m bench.runs.pong WHO --folder FOLDER`.

    python -m bench.runs.pong kary-replay --folder pong-ours --minutes 120
    python -m bench.runs.pong stable-baselines3 --folder pong-sb3 --minutes 120

The same command goes on where it ended. Stock Stable-Baselines3 has the settings of RL Baselines3
Zoo for Atari, ours those below. Both have the same game, both cores, and evaluations of as many
greedy episodes after as many steps, whose time counts; that of saving and loading between pieces
does not. Who has not reached the goal after MOST_HOURS ends there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from bench.harness import campaign, machine
from bench.harness.paths import DOCS, RESULTS
from bench.harness.plots import BLUE, ORANGE, STYLE
from bench.harness.report import machine_text, markdown_table, write
from bench.runs import pixels_run

OUTPUT = RESULTS / "pong.json"
GOAL, MOST_HOURS = 18.0, 6.0
INTERVAL, EPISODES = 100_000, 8  # environment steps between two evaluations, episodes of one
SAMPLE_SECONDS = 60.0  # between two looks at the memory
OURS, SB3 = "kary-replay", "stable-baselines3"
COLOURS = {OURS: BLUE, SB3: ORANGE}
SETTINGS: dict[str, Any] = {
    "total_env_steps": 4_000_000,
    "target_return": GOAL,
    "learners": 1,
    "actors": 1,
    "learning_starts": 5_000,
    "buffer_capacity": 200_000,
    "evaluation_interval": INTERVAL,
    "evaluation_episodes": EPISODES,
}
OPTIONS: dict[str, Any] = {  # the others are the preset's
    "image_network": "data_efficient",
    "learning_rate": 3e-4,
    "learning_rate_final_share": 0.2,
    "n_step": 5,
    "n_atoms": 51,
    "double": False,
    "exploration_fraction": 0.02,
}
# https://github.com/DLR-RM/rl-baselines3-zoo, hyperparams/dqn.yml, atari
ZOO: dict[str, Any] = {
    "buffer_size": 100_000,
    "learning_rate": 1e-4,
    "batch_size": 32,
    "learning_starts": 100_000,
    "target_update_interval": 1_000,
    "train_freq": 4,
    "gradient_steps": 1,
    "exploration_fraction": 0.1,
    "exploration_final_eps": 0.01,
}
ZOO_STEPS = 10_000_000
# https://github.com/google/dopamine, baselines/atari/data/pong.json: when the mean return of
# 250,000 steps of training first reached the goal, in one of several runs: the first, but for
# Rainbow's last
PUBLISHED = {"IQN": 3.25, "Rainbow": 4.25, "DQN": 25.75, "C51": 26.75}


def ours(folder: Path, seconds: float) -> dict[str, Any]:
    """Train, or go on, for so long at most; return what has come of it so far."""
    from dataclasses import replace

    from kary_replay.runner import Runner, RunnerConfig

    if (folder / "checkpoint.json").exists():
        runner = Runner.resume(folder)
    else:
        config = RunnerConfig(algorithm="dqn", env=pixels_run.GAME)
        options = replace(config.options, **OPTIONS)
        runner = Runner(replace(config, **SETTINGS, options=options, directory=str(folder)))
    timer = threading.Timer(seconds, runner.stop)
    timer.start()
    runner.run()
    timer.cancel()
    return of_run(folder)


def of_run(folder: Path) -> dict[str, Any]:
    """Return what has come of a run of ours that is in a folder."""
    saved, config = (
        json.loads((folder / name).read_text()) for name in ("checkpoint.json", "config.json")
    )
    lines = (folder / "evaluations.jsonl").read_text().splitlines()
    curve = [
        [one["env_steps"], one["wall_seconds"], one["mean_return"]]
        for one in map(json.loads, lines)
    ]
    given = {**config, **config["options"]}
    return {
        "settings": {name: given[name] for name in (*SETTINGS, *OPTIONS)},
        "env_steps": saved["env_steps"],
        "updates": saved["updates"],
        "seconds": saved["seconds"],
        "curve": curve,
    }


def sb3(folder: Path, seconds: float) -> dict[str, Any]:
    """Train stock Stable-Baselines3, or let it go on, for so long at most."""
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

    torch.set_num_threads(2)
    made = partial(pixels_run.game, last_axis=True)
    envs, shown = (VecFrameStack(DummyVecEnv([made] * n), pixels_run.STACK) for n in (1, EPISODES))
    state, model_file, replay_file = (
        folder / name for name in ("state.json", "model.zip", "replay.pkl")
    )
    if state.exists():
        done = json.loads(state.read_text())
        model = DQN.load(model_file, env=envs, device="cpu")
        model.load_replay_buffer(replay_file)
    else:
        folder.mkdir(parents=True)
        done = {"seconds": 0.0, "curve": []}
        model = DQN("CnnPolicy", envs, seed=0, device="cpu", **ZOO)
    began = time.perf_counter()

    class Pieces(BaseCallback):
        """Evaluates, and ends a piece in time."""

        def _on_step(self) -> bool:
            passed = time.perf_counter() - began
            if self.num_timesteps % INTERVAL == 0:
                score, _ = evaluate_policy(model, shown, EPISODES, deterministic=True)
                passed = time.perf_counter() - began
                done["curve"].append([self.num_timesteps, done["seconds"] + passed, float(score)])
                print(done["curve"][-1], flush=True)
                if score >= GOAL:
                    return False
            return passed < seconds

    left = ZOO_STEPS - model.num_timesteps
    model.learn(left, callback=Pieces(), log_interval=None, reset_num_timesteps=False)
    done["seconds"] += time.perf_counter() - began
    done |= {"settings": ZOO, "env_steps": model.num_timesteps, "updates": model._n_updates}
    model.save(model_file)
    model.save_replay_buffer(replay_file)
    state.write_text(json.dumps(done))
    envs.close()
    shown.close()
    return done


WHO = {OURS: ours, SB3: sb3}


def memory_bytes(pid: int | str = "self") -> int:
    """Return what a process and its children hold together, shared memory counted once."""
    here = Path(f"/proc/{pid}")
    total = 0
    with contextlib.suppress(OSError):  # it has ended
        found = re.search(r"^Pss:\s+(\d+)", (here / "smaps_rollup").read_text(), re.MULTILINE)
        total = int(found[1]) * 1024 if found else 0
        for children in here.glob("task/*/children"):
            total += sum(memory_bytes(child) for child in children.read_text().split())
    return total


@contextlib.contextmanager
def watched() -> Iterator[dict[str, int]]:
    """Look now and then how much memory is held, and note the most."""
    most, over = {"memory_bytes": 0}, threading.Event()

    def look() -> None:
        while not over.wait(SAMPLE_SECONDS):
            most["memory_bytes"] = max(most["memory_bytes"], memory_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def is_over(record: campaign.Record) -> bool:
    """Return whether a contender has reached the goal, or has had its hours."""
    return bool(reached(record)) or record["seconds"] >= 3600 * MOST_HOURS


def reached(record: campaign.Record) -> list[float] | None:
    """Return the first evaluation that reached the goal: steps, seconds, return."""
    return next((point for point in record["curve"] if point[2] >= GOAL), None)


def note(who: str, outcome: dict[str, Any], output: Path) -> None:
    """Write down what has come of a contender so far, beside what the other has done."""
    records = campaign.read(output)[1] if output.exists() else []
    before = next((record for record in records if record["who"] == who), {})
    most = max(outcome.pop("memory_bytes", 0), before.get("memory_bytes", 0))
    stamp = before or {**campaign.stamp(), "versions": machine.versions()}
    kept = {key: stamp[key] for key in ("began", "commit", "versions")}
    record = {"who": who, **kept, **outcome, "memory_bytes": most}
    records = [one for one in records if one["who"] != who]
    campaign.write(output, machine.describe(), [*records, record])


def report(results: Path, docs: Path) -> None:
    """Write docs/pong.md and its picture."""
    described, records = campaign.read(results)
    rows = []
    for record in records:
        goal = reached(record)
        best = max(point[2] for point in record["curve"])
        no = "no" if is_over(record) else "not yet"
        rows.append(
            [
                record["who"],
                f"yes, {goal[2]:.1f}" if goal else f"{no}, at most {best:.1f}",
                f"{(goal[1] if goal else record['seconds']) / 3600:.2f}",
                f"{goal[0] if goal else record['env_steps']:,}",
                f"{record['env_steps'] / record['seconds']:,.0f}",
                f"{4 * record['env_steps'] / record['seconds']:,.0f}",
                f"{record['updates'] / record['seconds']:,.1f}",
                f"{record['memory_bytes'] / 2**30:.1f}",
            ]
        )
    head = ["", f"a mean of {GOAL:.0f}", "hours", "env steps"]
    head += ["env steps/s", "frames/s", "updates/s", "memory, GiB"]
    draw(records, docs / "images" / "pong.png")
    settings = [
        [record["who"], ", ".join(f"{name} {value}" for name, value in record["settings"].items())]
        for record in records
    ]
    lines = [
        *machine_text(described),
        f"{pixels_run.GAME} with sticky actions, one seed. Stable-Baselines3 has the settings of "
        "RL Baselines3 Zoo for Atari, and the network of Mnih et al. (2015). Ours has its own: "
        "smaller convolutions, returns of several steps as a distribution (C51), priorities. Both "
        "learn from 32 rows for every four steps. The hours have in them an evaluation of "
        f"{EPISODES} greedy episodes after every {INTERVAL:,} steps. Who does not get there in "
        f"{MOST_HOURS:.0f} hours ends. A step is four frames; memory is that of all processes at "
        "its most, shared memory counted once.",
        "",
        *markdown_table(head, rows),
        "What others have published for the game with sticky actions ([Castro et al. "
        "2018](https://arxiv.org/abs/1812.06110), one of several runs each): "
        + ", ".join(f"{name} {steps} million steps" for name, steps in PUBLISHED.items())
        + f" until a mean of {GOAL:.0f}.",
        "",
        "![Mean return of evaluations over hours](images/pong.png)",
        "",
        "## Settings",
        "",
        *markdown_table(["", "where they are not the preset's, or the defaults"], settings),
    ]
    write(docs / "pong.md", "Pong", lines)


def draw(records: Sequence[campaign.Record], path: Path) -> None:
    """Draw the returns of evaluations over hours of training."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
        for record in records:
            hours = [point[1] / 3600 for point in record["curve"]]
            returns = [point[2] for point in record["curve"]]
            axes.plot(hours, returns, "o-", ms=3, c=COLOURS[record["who"]], label=record["who"])
        axes.axhline(GOAL, c="grey", lw=0.8, ls=":")
        axes.set(xlabel="hours", ylabel="mean return", ylim=(-21.5, 21.5), xlim=(0, None))
        axes.legend(loc="lower right")
        figure.savefig(path)
        plt.close(figure)


def main() -> None:
    """Be the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.runs.pong", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("who", nargs="?", choices=WHO, help="nobody: write the page alone")
    parser.add_argument("--folder", type=Path, help="of the run, which may have begun there")
    parser.add_argument("--minutes", type=float, default=60 * MOST_HOURS)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--docs", type=Path, help="where the page and its image are to be")
    given = parser.parse_args()
    if given.who:
        if given.folder is None:
            parser.error("--folder is missing: where the run is, or is to be")
        records = campaign.read(given.output)[1] if given.output.exists() else []
        if any(one["who"] == given.who and is_over(one) for one in records):
            raise SystemExit(f"{given.who} is done: {given.output.name} has its run")
        with watched() as most:
            outcome = WHO[given.who](given.folder, 60 * given.minutes)
        note(given.who, {**outcome, **most}, given.output)
    beside = DOCS if given.output == OUTPUT else given.output.parent / "docs"
    report(given.output, given.docs or beside)


if __name__ == "__main__":
    main()
