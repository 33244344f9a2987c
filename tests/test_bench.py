"""The benchmarks' machinery, without a measurement: jobs, results, pages, rivals elsewhere."""

import ctypes
import json
import math
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("pytest_benchmark")
pytest.importorskip("tianshou")
pytest.importorskip("torch")

import torch

from bench import __main__ as suite
from bench.harness import campaign, grid, headline, machine, orphans, timing
from bench.harness.paths import ROOT
from bench.harness.timing import (
    Contender,
    Record,
    calibrate,
    interleave,
    interleave_windows,
    turns,
)
from bench.rivals import compiled_learner, remote, sb3_learner
from bench.runs import (
    large_batch,
    memory,
    minatar,
    pixels,
    pong,
    rllib_training,
    runner_ablation,
    runner_run,
    scaling,
)

CAMPAIGNS = {
    "scaling": scaling,
    "large_batch": large_batch,
    "memory": memory,
    "minatar": minatar,
    "runner_ablation": runner_ablation,
}


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_jobs_are_settings_that_the_runner_takes(name, short):
    module = CAMPAIGNS[name]
    jobs = list(module.jobs(list(module.TASKS), 2, short))
    assert len({tuple(job[key] for key in module.IDENTITY) for job in jobs}) == len(jobs)
    assert {job["seed"] for job in jobs} == {0, 1}
    for job in jobs:
        config = runner_run.configured(json.loads(json.dumps(job)))
        assert config.total_env_steps == job["settings"]["total_env_steps"]


def test_the_batch_grows_and_the_rows_drawn_do_not():
    by_batch = {job["batch_size"]: job for job in large_batch.jobs(["cartpole_dqn"], 1, False)}
    small, large = (runner_run.configured(by_batch[size]) for size in (64, 1024))
    assert small.samples_per_insert == large.samples_per_insert
    assert large.options.learning_rate == pytest.approx(4 * small.options.learning_rate)


def invented(job, seconds):
    """The record of a run that was never made; every third one is not solved."""
    solved = job["seed"] != 1
    return {
        **job,
        "env_steps": 1000,
        "updates": 100,
        "wall_seconds": seconds,
        "startup_seconds": 1.0,
        "curve": [[1000, 100, seconds, 5.0 + job["seed"]]],
        "training": [None, *(float(part + job["seed"]) for part in range(1, minatar.WINDOWS))],
        "env_steps_per_second": 1000 / seconds,
        "updates_per_second": 100 / seconds,
        "samples_per_insert": 8.0,
        "waited": {"actors": 0.1, "learners": 0.2},
        "solved": solved,
        "cores_used_by_others": 0.0,
        **dict.fromkeys(large_batch.KEYS, seconds if solved else None),
    }


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_pages(name, tmp_path, capsys):
    module, output = CAMPAIGNS[name], tmp_path / "results.json"
    jobs = list(module.jobs(list(module.TASKS), 3, False))
    jobs.append({**jobs[0], "seed": 3})

    def execute(job):
        record = invented(job, 2.0 + job["seed"])
        return {**record, "solved": False, "error": "it broke"} if job["seed"] == 3 else record

    campaign.conduct(output, jobs, module.IDENTITY, execute, module.describe)
    (tmp_path / "images").mkdir()
    module.report(output, tmp_path)
    page = (tmp_path / f"{name}.md").read_text()
    assert all(task[1] in page for task in module.TASKS.values()) and "it broke" in page
    assert (tmp_path / "images" / f"{name}.png").exists()
    assert len(capsys.readouterr().out.splitlines()) == len(jobs)


def test_what_more_cores_gave_is_on_the_page_too(tmp_path):
    outputs = [tmp_path / name for name in ("results.json", "results_16_cores.json")]
    for output in outputs:
        jobs = scaling.jobs(["cheap"], 1, True)
        campaign.conduct(
            output, jobs, scaling.IDENTITY, lambda job: invented(job, 2.0), scaling.describe
        )
    (tmp_path / "images").mkdir()
    scaling.report(outputs[0], tmp_path)
    page = (tmp_path / "scaling.md").read_text()
    assert all(output.name in page for output in outputs)
    images = {path.name for path in (tmp_path / "images").iterdir()}
    assert images == {"scaling.png", "results_16_cores.png"}


