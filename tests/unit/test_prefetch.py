"""What a prefetched batch is, when it was drawn, where errors arrive; no thread is left."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest

import kary_replay as kr
from kary_replay.errors import ClosedError, EmptyBufferError, RateLimiterTimeoutError

torch = pytest.importorskip("torch")
from kary_replay import transfer  # noqa: E402
from kary_replay.prefetch import Prefetcher  # noqa: E402

FIELDS = {
    "observation": {"camera": kr.Field((2, 3), "uint8"), "state": kr.Field((3,), "float32")},
    "number": kr.Field((), "int64"),
    "terminated": kr.Field((), "bool"),
}
CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
)
DEVICES = ["cpu", CUDA]
STACKS = "observation", "next_observation"


def row(number):
    number = np.atleast_1d(number)
    ones = np.ones((len(number), 2, 3), np.uint8)
    state = np.repeat(number[:, None], 3, axis=1).astype(np.float32)
    camera = ones * (number[:, None, None] % 251).astype(np.uint8)
    return {
        "observation": {"camera": camera, "state": state},
        "number": number,
        "terminated": number % 2 == 0,
    }


def make(n=100, kind=kr.PrioritizedReplayBuffer, **options):
    buffer = kind(100, FIELDS, seed=0, **options)
    if n:
        buffer.add(**row(np.arange(n)))
    return buffer


def check_whole(batch):
    number = batch.number.cpu().numpy()
    assert (batch.observation["state"].cpu().numpy() == number[:, None]).all()
    assert (batch.observation["camera"].cpu().numpy() == number[:, None, None] % 251).all()
    assert (batch.terminated.cpu().numpy() == (number % 2 == 0)).all()
    return number


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "kary-replay prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    assert not threads()
    yield
    settle(lambda: not threads() or gc.collect() < 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_batches_are_those_of_the_buffer(device, kind, depth):
    alone = make(kind=kind)
    with Prefetcher(make(kind=kind), 16, device, depth) as batches:
        for _, batch in zip(range(20), batches, strict=False):
            expected = alone.sample(16)
            assert list(batch) == list(expected) and len(batch) == 16
            assert (check_whole(batch) == expected.number).all()
            assert isinstance(batch.handle, np.ndarray) and (batch.handle == expected.handle).all()
            assert (batch.index == expected.index).all() and batch.number.device.type == device
            if kind is kr.PrioritizedReplayBuffer:
                assert batch.importance_weight.dtype == torch.float32
                assert (batch.importance_weight.cpu().numpy() == expected.importance_weight).all()
    assert [batch.observation["camera"].dtype, batch.terminated.dtype] == [torch.uint8, torch.bool]


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_is_never_overwritten(device):
    """Not even a batch kept while many more are taken; fields derive from the row's number."""
    with Prefetcher(make(), 32, device, depth=2) as batches:
        kept = [next(batches) for _ in range(100)]
        drawn = [check_whole(batch) for batch in kept]
        for _ in range(100):
            next(batches)
        for batch, number in zip(kept, drawn, strict=True):
            assert (check_whole(batch) == number).all()
            batch.number.zero_()  # the caller's, to do with as they like
        assert sorted(set(check_whole(next(batches)).tolist())) != [0]


@pytest.mark.parametrize("depth", [1, 3])
def test_exactly_depth_batches_are_drawn_ahead(depth):
    buffer = make()
    with Prefetcher(buffer, 10, depth=depth) as batches:
        assert buffer.n_sampled == 0  # nothing before the first is asked for
        for taken in range(1, 6):
            next(batches)
            settle(lambda taken=taken: buffer.n_sampled == 10 * (taken + depth))
        time.sleep(0.05)
        assert buffer.n_sampled == 10 * (5 + depth)


