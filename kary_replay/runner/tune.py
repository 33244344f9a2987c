"""Runs as trials of Ray Tune: `tune.Tuner(RunTrainable, param_space={"algorithm": "dqn", ...})`."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.tune import PlacementGroupFactory, Trainable
from rich.console import Console

from .. import fork_server
from ..algorithms import find
from .callback import RunnerCallback
from .config import ConfigError, RunnerConfig, as_json
from .messages import Evaluation
from .records.run_directory import RunDirectory, plain
from .resumption import CHANGEABLE, why_finished
from .runner import Runner, RunResult

__all__ = ["RunTrainable"]

# options by which rows are made; and gamma, where these do not have every step by itself
OF_ROWS = "n_step", "sequence_length", "sequence_period", "burn_in"
# options that decide which parameters there are
OF_NETWORKS = (
    "hidden",
    "image_network",
    "lstm_hidden_size",
    "dueling",
    "noisy",
    "n_atoms",
    "n_quantiles",
    "ent_coef",
)
RUN = "run"  # the directory of the run, within that of the trial or of a checkpoint


class RunTrainable(Trainable):  # type: ignore[misc]  # Ray Tune has no types
    """A run of the runner, for Ray Tune.

    The configuration of a trial has the settings of `RunnerConfig` by name, ``algorithm`` and
    ``env`` among them, and hyperparameters in a dict ``options``. What it does not have comes from
    the preset.

    One step of Tune trains until the next evaluation, every ``evaluation_interval`` environment
    steps. It returns ``mean_return`` of that evaluation, ``best_return``, ``env_steps``,
    ``updates``, ``samples_per_insert`` and ``wall_seconds``, and ``done`` when all of
    ``total_env_steps`` are done and the last policy is evaluated, or ``target_return`` is reached.

    Notes
    -----
    Between two steps the run is on disk, whole, and nothing of it is in memory: a trial may be
    paused, cloned to another machine, or killed at any time, and goes on from its last checkpoint.
    With ``backend="serial"`` that is exact. Starting the workers again takes about a second, so let
    an evaluation interval take many. A clone whose configuration differs, as population-based
    training makes it, goes on with the new ``options``; one that has other settings than the run,
    or options for other rows or networks, is refused.

    A trial asks for a CPU for each actor and each thread of the learners, and for a GPU for each
    learner with ``device="cuda"``. By default it has one actor.

    Examples
    --------
    ::

        from ray import tune
        from kary_replay.runner.tune import RunTrainable

        space = {
            "algorithm": "dqn",
            "env": "CartPole-v1",
            "options": {"learning_rate": tune.loguniform(1e-4, 1e-2)},
        }
        settings = tune.TuneConfig(metric="mean_return", mode="max", num_samples=4)
        best = tune.Tuner(RunTrainable, param_space=space, tune_config=settings).fit()
        print(best.get_best_result().config)
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Check the settings; ConfigError, a ValueError, if they cannot be used."""
        fork_server.forget_program()
        self._take(config)

    def _take(self, config: Mapping[str, Any]) -> None:
        self._settings, self._given = settings_of(config), frozenset(config)
        self._path = Path(self.logdir) / RUN
        self._has_begun = False

    def step(self) -> dict[str, Any]:
        """Train until the next evaluation."""
        until = UntilEvaluated()
        console = Console(quiet=True)
        if self._has_begun:
            runner = Runner.resume(self._path, console=console, callback=until)
        else:
            shutil.rmtree(self._path, ignore_errors=True)
            config = dataclasses.replace(self._settings, directory=str(self._path))
            runner = Runner(config, console=console, callback=until)
        until.runner = runner
        result = runner.run()
        self._has_begun = True
        return self._as_metrics(result)

    def _as_metrics(self, result: RunResult) -> dict[str, Any]:
        # actors may have taken all steps while an evaluation of an earlier policy was under way
        directory, config = RunDirectory.existing(self._path)
        _, counters = directory.checkpoint(config)
        return {
            "mean_return": result.last_return,
            "best_return": result.best_return,
            "env_steps": result.env_steps,
            "updates": result.updates,
            "samples_per_insert": result.samples_per_insert,
            "wall_seconds": result.wall_seconds,
            "done": bool(why_finished(directory, config, counters)),
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Copy the run, with its replay buffer; nothing before the first step."""
        if self._has_begun:
            shutil.copytree(self._path, Path(checkpoint_dir) / RUN)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Go on with a run that was saved, with the hyperparameters that this trial has now."""
        saved = Path(checkpoint_dir) / RUN
        self._has_begun = saved.exists()
        if not self._has_begun:
            return
        _, former = RunDirectory.existing(saved)
        donor, settings = (
            json.loads(json.dumps(as_json(one), default=plain)) for one in (former, self._settings)
        )
        has_steps = former.learns_from != "replay" or hasattr(former.options, "sequence_length")
        of_rows = OF_ROWS if has_steps else (*OF_ROWS, "gamma")
        for name in (*of_rows, *OF_NETWORKS):
            was, now = (one["options"].get(name) for one in (donor, settings))
            if was == now or (name == "ent_coef" and now is not None):
                continue  # a coefficient that is given needs nothing trained
            what = "rows" if name in of_rows else "networks"
            raise ConfigError(
                f"options.{name} is {now}, and the {what} that the trial goes on with are made "
                f"with {was}: leave it out of what the scheduler changes"
            )
        changes = "options", *CHANGEABLE
        for name in sorted(self._given & set(donor) - set(changes)):
            if settings[name] != donor[name]:
                raise ConfigError(
                    f"{name} is {settings[name]!r}, and the run that the trial goes on with has "
                    f"{donor[name]!r}: leave it out of what the scheduler changes, which may be "
                    f"{', '.join(changes)}"
                )
        shutil.rmtree(self._path, ignore_errors=True)
        shutil.copytree(saved, self._path)
        RunDirectory(self._path).change({name: settings[name] for name in changes})

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another configuration, in the same process."""
        self._take(new_config)
        return True

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Return what a trial needs."""
        settings = settings_of(config)
        cpus = int(settings.actors) + settings.learners * settings.learner_threads
        bundle = {"CPU": float(cpus)}
        if settings.device.startswith("cuda"):
            bundle["GPU"] = float(settings.learners)
        return PlacementGroupFactory([bundle])


class UntilEvaluated(RunnerCallback):
    """Ends a run after an evaluation, with a checkpoint."""

    runner: Runner | None = None

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """End the run, unless all steps are done: then it ends with its last policy evaluated."""
        assert self.runner is not None
        if evaluation.env_steps < self.runner.config.total_env_steps:
            self.runner.stop()


def settings_of(config: Mapping[str, Any]) -> RunnerConfig:
    """Return the settings that the configuration of a trial describes; ConfigError if it cannot."""
    given = {"actors": 1, **config}
    for name in ("algorithm", "env"):
        if name not in given:
            raise ConfigError(f"the configuration of a trial needs {name}, got {sorted(config)}")
    for name, why in (
        ("directory", "each trial has its own"),
        ("ray_address", "a trial is on one node"),
    ):
        if given.pop(name, None) is not None:
            raise ConfigError(f"the configuration of a trial must not have {name}: {why}")
    if given["actors"] == "auto" or given.get("backend") == "ray":
        raise ConfigError(
            "a trial needs a number of actors and backend='process' or 'serial': it asks Tune for "
            "their CPUs, which are on one node"
        )
    if given.get("evaluate", "during") != "during":
        raise ConfigError("a trial needs evaluate='during': it is judged by its evaluations")
    options = given.pop("options", None)
    try:
        base = RunnerConfig(**given)
        if not isinstance(options, Mapping):
            return base if options is None else RunnerConfig(**given, options=options)
        wanted = find(base.algorithm).options_class
        known = {field.name for field in dataclasses.fields(wanted)}
        unknown = sorted(set(options) - known)
        if unknown:
            raise ConfigError(
                f"options of {base.algorithm} must be among {', '.join(sorted(known))}, "
                f"got {', '.join(unknown)}"
            )
        return RunnerConfig(**given, options=dataclasses.replace(base.options, **options))
    except TypeError as error:
        raise ConfigError(f"the configuration of a trial has other settings: {error}") from None