def test_the_page_of_pixels(tmp_path, monkeypatch):
    output = tmp_path / "results.json"

    def execute(job):
        if job["rival"] == "Tianshou":
            return {**job, "error": "it broke"}
        is_ours = job["rival"] == pixels.OURS
        made = {"env_steps": 6_000 + 2 * is_ours, "updates": 100}
        return {**job, **made, "seconds": 1.0 + job["apart"] + job["seed"] if is_ours else 6.0}

    for n_seeds, before in ((2, "refuse"), (3, "resume")):
        jobs = list(pixels.jobs(list(pixels.TASKS), n_seeds, False))
        campaign.conduct(output, jobs, pixels.IDENTITY, execute, pixels.describe, before)
    pixels.report(output, tmp_path)
    page = (tmp_path / "pixels.md").read_text()
    assert "it broke" in page
    assert "| Stable-Baselines3, SubprocVecEnv | 1,000 [1,000–1,000] | 4,000 |" in page
    assert "| 2.00× [1.75–2.50] |" in page  # 3, 2 and 1.5 times
    assert "GPU" not in page
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    planned = list(pixels.jobs(list(pixels.TASKS), 3, False))
    of_gpu = [job for job in planned if job["device"] == "cuda"]
    assert len(planned) - len(of_gpu) == len(jobs) and len(of_gpu) == 36
    beside = tmp_path / "results_gpu.json"
    campaign.conduct(beside, of_gpu, pixels.IDENTITY, execute, pixels.describe)
    pixels.report(output, tmp_path)
    page = (tmp_path / "pixels.md").read_text()
    assert "### Collecting and learning, with a GPU" in page
    assert f"| {pixels.ASKING} | " in page and "results_gpu.json" in page


def test_the_page_of_pong_is_written_piece_by_piece(tmp_path):
    output = tmp_path / "pong.json"
    begun = {
        "settings": pong.ZOO,
        "env_steps": 100_000,
        "updates": 25_000,
        "seconds": 3_600.0,
        "memory_bytes": 2**31,
    }
    pong.note(pong.SB3, {**begun, "curve": [[50_000, 1_800.0, -21.0]]}, output)
    curve = [[50_000, 360.0, -20.0], [100_000, 720.0, 18.5]]
    pong.note(pong.OURS, {**begun, "seconds": 800.0, "curve": curve}, output)
    further = {**begun, "seconds": 7_200.0, "memory_bytes": 0}
    pong.note(pong.SB3, {**further, "curve": [[50_000, 1_800.0, -21.0], [1, 7_000.0, 3.0]]}, output)
    _, records = campaign.read(output)
    assert {record["who"]: pong.is_over(record) for record in records} == {
        pong.OURS: True,
        pong.SB3: False,
    }
    pong.report(output, tmp_path)
    page = (tmp_path / "pong.md").read_text()
    assert "| kary-replay | yes, 18.5 | 0.20 | 100,000 | 125 | 500 | 31.2 | 2.0 |" in page
    assert (
        "| stable-baselines3 | not yet, at most 3.0 | 2.00 | 100,000 | 14 | 56 | 3.5 | 2.0 |"
        in page
    )
    assert (tmp_path / "images" / "pong.png").exists()
    assert pong.memory_bytes() > 2**20


def test_seconds_until_solved_with_rllib():
    def record(job):
        seconds = 100.0 if job["buffer"] == rllib_training.STOCK else 60.0
        solved = job["case"] == "cartpole_dqn" and job["seed"] > 0
        return {**job, "solved": solved, "wall_seconds": seconds, "env_steps": 6_000}

    runs = [record(job) for job in rllib_training.jobs([rllib_training.SOLVE], 4, False)]
    _, _, *rows, _ = rllib_training.solve_table(runs)
    assert rows == [
        "| cartpole_dqn | RLlib | 3/4 | 100 [100–∞] | 6,000 [6,000–∞] | 60 [60–60] |",
        "| cartpole_dqn | kary-replay | 3/4 | 60 [60–∞] | 6,000 [6,000–∞] | 100 [100–100] |",
        "| pendulum_sac | RLlib | 0/4 | ∞ [∞–∞] | ∞ [∞–∞] | – |",
        "| pendulum_sac | kary-replay | 0/4 | ∞ [∞–∞] | ∞ [∞–∞] | – |",
    ]


def minatar_runs(seeds, gain):
    """Runs of every variant of every game, whose scores in DQN's are those of gain."""
    records = []
    for job in minatar.jobs(list(minatar.TASKS), seeds, False):
        level = (1 + list(minatar.TASKS).index(job["task"])) * (10 + job["seed"])
        returns = [level * gain.get(job["variant"], 1.0)] * minatar.WINDOWS
        records.append({**invented(job, 1.0), "training": returns})
    return records


def test_what_minatar_compares():
    records = minatar_runs(4, {minatar.RAINBOW: 2.0, "+ QR": 0.5})
    found = minatar.compared(records)
    assert list(found) == list(minatar.VARIANTS)
    middle = np.mean([11, 12]) / np.mean([10, 11, 12, 13])
    for variant, gain, better in (("DQN", 1, 0.5), ("Rainbow", 2, 1), ("+ QR", 0.5, 0)):
        scaled, likely = found[variant]
        assert scaled.value == pytest.approx(gain * middle) and likely.value == better
        assert scaled.low <= scaled.value <= scaled.high and scaled.low < scaled.high
    # Seeds that one of the variants lacks count for none, and so do games.
    del records[next(i for i, run in enumerate(records) if run["seed"] == 3)]
    lacking = {"task": "freeway", "variant": minatar.RAINBOW}
    records = [run for run in records if not lacking.items() <= run.items()]
    variants, games, runs = minatar.complete(records)
    assert variants == list(minatar.VARIANTS) and len(games) == 4 and "freeway" not in games
    assert len(runs) == 3 * 4 * len(variants) and {run["seed"] for run in runs} == {0, 1, 2}
    assert minatar.compared([run for run in records if run["variant"] != minatar.PLAIN]) == {}


