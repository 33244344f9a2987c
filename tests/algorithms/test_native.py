"""Native programs compute what torch does, with any set of instructions that the processor has."""

import contextlib
import copy
import itertools
import math
import operator
import os
import platform
import signal
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from algorithm_runs import BOARD, NAMES, make, make_batch, parameters  # noqa: E402
from gymnasium import spaces  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kary_replay.algorithms.updates import recorded as recorded_functions  # noqa: E402
from kary_replay.algorithms.updates import translation  # noqa: E402
from kary_replay.algorithms.updates.recorded import Recorded, leaves  # noqa: E402
from kary_replay.native import program as native  # noqa: E402

# Rounding of two float32 computations, by the largest number: sums of 256 terms, in other orders.
CLOSE = 1e-6
# How much more than the least change of what is given may change a gradient, rounding may.
ROUNDINGS = 8
SMALL_IMAGE = spaces.Box(0, 255, (2, 40, 37), np.uint8)
ALGORITHMS = {
    "dqn": ("dqn", {}),
    "dqn with one network": ("dqn", {"double": False}),
    "dqn by TD error": ("dqn", {"prioritize_by": "td_error", "huber_delta": 0.3}),
    "dqn clipped": ("dqn", {"max_gradient_norm": 1e-3}),
    "dqn dueling": ("dqn", {"dueling": True}),
    "dqn distributional": ("dqn", {"n_atoms": 51}),
    "dqn distributional, dueling": ("dqn", {"n_atoms": 5, "dueling": True}),
    "dqn of quantiles": ("dqn", {"n_quantiles": 9}),
    "dqn noisy": ("dqn", {"noisy": True}),
    "rainbow": ("dqn", {"noisy": True, "dueling": True, "n_atoms": 51}),
    "dqn of boards": ("dqn", {"observation_space": BOARD}),
    "rainbow of boards": (
        "dqn",
        {"observation_space": BOARD, "noisy": True, "dueling": True, "n_atoms": 5},
    ),
    "sac of boards": ("sac", {"observation_space": BOARD}),
    "dqn of images": (
        "dqn",
        {"observation_space": SMALL_IMAGE, "image_network": "data_efficient"},
    ),
    "ddpg": ("ddpg", {}),
    "td3": ("td3", {}),
    "sac": ("sac", {}),
    "sac with a fixed temperature": ("sac", {"ent_coef": 0.1}),
}


HIDDEN = [(), (1,), (16, 8), (70, 33), (64, 64), (256, 256)]
# kinds, layers and rows; behind a convolution, which takes long, layers are like any others
SIZES_OF_ALL = [
    (kind, hidden, n_rows)
    for kind in ALGORITHMS
    for hidden, n_rows in (
        [((), 1), ((70, 33), 2), ((), 37), ((16, 8), 64)]
        if "boards" in kind or "images" in kind
        else itertools.product(HIDDEN, [1, 2, 37, 64, 256])
    )
]


@pytest.fixture(params=native.SETS)
def instructions(request):
    """Run the test with each set of instructions that this processor has."""
    former = native.use(request.param)
    yield request.param
    native.use(former)


def is_native(recorded):
    programs = recorded.programs.values()
    return all(isinstance(program, translation.NativeProgram) for program in programs)


def distance(one, other):
    """Return the greatest difference, as a share of the largest number."""
    size = other.double().abs().max().clamp(min=1e-30)
    return float((one.double() - other.double()).abs().max() / size)


def nudged(value, generator):
    """Return float32 numbers that are their neighbours, up or down, or 0; other tensors as is."""
    if isinstance(value, dict):
        return {name: nudged(part, generator) for name, part in value.items()}
    if value.dtype != torch.float32:
        return value
    signs = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
    return value * (1 + signs * torch.finfo(torch.float32).eps)


def compared(algorithm, batch, n_steps=3):
    """Train without recordings; return how far the programs' gradients are from autograd's.

    By how far they may be: where numbers cancel, as in the logarithm of a squashed action's
    density, torch's own gradient changes by more than CLOSE when an input changes by its last bit.
    """
    distances, generator = [], torch.Generator().manual_seed(0)
    for minimizer in algorithm.minimizers.values():
        recorded, plain = Recorded(minimizer._gradient), minimizer._gradient

        def compute(*inputs, recorded=recorded, plain=plain):
            found, expected = recorded(*inputs), plain(*inputs)
            (program,) = recorded.programs.values()
            assert isinstance(program, translation.NativeProgram)
            near = [plain(*[nudged(value, generator) for value in inputs]) for _ in range(3)]
            for i, (one, other) in enumerate(zip(found, expected, strict=True)):
                may = CLOSE + ROUNDINGS * max(distance(result[i], other) for result in near)
                apart = distance(one, other)
                if i > 0:  # a difference of numbers near 1, in the divergence of a distribution
                    apart = min(apart, float((one - other).abs().max()))
                distances.append(apart / may)
            return expected

        minimizer._compute = compute
    for _ in range(n_steps):
        algorithm.update(batch)
    return distances


