"""Several learners: one whole batch between them, the same step, and everyone at the end of it."""

import contextlib
import multiprocessing
import threading

import numpy as np
import pytest
import torch
from gymnasium import spaces
from runs import SMALL, config, hosted, worker

from kary_replay.algorithms import ALGORITHMS, DQNOptions
from kary_replay.runner import RunFailedError, Runner, RunnerConfig
from kary_replay.runner.backends.memory import SharedMemory
from kary_replay.runner.streams import Checkpoint
from kary_replay.runner.streams.gradients import GradientStream

OBSERVATION = spaces.Box(-1, 1, (4,), np.float32)
ACTIONS = {"dqn": spaces.Discrete(3)}
NAMES = "ddpg", "dqn", "sac", "td3"  # other tests may register more, which other processes lack
BATCH, UPDATES = 24, 100


def algorithm_of(name, share=None):
    options_class = ALGORITHMS[name].options_class
    options = options_class(hidden=(32, 32), batch_size=BATCH, target_interval=3)
    return ALGORITHMS[name](
        OBSERVATION,
        ACTIONS.get(name, spaces.Box(-2, 2, (2,), np.float32)),
        options,
        seed=3,
        share=share,
    )


def batch_of(name, number, rows=slice(None)):
    rng = np.random.default_rng(number)
    action = (
        rng.integers(3, size=BATCH)
        if name == "dqn"
        else rng.uniform(-1, 1, (BATCH, 2)).astype(np.float32)
    )
    columns = {
        "observation": rng.normal(size=(BATCH, 4)).astype(np.float32),
        "action": action,
        "reward": rng.normal(size=BATCH).astype(np.float32),
        "next_observation": rng.normal(size=(BATCH, 4)).astype(np.float32),
        "discount": np.where(rng.random(BATCH) < 0.1, 0, 0.99).astype(np.float32),
        "importance_weight": rng.uniform(0.2, 1, BATCH).astype(np.float32),
    }
    return {key: torch.from_numpy(column[rows]) for key, column in columns.items()}