def test_the_games_of_minatar_are_told_apart_from_those_that_are_complete(tmp_path):
    records = [run for run in minatar_runs(2, {}) if run["task"] in ("breakout", "asterix")]
    records[0]["training"] = [None] * minatar.WINDOWS
    output = tmp_path / "results.json"
    by_key = {tuple(run[key] for key in minatar.IDENTITY): run for run in records}
    jobs = list(minatar.jobs(["asterix", "breakout"], 2, False))
    campaign.conduct(
        output,
        jobs,
        minatar.IDENTITY,
        lambda job: {**by_key[tuple(job[key] for key in minatar.IDENTITY)], **job},
        minatar.describe,
    )
    (tmp_path / "images").mkdir()
    minatar.report(output, tmp_path)
    page = " ".join((tmp_path / "minatar.md").read_text().split())
    assert "Over 1 seeds of Asterix, Breakout:" in page
    assert "of each variant of each game: 0 to 2; fewer than ten" in page
    assert "which have no score: 1." in page


def test_runs_of_minatar_say_all_their_settings(tmp_path):
    """So that a run with a setting that the job did not have then is not taken for one of it."""
    jobs = list(minatar.jobs(["breakout"], 1, False))
    for job in jobs:
        config = job["config"]
        assert config["total_env_steps"] == 1_000_000 and config["evaluate"] == "after"
        assert config["options"]["learning_rate"] == 2.5e-4
    output = tmp_path / "results.json"
    conduct = partial(
        campaign.conduct, output, jobs, minatar.IDENTITY, describe=str, before="resume"
    )
    conduct(lambda job: invented(job, 1.0))
    conduct(lambda _: pytest.fail("it was made"))
    for change in (
        lambda run: run["config"]["options"].pop("huber_delta"),
        lambda run: run.pop("config"),
    ):
        document = json.loads(output.read_text())
        change(document["records"][3])
        campaign.write(output, document["machine"], document["records"])
        with pytest.raises(SystemExit, match="other settings"):
            conduct(lambda _: pytest.fail("it was made"))
        campaign.write(output, document["machine"], [])
        conduct(lambda job: invented(job, 1.0))


@pytest.mark.parametrize("name", CAMPAIGNS)
@pytest.mark.parametrize("kept", [0, 1, -1])
def test_pages_of_results_that_are_not_complete(name, kept, tmp_path):
    """Of one run alone; and of all, where every one with the preset, or every one, has failed."""
    module, output = CAMPAIGNS[name], tmp_path / "results.json"
    jobs = list(module.jobs(list(module.TASKS), 1, False))
    preset = {"variant": runner_ablation.PRESET, "batch_size": 64}

    def execute(job):
        failed = kept == 0 or (
            kept == -1 and any(job.get(key) == value for key, value in preset.items())
        )
        record = {
            **job,
            "cores_used_by_others": 0.0,
            "curve": [],
            "wall_seconds": None,
            "solved": False,
            "error": "it broke",
        }
        return record if failed else invented(job, 2.0)

    campaign.conduct(
        output, jobs[:kept] if kept == 1 else jobs, module.IDENTITY, execute, module.describe
    )
    (tmp_path / "images").mkdir()
    module.report(output, tmp_path)
    assert (tmp_path / f"{name}.md").exists() and (tmp_path / "images" / f"{name}.png").exists()


def test_a_campaign_goes_on_where_it_was_cut_off(tmp_path):
    output, done = tmp_path / "results.json", []

    def execute(job):
        done.append(job["seed"])
        if job["seed"] == 2 and done.count(2) == 1:
            raise KeyboardInterrupt
        failed = job["seed"] == 1 and done.count(1) < 3
        return {
            **job,
            "cores_used_by_others": 0.0,
            **({"error": f"broke {done.count(1)}"} if failed else {}),
        }

    def conduct(seeds, rate=1.0, **options):
        jobs = [{"seed": seed, "settings": {"rate": rate}} for seed in seeds]
        campaign.conduct(output, jobs, ("seed",), execute, str, **options)

    conduct((0, 1))
    with pytest.raises(SystemExit, match="--resume"):
        conduct((0,))
    with pytest.raises(SystemExit, match="other settings"):
        conduct((0, 1), rate=2.0, before="resume")
    with pytest.raises(KeyboardInterrupt):
        conduct((0, 1, 2), before="resume")
    assert len(campaign.read(output)[1]) == 2, (
        "the finished file stays until the next one is complete"
    )
    conduct((0, 1, 2), before="resume")
    assert done == [0, 1, 1, 2, 1, 2] and not campaign.partial_of(output).exists()
    records = campaign.read(output)[1]
    assert [record["seed"] for record in records] == [0, 1, 2]
    assert records[1]["earlier_errors"] == ["broke 1", "broke 2"] and "error" not in records[1]
    assert campaign.failures(records, ("seed",))[2] == "- 1: broke 1; broke 2"
    conduct((0,), before="anew")
    assert len(campaign.read(output)[1]) == 1