@pytest.mark.parametrize(("kind", "hidden", "n_rows"), SIZES_OF_ALL)
def test_gradients_are_those_of_autograd(kind, hidden, n_rows):
    name, options = ALGORITHMS[kind]
    algorithm = make(name, hidden=hidden, **options)
    assert max(compared(algorithm, make_batch(algorithm, n_rows))) < 1


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_gradients_with_every_set_of_instructions(kind, instructions):
    name, options = ALGORITHMS[kind]
    algorithm = make(name, hidden=(70, 33), **options)
    assert max(compared(algorithm, make_batch(algorithm, 37))) < 1


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (torch.ops.aten.tanh_backward.default, "ddpg"),
        (torch.ops.aten.threshold_backward.default, "dqn"),
        (torch.ops.aten.huber_loss_backward.default, "dqn"),
        (torch.ops.aten.softplus.default, "sac"),
        (torch.ops.aten.amin.default, "td3"),
    ],
)
def test_a_planted_fault_is_noticed(monkeypatch, operation, name):
    def faulty(t, node):
        """Return the first operand in place of the result."""
        place = t._dense(t._floats(node.args[0]))
        n_dims = node.meta["val"].dim()
        t._copy(place if n_dims == len(place.shape) else place.columns(0, 1), t._result(node))

    def faulty_minimum(t, node):
        t.reduce("greatest", node, t._floats(node.args[0]), node.args[1])

    def unmasked(t, node):
        t.product(*map(t.matrix, node.args[0].args), t._result(node))

    faults = {
        torch.ops.aten.amin.default: faulty_minimum,
        torch.ops.aten.threshold_backward.default: unmasked,
    }
    monkeypatch.setitem(translation.OPERATIONS, operation, faults.get(operation, faulty))
    algorithm = make(name)
    with pytest.raises(AssertionError):  # it is noticed at once, and the program is not used
        compared(algorithm, make_batch(algorithm))
    monkeypatch.setattr(recorded_functions, "agrees", lambda *_: True)
    algorithm = make(name)
    assert max(compared(algorithm, make_batch(algorithm))) > 100


@pytest.mark.parametrize("name", NAMES)
def test_training_stays_with_that_by_torch(name):
    recorded, plain = make(name, record=True), make(name)
    before = parameters(plain).clone()
    for seed in range(20):
        batch = make_batch(plain, 12, seed)
        errors = [algorithm.update(batch) for algorithm in (recorded, plain)]
        torch.testing.assert_close(*errors, rtol=1e-3, atol=1e-4)
    moved = (parameters(plain) - before).abs().max()
    assert (parameters(recorded) - parameters(plain)).abs().max() < 0.01 * moved


def trained(name, n=5, **options):
    algorithm = make(name, record=True, hidden=(70, 33), **options)
    for seed in range(n):
        algorithm.update(make_batch(algorithm, 37, seed))
    return parameters(algorithm)


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_the_same_run_gives_the_same_bits(kind):
    name, options = ALGORITHMS[kind]
    assert torch.equal(trained(name, **options), trained(name, **options))


@pytest.mark.skipif("AVX2" not in native.SETS, reason="there are no two sets that fuse")
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_sets_that_fuse_multiplication_and_addition_give_the_same_bits(kind):
    name, options = ALGORITHMS[kind]
    former, results = native.use("AVX2"), []
    try:
        for instructions in native.SETS:
            native.use(instructions)
            results.append(trained(name, **options))
    finally:
        native.use(former)
    *fused, portable = results
    assert all(torch.equal(fused[0], other) for other in fused)
    torch.testing.assert_close(fused[0], portable, rtol=1e-3, atol=1e-4)