def learn(index, gradients, pipe):
    torch.set_num_threads(1)
    share, count = gradients.share(index, "cpu"), gradients.n_learners
    for name in NAMES:
        algorithm = algorithm_of(name, share)
        rows = share.rows(BATCH // count)
        errors = [
            algorithm.update(batch_of(name, number, rows)).numpy().copy()
            for number in range(UPDATES)
        ]
        pipe.send(
            (
                errors,
                {key: minimizer.flat.numpy() for key, minimizer in algorithm.minimizers.items()},
            )
        )
    pipe.recv()


def test_learners_in_processes_equal_one_with_the_whole_batch():
    """After 100 updates to within 1e-4 of the parameters, where each update has rounded at 1e-7."""
    context, count = multiprocessing.get_context("spawn"), 2
    # room for 500 numbers: most vectors are averaged in several pieces
    with contextlib.closing(SharedMemory()) as medium:
        gradients = GradientStream(count, 500).host(medium, Checkpoint()).sink()
        pipes = [context.Pipe() for _ in range(count)]
        processes = [
            context.Process(target=learn, args=(index, gradients, theirs))
            for index, (_, theirs) in enumerate(pipes)
        ]
        for process, (_, theirs) in zip(processes, pipes, strict=True):
            process.start()
            theirs.close()  # a learner that dies ends the wait for it
        results = {name: [ours.recv() for ours, _ in pipes] for name in NAMES}
        for ours, _ in pipes:
            ours.send("end")
        for process in processes:
            process.join()
    for name, ((first_errors, first), (second_errors, second)) in results.items():
        one = algorithm_of(name)
        errors = [one.update(batch_of(name, number)).numpy().copy() for number in range(UPDATES)]
        for key, minimizer in one.minimizers.items():
            np.testing.assert_array_equal(first[key], second[key])
            np.testing.assert_allclose(
                first[key], minimizer.flat.numpy(), rtol=1e-4, atol=1e-5, err_msg=f"{name} {key}"
            )
        np.testing.assert_allclose(
            np.concatenate([first_errors, second_errors], 1), errors, rtol=1e-3, atol=1e-4
        )


def test_the_mean_of_vectors_of_any_kind(request):
    """In threads, room for three numbers: of several lengths and dtypes in turn, also strided."""
    count, rng, medium = 3, np.random.default_rng(0), SharedMemory()
    request.addfinalizer(medium.close)
    gradients = GradientStream(count, 6).host(medium, Checkpoint()).sink()
    shapes = [(1,), (7,), (0,), (2, 5), (), (64,)] * 5
    kinds = [np.float32, np.float64] * 15
    vectors = [
        [rng.normal(size=shape).astype(kind) for _ in range(count)]
        for shape, kind in zip(shapes, kinds, strict=True)
    ]
    found = [[] for _ in range(count)]

    def learner(index):
        average = gradients.share(index, "cpu").average
        for number, all_of_them in enumerate(vectors):
            tensor = torch.from_numpy(np.array(all_of_them[index]))
            if tensor.dim() == 2 and number % 2:
                tensor = tensor.T.contiguous().T  # strided, with the same numbers
            average(tensor)
            found[index].append(tensor.numpy().copy())

    threads = [threading.Thread(target=learner, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, all_of_them in enumerate(vectors):
        first, *others = all_of_them
        for other in others:
            first = first + other
        for one in found:
            np.testing.assert_array_equal(one[number], first / first.dtype.type(count))


@pytest.mark.parametrize("learners", [2, 3])
def test_learners_of_a_run_end_together(learners, tmp_path):
    result = Runner(
        config(
            "dqn",
            "CartPole-v1",
            tmp_path / "run",
            options={"batch_size": 24},
            backend="process",
            learners=learners,
            total_env_steps=2_000,
            samples_per_insert=24.0,
        )
    ).run()
    assert result.env_steps >= 2_000
    # the allowance, against so short a run
    assert result.samples_per_insert == pytest.approx(24, rel=0.1)


def test_the_learner_that_failed_is_named_with_its_reason(tmp_path):
    """The others fail with it, for they wait for it; all of them are named."""
    settings = RunnerConfig(
        "failing_algorithms:Failing",
        "CartPole-v1",
        directory=str(tmp_path / "run"),
        options=DQNOptions(batch_size=24),
        **{**SMALL, "backend": "process", "learners": 2},
    )
    with pytest.raises(
        RunFailedError, match=r"(?s)learner-1 failed: Traceback.*ValueError: diverged"
    ):
        Runner(settings).run()


def test_asynchronous_learners_have_random_numbers_of_their_own(tmp_path):
    """Also after they have taken up a state, which is that of the first one."""
    settings = {"learners": 2, "optimization": "asynchronous", "backend": "process"}
    flow = hosted(config("rainbow", "CartPole-v1", tmp_path / "run", **settings))
    try:
        learners = [worker(flow, "learner", index) for index in (0, 1)]
        state = learners[0].state_dict()
        drawn = [one.algorithm.generator.get_state() for one in learners]
        for one in learners:
            one.load_state_dict(state)
        again = [one.algorithm.generator.get_state() for one in learners]
        assert not torch.equal(*drawn) and not torch.equal(*again)
        assert torch.equal(again[0], state["algorithm"]["generator"])
        learners[1].load_state_dict(state)
        assert torch.equal(learners[1].algorithm.generator.get_state(), again[1])
        for one in learners:
            one.close()
    finally:
        flow.close()


def test_learners_end_when_the_last_rows_are_too_few_for_all_of_them(tmp_path):
    """2010 steps at 8 rows each allow 251 1/4 batches: half of a batch, but not two halves."""
    result = Runner(
        config(
            "dqn",
            "CartPole-v1",
            tmp_path / "run",
            options={"batch_size": 64},
            backend="process",
            learners=2,
            total_env_steps=2_010,
            samples_per_insert=8.0,
        )
    ).run()
    assert result.env_steps >= 2_010 and (tmp_path / "run" / "checkpoint.json").exists()


def test_actors_can_be_measured_for_a_run_that_ends_before_learning_starts(tmp_path):
    result = Runner(
        config(
            "dqn",
            "CartPole-v1",
            tmp_path / "run",
            backend="process",
            actors="auto",
            total_env_steps=50,
        )
    ).run()
    assert result.env_steps >= 50 and result.updates == 0