def test_earlier_failures_stay_if_they_are_not_made_again(tmp_path):
    output = tmp_path / "results.json"

    def execute(job):
        return {
            **job,
            "cores_used_by_others": 0.0,
            **({"error": "broke"} if job["seed"] == 1 else {}),
        }

    campaign.conduct(output, [{"seed": 0}, {"seed": 1}], ("seed",), execute, str)
    campaign.conduct(output, [{"seed": 2}], ("seed",), execute, str, before="resume")
    assert [record.get("error") for record in campaign.read(output)[1]] == [None, "broke", None]


def test_quartiles_keep_infinity():
    assert campaign.quartiles([1.0, math.inf, 2.0, 3.0, math.inf]) == (2.0, 3.0, math.inf)
    assert campaign.quartiles([math.inf] * 3) == (math.inf,) * 3
    assert campaign.quartiles([1.0, 2.0]) == (1.25, 1.5, 1.75)
    assert campaign.spread([1234.6, math.inf, 0.0123]) == "1,235 [617–∞]"


def test_the_interval_of_a_ratio():
    assert campaign.ratio_interval([10.0, 10.0], [2.0, 2.0]) == (5.0, 5.0)
    low, high = campaign.ratio_interval([10.0, 20.0, 30.0, math.inf, math.inf], [1.0, 2.0, 3.0])
    assert 1 < low < 30 and high == math.inf


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise ValueError('no /folder/of/mine/file')", "ValueError: no file"),
        ("import sys; sys.exit(3)", "exit status 3"),
        ("pass", "it wrote no results (FileNotFoundError)"),
        (
            "import sys, time; print('late', file=sys.stderr, flush=True); time.sleep(60)",
            "it was not over after 1 s",
        ),
    ],
)
def test_how_a_run_failed_is_recorded(program, reason, tmp_path, monkeypatch):
    (tmp_path / "failing_run.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    record = campaign.run({"seed": 0}, "failing_run", timeout=1.0 if "sleep" in program else 60.0)
    assert record["error"] == reason and not record["solved"]
    json.dumps(record)


@pytest.fixture
def others_adopt_again():
    """Let other tests of this process leave orphans to whom they would go."""
    yield
    ctypes.CDLL(None).prctl(orphans.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.usefixtures("others_adopt_again")
@pytest.mark.skipif(sys.platform != "linux", reason="others do not adopt orphans")
@pytest.mark.parametrize("then", ["", "raise SystemExit(1)"])
def test_what_a_command_leaves_behind_is_waited_for(then, tmp_path, monkeypatch):
    monkeypatch.setattr(orphans, "PATIENCE", 300.0)
    left_behind = "import time\nwhile time.process_time() < 0.5: pass\nopen('ended', 'w').close()"
    program = (
        f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {left_behind!r}])"
    )
    before, error = os.times(), None
    try:
        orphans.run([sys.executable, "-c", f"{program}\n{then}"], tmp_path, timeout=60.0)
    except subprocess.CalledProcessError as raised:
        error = raised
    after = os.times()
    assert bool(error) == bool(then)
    assert (tmp_path / "ended").exists()
    assert sum(after[2:4]) - sum(before[2:4]) >= 0.5  # children, user and system