FUNCTIONS = {
    "exp": torch.exp,
    "log": torch.log,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "reciprocal": torch.reciprocal,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_to_the_last_digits(name, instructions):
    rng = np.random.default_rng(0)
    numbers = [rng.normal(size=20_000) * 10.0**exponent for exponent in (-30, -6, -2, 0, 1, 2)]
    numbers += [[0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40, 3e38, 88.7, -87.3, -103.0, 20.0]]
    x = torch.from_numpy(np.concatenate(numbers).astype(np.float32))
    x = x.abs() if name == "log" else x
    recorded = Recorded(lambda x: (FUNCTIONS[name](x),))
    (found,) = recorded(x)
    assert is_native(recorded)
    exact = FUNCTIONS[name](x.double())
    expected = exact.float()
    finite = torch.isfinite(expected)
    assert torch.equal(torch.isnan(found), torch.isnan(expected))
    infinite = torch.isinf(expected)
    assert torch.equal(found[infinite], expected[infinite])
    unit = np.spacing(expected[finite].abs().numpy()).astype(np.float64)
    units = (found[finite].double() - exact[finite]).abs().numpy() / unit
    assert units.max() < 4, x[finite][units.argmax()]


SIZES = st.one_of(st.integers(1, 70), st.sampled_from([128, 257, 300]))


@settings(max_examples=60, deadline=None)
@given(m=SIZES, k=SIZES, n=SIZES, form=st.sampled_from(["x w", "x w'", "x' w", "x' w'", "layer"]))
def test_products_of_all_sizes(m, k, n, form):
    generator = torch.Generator().manual_seed(m + 1000 * k + 1000_000 * n)
    x, w = (torch.randn(size, generator=generator) for size in ((m, k), (k, n)))
    bias = torch.randn(n, generator=generator)
    if form == "layer":
        arguments = x, w.t().contiguous(), bias
        function = lambda x, w, bias: (F.linear(x, w, bias).relu(),)  # noqa: E731
    else:
        left, right = form.split()
        arguments = (
            x.t().contiguous() if "'" in left else x,
            w.t().contiguous() if "'" in right else w,
        )

        def function(x, w):
            return ((x.t() if "'" in left else x) @ (w.t() if "'" in right else w),)

    (expected,) = function(*(argument.double() for argument in arguments))
    for name in native.SETS:
        former = native.use(name)
        recorded = Recorded(function)
        (found,) = recorded(*arguments)
        native.use(former)
        assert is_native(recorded)
        assert float((found - expected).abs().max()) < 1e-6 * k + 1e-5


LAYERS = [(n, k) for n in (3, 20, 64, 130, 300) for k in (1, 40, 300)]


@pytest.mark.parametrize(("n", "k"), [*LAYERS, (300, 900)])
def test_a_row_of_a_layer_does_not_depend_on_how_many_there_are(k, n, instructions):
    """Whether the weights are brought in order for a product, or what they are multiplied by."""
    generator = torch.Generator().manual_seed(n)
    x, w, bias = (torch.randn(size, generator=generator) for size in ((128, k), (n, k), (n,)))
    functions = {
        "layer": lambda x: (F.linear(x, w, bias),),
        "layer with relu": lambda x: (F.linear(x, w, bias).relu(),),
        "layer without bias": lambda x: (F.linear(x, w).relu(),),
    }
    for name, function in functions.items():
        recorded = Recorded(function)
        (expected,) = (found.clone() for found in recorded(x[:33]))
        for n_rows in (1, 2, 5, 16, 32, 48, 64, 128):
            (found,) = recorded(x[:n_rows])
            some = min(n_rows, 33)
            assert torch.equal(found[:some], expected[:some]), (name, n_rows)
        assert is_native(recorded)
        assert distance(expected, function(x[:33])[0]) < 1e-5


DTYPES = {"bool": torch.bool, "uint8": torch.uint8, "float32": torch.float32}


def pictures(dtype, size, generator):
    """Return random images of a dtype."""
    if dtype == torch.uint8:
        return torch.randint(0, 256, size, dtype=dtype, generator=generator)
    numbers = torch.randn(size, generator=generator)
    return numbers > 1 if dtype == torch.bool else numbers


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 5),
    channels=st.integers(1, 4),
    image=st.tuples(st.integers(5, 17), st.integers(5, 17)),
    outputs=st.integers(1, 20),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    step=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    behind=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    step_behind=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dtype=st.sampled_from(list(DTYPES)),
    form=st.sets(st.sampled_from(["bias", "relu", "two"])),
)
def test_convolutions(
    batch, channels, image, outputs, window, step, behind, step_behind, dtype, form
):
    """Outcomes and all gradients, alone and behind another convolution, by each set."""
    generator = torch.Generator().manual_seed(batch)
    first = torch.randn((outputs, channels, *window), generator=generator)
    second = torch.randn((3, outputs, *behind), generator=generator)
    bias = torch.randn(outputs, generator=generator) if "bias" in form else None
    images = pictures(DTYPES[dtype], (batch, channels, *image), generator)
    seen = [(image[i] - window[i]) // step[i] + 1 for i in range(2)]

    def function(images, first, second, *bias):
        layers = [one.detach().requires_grad_() for one in (first, second, *bias)]
        found = F.conv2d(images.to(first.dtype), layers[0], *layers[2:], stride=step)
        found = found.relu() if "relu" in form else found
        if "two" in form and all(map(operator.ge, seen, behind)):
            found = F.conv2d(found, layers[1], stride=step_behind)
        else:
            del layers[1]
        return (found.detach(), *torch.autograd.grad((found * found).sum(), layers))

    given = [first, second] if bias is None else [first, second, bias]
    expected = function(images, *(one.double() for one in given))
    results = {}
    for name in native.SETS:
        former = native.use(name)
        recorded = Recorded(function)
        results[name] = [one.clone() for one in recorded(images, *given)]
        native.use(former)
        assert is_native(recorded)
        for one, other in zip(results[name], expected, strict=True):
            assert distance(one, other) < 1e-5
    fused = [found for name, found in results.items() if name != "portable"]
    assert all(torch.equal(*pair) for found in fused for pair in zip(found, fused[0], strict=True))


@pytest.mark.parametrize("code", ["convolve", "convolve_weights", "convolve_inputs", "widen"])
def test_a_fault_of_a_convolution_is_noticed(monkeypatch, code):
    """A program that leaves one of its operations out is not used."""
    first, second = torch.randn(3, 2, 2, 2), torch.randn(4, 3, 3, 3)
    images = torch.randint(0, 256, (2, 2, 6, 6), dtype=torch.uint8)

    def function(images, first, second):
        layers = [one.detach().requires_grad_() for one in (first, second)]
        found = F.conv2d(F.conv2d(images.float(), layers[0]), layers[1])
        return torch.autograd.grad((found * found).sum(), layers)

    tables = translation.Translation.tables

    def without(self):
        words, numbers = tables(self)
        kept = words[:, 0] != translation.CODES.index(code)
        assert not kept.all()
        return words[kept], numbers[kept]

    monkeypatch.setattr(translation.Translation, "tables", without)
    recorded = Recorded(function)
    given = images, first, second
    torch.testing.assert_close(recorded(*given), function(*given))
    assert not is_native(recorded)


MASK = torch.arange(64) % 3 > 0
SMALL = (torch.arange(64) % 5).to(torch.uint8)
OF_BYTES = {
    "a slice": (lambda x: x[:, 2:].float().flatten(1), torch.uint8),
    "a slice of truths": (lambda x: x[:, 1:].float().reshape(-1).view(4, -1).sum(1), torch.bool),
    "an expanded tensor": (lambda x: x[:, :1].expand(4, 16).float().reshape(-1) + 1, torch.uint8),
    "a copy of a slice": (
        lambda x: x[:, 2:].to(torch.float32, copy=True).view(-1) * 2,
        torch.float32,
    ),
    "a constant of truths": (
        lambda x: torch.where(MASK.view(4, 16), x.float(), -x.float()),
        torch.uint8,
    ),
    "a constant of bytes": (lambda x: x.float() * SMALL.view(4, 16).float(), torch.uint8),
    "more than a byte holds": (lambda x: (x >= -1).float() + (x <= 300).float(), torch.uint8),
    "a mask that changes later": (lambda x: _changed_later(x.float() - 1), torch.uint8),
    "an input that changes": (lambda x: x.view(-1).logical_and_(MASK).float(), torch.bool),
}


def _changed_later(x):
    mask = x >= 0
    before = mask.float()
    mask.logical_and_(x >= 1)
    return before + 2 * mask.float()


@pytest.mark.parametrize("uniform", [0, 1])
@pytest.mark.parametrize("name", OF_BYTES)
def test_bytes_that_were_all_alike_when_they_were_recorded(name, uniform):
    """Then a program that takes the wrong ones gives the right numbers at first."""
    function, dtype = OF_BYTES[name]
    recorded = Recorded(lambda x: (function(x),))
    recorded(torch.full((4, 16), uniform).to(dtype))
    for seed in range(3):
        x = pictures(dtype, (4, 16), torch.Generator().manual_seed(seed))
        torch.testing.assert_close(recorded(x.clone()), recorded.function(x.clone()))


def test_truths_of_other_bytes_than_0_and_1():
    x = torch.from_numpy(np.array([0, 255, 1, 7], np.uint8).view(bool))
    recorded = Recorded(lambda x: (x.float() * 3,))
    for _ in range(2):
        torch.testing.assert_close(recorded(x)[0], torch.tensor([0.0, 3.0, 3.0, 3.0]))


def wide_numbers(dtype, n, generator):
    """Return numbers of all sizes, and those that float32 has not, of a dtype."""
    if dtype == torch.float64:
        numbers = torch.randn(n, generator=generator, dtype=dtype)
        numbers *= 10.0 ** torch.randint(-50, 50, (n,), generator=generator)
        odd = [1e300, -1e39, 3.5e38, 1e-46, -0.0, math.inf, -math.inf, math.nan, 16777217.0]
    else:
        info = torch.iinfo(dtype)
        numbers = torch.randint(info.min, info.max, (n,), generator=generator, dtype=dtype)
        odd = [info.min, info.max, 0, -1, min(2**24 + 1, info.max), min(2**24 + 3, info.max)]
    numbers[: len(odd)] = torch.tensor(odd, dtype=dtype)
    return numbers


@pytest.mark.parametrize("dtype", [torch.float64, *translation.WHOLE])
@pytest.mark.parametrize("n", [20, 300_000])
def test_numbers_of_other_dtypes_are_rounded_as_torch_does(dtype, n, instructions):
    generator = torch.Generator().manual_seed(0)
    recorded = Recorded(lambda x: (x.view(-1, 10).float() * 1.0,))
    for _ in range(2):
        x = wide_numbers(dtype, n, generator)
        (found,) = recorded(x)
        assert is_native(recorded)
        expected = x.view(-1, 10).float()
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
        assert torch.equal(found.signbit(), expected.signbit())


NOT_ROUNDED = {  # what a program would compute with rounded numbers, where torch does not
    "a difference": lambda x: ((x - 2**24).float(),),
    "a product": lambda x: ((x * 3 + 1).float(),),
    "a comparison": lambda x: ((x >= 2**24 + 1).float(),),
    "another comparison": lambda x: ((x <= 2**24).float(),),
    "equal to a large number": lambda x: (
        (x.unsqueeze(1) == torch.arange(2**24 - 2, 2**24 + 4)).float(),
    ),
    "equal to each other": lambda x: ((x == x.flip(0)).float(),),
    "a mean": lambda x: (x.double().mean(0, keepdim=True).float(),),
    "a difference of neighbours": lambda x: ((x[1:] - x[:-1]).float(),),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32])