def settle(condition):
    """Wait until it holds; the limit is against hanging."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("device", DEVICES)
def test_priorities_are_written_back(device):
    """The updates of a batch are in before the batch after the next is drawn."""
    buffer = make(alpha=1.0)
    with Prefetcher(buffer, 16, device) as batches:
        batch = next(batches)
        settle(lambda: buffer.n_sampled == 32)
        error = torch.arange(16.0, device=device, requires_grad=True) * (-1) ** torch.arange(
            16, device=device
        )
        applied = batches.update_priorities(batch, error.unsqueeze(1))
        assert applied == 16
        last = dict(zip(batch.index.tolist(), range(16), strict=True))
        np.testing.assert_allclose(
            buffer.tree.get(list(last)), np.array(list(last.values())) + 1e-6
        )
        assert batches.update_priorities(batch, [1.0] * 16) == 16
        assert (
            batches.update_priorities(batch, torch.ones(16, dtype=torch.bfloat16, device=device))
            == 16
        )
        with pytest.raises(ValueError, match="has the loss diverged"):
            batches.update_priorities(batch, error * float("nan"))


def test_stale_handles_change_nothing():
    buffer = make()
    with Prefetcher(buffer, 16) as batches:
        batch = next(batches)
        settle(lambda: buffer.n_sampled == 32)
        buffer.add(**row(np.arange(100, 200)))
        before = buffer.tree.get(np.arange(100))
        assert batches.update_priorities(batch, torch.full((16,), 9.0)) == 0
        # drawn before they came
        assert batches.update_priorities(next(batches), torch.full((16,), 9.0)) == 0
        assert (buffer.tree.get(np.arange(100)) == before).all()
        assert batches.update_priorities(next(batches), torch.full((16,), 9.0)) == 16


def test_transform():
    def scaled(batch):
        names.add(threading.current_thread().name)
        assert not torch.is_grad_enabled()
        batch.observation["camera"] = batch.observation["camera"].float() / 255
        batch.note = "any"
        return batch

    names = set()
    with Prefetcher(make(), 8, transform=scaled) as batches:
        batch = next(batches)
    assert batch.observation["camera"].dtype == torch.float32 and batch.note == "any"
    assert names == {"kary-replay prefetch"}
    with Prefetcher(make(), 8, transform=lambda batch: None) as batches:
        for _ in range(2):
            with pytest.raises(TypeError, match="transform must return the batch, got NoneType"):
                next(batches)


def test_batches_that_were_handed_out_are_not_written_to():
    buffer = make(10)
    with pytest.raises(ValueError, match="sample_options must not have out"):
        Prefetcher(buffer, 4, sample_options={"out": buffer.sample(4)})


def test_sample_options():
    with Prefetcher(make(10), 10, sample_options={"unique": True}) as batches:
        assert sorted(next(batches).index.tolist()) == list(range(10))
    with (
        Prefetcher(make(10), 11, sample_options={"unique": True}) as batches,
        pytest.raises(ValueError, match="at most"),
    ):
        next(batches)


def test_an_error_arrives_after_the_batches_before_it_and_the_next_call_tries_again():
    calls = []

    def fails_at_three(batch):
        calls.append(1)
        if len(calls) == 3:
            raise OSError("third")
        return batch

    with Prefetcher(make(), 8, depth=2, transform=fails_at_three) as batches:
        next(batches), next(batches)
        with pytest.raises(OSError, match="third"):
            next(batches)
        check_whole(next(batches))


def test_an_empty_buffer_is_waited_for(run_threaded):
    buffer = make(0)
    with Prefetcher(buffer, 8) as batches:
        got, _ = run_threaded(
            [lambda: next(batches), lambda: time.sleep(0.05) or buffer.add(**row(np.arange(3)))]
        )
        check_whole(got)


def test_time_outs_arrive():
    buffer = make(0)
    with Prefetcher(buffer, 8, timeout_seconds=0.05) as batches:
        with pytest.raises(
            EmptyBufferError,
            match=r"no row was there to draw for [\d.]+ s: has every actor stopped",
        ):
            next(batches)
        buffer.add(**row(np.arange(3)))
        check_whole(next(batches))
    limiter = kr.RateLimiter(buffer, 1.0, error=16)
    with Prefetcher(buffer, 8, rate_limiter=limiter, timeout_seconds=0.05) as batches:
        next(batches), next(batches)
        with pytest.raises(RateLimiterTimeoutError, match="the sampler has waited"):
            next(batches)
        buffer.add(**row(np.arange(8)))
        check_whole(next(batches))
        assert limiter.balance >= -16


def test_a_transform_that_raises_stop_iteration_ends_no_loop_without_a_word():
    numbers = iter(range(2))
    with Prefetcher(make(), 4, depth=1, transform=lambda batch: (next(numbers), batch)[1]) as one:
        with pytest.raises(RuntimeError, match="the transform has raised StopIteration") as caught:
            for _ in one:
                pass
        assert isinstance(caught.value.__cause__, StopIteration)


def test_closing():
    buffer = make()
    batches = Prefetcher(buffer, 8)
    batches.close()
    with pytest.raises(ClosedError, match="the prefetcher is closed"):
        next(batches)
    batches = Prefetcher(buffer, 8)
    batch = next(batches)
    assert len(threads()) == 1
    batches.close()
    batches.close()
    assert not threads()
    with pytest.raises(ClosedError):
        next(batches)
    assert batches.update_priorities(batch, np.ones(8)) == 8  # the buffer is still there


@pytest.mark.parametrize("limited", [False, True])
def test_closing_ends_every_wait(limited, run_threaded):
    buffer = make(0)
    batches = Prefetcher(buffer, 8, rate_limiter=kr.RateLimiter(buffer, 1.0) if limited else None)

    def learn():
        with pytest.raises(ClosedError, match="the prefetcher is closed"):
            next(batches)

    run_threaded([learn, learn, lambda: time.sleep(0.1) or batches.close()])


def test_a_closed_buffer_is_told():
    buffer = make()
    with Prefetcher(buffer, 8) as batches:
        next(batches)
        settle(lambda: not batches._worker.ready.empty())
        buffer.close()
        check_whole(next(batches))  # was drawn before
        for _ in range(2):
            with pytest.raises(ClosedError, match="the buffer is closed"):
                next(batches)


def test_a_learner_that_raises_leaves_no_thread():
    def learn():
        with Prefetcher(make(), 8) as batches:
            raise KeyError(len(next(batches)))

    with pytest.raises(KeyError, match="8"):
        learn()
    assert not threads()
    for _ in Prefetcher(make(), 8):  # collected when the loop is left
        break


@pytest.mark.parametrize("empty", [False, True])
def test_collected(empty, run_threaded):
    batches = Prefetcher(make(0 if empty else 100), 8)
    batches._running() if empty else next(batches)
    (thread,) = threads()
    gone = weakref.ref(batches)
    del batches
    gc.collect()
    assert gone() is None
    thread.join(300)
    assert not thread.is_alive()


def test_several_learners_share_the_batches(run_threaded):
    buffer = make()

    def learn(_):
        return [tuple(next(batches).handle.tolist()) for _ in range(100)]

    with Prefetcher(buffer, 8, depth=3) as batches:
        taken = [one for each in run_threaded(learn, 3) for one in each]
    alone = make()
    drawn = {tuple(alone.sample(8).handle.tolist()) for _ in range(310)}
    assert len(set(taken)) == 300 and set(taken) <= drawn


@pytest.mark.parametrize(
    "ending",
    [
        "buffer.close()",
        "raise KeyError",
        "pid = os.fork(); next(batches), next(batches), next(batches); pid and os.wait()",
    ],
)
def test_the_interpreter_exits(ending):
    if "fork" in ending and not hasattr(os, "fork"):
        pytest.skip("needs fork")
    program = """
        import os, warnings
        import numpy as np
        import kary_replay as kr
        from kary_replay.prefetch import Prefetcher
        warnings.simplefilter("ignore")
        buffer = kr.ReplayBuffer(10, {"x": kr.Field((), "float32")})
        empty = kr.ReplayBuffer(10, {"x": kr.Field((), "float32")})
        buffer.add(x=1.0)
        batches = Prefetcher(buffer, 4)
        waiting = Prefetcher(empty, 4, rate_limiter=kr.RateLimiter(empty, 1.0))
        next(batches)
        waiting._running()
        print("fine", flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(program) + ending]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "fine\n"
    assert done.returncode == (1 if "raise" in ending else 0), done.stderr
    assert done.stderr.strip().endswith("KeyError") if "raise" in ending else not done.stderr


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"buffer": [1]}, TypeError, "buffer must be a ReplayBuffer"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"depth": 0}, ValueError, "depth must be at least 1"),
        ({"depth": 65}, ValueError, "depth must be at most 64"),
        ({"device": "nowhere"}, RuntimeError, "nowhere"),
        ({"pin_memory": True}, ValueError, "pin_memory is for CUDA devices, got device cpu"),
        ({"transform": 3}, TypeError, "transform must be a function of a batch"),
        ({"timeout_seconds": -1}, ValueError, "timeout_seconds must be at least 0"),
    ],
)
def test_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        Prefetcher(**{"buffer": make(), "batch_size": 8, **arguments})


