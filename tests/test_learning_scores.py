"""What a campaign shows: against rliable's own figures, and with seeds that are missing."""

import json
import sys

import numpy as np
import pytest

pytest.importorskip("rliable")
pytest.importorskip("matplotlib")
scores = pytest.importorskip("bench.runs.learning.scores")
candidates = pytest.importorskip("bench.runs.learning.candidates")
report = pytest.importorskip("bench.runs.learning.report")

from bench.runs.learning.tasks import TASKS, random_return  # noqa: E402

FINAL = report.FINAL


def document(steps=10, **returns_of):
    """Runs of buffers with constant returns, one for each seed; None: that seed was not run."""
    return {
        "steps": 1000 * steps,
        "runs": [
            {
                "buffer": buffer,
                "seed": seed,
                "steps": [1000 * (i + 1) for i in range(steps)],
                "returns": [float(value)] * steps,
                "values": [],
                "seconds": 60.0,
                "versions": {"numpy": "2.4.6"},
                "replay": {},
            }
            for buffer, values in returns_of.items()
            for seed, value in enumerate(values)
            if value is not None
        ],
    }


def test_figures_are_those_of_rliable():
    from rliable import metrics

    rng = np.random.default_rng(0)
    for n in range(1, 13):
        ours, theirs = rng.integers(0, 6, (2, n, 1)).astype(float)  # with ties
        middle = scores.interquartile_mean(ours[:, 0])
        assert middle == pytest.approx(metrics.aggregate_iqm(ours))
        if not np.array_equal(ours, theirs):
            assert scores.probability_of_improvement(ours[:, 0], theirs[:, 0]) == pytest.approx(
                metrics.probability_of_improvement(ours, theirs)
            )


def test_tasks_count_alike_however_many_seeds_they_have():
    from rliable import metrics

    rng = np.random.default_rng(0)
    names = [name for name, task in TASKS.items() if task.is_aggregated][:4]
    scaled = rng.normal(size=(5, 4))
    samples = {
        name: TASKS[name].scale[0] + column * np.ptp(TASKS[name].scale)
        for name, column in zip(names, scaled.T, strict=True)
    }
    whole = scores.interquartile_mean_of_tasks(samples)
    assert whole == pytest.approx(metrics.aggregate_iqm(scaled))
    samples[names[0]] = np.repeat(samples[names[0]], 3)
    assert scores.interquartile_mean_of_tasks(samples) == pytest.approx(whole)


def test_intervals_are_the_same_every_time_and_leave_the_global_generator_alone():
    sample = np.random.default_rng(0).normal(size=8)
    np.random.seed(7)
    first = scores.middle(dict(enumerate(sample)))
    drawn = np.random.random()
    np.random.seed(8)
    assert scores.middle(dict(enumerate(sample))) == first
    np.random.seed(7)
    assert np.random.random() == drawn
    assert first.low < first.value < first.high


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([10, 11, 12, 13, 14], scores.ABOVE),
        ([-10, -11, -12, -13, -14], scores.BELOW),
        ([0, 1, 2, 3, 4], scores.LIKE),
        ([10, 11, 12, 13], scores.TOO_FEW),
        ([10, 11, 12, 13, None], scores.TOO_FEW),
    ],
)
def test_verdicts(ours, verdict):
    documents = {"cartpole": document(uniform=[0, 1, 2, 3, 4], ours=ours)}
    found = scores.compare(documents, "ours", "uniform", FINAL)
    assert found["cartpole"].verdict == verdict


def test_missing_seeds_are_counted_and_not_dropped():
    documents = {
        "cartpole": document(uniform=[100] * 5, ours=[400] * 5),
        "acrobot": document(uniform=[-300] * 5, ours=[None, -200, None, None, None]),
        "breakout": document(uniform=[1] * 5),
    }
    both = scores.aggregate(documents, "ours", "uniform", FINAL)
    assert both.tasks == ["cartpole", "acrobot"] and both.n_runs == 6
    assert both.improvement.value == 1
    only_cartpole = scores.aggregate(
        {"cartpole": documents["cartpole"]}, "ours", "uniform", FINAL
    ).middle
    assert both.middle.value < only_cartpole.value
    assert scores.aggregate(documents, "other", "uniform", FINAL) is None


def test_differences_are_of_seeds_that_both_have():
    one = document(uniform=[1, 2, 3, None], ours=[11, None, 13, 1000])
    pair = (scores.scores_of(one, kind, FINAL) for kind in ("ours", "uniform"))
    assert scores.paired_difference(*pair) == ((10, 10, 10), 2)
    assert scores.paired_difference({0: 1.0}, {1: 1.0}) is None