@pytest.mark.usefixtures("others_adopt_again")
@pytest.mark.skipif(sys.platform != "linux", reason="others do not adopt orphans")
def test_what_a_command_leaves_behind_for_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(orphans, "PATIENCE", 0.1)
    program = (
        "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, file=open('pid', 'w'))"
    )
    orphans.run([sys.executable, "-c", program], tmp_path, timeout=60.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_command_ends_with_who_runs_it(tmp_path):
    left = "import os, time; print(os.getpid(), file=open('pid', 'w'), flush=True); time.sleep(600)"
    program = (
        "import sys; from pathlib import Path; from bench.harness import orphans; "
        f"orphans.run([sys.executable, '-c', {left!r}], Path({str(tmp_path)!r}), 600.0)"
    )
    found = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", program], cwd=campaign.ROOT) as process:
        while not (found.exists() and found.read_text()):
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
    assert process.returncode
    with pytest.raises(ProcessLookupError):
        os.kill(int(found.read_text()), 0)


def test_the_same_rounds_count_for_all():
    repetitions = {"ours": [1.0] * 6 + [9.0] * 3, "theirs": [2.0] * 6 + [8.0] * 3}
    record = Record("", {}, "s", "ours", repetitions, disturbed={"ours": [6, 7, 8], "theirs": []})
    assert record.medians() == {"ours": 1.0, "theirs": 2.0} and not record.doubtful()
    record.disturbed["theirs"] = [0, 1]
    assert record.counted() == list(range(9)) and record.doubtful()
    assert record.medians() == {"ours": 1.0, "theirs": 2.0}


def test_one_run_in_a_process_of_its_own():
    settings = {
        "backend": "serial",
        "total_env_steps": 400,
        "learning_starts": 100,
        "evaluation_interval": 200,
        "actors": 1,
    }
    job = {
        "algorithm": "dqn",
        "env": "CartPole-v1",
        "threshold": 1.0,
        "seed": 0,
        "settings": settings,
    }
    record = campaign.run(job, "bench.runs.runner_run")
    assert "error" not in record, record["error"]
    assert record["env_steps"] == 400 and record["updates"] > 0 and record["solved"]
    assert record["steps_to_threshold"] <= 400
    failed = campaign.run({**job, "env": "Nonsense-v1"}, "bench.runs.runner_run")
    assert "Nonsense" in failed["error"] and not failed["solved"]


def test_every_benchmark_belongs_to_one_part():
    files = [file for part in suite.PARTS.values() for file in part.files]
    assert len(files) == len(set(files))
    assert set(files) == {f"calls/{path.name}" for path in suite.BENCH.glob("calls/test_*.py")} | {
        "ablation"
    }
    for name in suite.PARTS:
        for full in (False, True):
            for command in suite.commands(name, full, resume=False):
                assert command[0] == "-m"


def test_differences_of_pages(tmp_path):
    for folder, titles in (("docs", ("# One", "## Gone")), ("made", ("# One", "## New"))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "page.md").write_text("\n\n".join(titles))
    found = suite.differences(tmp_path / "docs", tmp_path / "made")
    assert found == ["page.md: only in docs/: ## Gone", "page.md: not in docs/: ## New"]


def test_tables_of_other_columns_differ(tmp_path):
    for folder, columns in (("docs", "| a | b |"), ("made", "| a | c |")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "page.md").write_text(
            f"# One\n\n{columns}\n| --- | --- |\n| 1 | 2 |\n"
        )
    found = suite.differences(tmp_path / "docs", tmp_path / "made")
    assert found == [
        "page.md: only in docs/: # One: | a | b |",
        "page.md: not in docs/: # One: | a | c |",
    ]


def test_the_first_of_one_round_is_the_last_of_the_next():
    orders = [
        [*before, "ours", *after]
        for before, after in (turns(["ours", "a", "b"], "ours", n) for n in range(4))
    ]
    assert orders == [
        ["ours", "a", "b"],
        ["a", "b", "ours"],
        ["b", "ours", "a"],
        ["ours", "a", "b"],
    ]


class Benchmark:
    """What pytest-benchmark does in pedantic mode."""

    enabled = True

    def pedantic(self, target, setup, teardown, rounds):
        for _ in range(rounds):
            arguments, options = setup()
            target(*arguments, **options)
            teardown(*arguments, **options)


def test_windows_are_measured_in_turn():
    order = []
    windows = {
        name: lambda name=name: order.append(name) or float(len(order))
        for name in ("ours", "a", "b")
    }
    record = interleave_windows(Benchmark(), "ours", windows, rounds=3, watch=False)
    assert "".join(order).replace("ours", "o") == "oababobo" + "a"
    assert all(len(values) == 3 for values in record.repetitions.values()) and not record.doubtful()


class Faulty(Contender):
    """A rival whose calls of some rounds fail, each as often as it says."""

    failures: ClassVar[dict[int, int]] = {}
    timings: ClassVar[list[int]] = []

    def timed(self, n_calls, before):
        n_round = len(self.timings)
        if self.failures.get(n_round, 0) > 0:
            self.failures[n_round] -= 1
            raise KeyError(32767)
        self.timings.append(n_round)
        return 1.0, False


def cold_rounds(monkeypatch, failures):
    monkeypatch.setattr(Faulty, "failures", failures)
    monkeypatch.setattr(Faulty, "timings", [])
    benchmark = Benchmark()
    benchmark.stats = SimpleNamespace(iterations=0, stats=SimpleNamespace(data=[1.0] * 4))
    ours, faulty = (kind(kind.__name__, int, lambda n: [()] * n) for kind in (Contender, Faulty))
    return interleave(benchmark, ours, [faulty], rounds=4, cold=True)


def test_a_rival_that_fails_is_timed_anew(monkeypatch):
    record = cold_rounds(monkeypatch, {2: 2})
    assert len(record.repetitions["Faulty"]) == 4
    assert record.notes == {"Faulty": "failed in round 2, and was timed anew: KeyError: 32767"}


def test_a_rival_that_always_fails_ends_the_run(monkeypatch):
    with pytest.raises(KeyError, match="32767"):
        cold_rounds(monkeypatch, {2: 99})


def test_runs_that_were_not_made_in_turn_are_noticed():
    assert campaign.interleaved(["a", "b", "b", "a", "a"])
    assert not campaign.interleaved(["a", "a", "b", "b"])


def test_records_of_several_commits_are_all_named(tmp_path):
    path, described = tmp_path / "results.json", {"date": "2026-01-01", "commit": "first"}
    campaign.write(
        path,
        described,
        [{"seed": 0}, {"seed": 1, "began": "2026-02-03T04:05:06", "commit": "second"}],
    )
    assert campaign.read(path)[0] == {
        "date": "2026-01-01, 2026-02-03",
        "commit": "first, second",
        "results": "results.json",
    }


def test_versions_of_what_some_records_lack_are_named_and_of_what_all_lack_are_not(tmp_path):
    path = tmp_path / "results.json"
    described = {"versions": {"torch": "3", "minatar": "1", "sbx-rl": "5"}}
    runs = [{"versions": {"torch": "2", "sbx-rl": "5"}}, {"versions": {"torch": "3"}}]
    campaign.write(path, described, runs)
    assert campaign.read(path)[0]["versions"] == {"torch": "2 and 3", "sbx-rl": "5 and none"}


def test_parts_of_a_campaign_are_merged(tmp_path, monkeypatch):
    here, there = (
        {"date": "2026-01-01", "commit": "first", "processor": {"model": name}}
        for name in ("fast", "slow")
    )
    ours = [{"seed": 0, "score": 1}, {"seed": 1, "error": "broke"}]
    theirs = [{"seed": 0, "score": 2}, {"seed": 1, "score": 3}, {"seed": 2, "error": "broke"}]
    whole, *parts = (tmp_path / f"{name}.json" for name in ("whole", "one", "two"))
    campaign.write(parts[0], here, ours)
    campaign.write(parts[1], there, [{**run, "cores_used_by_others": 0.5} for run in theirs])
    jobs = [{"seed": seed} for seed in range(3)]
    merge = partial(campaign.merge, whole, jobs=jobs, identity=("seed",), describe=str)
    merge(parts)
    described, records = campaign.read(whole)
    assert [run.get("score", run.get("error")) for run in records] == [1, 3, "broke"]
    assert [run.get("processor") for run in records] == [None, *[there["processor"]] * 2]
    assert described["other_processors"] == ["slow (family ?, model ?)"]
    assert described["cores_used_by_others"] == 0.5
    assert records[1]["earlier_errors"] == ["broke"]
    monkeypatch.chdir(tmp_path)
    merge([Path(whole.name), parts[0]])
    assert campaign.read(whole) == (described, records)
    with pytest.raises(SystemExit, match=r"whole\.json has runs"):
        merge(parts)
    with pytest.raises(SystemExit, match=r"nowhere\.json is not there.*nowhere\.partial\.json"):
        merge([whole, tmp_path / "nowhere.json"])
    with pytest.raises(SystemExit, match=r"whole\.json has runs with other settings"):
        merge([whole, parts[0]], jobs=[{"seed": 0, "score": 2}])
    with pytest.raises(SystemExit, match=r"whole\.json has runs that are not asked for"):
        merge([whole, parts[0]], jobs=jobs[:2])
    begun = campaign.partial_of(whole)
    campaign.write(begun, here, [{"seed": 2, "score": 4}])
    with pytest.raises(SystemExit, match=r"whole\.partial\.json has runs"):
        merge([whole])
    merge([begun, whole])
    assert not begun.exists() and [run["seed"] for run in campaign.read(whole)[1]] == [2, 0, 1]


def test_campaigns_of_another_machine_are_gone_on_with_only_if_it_does_not_matter(tmp_path):
    output, jobs = tmp_path / "results.json", [{"seed": 0}, {"seed": 1}]
    elsewhere = {"date": "2026-01-01", "commit": "first", "processor": {"model": "another"}}
    campaign.write(output, elsewhere, [{"seed": 0}])
    conduct = partial(campaign.conduct, output, jobs, ("seed",), dict, str, "resume")
    with pytest.raises(SystemExit, match="measured on another machine"):
        conduct()
    conduct(any_machine=True)
    described, records = campaign.read(output)
    assert [run["seed"] for run in records] == [0, 1]
    assert described["other_processors"] == ["another (family ?, model ?)"]


def test_all_errors_of_a_run_are_kept_in_merging(tmp_path):
    here = {"date": "2026-01-01", "commit": "first", "processor": {"model": "fast"}}
    files = [tmp_path / f"{name}.json" for name in ("one", "two")]
    campaign.write(files[0], here, [{"seed": 0, "error": "b", "earlier_errors": ["a"]}])
    campaign.write(files[1], here, [{"seed": 0, "earlier_errors": ["b", "c"]}])
    campaign.merge(tmp_path / "whole.json", files, [{"seed": 0}], ("seed",), str)
    (record,) = campaign.read(tmp_path / "whole.json")[1]
    assert record["earlier_errors"] == ["a", "b", "c"] and "error" not in record


def test_what_was_gathered_does_not_replace_a_campaign_that_went_on_without_it(tmp_path):
    here = {"date": "2026-01-01", "commit": "first", "processor": machine.describe()["processor"]}
    output = tmp_path / "results.json"
    conduct = partial(
        campaign.conduct, output, [{"seed": 0}, {"seed": 1}], ("seed",), dict, str, "resume"
    )
    for path, began in ((campaign.partial_of(output), "2026-01-01"), (output, "2026-01-02")):
        campaign.write(path, here, [{"seed": 0, "began": began}])
    with pytest.raises(SystemExit, match=r"results\.json has later runs than results\.partial"):
        conduct()
    assert len(campaign.read(output)[1]) == 1
    campaign.partial_of(output).unlink()
    conduct()
    assert len(campaign.read(output)[1]) == 2


def test_the_readme_names_the_best_form_of_a_rival_and_no_rival_without_figures():
    values = {"kary-replay": [1.0], "SBX, 40 updates in one call": [0.5], "SBX, one by one": [4.0]}
    line = headline.of_record("updates", [Record("", {}, "s", "kary-replay", values)])
    assert line[-1] == "0.50×" and line[2:-1] == ["–"] * 4
    header, rows = headline.without_empty_columns(["", "ours", *headline.RIVALS], [line])
    assert header == ["", "ours", "SBX"] and rows == [["updates", "1 s", "0.50×"]]


def test_counts():
    assert [grid.counts(n) for n in (1, 2, 6, 16)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8, 16]]