def test_dtypes_that_torch_lacks_are_refused_by_name():
    fields = {"observation": {"state": kr.Field((), np.longdouble)}}
    with pytest.raises(
        TypeError, match=r"field observation\['state'\] has dtype .* which torch does not have"
    ):
        Prefetcher(kr.ReplayBuffer(10, fields), 4)


def test_priorities_of_a_uniform_buffer():
    with (
        Prefetcher(make(kind=kr.ReplayBuffer), 8) as batches,
        pytest.raises(TypeError, match="has no priorities"),
    ):
        batches.update_priorities(next(batches), torch.ones(8))
    assert repr(batches).startswith(
        "Prefetcher(ReplayBuffer(capacity=100, len=100,"
    ) and "depth=1" in repr(batches)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("frame", ["camera", "dict"])
def test_stacks_are_sent_once_with_their_frames(frame, n_step, device):
    parts = {"camera": kr.Field((2, 3), "uint8"), "arm": kr.Field((2,), "float32")}
    fields = {"action": kr.Field((), "int64")}
    what = parts if frame == "dict" else parts["camera"]
    buffer = kr.FrameReplayBuffer(100, what, fields, stack=4, n_step=n_step, seed=0)
    writer, rng = kr.FrameStackWriter(buffer, 1, 0.99), np.random.default_rng(0)

    def shown():
        camera = rng.integers(0, 255, (1, 2, 3), np.uint8)
        return (
            {"camera": camera, "arm": rng.random((1, 2), np.float32)} if what is parts else camera
        )

    writer.reset(shown())
    for _ in range(50):
        ends = {"terminated": [False], "truncated": [False]}
        writer.add(next_frame=shown(), action=[0], reward=[1.0], **ends)
    drawn = buffer.sample(16)
    sent = []

    def send(path, tensor):
        sent.append(path)
        return tensor.clone().to(device)

    batch = transfer._of_tensors(drawn, send)
    assert {path[0] for path in sent} == set(drawn) - {*STACKS, *transfer.HOST_COLUMNS}
    assert len(set(sent)) == len(sent)
    for name in ("frames", *STACKS):
        tensors, arrays = (
            column.values() if isinstance(column, dict) else [column]
            for column in (batch[name], drawn[name])
        )
        for tensor, array in zip(tensors, arrays, strict=True):
            assert tensor.device.type == device
            np.testing.assert_array_equal(tensor.cpu().numpy(), array)