def test_runs_are_alike_if_all_their_evaluations_are():
    one = document(ours=[1.004, None, 2, 3, 4], uniform=[1.0, 5, 2, 3.01, None])
    assert scores.n_alike(one, "ours", "uniform") == (2, 3)
    one["runs"][1]["returns"][-1] += 1  # of ours, seed 2
    assert scores.n_alike(one, "ours", "uniform") == (1, 3)
    assert scores.n_alike(one, "ours", "nobody") == (0, 0)


def test_a_task_that_changes_settings_is_in_no_aggregate():
    documents = {"lunarlander_gentle": document(uniform=[0] * 5, ours=[1] * 5)}
    assert scores.aggregate(documents, "ours", "uniform", FINAL) is None
    assert "lunarlander_gentle" in scores.compare(documents, "ours", "uniform", FINAL)


def test_values_beyond_what_returns_can_be_are_divergence():
    task = TASKS["lunarlander"]
    assert not task.is_diverged([17.4, 99.2, -300.0, 640.0])
    assert task.is_diverged([56.8, 1240.1]) and task.is_diverged([float("nan")])
    assert TASKS["mountaincar"].is_diverged([51.0]) and not TASKS["mountaincar"].is_diverged([])


@pytest.mark.parametrize(
    ("name", "episodes"),
    [("cartpole", 500), ("mountaincar", 20), ("pendulum", 100), ("frozenlake", 500), ("bits", 300)],
)
def test_zero_on_the_scale_is_a_random_policy(name, episodes):
    pytest.importorskip("stable_baselines3")
    assert abs(TASKS[name].scaled(random_return(TASKS[name], episodes))) < 0.03


def candidate(task, variant, seed, level, n=10, **others):
    return {"task": task, "variant": variant, "seed": seed, "returns": [level] * n, **others}


def test_candidates_are_put_in_order_and_marked(tmp_path):
    tried = {
        "variants": {"rank": "priorities by rank"},
        "runs": [
            *(candidate("lunarlander", "rank", seed, -100.0, values=[9e9]) for seed in range(2)),
            candidate("lunarlander", "share", 0, 190.0, n=8),
            candidate("lunarlander", "uniform", 0, 100.0),
            candidate("cartpole", "uniform", 0, 400.0),
        ],
    }
    path = tmp_path / "candidates.json"
    path.write_text(json.dumps(tried))
    found = candidates.cells(candidates.read(path))
    assert list(found) == ["uniform", "share", "rank"]
    assert found["rank"]["lunarlander"].text == "-100 ✕2"
    assert found["share"]["lunarlander"].text == "190*"
    rows = candidates.table(tried)
    assert rows[2] == "| uniform |  | +0.00 | 400 (1) | 100 (1) |"
    assert rows[4] == "| rank | priorities by rank | -0.53 | – | -100 ✕2 (2) |"
    candidates.draw(tried, tmp_path / "candidates.png")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (candidate("breakdance", "rank", 0, 1.0), "'breakdance'; the tasks are cartpole"),
        (candidate("cartpole", "rank", 0, 1.0, n=0), "no returns of 'rank' on cartpole, seed 0"),
    ],
)
def test_candidates_that_cannot_be_shown_are_refused(tmp_path, run, words):
    path = tmp_path / "candidates.json"
    path.write_text(json.dumps({"runs": [run]}))
    with pytest.raises(ValueError, match=words):
        candidates.read(path)


def test_a_page_of_an_unfinished_campaign_says_what_is_missing(tmp_path, monkeypatch):
    """The buffers are those that the files have, whatever their names."""
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["report", "--docs", str(tmp_path)])
    (tmp_path / "images").mkdir()
    whole = document(uniform=[1, 2, 3, 4, 5], prioritized=[1, 2, 3, 4, 5])
    whole["runs"] += document(newest=[6, 7, 8], **{"uniform, n = 3": [2] * 5})["runs"]
    (tmp_path / "cartpole.json").write_text(json.dumps(whole))
    (tmp_path / "acrobot.json").write_text(json.dumps(document(uniform=[-300] * 2)))
    report.main()
    page = (tmp_path / "learning.md").read_text()
    assert "| newest | last 5 evaluations | – | – | – | cartpole |" in page
    assert "7.0 [6.0 … 8.0], 3 seeds" in page
    assert "| acrobot | last 5 evaluations | -300.0 [-300.0 … -300.0], 2 seeds | – | – |" in page
    assert "Not run yet: mountaincar" in page
    assert "not in it: prioritized; newest." in " ".join(page.split())
    assert "| uniform, n = 3 | uniform | last 5 evaluations | 1 | 5 | 0.30" in page
    pictures = {"improvement", "learning_curves", "performance_profiles", "n_step"}
    assert pictures == {path.stem for path in (tmp_path / "images").iterdir()}