SMALL_RIVAL = """
import numpy as np
from bench.harness.timing import Contender

class SmallRival:
    name = "a small rival"

    def __init__(self, capacity):
        self.rows = np.zeros(capacity)

    def sample(self, batch_size):
        return Contender(self.name, self.rows.take, lambda n: [(np.arange(batch_size),)] * n)
"""


@pytest.fixture
def environments(tmp_path, monkeypatch):
    """Environments that are this one, under other names."""
    monkeypatch.setattr(remote, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(remote, "status", {})
    targets = {
        "rllib": "small_rival:SmallRival",
        "torchrl": "bench.no_such_module:Buffer",
    }
    monkeypatch.setattr(remote, "RIVALS", targets)
    (tmp_path / "small_rival.py").write_text(SMALL_RIVAL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in targets:
        interpreter = remote.python(name)
        interpreter.parent.mkdir(parents=True)
        interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        interpreter.chmod(0o755)
        (tmp_path / name / "installed").touch()


def test_a_rival_in_another_process_takes_its_turn(environments):
    rival = remote.attempt("rllib", {}, 64)
    assert not hasattr(rival, "update")
    contender = rival.sample(4)
    n_calls, before = calibrate(contender)
    seconds, _ = contender.timed(n_calls, before)
    assert contender.name == "a small rival" and n_calls >= 1 and seconds > 0
    with pytest.raises(remote.RemoteError, match="TypeError"):
        rival.ask("contender", "sample", (1, 2, 3))
    rival.close()
    assert "numpy" in remote.status["RLlib"]
    with pytest.raises(remote.RemoteError, match="ended"):
        rival.ask("versions")
    notes = {}
    assert (
        remote.attempt("rllib", notes, "many") is None
        and remote.attempt("rllib", notes, 64) is not None
    )
    assert "could not load" in notes["RLlib"] and "numpy" in remote.status["RLlib"]


def test_a_call_whose_threads_work_is_not_disturbed(monkeypatch):
    """A thread that waits for others of its process looks like one whose core was taken."""
    clocks = {"perf_counter": 0.0, "process_time": 0.0, "thread_time": 0.0}
    for clock in clocks:
        monkeypatch.setattr(timing, clock, lambda clock=clock: clocks[clock])

    def call(own, of_others):
        clocks["perf_counter"] += 0.02
        clocks["thread_time"] += own
        clocks["process_time"] += own + of_others

    def is_disturbed(has_threads, *seconds):
        contender = Contender("", call, lambda n: [seconds] * n, has_threads=has_threads)
        return contender.timed(1, timing.nothing)[1]

    assert is_disturbed(False, 0.001, 0.019) and not is_disturbed(True, 0.001, 0.019)
    assert is_disturbed(True, 0.001, 0.009) and not is_disturbed(False, 0.02, 0.0)


def test_slow_first_calls_do_not_shorten_the_repetitions(monkeypatch):
    """Every call sets a clock of its own forward, so that no other process counts."""
    calls, now = 0, 0.0
    for clock in ("perf_counter", "thread_time"):
        monkeypatch.setattr(timing, clock, lambda: now)

    def call():
        nonlocal calls, now
        calls += 1
        now += 0.004 if calls <= 6 else 20e-6

    n_calls, before = calibrate(Contender("slow at first", call, lambda n: [()] * n))
    assert n_calls == pytest.approx(timing.TARGET_SECONDS / 20e-6)
    calls = 6  # the slow ones are over
    before(Contender("slow at first", call, lambda n: [()] * n))
    assert calls - 6 >= 6 * n_calls


def test_a_rival_that_does_not_load_is_named_with_the_reason(environments, tmp_path):
    assert remote.attempt("torchrl", {}, 64) is None
    assert (
        "could not load, because ModuleNotFoundError: No module named 'bench.no_such_module'"
        in remote.status["TorchRL"]
    )
    (tmp_path / "rllib" / "installed").unlink()
    assert remote.attempt("rllib", {}, 64) is None
    assert remote.status["RLlib"] == "left out, not installed: make rivals"


def test_make_rivals_knows_every_rival_with_an_environment():
    made = re.search(r"^RIVALS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(remote.RIVALS) == set(remote.NAMES)
    theirs = {*remote.RIVALS, *remote.TRAINERS} - set(remote.LIVES_IN)
    assert set(made[1].split()) == theirs
    assert set(remote.BUFFERS) < set(remote.RIVALS)
    for name in (*remote.RIVALS, *remote.TRAINERS):
        environment = remote.LIVES_IN.get(name, name)
        assert (ROOT / "bench" / "rivals" / f"requirements-{environment}.txt").exists()


ALGORITHMS = ("dqn", "td3", "sac")


@pytest.fixture
def one_thread():
    """Keep torch from threads that would wait for each other where cores are shared."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_plain_updates_lower_the_error(algorithm, monkeypatch, one_thread):
    """What torch.compile is given, as it is written: to compile it takes many seconds."""
    monkeypatch.setattr(sb3_learner, "FILLED", 64)
    losses = []
    descend = compiled_learner.descend

    def recorded(optimizer, loss):
        losses.append(loss.item())
        descend(optimizer, loss)

    monkeypatch.setattr(compiled_learner, "descend", recorded)
    update = compiled_learner.learner(algorithm, 64, 32, lambda update: update)
    for _ in range(600):
        update()
    losses_per_cycle, updates_per_cycle = {"dqn": (1, 1), "td3": (3, 2), "sac": (3, 1)}[algorithm]
    assert len(losses) == 600 // updates_per_cycle * losses_per_cycle
    assert all(map(math.isfinite, losses))
    critics = losses[::losses_per_cycle]
    assert sum(critics[-20:]) < 0.8 * sum(critics[:20])


@pytest.fixture
def sbx():
    """Start SBX's process; where it is not installed, the test says so."""
    if not remote.installed("sbx"):
        pytest.skip("SBX is not installed: make rivals")
    made = []

    def make(*arguments):
        made.append(remote.RemoteRival("sbx", *arguments))
        return made[-1]

    yield make
    for rival in made:
        rival.close()


@pytest.mark.parametrize(("together", "operations"), [(1, 2), (4, 4)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sbx_takes_its_turn(sbx, algorithm, together, operations):
    rival = sbx(algorithm, 8, 16)
    contender = rival.train(together)
    assert contender.operations == operations and contender.name.startswith("SBX, ")
    first, later = (contender.timed(1, timing.nothing)[0] for _ in range(2))
    assert 0 < later < first, "the first call compiles"
    assert "sbx-rl" in rival.versions and "jax" in rival.versions


def ticks_of_threads(process_id):
    """Return how long each thread of a process has worked, in ticks of the system's clock."""
    return {
        task.name: sum(map(int, (task / "stat").read_text().rpartition(")")[2].split()[11:13]))
        for task in Path("/proc", str(process_id), "task").iterdir()
    }


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
def test_sbx_works_in_one_thread_at_a_time(sbx):
    """XLA's work is done by one thread, though two cores are there and products are large."""
    rival = sbx("sac", 256, 256)
    contender = rival.train(10)
    contender.timed(2, timing.nothing)
    before = ticks_of_threads(rival.process_id)
    contender.timed(10, timing.nothing)
    after = ticks_of_threads(rival.process_id)
    worked = [ticks - before.get(task, 0) for task, ticks in after.items()]
    assert max(worked) > 0.9 * sum(worked), worked
