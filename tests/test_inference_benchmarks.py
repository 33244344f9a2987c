"""The benchmarks of inference and of several learners, without a measurement."""

import dataclasses
import json

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("torch")
pytest.importorskip("rich")

import torch
from rich.console import Console

from bench.harness import campaign, machine
from bench.runs import inference, inference_report, inference_run, optimization, optimization_run
from bench.runs import probes as found
from kary_replay.runner import Runner

N_ENVS = 4


@pytest.mark.parametrize("short", [False, True])
def test_jobs_of_inference_are_settings_that_the_runner_takes(short):
    jobs = list(inference.jobs(list(inference.TASKS), 2, short))
    identities = {tuple(job[key] for key in inference.IDENTITY) for job in jobs}
    assert len(identities) == len(jobs)
    for job in json.loads(json.dumps(jobs)):
        for variant in job["variants"]:
            config = inference_run.configured(job, variant)
            assert config.options.n_envs == job["n_envs"]


@pytest.mark.parametrize("short", [False, True])
def test_all_learners_have_as_many_steps_and_rows_of_an_update(short):
    jobs = list(optimization.jobs(list(optimization.TASKS), 2, short))
    for task in optimization.TASKS:
        configs = [
            optimization_run.configured(json.loads(json.dumps(job)))
            for job in jobs
            if job["task"] == task
        ]
        assert len(configs) == 2 * len(optimization.VARIANTS)
        # Of asynchronous learners, each has so many.
        same = {(c.total_env_steps, c.rows_per_update, c.actors, c.groups) for c in configs}
        assert len(same) == 1


def serial(config, directory, total_env_steps):
    settings = {"backend": "serial", "total_env_steps": total_env_steps}
    return dataclasses.replace(config, directory=str(directory), **settings)


@pytest.mark.parametrize("variant", inference.VARIANTS)
@pytest.mark.parametrize("algorithm", ["Acting", "Learning"])
def test_every_answer_is_written_down(algorithm, variant, tmp_path):
    job = {
        "algorithm": algorithm,
        "env": inference.CARTPOLE,
        "env_options": {"waiting": 0.0, "computing": 0.0},
        "hidden": [8],
        "n_envs": N_ENVS,
        "on_gpu": False,
        "actors": 1,
        "seed": 0,
    }
    config = serial(inference_run.configured(job, variant), tmp_path / "run", 400)
    result = Runner(config, console=quiet()).run()
    counts, answers, sizes = found.answers_in(found.hosted["inference"].numbers)
    n_groups = int(variant.split()[1])
    assert len(counts) == n_groups and counts.sum() * N_ENVS // n_groups == result.env_steps
    for count, group in zip(counts.astype(int), answers, strict=True):
        took, waited, when = group[:count].T
        assert (took > 0).all() and (waited > 0).all() and (np.diff(when) > 0).all()
    asked = counts.sum() * N_ENVS // n_groups if variant.startswith("worker") else 0
    # Some may have been answered, and not collected when the run was over.
    n_answered = (sizes * np.arange(len(sizes))).sum()
    assert asked <= n_answered <= asked + N_ENVS * bool(asked)


@pytest.mark.parametrize("task", optimization.TASKS)
def test_what_a_learner_does_alone_is_counted(task, tmp_path):
    job = next(optimization.jobs([task], 1, True))
    config = serial(optimization_run.configured(job), tmp_path / "run", 2_000)
    found.hosted.clear()
    result = Runner(dataclasses.replace(config, evaluate="never"), console=quiet()).run()
    figures = optimization_run.of_learners(1)
    learner = found.LearnerNumbers(found.hosted["learning"].numbers, 0)
    assert learner.updates == result.updates > 0
    assert figures["between"] == figures["most_between"] == 0.0
    if task == "cartpole_impala":
        assert 0.0 <= figures["staleness"] <= figures["most_staleness"] <= config.max_staleness


def quiet():
    return Console(quiet=True)


def test_answers_before_and_after_the_window_do_not_count():
    seconds = 1.0
    warm = inference_run.WARM_SECONDS
    when = np.array([0.0, warm - 0.1, warm, warm + 0.5, warm + 0.9, warm + 1.0])
    group = np.stack([np.arange(6) * 1e-3, np.arange(6) * 1e-4, when], 1)
    summary = inference_run.summary([group], np.array([0, 0, 7]), 2, seconds)
    assert summary["env_steps_per_second"] == 3 * 2 and summary["answers"] == 3
    assert summary["answer_microseconds"][0] == 3000.0
    assert summary["waited_microseconds"][0] == 300.0
    assert summary["rows_together"] == {"2": 7}


