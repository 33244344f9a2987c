"""What a run shows and keeps: the panel, lines, TensorBoard, the learning curve, records."""

import io
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from runs import config, copied_checkpoints, run

from kary_replay.runner import Evaluation, Runner, display
from kary_replay.runner.allocation.cores import allocate
from kary_replay.runner.backends.memory import OwnMemory
from kary_replay.runner.records import monitor
from kary_replay.runner.records.display import Display, duration, number
from kary_replay.runner.records.learning_curve import MOST_POINTS, Points
from kary_replay.runner.records.monitor import Monitor
from kary_replay.runner.records.progress import Figures, Progress
from kary_replay.runner.records.run_directory import RunDirectory
from kary_replay.runner.streams import BoardStream, Checkpoint

FIGURES = Figures(
    seconds=75.0,
    seconds_left=3700.0,
    env_steps=20_480,
    env_steps_per_second=1702.4,
    updates=9_740,
    updates_per_second=812.0,
    behind=3.5,
    most_behind=8.0,
    buffer_size=1_000,
    samples_per_insert=31.9,
    actors_waited=0.67,
    learners_waited=0.0,
)
EVALUATIONS = [
    Evaluation(1000, 100, 1.0, 20.0, (20.0,)),
    Evaluation(20_000, 9000, 70.0, 12.5, (12.5,)),
]
MODEST = {
    "total_env_steps": 600,
    "evaluate": "during",
    "evaluation_interval": 200,
    "evaluation_episodes": 2,
}


def screen(**options):
    return Console(file=io.StringIO(), width=100, record=True, **options)


def shown(console, path, **settings):
    settings = config("dqn", "CartPole-v1", path, **settings)
    return Display(console, settings, path)


def test_a_terminal_shows_a_panel(tmp_path):
    console = screen(force_terminal=True)
    wanted = {"target_return": 475.0, "samples_per_insert": 32.0}
    panel = shown(console, tmp_path / "run", backend="process", evaluate="during", **wanted)
    panel.start()
    panel.show(FIGURES, 18.25, EVALUATIONS)
    panel.stop()
    text = console.export_text()
    for part in (
        "dqn on CartPole-v1, seed 0",
        "20,480",
        "1,702/s",
        "9,740",
        "812.0/s",
        "18.2",
        "12.5",
        "at step 20,000, best 20.0",
        "wanted 475",
        "3.5",
        "updates behind, the most 8.0",
        "20%",
        "1,000 of 5,000",
        "31.9",
        "wanted 32",
        "67% of actors, 0% of learners",
        "1:15 gone, 1:01:40 to go",
    ):
        assert part in text, part
    narrow = Console(file=io.StringIO(), width=60, record=True)
    narrow.print(panel.panel(FIGURES, 18.25, EVALUATIONS))
    assert max(map(len, narrow.export_text().splitlines())) == 60


def test_a_terminal_too_narrow_for_the_panel_shows_its_line(tmp_path):
    for columns in (display.NARROWEST - 1, 20):
        console = Console(file=io.StringIO(), width=columns, record=True, force_terminal=True)
        line = shown(console, tmp_path / "run", backend="process")
        line.start()
        line.show(FIGURES, 18.25, EVALUATIONS)
        line.stop()
        text = " ".join(console.export_text().split())
        for part in ("20,480 env steps", "9,740 updates", "evaluation 12.5", "31.9 samples"):
            assert part in text, part


def test_elsewhere_there_are_lines_now_and_then(tmp_path, monkeypatch):
    console = screen()
    lines = shown(console, tmp_path / "run", backend="process")
    lines.start()
    for _ in range(5):
        lines.show(FIGURES, 18.25, [])
    monkeypatch.setattr(display, "LINE_SECONDS", 0.0)
    lines._next_line = 0.0
    for _ in range(3):
        lines.show(FIGURES, 18.25, EVALUATIONS)
    lines.stop()
    first, *others = console.export_text().splitlines()
    assert first.startswith("dqn on CartPole-v1") and len(others) == 3
    assert others[0].startswith(
        "1:15, 20,480 env steps (1,702/s), 9,740 updates (812.0/s), return 18.2, evaluation 12.5, "
    )


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    console = screen(force_terminal=True)
    lines = shown(console, tmp_path / "run", backend="process")
    lines.start()
    lines._next_line = 0.0
    lines.show(FIGURES, 18.25, EVALUATIONS)
    lines.stop()
    first, second = console.export_text().splitlines()
    assert first.startswith("dqn on CartPole-v1") and second.startswith("1:15, 20,480 env steps")


