"""CUDA graphs: on a GPU if there is one, and on a stand-in, which repeats what was captured."""

import gc
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gymnasium")
from algorithm_runs import NAMES, make, make_batch, parameters  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from kary_replay.algorithms import captured, recorded  # noqa: E402

ON_GPU = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
)
EIGHT = 8  # updates: more than all that is done only in some


class Tape(TorchDispatchMode):
    """A graph of operations, each with the memory that it read and wrote when captured."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        self.calls.append((function, args, kwargs, result))
        return result

    def replay(self):
        for function, args, kwargs, result in self.calls:
            for there, new in zip(
                tree_leaves(result), tree_leaves(function(*args, **kwargs)), strict=True
            ):
                if there.data_ptr() != new.data_ptr():  # neither a view nor done in place
                    there.copy_(new)


@pytest.fixture
def device(request, monkeypatch):
    """The device to test on, with a stand-in for CUDA if it is the CPU."""
    if request.param == "cpu":
        nothing = SimpleNamespace(wait_stream=lambda other: None)
        stand_in = SimpleNamespace(
            device=nullcontext,
            stream=nullcontext,
            Stream=lambda: nothing,
            current_stream=lambda: nothing,
            CUDAGraph=Tape,
            graph=lambda tape, stream, capture_error_mode: tape,
        )
        monkeypatch.setattr(captured, "cuda", stand_in)
        monkeypatch.setitem(recorded.PROGRAMS, "cpu", captured.Captured)
    return request.param


def moved(batch, device):
    """Return a batch on a device."""
    return {
        key: moved(value, device) if isinstance(value, dict) else value.to(device)
        for key, value in batch.items()
    }


on_both = pytest.mark.parametrize("device", ["cpu", ON_GPU], indirect=True)
OPTIONS = [(name, {}) for name in NAMES] + [
    ("dqn", {"n_atoms": 11, "dueling": True}),
    ("dqn", {"double": False}),
]


@on_both
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_updates_are_those_without_a_graph(name, options, device):
    graph, plain = (make(name, record=record, device=device, **options) for record in (True, False))
    batches = [moved(make_batch(plain, seed=seed), device) for seed in range(EIGHT)]
    graph.warm_up(batches[-1])
    for batch in batches:
        found, expected = graph.update(batch), plain.update(batch)
        torch.testing.assert_close(
            found,
            expected,
            rtol=0 if device == "cpu" else 1e-4,
            atol=0 if device == "cpu" else 1e-5,
        )
    tolerance = {"rtol": 0, "atol": 0} if device == "cpu" else {"rtol": 1e-3, "atol": 1e-5}
    torch.testing.assert_close(parameters(graph), parameters(plain), **tolerance)


@on_both
def test_td_errors_outlast_the_next_update(device):
    algorithm = make("dqn", record=True, device=device)
    first = algorithm.update(moved(make_batch(algorithm, seed=0), device))
    before = first.clone()
    algorithm.update(moved(make_batch(algorithm, seed=1), device))
    assert (first == before).all()


@on_both
def test_each_shape_is_captured_once(device):
    captures = []
    program = recorded.Recorded(lambda x: (captures.append(x.shape), (x.exp().sum(1),))[1])
    for n in (4, 2, 4, 2):
        x = torch.randn(n, 3, device=device)
        assert (program(x)[0] == x.exp().sum(1)).all()
    assert captures == [(4, 3), (2, 3)]


@on_both
def test_what_is_read_besides_the_inputs_is_read_again(device):
    scale = torch.ones((), device=device)
    program = recorded.Recorded(lambda x: (x * scale,))
    for value in (1.0, 2.0, 5.0):
        scale.fill_(value)
        x = torch.randn(3, device=device)
        assert (program(x)[0] == x * value).all()


@on_both
def test_what_depends_on_values_is_refused(device):
    program = recorded.Recorded(lambda x: (x[x > 0],))
    with pytest.raises(RuntimeError, match="cannot be recorded"):
        program(torch.ones(3, device=device))


# the stand-in keeps all that it has seen
@pytest.mark.parametrize("device", [ON_GPU], indirect=True)
def test_literals_outlive_the_capture(device):
    program = recorded.Recorded(lambda x: (x + torch.tensor([1.0, 2.0, 3.0], device=device),))
    x = torch.zeros(3, device=device)
    program(x)
    gc.collect()
    taken = [torch.full((3,), 7.0, device=device) for _ in range(100)]
    assert program(x)[0].tolist() == [1, 2, 3] and len(taken) == 100


@pytest.mark.parametrize("elsewhere", ["an input", "a constant"])
@on_both
def test_tensors_of_other_devices_are_refused(device, elsewhere):
    """The stand-in for another device is "meta", which has no values, only a place."""
    there = torch.ones((), device="meta" if device == "cpu" else "cpu")
    x = torch.ones(3, device=device)
    graph = (
        torch.fx.symbolic_trace(lambda x, y: (x * y,)) if elsewhere == "an input" else scaled(there)
    )
    with pytest.raises(RuntimeError, match=r"a tensor on \w+ is used beside others on"):
        captured.Captured(graph, [x, there] if elsewhere == "an input" else [x])


def scaled(scale):
    """A graph that reads a tensor besides its input."""
    module = torch.nn.Module()
    module.scale = scale
    graph = torch.fx.Graph()
    graph.output(
        (graph.call_function(torch.mul, (graph.placeholder("x"), graph.get_attr("scale"))),)
    )
    return torch.fx.GraphModule(module, graph)
