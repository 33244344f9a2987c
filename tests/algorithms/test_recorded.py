"""What a recording repeats, when it is made anew, and what it refuses."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kary_replay.algorithms.updates.recorded import Recorded  # noqa: E402

# Sums of products with these are exact: not on all processors does torch round them in one go.
X = torch.arange(8.0).view(4, 2) / 4 - 1


@pytest.fixture
def linear():
    torch.manual_seed(0)
    made = nn.Linear(2, 1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_((parameter * 256).round() / 256)
    return made


def test_it_runs_python_once_for_each_shape_and_dtype():
    calls = []
    recorded = Recorded(lambda x: (calls.append(x.shape), (x * 2,))[1])
    for x in (X, X + 1, X[:3], X[1:], X.double(), X[:3].double(), X):
        (y,) = recorded(x)
        assert y.dtype == x.dtype and (y == 2 * x).all()
    assert len(calls) == len(recorded.programs) == 4


def test_dicts_may_come_in_any_order_of_their_keys():
    recorded = Recorded(lambda parts, x: (parts["a"] - parts["b"] * x,))
    for parts in ({"a": X, "b": X + 1}, {"b": X + 1, "a": X}):
        assert (recorded(parts, X + 2)[0] == X - (X + 1) * (X + 2)).all()
    assert len(recorded.programs) == 1


def test_changes_in_place_of_other_tensors_count(linear):
    recorded = Recorded(lambda x: (linear(x), linear.bias.exp()))
    for _ in range(3):
        with torch.no_grad():
            linear.weight += 1
            linear.bias.mul_(2)
        y, z = recorded(X)
        assert (y == linear(X)).all() and (z == linear.bias.exp()).all()


def test_what_is_recorded_is_not_called_while_another_is(linear):
    inner = Recorded(lambda x: (linear(x),))
    outer = Recorded(lambda x: (inner(x)[0] * 2,))
    for _ in range(2):
        for asked in (outer, Recorded(lambda x: (torch.from_numpy(inner.arrays(x)[0]),))):
            with pytest.raises(RuntimeError, match="call the function that it was made of"):
                asked(X)
        assert torch.equal(inner(X)[0], linear(X)), "it is of no use afterwards"


def branch_on_an_input(linear, x):
    return linear(x).mean() * (2 if x[0, 0] > 0 else 1)


def branch_on_a_result(linear, x):
    y = linear(x).mean()
    return y * 2 if y > 0 else y


def branch_on_a_parameter(linear, x):
    return linear(x).mean() * (2 if linear.bias > 0 else 1)


def value_of_a_result(linear, x):
    y = linear(x).mean()
    return y * y.item()


def loop_over_a_value(linear, x):
    y = linear(x).mean()
    while y.abs() < 1:
        y = y * 2
    return y


def rows_where_something_holds(linear, x):
    return linear(x)[x[:, 0] > 0].mean()


def numbers_where_something_holds(linear, x):
    return linear(x).masked_select(x[:, :1] > 0).mean()


def one_hot_without_the_number_of_classes(linear, x):
    return (linear(x) * F.one_hot((x[:, 0] > 0).long())).mean()


REFUSED = [
    branch_on_an_input,
    branch_on_a_result,
    branch_on_a_parameter,
    value_of_a_result,
    loop_over_a_value,
    rows_where_something_holds,
    numbers_where_something_holds,
    one_hot_without_the_number_of_classes,
]


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_what_depends_on_values_is_refused(function, linear):
    recorded = Recorded(lambda x: (function(linear, x),))
    for _ in range(2):  # and nothing of it is kept
        with pytest.raises(RuntimeError, match="cannot be recorded"):
            recorded(X)


def test_what_selects_by_numbers_is_not_refused(linear):
    row = torch.arange(4)
    recorded = Recorded(lambda x: (linear(x)[row, x.argmax(1) * 0], torch.where(x > 0, x, 0).sum()))
    for x in (X, -X):
        assert (recorded(x)[0] == linear(x)[:, 0]).all() and recorded(x)[1] == x.clamp(min=0).sum()


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten()],
        lambda: [nn.Flatten(), nn.LayerNorm(6), nn.SiLU()],
        lambda: [nn.Flatten(), nn.Linear(6, 9), nn.Dropout(0.0), nn.Softmax(1)],
    ],
    ids=["convolution", "layer norm", "softmax"],
)
def test_layers_of_other_kinds(layers):
    torch.manual_seed(0)
    network = nn.Sequential(*layers())

    def gradients(x):
        with torch.enable_grad():
            return torch.autograd.grad(network(x).square().mean(), list(network.parameters()))

    recorded = Recorded(gradients)
    for _ in range(3):
        x = torch.randn(5, 1, 6)
        assert all(map(torch.equal, recorded(x), gradients(x)))


@pytest.mark.parametrize("units", [1, 7, 64, 256])
@pytest.mark.parametrize("n_rows", [1, 5, 64, 200])
def test_results_and_gradients_are_the_same_to_the_bit(units, n_rows):
    """At 256 units TorchScript's own way with addmm would round otherwise."""
    torch.manual_seed(units)
    network = nn.Sequential(
        nn.Linear(5, units), nn.ReLU(), nn.Linear(units, units), nn.Tanh(), nn.Linear(units, 3)
    )

    def gradients(x):
        with torch.enable_grad():
            y = network(x)
            return (
                y.detach(),
                *torch.autograd.grad(F.smooth_l1_loss(y, x[:, :3]), list(network.parameters())),
            )

    recorded = Recorded(gradients)
    for _ in range(3):
        x = torch.randn(n_rows, 5)
        assert all(map(torch.equal, recorded(x), gradients(x)))