def test_what_a_directory_is_called_is_no_markup():
    console = screen(force_terminal=True)
    panel = shown(console, Path("runs") / "[lr=0.1]" / "[/b]")
    panel.start()
    panel.show(FIGURES, 18.25, EVALUATIONS)
    panel.stop()
    console.print(panel.panel(FIGURES, 18.25, EVALUATIONS))
    assert "runs/[lr=0.1]/[/b]" in console.export_text()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_goes_on_when_nobody_reads(terminal, tmp_path):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    console = Console(file=Closed(), force_terminal=terminal)
    result = Runner(config("dqn", "CartPole-v1", tmp_path / "run", **MODEST), console=console).run()
    assert result.env_steps == 600 and (tmp_path / "run" / "learning_curve.png").exists()


def test_the_splits_that_were_weighed_are_shown(tmp_path):
    console = screen()
    shown(console, tmp_path / "run").allocation(allocate(1000.0, 500.0, 20.0, 64, 1))
    text = console.export_text()
    assert "→ 10" in text and "10,000" in text and "10 actors keep the learner busy" in text
    assert len(text.splitlines()) < 20


def test_numbers_are_short():
    values = float("nan"), 0.0, 0.1234, 3.0, 812.04, 1702.4
    assert [number(x) for x in values] == ["–", "0.0", "0.12", "3.0", "812.0", "1,702"]
    values = float("nan"), 5.2, 75, 3700
    assert [duration(x) for x in values] == ["–", "0:05", "1:15", "1:01:40"]


def test_figures_are_read_off_the_board(monkeypatch):
    stream = BoardStream({"actor": 2, "learner": 1})
    board = stream.host(OwnMemory(), Checkpoint()).source()
    flow = SimpleNamespace(
        board=board,
        figures={"size": 10, "samples_per_insert": 8.0},
        config=SimpleNamespace(total_env_steps=1000),
        clock=SimpleNamespace(seconds=5.0),
    )
    progress = Progress(flow)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    first = progress.look()
    assert np.isnan(
        [first.env_steps_per_second, first.behind, first.actors_waited, first.seconds_left]
    ).all()
    now[0], flow.clock.seconds = 110.0, 15.0
    for index, version in enumerate((40, 20)):
        row = board.row("actor", index)
        row.has_stepped, row.env_steps = 1, 50
        row.parameter_version, row.waited_seconds = version, 4.0
    board.row("learner", 0).updates = 50
    figures = progress.look()
    assert (figures.env_steps_per_second, figures.updates_per_second) == (10.0, 5.0)
    assert (figures.behind, figures.most_behind) == (20.0, 30.0)
    assert (figures.actors_waited, figures.learners_waited) == (0.4, 0.0)
    assert (figures.seconds, figures.seconds_left) == (15.0, 90.0)
    assert (figures.buffer_size, figures.samples_per_insert) == (10, 8.0)


def test_actors_say_which_parameters_they_act_by(tmp_path, monkeypatch):
    seen = []
    look = Progress.look
    monkeypatch.setattr("kary_replay.runner.records.monitor.LOOK_SECONDS", 0.0)
    monkeypatch.setattr(Progress, "look", lambda self: seen.append(look(self)) or seen[-1])
    run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=600, publish_interval=10)
    behind = [figures.behind for figures in seen if figures.updates > 20]
    assert min(behind) >= 0 and 2 < max(behind) < 30