class Recorder:
    """Stands in for torch.cuda, and for its streams and events; notes who was called."""

    def __init__(self, calls, name=""):
        self.calls, self.name = calls, name

    def __call__(self, *arguments):
        if self.name == "Event":
            self.calls.append("Event")
            return Recorder(self.calls, f"event {self.calls.count('Event') - 1}")
        self.calls.append(self.name)
        return self

    def __getattr__(self, name):
        return Recorder(self.calls, f"{self.name} {name}".strip())

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def test_pinned_memory_is_written_again_only_after_its_copy(monkeypatch):
    """The order of calls, without a device: copies to the CPU copy nothing, so memory shows."""
    calls, new = [], torch.empty_like
    monkeypatch.setattr(transfer, "cuda", Recorder(calls))
    monkeypatch.setattr(
        torch, "empty_like", lambda tensor, pin_memory: calls.append("pin") or new(tensor)
    )
    move, buffer = transfer.CudaTransfer(torch.device("cpu"), 2, pinned=True), make()
    brought = [
        move.send(buffer.sample(4), lambda batch: calls.append("transform") or batch)
        for _ in range(3)
    ]
    (first, _), (second, _), (third, whole) = brought
    assert first.number.data_ptr() == third.number.data_ptr() != second.number.data_ptr()
    check_whole(second), check_whole(third)
    in_order = [call for call in calls if call.startswith(("event", "pin", "transform"))]
    a_batch = (
        ["pin"] * 5,
        ["event {0} synchronize", "event {0} record", "transform", "event {1} record"],
    )
    expected = [
        a_batch[1][0].format(0),
        *a_batch[0],
        *[call.format(0, 2) for call in a_batch[1][1:]],
    ]
    expected += [
        a_batch[1][0].format(1),
        *a_batch[0],
        *[call.format(1, 3) for call in a_batch[1][1:]],
    ]
    expected += [call.format(0, 4) for call in a_batch[1]]
    assert in_order == expected
    calls.clear()
    assert move.receive(third, whole) is third and calls == [
        "current_stream",
        "current_stream wait_event",
    ]


def test_workers_of_before_are_not_kept():
    with Prefetcher(make(0), 8, timeout_seconds=0.01) as batches:
        workers = []
        for _ in range(3):
            workers.append(weakref.ref(batches._running()))
            with pytest.raises(EmptyBufferError):
                next(batches)
        batches._running()
        settle(lambda: gc.collect() is not None and not any(worker() for worker in workers))


def test_an_error_of_a_thread_that_ends_meanwhile_is_raised():
    """Its end is asked for first, and only then whether it has left something."""
    may_fail, failed = threading.Event(), []

    def fails(batch):
        may_fail.wait()
        if failed:
            return batch
        failed.append(True)
        raise OSError("once")

    class EndsWhenLookedAt:
        """What the thread puts into, which has it end right after somebody found it empty."""

        def __init__(self, worker):
            self.queue, self.worker, self.put = worker.ready, worker, worker.ready.put

        def empty(self):
            was_empty = self.queue.empty()
            may_fail.set()
            self.worker.thread.join()
            return was_empty

        def get(self):
            may_fail.set()
            return self.queue.get()

    with Prefetcher(make(), 8, depth=1, transform=fails) as batches:
        worker = batches._running()
        worker.ready = EndsWhenLookedAt(worker)
        with pytest.raises(OSError, match="once"):
            next(batches)