@pytest.mark.parametrize("form", ["addmm", "sum", "scaled"])
def test_products_in_other_forms_are_the_same_to_the_bit(form):
    torch.manual_seed(0)
    weight, bias = nn.Parameter(torch.randn(256, 256)), nn.Parameter(torch.randn(256))

    def product(x):
        if form == "addmm":
            return torch.addmm(bias, x, weight)
        return (
            x @ weight + bias
            if form == "sum"
            else torch.addmm(bias, x, weight.t(), beta=0.5, alpha=2)
        )

    def gradients(x):
        with torch.enable_grad():
            return torch.autograd.grad(product(x).square().mean(), [weight, bias])

    recorded = Recorded(gradients)
    for _ in range(3):
        x = torch.randn(200, 256)
        assert all(map(torch.equal, recorded(x), gradients(x)))


def test_the_value_of_a_constant_and_a_literal_changed_in_place():
    constant = torch.tensor(3.0)

    def function(x):
        literal = torch.tensor([1.0, 2.0])
        literal += 1  # each time, from 1 and 2
        return (x * literal * constant.item(),)

    recorded = Recorded(function)
    for _ in range(3):
        assert (recorded(X)[0] == X * torch.tensor([2.0, 3.0]) * 3.0).all()


def test_results_that_are_inputs_constants_or_parts_of_a_result(linear):
    recorded = Recorded(lambda x: (x, linear.weight, *x.split(2), x.max(1).indices, linear(x).data))
    for x in (X, -X):
        results = recorded(x)
        expected = (x, linear.weight, x[:2], x[2:], x.max(1).indices, linear(x))
        assert all(map(torch.equal, results, expected))


def test_one_tensor_as_two_inputs_or_as_a_parameter():
    y = X + 1
    recorded = Recorded(lambda a, b: (a - b, a * y))
    recorded(X, X)
    recorded(y, X)
    for a, b in ((X, y), (y, X), (y, y)):
        assert (recorded(a, b)[0] == a - b).all() and (recorded(a, b)[1] == a * y).all()


def parameter_made_inside(linear, x):
    scale = nn.Parameter(x.detach() * 2)
    return torch.autograd.grad((scale * scale * linear(x).detach()).sum(), [scale])


def several_changed_in_place(linear, x):
    parts = [x * 2, x * 3]
    torch._foreach_add_(parts, 1.0)
    return parts


def gradient_clipped(linear, x):
    linear.weight.grad = x[:1] * 5
    nn.utils.clip_grad_norm_([linear.weight], 1.0)
    return [linear.weight.grad]


def inverse(linear, x):
    return [torch.linalg.inv(x.T @ x + torch.eye(2))]


def derivative_forwards(linear, x):
    return torch.func.jvp(torch.sin, (x,), (linear(x).detach() * x,))


@pytest.mark.parametrize(
    "function",
    [
        parameter_made_inside,
        several_changed_in_place,
        gradient_clipped,
        inverse,
        derivative_forwards,
    ],
    ids=lambda function: function.__name__,
)
def test_functions_of_other_kinds(function, linear):
    def with_gradients(x):
        with torch.enable_grad():
            return tuple(function(linear, x))

    recorded = Recorded(with_gradients)
    for number in range(3):
        x = X + number / 4
        assert all(map(torch.equal, recorded(x), with_gradients(x)))


def test_tensors_that_nobody_else_holds_are_changed_each_time():
    kept = [torch.ones(2), torch.ones(3)]

    def function(x):
        torch._foreach_add_(kept, 1.0)
        return (x * kept[0],)

    recorded = Recorded(function)
    recorded(X)
    before = kept[0].clone()
    assert torch.equal(recorded(X)[0], X * (before + 1)) and torch.equal(kept[0], before + 1)


def test_a_generator_of_its_own_is_refused():
    recorded = Recorded(lambda x: (x + torch.rand(2, generator=torch.Generator()),))
    with pytest.raises(RuntimeError, match="leave out generator="):
        recorded(X)


def test_autocast_outside_casts_the_parameters_of_the_moment(linear):
    def gradients(x):
        with torch.enable_grad():
            return torch.autograd.grad(linear(x).square().mean(), list(linear.parameters()))

    recorded = Recorded(gradients)
    for casts in (True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=casts):
            linear(X)  # now autocast keeps the parameters, cast
            expected = gradients(X)
            assert all(map(torch.equal, recorded(X), expected))
        with torch.no_grad():
            linear.weight += 1


def test_torch_does_not_import_its_compiler_which_takes_a_second():
    program = (
        "import sys, torch\n"
        "from kary_replay.algorithms.updates.recorded import Recorded\n"
        "Recorded(lambda x: (x + 1,))(torch.ones(3))\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_recording_in_several_threads_at_once(run_threaded):
    def work(number):
        linear = nn.Linear(3, 4)
        recorded = Recorded(
            lambda x: torch.autograd.grad(linear(x).square().sum(), list(linear.parameters()))
        )
        for n_rows in range(2, 12):
            x = torch.randn(n_rows, 3)
            with torch.enable_grad():
                expected = torch.autograd.grad(linear(x).square().sum(), list(linear.parameters()))
            assert all(map(torch.equal, recorded(x), expected))

    run_threaded(work, 4)