def test_looking_is_rare_and_the_rest_free(tmp_path, monkeypatch):
    """By a clock on which 10 ms pass from one turn to the next."""
    called, show, now = [], Monitor.show, [1000.0]
    for thing, name in ((Progress, "look"), (Display, "show"), (RunDirectory, "flush")):
        method = getattr(thing, name)
        monkeypatch.setattr(
            thing,
            name,
            lambda *arguments, method=method, name=name: called.append(name) or method(*arguments),
        )

    def turn(self):
        now[0] += 0.01
        n_called, n_turns[0] = len(called), n_turns[0] + 1
        show(self)
        n_looks[0] += len(called) > n_called

    n_turns, n_looks = [0], [0]
    monkeypatch.setattr(monitor, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Monitor, "show", turn)
    run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=3000)
    assert n_turns[0] > 500 and n_looks[0] == pytest.approx(n_turns[0] / 50, abs=2)
    # and once more at the end
    assert called.count("look") == called.count("show") == n_looks[0] + 1


def test_checkpoints_are_an_interval_apart(tmp_path, monkeypatch):
    now, saved = [1000.0], []
    show, save = Monitor.show, Runner._save

    def turn(self):
        now[0] += 1.0
        show(self)

    def noted(self, *arguments, **options):
        saved.append(now[0])
        save(self, *arguments, **options)

    monkeypatch.setattr(monitor, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Monitor, "show", turn)
    monkeypatch.setattr(Runner, "_save", noted)
    settings = {"total_env_steps": 1_000, "checkpoint_interval_seconds": 50.0}
    run("dqn", "CartPole-v1", tmp_path / "run", **settings)
    assert len(saved) > 3 and set(np.diff([1000.0, *saved[:-1]])) == {50.0}


def test_of_policies_as_good_the_first_stays_the_best(tmp_path, monkeypatch):
    monkeypatch.setattr("kary_replay.runner.workers.evaluator.play", lambda *_: ([7.0, 7.0], 0))
    result = run("dqn", "CartPole-v1", tmp_path / "run", **MODEST)
    assert len(result.evaluations) > 1
    assert result.best == result.evaluations[0] and result.last == result.evaluations[-1]