@pytest.mark.parametrize("name", NOT_ROUNDED)
def test_only_what_torch_rounds_is_rounded(name, dtype):
    recorded = Recorded(NOT_ROUNDED[name])
    for first in (0, 2**24 - 3, -(2**24)):
        x = torch.arange(first, first + 7).to(dtype)
        np.testing.assert_array_equal(recorded(x)[0].numpy(), recorded.function(x)[0].numpy())


@pytest.mark.parametrize("dtype", translation.WHOLE)
@pytest.mark.parametrize("start", [-3, 0, 90])
def test_numbers_of_a_discrete_space_are_one_hot(dtype, start):
    recorded = Recorded(lambda x: ((x.unsqueeze(1) == torch.arange(start, start + 5)).float(),))
    generator = torch.Generator().manual_seed(0)
    for x in (
        torch.arange(start - 1, start + 7).to(dtype),
        wide_numbers(dtype, 8, generator),
    ):
        found = recorded(x)[0]
        assert is_native(recorded)
        assert torch.equal(found, recorded.function(x)[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.int16])
def test_numbers_of_other_dtypes_that_do_not_lie_side_by_side(dtype):
    recorded = Recorded(lambda x: (x.float() + 1, x.t()[1:].float() * 2))
    for seed in range(2):
        x = wide_numbers(dtype, 60, torch.Generator().manual_seed(seed)).view(3, 20)[:, ::2]
        for one, other in zip(recorded(x), recorded.function(x), strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_parts_by_numbers_of_other_dtypes():
    """As torch has it: int64 and int32 are taken as indices, floats are not."""
    rows = torch.arange(12.0).view(3, 4)
    for dtype in (torch.int64, torch.int32):
        recorded = Recorded(lambda x, i: (x[torch.arange(3), i] * 1.0,))
        for index in ([0, 1, 3], [3, 3, 0]):
            chosen = torch.tensor(index, dtype=dtype)
            assert torch.equal(recorded(rows, chosen)[0], rows[torch.arange(3), chosen.long()])


@pytest.fixture
def set_threads():
    """Return what gives torch, and programs that are made from then on, so many threads."""
    former = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(former)


def large_gradients(images, *parameters):
    """Return gradients by operations of which each is large enough to be shared by threads."""
    layers = [parameter.detach().requires_grad_() for parameter in parameters]
    one, two, wide, bias, last = layers
    with torch.enable_grad():
        seen = F.conv2d(images.float() / 255, one, stride=2).relu()
        seen = F.conv2d(seen, two, stride=2).relu().flatten(1)
        found = F.linear(F.linear(seen, wide, bias).relu(), last)
        loss = F.huber_loss(found, torch.zeros(len(images), 1000))
        return torch.autograd.grad(loss, layers)


def large_inputs(seed=0, n_images=18):
    generator = torch.Generator().manual_seed(seed)
    sizes = (32, 4, 4, 4), (32, 32, 3, 3), (160, 3200), (160,), (1000, 160)
    images = torch.randint(0, 256, (n_images, 4, 44, 44), generator=generator, dtype=torch.uint8)
    return images, *(torch.randn(size, generator=generator) / 20 for size in sizes)


@pytest.mark.parametrize("n_images", [18, 32])  # 32 rows are what is brought in order
def test_threads_do_not_change_the_bits(n_images, set_threads, instructions):
    given, found = large_inputs(n_images=n_images), []
    for n_threads in (1, 2, 3, 40):  # which is more than there are images, or parts of windows
        set_threads(n_threads)
        recorded = Recorded(large_gradients)
        recorded(*given)
        for _ in range(3):  # which thread does what is left to chance
            found.append([gradient.clone() for gradient in recorded(*given)])
        (program,) = recorded.programs.values()
        assert is_native(recorded) and program._program.n_threads == n_threads
    for one in found[1:]:
        assert all(map(torch.equal, one, found[0]))
    for one, other in zip(found[0], large_gradients(*given), strict=True):
        assert distance(one, other) < CLOSE * 4


@pytest.mark.parametrize("n", [1, 131_071, 131_072, 200_003])
def test_steps_that_threads_share(n, instructions):
    generator = torch.Generator().manual_seed(0)
    start, gradient, square_ = (torch.randn(n, generator=generator).abs() for _ in range(3))
    found = []
    for n_threads in (1, 2, 5):
        flat, mean, square, steps = start.clone(), start / 3, square_.clone(), torch.tensor([4.0])
        addresses = (one.data_ptr() for one in (flat, gradient, mean, square))
        native.adam(*addresses, n, steps.data_ptr(), 1e-3, 0.9, 0.999, 1e-8, n_threads)
        target = start.clone()
        native.approach(target.data_ptr(), gradient.data_ptr(), n, 0.3, n_threads)
        found.append((flat, mean, square, steps, target))
    assert not torch.equal(found[0][0], start)
    for one in found[1:]:
        assert all(map(torch.equal, one, found[0]))


def test_programs_that_run_at_once_share_threads(set_threads):
    """Whoever comes second does its work alone."""
    set_threads(2)
    programs = []
    for seed in range(3):
        given, recorded = large_inputs(seed), Recorded(large_gradients)
        recorded(*given)
        programs.append((recorded, given, [one.clone() for one in recorded(*given)]))
    wrong = []

    def run(recorded, given, expected):
        for _ in range(20):
            if not all(map(torch.equal, recorded(*given), expected)):
                wrong.append(given)

    threads = [threading.Thread(target=run, args=one) for one in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_fork_has_threads_of_its_own(set_threads):
    set_threads(3)
    given, recorded = large_inputs(), Recorded(large_gradients)
    recorded(*given)
    (program,) = recorded.programs.values()
    expected = [one.clone().numpy() for one in program(*leaves(given))]
    outputs = [one.numpy() for one in program._outputs]
    for output in outputs:
        output[...] = 0
    child = os.fork()
    if child == 0:  # where only native code may run: torch's threads are gone
        signal.alarm(60)  # against hanging
        done = 1
        with contextlib.suppress(Exception):
            program(*leaves(given))
            done = 0 if all(map(np.array_equal, outputs, expected)) else 2
        os._exit(done)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_round_as_the_one_that_asks():
    """Helpers are there from before; flushing is off where a thread begins."""
    n, found = 2**19, []
    tiny, nothing = torch.full((n,), 1e-39), torch.zeros(n)
    for _ in range(2):
        for n_threads in (1, 2, 2, 2):
            target = tiny.clone()
            native.approach(target.data_ptr(), nothing.data_ptr(), n, 0.3, n_threads)
            found.append(target.numpy().view(np.int32).copy())
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor does not flush")
    torch.set_flush_denormal(False)
    assert found[0].any() and not found[4].any()
    assert all((one == found[0]).all() for one in found[:4])
    assert all((one == found[4]).all() for one in found[4:])


def test_threads_that_there_cannot_be():
    with pytest.raises(ValueError, match="n_threads must be 1 or more, got 0"):
        native.Program(np.zeros((0, 1 + native.WORDS), np.int64), np.zeros((0, 2)), 1, 0)


def test_what_is_left_to_torch():
    """Borders, groups, and bytes that are counted with."""
    few = torch.randint(0, 256, (2, 4, 6, 6), dtype=torch.uint8)
    for function, x in (
        (lambda x: (F.conv2d(x.float(), torch.ones(8, 4, 3, 3), padding=1),), few),
        (lambda x: (F.conv2d(x.float(), torch.ones(8, 4, 3, 3), dilation=2),), few),
        (lambda x: (F.conv2d(x.float(), torch.ones(8, 2, 3, 3), groups=2),), few),
        (lambda x: (F.conv_transpose2d(x.float(), torch.ones(4, 2, 3, 3)),), few),
        (lambda x: ((x + x).float(),), few),  # which may be more than a byte holds
        (lambda x: (x.transpose(1, 3).float() + 1,), few.transpose(1, 3)),
    ):
        recorded = Recorded(function)
        torch.testing.assert_close(recorded(x), function(x))
        assert not is_native(recorded)


def few(k, n, form):
    """Return a function of a product of k steps to n columns, and the sizes of what it is given."""
    if form == "gradient of relu":
        masked = torch.ops.aten.threshold_backward

        def function(x, w, outputs):
            return (masked(x @ w, outputs, 0),)

        return function, lambda m: ((m, k), (k, n), (m, n))
    if form == "layer":
        return lambda x, w, bias: (F.linear(x, w, bias).relu(),), lambda m: ((m, k), (n, k), (n,))
    if form == "x' w":
        return lambda x, w: (x.t() @ w,), lambda m: ((k, m), (k, n))
    return lambda x, w: (x @ w.t(),), lambda m: ((m, k), (n, k))


@pytest.mark.parametrize("form", ["layer", "x w'", "x' w", "gradient of relu"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 33, 64])
def test_products_of_few_steps_or_columns(k, form):
    """Such products have kernels of their own, for blocks of rows, and for what is left of them."""
    generator = torch.Generator().manual_seed(k)
    for n in (1, 2, 3, 4, 5, 8, 16, 31, 64) if k < 6 else (1, 2, 3, 4):
        function, sizes = few(k, n, form)
        for m in (1, 3, 8, 17, 40):
            given = [torch.randn(size, generator=generator) for size in sizes(m)]
            (expected,) = function(*(one.double() for one in given))
            found = {}
            for name in native.SETS:
                former = native.use(name)
                recorded = Recorded(function)
                (result,) = recorded(*given)
                found[name] = result.clone()
                native.use(former)
                assert is_native(recorded)
                assert float((found[name] - expected).abs().max()) < 2e-6 * k + 1e-6, (m, n, name)
            fused = [found[name] for name in native.SETS if name != "portable"]
            assert all(torch.equal(one, fused[0]) for one in fused)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("shape", [(5, 3, 70), (40, 2, 1), (1, 64, 6), (3, 100, 17)])
def test_reductions(axes, shape, instructions):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def function(x):
        return x.sum(axes), x.mean(axes, keepdim=True), x.amin(axes), x.amax(axes), x.norm()

    recorded = Recorded(function)
    found = recorded(x)
    assert is_native(recorded)
    for one, other in zip(found, function(x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_what_is_no_number_is_passed_on(instructions):
    x = torch.tensor([[1.0, float("nan"), -2.0], [0.5, 3.0, -1.0]])

    def function(x):
        return (
            x.relu(), x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0), x.amin(1), x.amax(0),
            x.sum(1), x.abs(), x.exp(), x.tanh(), F.softplus(x), F.linear(x, x).relu(),
        )  # fmt: skip

    for one, other in zip(Recorded(function)(x), function(x), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_views_slices_and_copies(instructions):
    x = torch.arange(48.0).view(2, 3, 8)

    def function(x):
        first, second = x.chunk(2, dim=2)
        wide = torch.cat([second, first * 2], 2)
        return (
            wide + 0,
            torch.cat([x[:, 1, 2:5], x[:, 0, :3]], 1) * x[:, 2, :6],
            x.transpose(0, 1).transpose(1, 2)[1] + x[:, 0].t(),
            torch.cat([x[0], x[1]]).sum(0) - x[1, 2, 3],
            (x[0, :, :1].expand(3, 8) - x[1]) / (1 + x[0]),
            x.neg().abs(),
        )

    for one, other in zip(Recorded(function)(x), function(x), strict=True):
        torch.testing.assert_close(one, other)


def test_an_action_that_there_is_not(instructions):
    algorithm = make("dqn", record=True)
    batch = make_batch(algorithm)
    algorithm.update(batch)
    for action in (3, -1, 2**40):
        wrong = {**batch, "action": batch["action"].clone()}
        wrong["action"][5] = action
        before = parameters(algorithm).clone()
        with pytest.raises(IndexError, match="an index is out of range"):
            algorithm.update(wrong)
        assert torch.equal(before, parameters(algorithm))
    algorithm.update(batch)


def test_parameters_that_get_other_memory():
    linear = nn.Linear(3, 20)
    recorded = Recorded(lambda x: (linear(x) * 1,))
    x = torch.randn(4, 3)
    recorded(x)
    linear.weight.data = torch.randn(20, 3)
    torch.testing.assert_close(recorded(x)[0], linear(x).detach())


def test_inputs_in_another_layout_are_recorded_anew():
    recorded = Recorded(lambda x: (x * 2 + x.sum(1, keepdim=True),))
    x = torch.randn(6, 8)
    for part in (x, x[:, :5], x[:, 1:6], x[::2, :5], x[:, :5].contiguous()):
        torch.testing.assert_close(recorded(part)[0], part * 2 + part.sum(1, keepdim=True))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (torch.sin(x),),
        lambda x: (x.double() * 2,),
        lambda x: (F.conv1d(x.view(1, 4, 2), torch.ones(3, 4, 1)),),
        lambda x: (x.cumsum(0),),
        lambda x: (x + torch.rand(4, 2),),
        lambda x: (x.add(x, alpha=2),),
        lambda x: (x.argmax(1),),
        lambda x: (x,),
    ],
)
def test_what_is_not_known_is_run_by_torch(function):
    recorded = Recorded(function)
    x = torch.randn(4, 2)
    recorded(x)  # which carries it out several times
    for _ in range(2):
        torch.manual_seed(0)
        (found,) = recorded(x)
        torch.manual_seed(0)
        assert torch.equal(found, function(x)[0])
    assert not is_native(recorded)


@pytest.mark.parametrize("n", [1, 15, 16, 1003])
def test_adam_is_that_of_torch(n, instructions):
    torch.manual_seed(0)
    ours = [torch.randn(n), torch.zeros(n), torch.zeros(n), torch.zeros(())]
    theirs = [tensor.clone() for tensor in ours]
    for _ in range(5):
        gradient = torch.randn(n)
        addresses = [tensor.data_ptr() for tensor in (ours[0], gradient, *ours[1:3])]
        native.adam(*addresses, n, ours[3].data_ptr(), 1e-2, 0.9, 0.999, 1e-8)
        theirs[3] += 1
        torch._fused_adam_(
            *[[tensor] for tensor in (theirs[0], gradient, *theirs[1:3])], [], [theirs[3]],
            lr=1e-2, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, amsgrad=False,
            maximize=False,
        )  # fmt: skip
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="others lose no time")
@pytest.mark.parametrize("n_threads", [1, 2])
def test_adam_takes_the_smallest_numbers_for_0(n_threads, instructions):
    n = 2**18 + 3
    parameters, gradient, mean, square = (
        torch.full((n,), value) for value in (0.5, 0.0, 1e-38, 1e-40)
    )
    before = parameters.clone()
    addresses = [one.data_ptr() for one in (parameters, gradient, mean, square)]
    steps = torch.tensor([4.0])
    for _ in range(3):
        native.adam(*addresses, n, steps.data_ptr(), 1e-3, 0.9, 0.999, 1e-8, n_threads)
    assert not mean.any() and not square.any() and torch.equal(parameters, before)
    assert (torch.full((4,), 1e-40) / 2).any()  # this thread has them still


def test_parameters_do_not_depend_on_the_smallest_numbers(instructions):
    """Means decay to them, and below, after the last gradient."""
    torch.manual_seed(0)
    parameters = torch.randn(64)
    found = [parameters, torch.zeros(64), torch.zeros(64), torch.zeros(())]
    kept = [one.clone() for one in found]
    for step in range(1200):
        gradient = torch.randn(64) * (step < 5)
        addresses = [one.data_ptr() for one in (found[0], gradient, *found[1:3])]
        native.adam(*addresses, 64, found[3].data_ptr(), 1e-2, 0.9, 0.999, 1e-8)
        # in numbers as small as they like
        mean, square = (one.double() for one in kept[1:3])
        mean = mean + 0.1 * (gradient.double() - mean)
        square = square + 0.001 * (gradient.double() ** 2 - square)
        root = (square / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
        kept[0] = kept[0].double() - 1e-2 / (1 - 0.9 ** (step + 1)) * mean / root
        kept[1:3] = mean, square
    # without fused operations a tenth of what is left is too small to be taken off
    assert found[1].abs().max() < 1.2e-37 and 0 < kept[1].abs().max() < 1e-50
    torch.testing.assert_close(found[0].double(), kept[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("share", [0.005, 0.5, 0.9, 1.0])
def test_approach_is_lerp(share, instructions):
    torch.manual_seed(0)
    ours, source = torch.randn(1003), torch.randn(1003)
    theirs = ours.clone().lerp_(source, share)
    native.approach(ours.data_ptr(), source.data_ptr(), 1003, share)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    assert share < 1 or torch.equal(ours, source)


def test_instructions_that_there_are_not():
    with pytest.raises(ValueError, match=r"instructions must be one of .*portable, got 'MMX'"):
        native.use("MMX")
    with pytest.raises(ValueError, match=r"words must be \[n, "):
        native.Program(np.zeros((2, 3), np.int64), np.zeros((2, 2)), 1)


def test_leaves_are_what_programs_are_called_with():
    algorithm = make("sac", record=True)
    algorithm.update(make_batch(algorithm))
    for minimizer in algorithm.minimizers.values():
        (program,) = minimizer._compute.programs.values()
        assert isinstance(program, translation.NativeProgram)
        first = [tensor.clone() for tensor in program(*leaves(minimizer.inputs))]
        assert all(map(torch.equal, program(*leaves(minimizer.inputs)), first))


def square(n):
    return torch.randn(n, n, generator=torch.Generator().manual_seed(n))


X, W, V = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)), square(16), square(16) + 1
SCALAR = torch.tensor([0.5])
# Each was translated wrongly once, or refused by an error that ended the run.
ODD = {
    "the same part twice": lambda x: (lambda y: torch.cat([y, y]))(x * 2),
    "a part and a view of it": lambda x: (lambda y: torch.cat([y, y[:2]]))(x * 2),
    "a slice of a product of a product": lambda x: (x @ W @ V)[:, :3] + 0,
    "a column of a slice": lambda x: (x @ W)[:, 3:6][:, 1] + 0,
    "a slice squeezed": lambda x: (x @ W)[:, 3:4].squeeze(1) * 2,
    "an empty slice": lambda x: (x @ W)[:, 5:3] + 0,
    "norms of rows": lambda x: x.norm(dim=1),
    "normalized rows": lambda x: F.normalize(x),
    "sums of nothing less": lambda x: x.sum().amax(),
    "a bias of one number": lambda x: torch.addmm(SCALAR, x, W.t()),
    "a mask changed after a cat": lambda x: (
        lambda m: (torch.cat([m, m]), m.logical_and_(x < 1))[0].float()
    )(x >= 0),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_graphs(case, monkeypatch):
    """Right without the look at the first results, which would hide it, and with it."""
    function = ODD[case]
    for look in (False, True):
        if not look:
            monkeypatch.setattr(recorded_functions, "agrees", lambda *_: True)
        recorded = Recorded(lambda x: (function(x),))
        for _ in range(2):
            torch.testing.assert_close(recorded(X)[0], function(X), rtol=1e-5, atol=1e-5)
        monkeypatch.undo()


@pytest.mark.parametrize("what", [float("inf"), float("nan")])
def test_what_is_no_number_comes_out_of_rows_of_zeros(what, instructions):
    weight = square(16).clone()
    weight[3, 5] = what
    g = X.clone()
    g[1::2] = 0

    def function(g):
        return (torch.ops.aten.threshold_backward(g @ weight, X, 0),)

    recorded = Recorded(function)
    found, expected = recorded(g)[0], function(g)[0]
    assert torch.equal(found.isnan(), expected.isnan()) and found.isnan().any()


def test_defaults_of_torch_do_not_matter():
    algorithm, twin = make("dqn", record=True), make("dqn", record=True)
    batch = make_batch(algorithm)
    twin.update(batch)
    torch.set_default_dtype(torch.float64)
    try:
        algorithm.update(batch)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(parameters(algorithm), parameters(twin))


@pytest.mark.parametrize("n_changes", [0, 1, 2, 3])
def test_a_program_is_tried_again_before_it_is_given_up(n_changes, monkeypatch):
    """Another thread may change the parameters between what torch computes and what it does."""
    linear, x, compared = nn.Linear(3, 2), torch.ones(4, 3), []

    def with_changes(found, expected, is_near=recorded_functions.is_near):
        compared.append(is_near(found, expected))
        return compared[-1]

    def changing(graph, tensors):
        program = translation.translated(graph, tensors)
        assert program is not None
        run = program.__class__.__call__

        class Changing(translation.NativeProgram):
            def __init__(self):
                self.__dict__ = program.__dict__

            def __call__(self, *tensors):
                if len(compared) < n_changes:
                    with torch.no_grad():
                        linear.bias.add_(1)
                return run(self, *tensors)

        return Changing()

    monkeypatch.setattr(recorded_functions, "translated", changing)
    monkeypatch.setattr(recorded_functions, "is_near", with_changes)
    recorded = Recorded(lambda x: (linear(x) * 1,))
    torch.testing.assert_close(recorded(x)[0], linear(x).detach())
    assert compared == [False] * n_changes + [True] * (n_changes < 3)
    assert is_native(recorded) == (n_changes < 3)


def test_programs_are_not_copied_and_not_kept_for_ever():
    recorded = Recorded(lambda x: (x * 2,))
    for n in range(1, 80):
        recorded(torch.zeros(n, 2))
    assert len(recorded.programs) <= 32
    assert copy.deepcopy(recorded).programs == {}