def of_inference(job):
    """The record of runs that were never made; a policy worker is slower, but with two groups."""
    rates = {inference.LOCAL: 100.0, inference.ONE: 50.0, inference.TWO: 200.0}
    answered = {"answers": 9, "rows_together": {"2": 3, "4": 1}}
    times = {f"{what}_microseconds": [1.0, 2.0, 3.0] for what in ("answer", "waited")}
    one = {**answered, **times}
    variants = {
        name: {**one, "env_steps_per_second": rates[name] + job["seed"]} for name in job["variants"]
    }
    return {**job, "found": variants, "wall_seconds": 1.0, "cores_used_by_others": 0.0}


def of_learners(job):
    return {
        **job,
        "env_steps": 1000,
        "updates": 100,
        "wall_seconds": 2.0,
        "updates_per_second": 50.0,
        "waited": {"actors": 0.1, "learners": 0.2},
        "together_seconds": 1.0,
        "between": 0.5,
        "most_between": 3.0,
        **(
            {}
            if job["algorithm"] == "dqn"
            else {"staleness": 1.5, "most_staleness": 4.0, "dropped_steps": 64.0}
        ),
        "final_return": 400.0 + job["seed"],
        "cores_used_by_others": 0.5,
    }


PARTS = {"inference": (inference, of_inference), "optimization": (optimization, of_learners)}


@pytest.mark.parametrize("parts", [["inference"], ["optimization"], list(PARTS)])
@pytest.mark.parametrize("short", [False, True])
def test_the_page_has_what_was_run(parts, short, tmp_path, monkeypatch):
    for part in parts:
        module, record = PARTS[part]
        jobs = json.loads(json.dumps(list(module.jobs(list(module.TASKS), 2, short))))

        def execute(job, record=record, last=jobs[-1]):
            return {**job, "error": "it broke"} if job == last else record(job)

        output = tmp_path / f"{part}.json"
        campaign.conduct(output, jobs, module.IDENTITY, execute, module.describe)
    arguments = [str(tmp_path / f"{parts[0]}.json"), "--docs", str(tmp_path / "docs")]
    monkeypatch.setattr("sys.argv", ["report", *arguments])
    inference_report.main()
    page = (tmp_path / "docs" / "inference_benchmarks.md").read_text()
    assert page.count("it broke") == len(parts)
    has_learners = "optimization" in parts
    assert ("## Learners" in page) == ("**Provisional:**" in page) == has_learners
    if "inference" in parts:
        assert "0.50×" in page and "2.00×" in page and "2: 75%, 4: 25%" in page
        for name in ("inference", "inference_cases"):
            assert (tmp_path / "docs" / "images" / f"{name}.png").exists()
        assert "a GPU" not in page
    if has_learners:
        assert "1.50, 4" in page and "50%" in page
        assert "did 1.00× as many updates per second as synchronous ones" in page


def test_what_a_gpu_gave_has_a_part_of_its_own(tmp_path, monkeypatch):
    assert not list(inference.jobs(["images_gpu"], 1, False)) or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    described = {**machine.describe(), "gpu": "A GPU"}
    for name, task in (("inference", "perceptron_256_two"), ("inference_gpu", "images_gpu")):
        jobs = inference.jobs([task], 2, False)
        output = tmp_path / f"{name}.json"
        campaign.conduct(output, jobs, inference.IDENTITY, of_inference, inference.describe)
        monkeypatch.setattr(machine, "describe", lambda: described)  # of the second one
    arguments = [str(tmp_path / "inference.json"), "--docs", str(tmp_path / "docs")]
    monkeypatch.setattr("sys.argv", ["report", *arguments])
    inference_report.main()
    page = (tmp_path / "docs" / "inference_benchmarks.md").read_text()
    assert page.count("## Who says what the networks say") == 2 and " cores and a GPU\n" in page
    assert "| convolutions; the worker on a GPU | 64 |" in page
    assert (tmp_path / "docs" / "images" / "inference_gpu_cases.png").exists()