def test_what_comes_after_training_takes_none_of_its_speed(tmp_path, monkeypatch):
    """By a clock on which the last checkpoint takes a day, and each look at it a second."""
    now, seen, after = [1000.0], [], []
    show, look, save = Display.show, Monitor.show, Runner._save

    def slow(self, *arguments, is_last=False):
        now[0] += 86400.0 * is_last
        save(self, *arguments, is_last=is_last)

    def turn(self):
        now[0] += 1.0
        after.append(self._at_end is not None)
        look(self)

    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(monitor, "time", clock)
    monkeypatch.setattr("kary_replay.runner.records.progress.time", clock)
    monkeypatch.setattr(Runner, "_save", slow)
    monkeypatch.setattr(Monitor, "show", turn)
    monkeypatch.setattr(
        Display, "show", lambda self, *parts: seen.append(parts[0]) or show(self, *parts)
    )
    settings = {"evaluate": "after", "evaluation_interval": 200, "evaluation_episodes": 2}
    result = run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=600, **settings)
    last = seen[-1]
    assert last.env_steps_per_second > 0.1, "600 steps in less than an hour"
    assert (last.env_steps, last.updates) == (result.env_steps, result.updates)
    assert sum(after) > 0, "evaluations at the end are shown as they come"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The result of a run, for those who look at its records and change nothing."""
    path = tmp_path_factory.mktemp("recorded") / "run"
    return run("dqn", "CartPole-v1", path, target_return=500.0, **MODEST)


def test_tensorboard_reads_the_scalars(recorded):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(recorded.directory))
    events.Reload()
    points = events.Scalars("return/evaluation")
    assert [(point.step, point.value) for point in points] == [
        (evaluation.env_steps, pytest.approx(evaluation.mean_return))
        for evaluation in recorded.evaluations
    ]
    names = {
        "return/episodes",
        "speed/env_steps_per_second",
        "replay/samples_per_insert",
        "workers/updates_behind",
        "training/epsilon",
        "training/gradient_norm/q",
        "training/learning_rate",
        "training/loss/q",
        "training/q",
        "training/td_error",
    }
    assert names <= set(events.Tags()["scalars"])


def test_the_learning_curve_is_drawn(recorded):
    picture = Image.open(recorded.directory / "learning_curve.png")
    assert picture.format == "PNG" and picture.width > 2 * picture.height
    colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
    assert {(0x21, 0x66, 0xAC), (0xC0, 0x39, 0x2B)} <= colours  # evaluations, target


@pytest.mark.parametrize("module", ["torch.utils.tensorboard", "matplotlib.figure"])
def test_a_package_that_does_not_fit_costs_its_records_and_not_the_run(
    module, tmp_path, monkeypatch, capfd
):
    class Unfit:
        """Finds a module that cannot be imported, as with other versions of what it needs."""

        tried = 0

        def find_spec(self, name, *more):
            if name == module:
                Unfit.tried += 1
                raise TypeError("Descriptors cannot be created directly")

    for name in [name for name in sys.modules if name.startswith(module)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Unfit(), *sys.meta_path])
    monkeypatch.setattr(monitor, "SCALARS_SECONDS", 0.0)
    assert run("dqn", "CartPole-v1", tmp_path / "run", **MODEST).env_steps == 600
    said = " ".join("".join(capfd.readouterr()).split())
    assert said.count("records are incomplete: TypeError: Descriptors cannot be created") == 1
    assert Unfit.tried <= 2  # once more in the background
    assert (tmp_path / "run" / "evaluations.jsonl").read_text().count("\n") >= 2


def test_a_run_without_anything_to_draw_has_no_picture(tmp_path):
    result = run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=4)
    assert not (result.directory / "learning_curve.png").exists()


def test_curves_of_any_length_fit_into_memory():
    points = Points()
    for i in range(10 * MOST_POINTS):
        points.add(i, 0.0, 0.0)
    steps = np.array([point[0] for point in points.kept])
    assert MOST_POINTS / 2 <= len(steps) <= MOST_POINTS
    assert len(set(np.diff(steps))) == 1 and steps[-1] > 9.9 * MOST_POINTS


def test_the_clock_stands_still_while_no_environment_is_stepped(tmp_path):
    """Neither the start of a run that goes on, nor a finished one that does so, takes time."""
    first = run("dqn", "CartPole-v1", tmp_path / "run", **MODEST)
    second = Runner.resume(tmp_path / "run").run()
    assert (second.env_steps, second.updates, second.wall_seconds) == (
        first.env_steps,
        first.updates,
        first.wall_seconds,
    )


def test_a_resumed_run_continues_its_records(tmp_path):
    """The records of a whole run and of one cut off after a checkpoint differ in times alone."""
    with copied_checkpoints(tmp_path, before=600) as copies:
        whole = run(
            "dqn", "CartPole-v1", tmp_path / "whole", checkpoint_interval_env_steps=300, **MODEST
        )
    (copy,) = copies
    for name, end in (("episodes.jsonl", '{"env_steps": 4'), ("evaluations.jsonl", "\n")):
        # what was done after the checkpoint, the last line half written
        with (copy / name).open("a") as file:
            file.write(
                json.dumps(
                    {
                        "env_steps": 412,
                        "updates": 1,
                        "wall_seconds": 1.0,
                        "returns": [],
                        "mean_return": 0.0,
                        "episode_return": 0.0,
                        "length": 1,
                    }
                )
                + "\n"
                + end
            )
    resumed = Runner.resume(copy).run()

    def records(path, name):
        lines = [json.loads(line) for line in (path / name).read_text().splitlines()]
        seconds = [line.pop("wall_seconds") for line in lines]
        assert seconds == sorted(seconds)
        return lines

    for name in ("episodes.jsonl", "evaluations.jsonl"):
        assert records(copy, name) == records(tmp_path / "whole", name)
    assert [one[:2] + one[3:] for one in resumed.evaluations] == [
        one[:2] + one[3:] for one in whole.evaluations
    ]
