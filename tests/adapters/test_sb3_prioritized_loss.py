"""The tensor that carries a batch to its loss: what passes the batch on, and what does not."""

import copy
import pickle
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kary_replay.adapters.sb3.prioritized_loss import PrioritizedTensor, SampledBatch

B = 6
WEIGHTS = np.array([1.0, 0.5, 0.25, 0.9, 0.1, 0.7], np.float32)
LOSSES = {
    F.mse_loss: np.square,
    F.l1_loss: np.abs,
    F.smooth_l1_loss: lambda d: np.where(np.abs(d) < 1, 0.5 * d**2, np.abs(d) - 0.5),
    F.huber_loss: lambda d: np.where(np.abs(d) < 1, 0.5 * d**2, np.abs(d) - 0.5),
}
each_loss = pytest.mark.parametrize("function", LOSSES, ids=lambda function: function.__name__)


def sizes(batch):
    """|TD error| of each row, [B]."""
    return batch.td_error.abs().reshape(-1)


def make_batch(weights=WEIGHTS):
    return SampledBatch(np.arange(len(weights)), torch.from_numpy(weights).view(-1, 1), [])


@pytest.fixture(autouse=True)
def seeded():
    """Let the numbers be the same in every run: differences of near ones are rounded coarsely."""
    torch.manual_seed(0)


@pytest.fixture
def batch():
    return make_batch()


@pytest.fixture
def rewards(batch):
    return batch.mark(torch.linspace(-2, 3, B).view(B, 1))


@pytest.fixture
def current():
    return torch.tensor([0.3, -1.0, 4.0, 0.0, 2.5, 1.0]).view(B, 1).requires_grad_()


def is_plain(tensor):
    return type(tensor) is torch.Tensor


@each_loss
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_is_weighted_by_row(function, reduction, batch, rewards, current):
    result = function(current, rewards, reduction=reduction)
    difference = (current - rewards.as_subclass(torch.Tensor)).detach().numpy().astype(float)
    weighted = WEIGHTS[:, None] * LOSSES[function](difference)
    expected = {"mean": np.mean, "sum": np.sum, "none": np.asarray}[reduction](weighted)
    assert is_plain(result)
    np.testing.assert_allclose(result.detach().numpy(), expected, rtol=1e-6)
    np.testing.assert_array_equal(sizes(batch), np.abs(difference.astype(np.float32))[:, 0])
    assert batch.pending == [batch]


@each_loss
def test_the_sides_may_be_swapped_and_named(function, rewards, current):
    expected = function(current, rewards)
    assert torch.equal(function(rewards, current), expected)
    assert torch.equal(function(target=rewards, input=current), expected)


@each_loss
def test_gradient_is_weighted_by_row(function, rewards, current):
    function(current, rewards).backward()
    weighted = current.grad.clone()
    current.grad = None
    function(current, rewards.as_subclass(torch.Tensor), reduction="none").sum().backward()
    np.testing.assert_allclose(weighted, current.grad.numpy() * WEIGHTS[:, None] / B, rtol=1e-6)


@each_loss
@pytest.mark.parametrize("size", [1, 7, 100, 256])
@pytest.mark.parametrize("scale", [lambda loss: loss, lambda loss: 0.5 * loss], ids=["", "half"])
def test_weights_of_one_change_no_bit(function, size, scale, rng):
    target, value = (
        torch.from_numpy(rng.normal(size=(size, 1)).astype(np.float32)) for _ in range(2)
    )
    outcomes = []
    for wanted in (target, make_batch(np.ones(size, np.float32)).mark(target.clone())):
        current = value.clone().requires_grad_()
        loss = scale(function(current, wanted))
        loss.backward()
        outcomes.append((loss.detach(), current.grad))
    assert torch.equal(outcomes[0][0], outcomes[1][0])
    assert torch.equal(outcomes[0][1], outcomes[1][1])


@each_loss
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("by_gradient", [False, True])
def test_without_weights_the_loss_is_that_of_torch(function, reduction, by_gradient, current):
    batch = SampledBatch(np.arange(B), None, [], is_by_gradient=by_gradient)
    target = torch.linspace(-2, 3, B).view(B, 1)
    outcomes = []
    for wanted in (target, batch.mark(target.clone())):
        loss = function(current, wanted, reduction=reduction)
        outcomes.append((loss, backward(loss.sum(), current)))
    assert is_plain(outcomes[1][0])
    assert torch.equal(outcomes[0][0], outcomes[1][0])
    assert torch.equal(outcomes[0][1], outcomes[1][1])
    errors = (current - target).detach().abs()[:, 0]
    limit = 1.0 if by_gradient and function in (F.smooth_l1_loss, F.huber_loss) else np.inf
    np.testing.assert_array_equal(sizes(batch), errors.clamp(max=limit))
    assert batch.pending == [batch]


@each_loss
@pytest.mark.parametrize("size", [1, 7, 100, 256])
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_weights_no_bit_changes(function, size, columns, dtype):
    target, value = torch.randn(2, size, columns, dtype=dtype)
    outcomes = []
    for wanted in (target, SampledBatch(np.arange(size), None, []).mark(target.clone())):
        current = value.clone().requires_grad_()
        loss = function(current, wanted)
        outcomes.append((loss.detach(), backward(loss, current)))
    assert torch.equal(outcomes[0][0], outcomes[1][0])
    assert torch.equal(outcomes[0][1], outcomes[1][1])


def backward(loss, current, **options):
    """The gradient that `loss.backward` gives."""
    current.grad = None
    loss.backward(**options)
    return current.grad


@pytest.mark.parametrize("size", [1, 7, 100, 256])
def test_backward_is_that_of_torch_bit_for_bit(size, rng):
    weights, target, value = rng.random((3, size), np.float32)
    wanted = make_batch(weights).mark(torch.from_numpy(target).view(-1, 1))
    current = torch.from_numpy(value).view(-1, 1).requires_grad_()
    (expected,) = torch.autograd.grad(F.mse_loss(current, wanted), current)
    assert torch.equal(backward(F.mse_loss(current, wanted), current), expected)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_backward_takes_what_torch_takes(rewards, current):
    (expected,) = torch.autograd.grad(F.mse_loss(current, rewards), current)
    loss, other = F.mse_loss(current, rewards), F.mse_loss(current.detach(), rewards)
    assert torch.equal(backward(loss, current, retain_graph=True), expected)
    assert torch.equal(backward(loss, current, gradient=torch.tensor(2.0)), 2 * expected)
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        other.backward()
    hidden = current * 1
    assert backward(F.mse_loss(hidden, rewards), current, inputs=[hidden]) is None
    twice = backward(F.mse_loss(current, rewards), current, create_graph=True)
    assert twice.requires_grad and torch.equal(twice, expected)


def test_backward_of_a_loss_that_was_changed(rewards, current):
    (expected,) = torch.autograd.grad(F.mse_loss(current, rewards), current)
    loss = F.mse_loss(current, rewards)
    loss /= 4
    loss += current.sum()
    torch.testing.assert_close(backward(loss, current), expected / 4 + 1)
    with pytest.raises(RuntimeError, match="keep a reference"):
        F.mse_loss(current, rewards).div_(2).backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        loss.detach_().backward()


def test_hooks_of_a_loss_are_called(rewards, current):
    (expected,) = torch.autograd.grad(F.mse_loss(current, rewards), current)
    loss = F.mse_loss(current, rewards)
    loss.retain_grad()
    assert torch.equal(backward(loss, current), expected) and loss.grad == 1
    loss = F.mse_loss(current, rewards)
    loss.register_hook(lambda gradient: 2 * gradient)
    assert torch.equal(backward(loss, current), 2 * expected)


def test_a_loss_is_freed_and_pickled_like_any_tensor(rewards, current):
    loss = F.mse_loss(current, rewards)
    restored = pickle.loads(pickle.dumps(loss))
    assert is_plain(restored) and restored == loss
    with pytest.raises(RuntimeError, match="copy of a loss"):
        restored.backward()
    reference = weakref.ref(loss)
    del loss
    assert reference() is None  # without the garbage collector, with all of its graph


def test_options_reach_the_loss(rewards, current):
    plain = rewards.as_subclass(torch.Tensor)
    for function, option in ((F.huber_loss, {"delta": 2.0}), (F.smooth_l1_loss, {"beta": 0.3})):
        expected = (
            function(current, plain, reduction="none", **option)
            * torch.from_numpy(WEIGHTS)[:, None]
        ).mean()
        assert torch.equal(function(current, rewards, **option), expected)


@pytest.mark.parametrize("shape", [(B,), (B, 1), (B, 3), (B, 2, 3)])
def test_weights_go_by_row_in_every_shape(shape, batch, rng):
    target, current = rng.normal(size=(2, *shape))
    result = F.mse_loss(torch.from_numpy(current), batch.mark(torch.from_numpy(target)))
    rows = (current - target).reshape(B, -1)
    np.testing.assert_allclose(result, np.mean(WEIGHTS * np.square(rows).mean(axis=1)), rtol=1e-6)
    np.testing.assert_allclose(sizes(batch), np.abs(rows).mean(axis=1), rtol=1e-12)


def test_of_several_critics_the_larger_error_counts(batch, rewards):
    plain = rewards.as_subclass(torch.Tensor)
    offsets = torch.tensor([[1.0, -3, 0, 2, -1, 5], [2.0, 1, -4, -1, 1, 0]])
    for offset in offsets:
        F.mse_loss(plain + offset[:, None], rewards)
    np.testing.assert_allclose(sizes(batch), [2, 3, 4, 2, 1, 5], rtol=1e-6)
    assert batch.pending == [batch]


@pytest.mark.parametrize(
    ("current_shape", "target_shape"),
    [((B,), (B, 1)), ((B, 1), (B,)), ((1, B), (B, 1)), ((), (B, 1)), ((B, 2, 1), (B, 1))],
)
def test_refuses_shapes_that_would_mix_rows(current_shape, target_shape, batch):
    with pytest.raises(ValueError, match=r"mse_loss: input .* the 6 rows of the batch"):
        F.mse_loss(torch.zeros(current_shape), batch.mark(torch.zeros(target_shape)))
    assert batch.td_error is None


def test_refuses_what_it_cannot_weight(batch, rewards, current):
    with pytest.raises(ValueError, match="reduction='median' must be"):
        F.mse_loss(current, rewards, reduction="median")
    with pytest.raises(ValueError, match="mse_loss: weight= cannot be combined"):
        F.mse_loss(current, rewards, weight=torch.ones(B, 1))
    with pytest.raises(ValueError, match="l1_loss: size_average= cannot be combined"):
        F.l1_loss(current, rewards, size_average=False)
    assert batch.td_error is None


KEEP = {
    "bellman target": lambda t, x: t + (1 - x) * 0.99 * x,
    "operand on the right": lambda t, x: 1 - x * (2 / (t + 9)),
    "negation, power": lambda t, x: -(t**2),
    "function": lambda t, x: torch.add(x, t),
    "keyword": lambda t, x: torch.mul(input=x, other=t),
    "in place": lambda t, x: t.mul_(0.5).add_(x).clamp_(-1, 1),
    "augmented assignment": lambda t, x: t.__iadd__(x),
    "where, minimum": lambda t, x: torch.where(x > 0, t, torch.minimum(x, t)),
    "broadcast over quantiles": lambda t, x: t + torch.zeros(B, 5),
    "expand": lambda t, x: t.expand(B, 4),
    "detach, clone, to": lambda t, x: t.detach().clone().to(torch.float64).to("cpu").contiguous(),
    "data": lambda t, x: t.data,
    "squeeze": lambda t, x: t.squeeze(1).unsqueeze(-1),
    "unsqueeze in place": lambda t, x: t.unsqueeze_(dim=1),
    "reshape": lambda t, x: t.reshape(-1).view(B, 1, 1).flatten(),
    "full slice": lambda t, x: t[:, None, 0, ..., None][:],
}
DROP = {
    "mask": lambda t, x: t[x[:, 0] > -9],
    "permutation": lambda t, x: t[torch.arange(B - 1, -1, -1)],
    "permutation of a vector": lambda t, x: t.squeeze(1)[..., torch.arange(B - 1, -1, -1)],
    "part": lambda t, x: t[1:],
    "index_select": lambda t, x: t.index_select(0, torch.arange(B - 1, -1, -1)),
    "flip": lambda t, x: t.flip(0),
    "roll": lambda t, x: torch.roll(t, 1, 0),
    "sort": lambda t, x: t.sort(dim=0).values,
    "gather": lambda t, x: t.gather(0, torch.zeros(B, 1, dtype=torch.long)),
    "cumsum": lambda t, x: t.cumsum(0),
    "square transpose": lambda t, x: t.expand(B, B).T,
    "new leading axis": lambda t, x: t.squeeze(1).expand(B, B),
    "broadcast to B by B": lambda t, x: t.squeeze(1) + x,
    "sum over rows": lambda t, x: t.expand(B, B).sum(dim=0),
    "mean": lambda t, x: t.mean(),
    "leading axis of one": lambda t, x: t.unsqueeze(0),
    "two batches": lambda t, x: t + make_batch().mark(x.clone()),
    "like": lambda t, x: torch.zeros_like(t),
    "as_subclass": lambda t, x: t.as_subclass(torch.Tensor),
    "copy": lambda t, x: copy.copy(t),
    "deepcopy": lambda t, x: copy.deepcopy(t),
    "pickle": lambda t, x: pickle.loads(pickle.dumps(t)),
}


@pytest.mark.parametrize("operation", KEEP.values(), ids=KEEP)
def test_passed_on_where_rows_stay(operation, batch, rewards):
    other = torch.linspace(-1, 1, B).view(B, 1)
    expected = operation(rewards.as_subclass(torch.Tensor).clone(), other)
    result = operation(rewards, other)
    assert type(result) is PrioritizedTensor
    assert result.batch is batch
    assert torch.equal(result.as_subclass(torch.Tensor), expected)


@pytest.mark.parametrize("operation", DROP.values(), ids=DROP)
def test_not_passed_on_where_rows_may_move(operation, batch, rewards, recwarn):
    result = operation(rewards, torch.linspace(-1, 1, B).view(B, 1))
    assert is_plain(result)
    F.mse_loss(torch.zeros_like(result), result)
    assert batch.td_error is None


@pytest.mark.parametrize(
    "operation", [lambda t: t.t_(), lambda t: t.unsqueeze_(0), lambda t: t.resize_(B, 1)]
)
def test_in_place_operations_that_may_move_rows_unmark(operation, batch):
    square = batch.mark(torch.ones(B, B))
    result = operation(square)
    assert result is square
    assert square.batch is None
    F.mse_loss(torch.zeros(square.shape), square)
    assert batch.td_error is None


def test_behaves_as_a_tensor(rewards):
    plain = rewards.as_subclass(torch.Tensor)
    assert rewards.shape == (B, 1)
    assert rewards.dtype is torch.float32
    assert rewards.device == plain.device
    assert not rewards.requires_grad
    assert len(rewards) == B
    assert rewards[2].item() == plain[2].item() == rewards.tolist()[2][0]
    assert rewards.mean().item() == plain.mean().item()
    np.testing.assert_array_equal(rewards.numpy(), plain.numpy())
    np.testing.assert_array_equal(np.asarray(rewards), plain.numpy())
    assert [row.item() for row in rewards] == plain[:, 0].tolist()
    assert repr(rewards).startswith("PrioritizedTensor([[-2.]")
    rewards[0] = 7.0
    assert plain[0].item() == 7.0


def test_a_gradient_flows_through(rewards, current):
    (rewards * current)[:, 0].as_subclass(torch.Tensor).sum().backward()
    np.testing.assert_array_equal(current.grad, rewards.numpy())


@pytest.mark.parametrize("reduce", [torch.mean, torch.sum, torch.Tensor.mean, torch.Tensor.sum])
def test_a_loss_written_out_is_weighted_at_its_final_mean_or_sum(reduce, batch, rewards, current):
    target = 0.5 + 2 * rewards
    result = reduce((current - target).square())
    assert is_plain(result)
    difference = (current - target.as_subclass(torch.Tensor)).detach().numpy().astype(float)[:, 0]
    weighted = WEIGHTS * difference**2
    np.testing.assert_allclose(
        result.item(), weighted.sum() if "sum" in reduce.__name__ else weighted.mean(), rtol=1e-6
    )
    np.testing.assert_allclose(sizes(batch), np.abs(difference), rtol=1e-6)
    assert batch.pending == [batch]


def test_a_final_mean_without_a_difference_counts_itself(batch, rewards, current):
    (rewards.square() * current.exp()).mean()
    expected = (rewards.square() * current.exp()).detach().as_subclass(torch.Tensor).abs()[:, 0]
    np.testing.assert_allclose(sizes(batch), expected, rtol=1e-6)


def test_a_mean_without_a_prediction_is_no_loss(batch, rewards, current):
    assert rewards.mean().item() == pytest.approx(0.5)
    assert batch.td_error is None
    by_row = (current - rewards).square().sum(dim=-1)
    assert by_row.batch is batch
    assert batch.td_error is None


@pytest.mark.parametrize(
    "spelling",
    [
        lambda r, q, nq: r - q + 0.9 * nq,
        lambda r, q, nq: 0.9 * nq - q + r,
        lambda r, q, nq: q + (-(r + 0.9 * nq)),
        lambda r, q, nq: -(q - r) + 0.9 * nq,
        lambda r, q, nq: (r + 0.9 * nq).sub(q),
        lambda r, q, nq: (r - q).unsqueeze(1).squeeze(1) + 0.9 * nq,
    ],
)
def test_however_the_error_is_added_up(spelling):
    batch = make_batch()
    r, nq = batch.mark(torch.rand(6, 1)), torch.rand(6, 1)
    q = torch.rand(6, 1, requires_grad=True)
    expected = (r.as_subclass(torch.Tensor) + 0.9 * nq - q).detach()
    td_error = spelling(r, q, nq)
    loss = (2 * td_error.pow(2) + 1 - 0.5).mean()  # what is added later does not belong to it
    np.testing.assert_allclose(sizes(batch), expected.abs()[:, 0], rtol=1e-5)
    weighted = batch.importance_weight * (2 * expected**2 + 0.5)
    assert type(loss) is torch.Tensor
    torch.testing.assert_close(loss.detach(), weighted.mean())


@pytest.mark.parametrize(
    "lend", [torch.Tensor.to, torch.Tensor.type_as, torch.Tensor.view_as, torch.Tensor.expand_as]
)
def test_lending_a_dtype_or_a_shape_marks_nothing(lend):
    batch = make_batch()
    r = batch.mark(torch.rand(6, 1))
    assert type(lend(torch.rand(6, 1), r)) is torch.Tensor
    assert getattr(lend(r[torch.tensor([1, 0, 2, 3, 4, 5])], r), "batch", None) is None
    assert lend(r, torch.rand(6, 1)).batch is batch


def test_input_by_keyword():
    batch = make_batch()
    r = batch.mark(torch.rand(6, 1))
    q = torch.rand(6, 1, requires_grad=True)
    torch.testing.assert_close(torch.mean(input=r), r.as_subclass(torch.Tensor).mean())
    assert torch.sum(input=r, dim=1).batch is batch
    torch.mean(input=(q - r) ** 2)
    assert batch.td_error is not None


def test_vmapped_losses_leave_nothing_behind():
    batch = make_batch()
    r = batch.mark(torch.rand(6, 1))
    losses = torch.vmap(lambda q: F.mse_loss(q, r))(torch.rand(3, 6, 1))
    assert losses.shape == (3,) and batch.td_error is None and not batch.pending


@pytest.mark.parametrize(
    ("function", "options", "limit"),
    [
        (F.mse_loss, {}, np.inf),
        (F.l1_loss, {}, np.inf),
        (F.smooth_l1_loss, {}, 1.0),
        (F.smooth_l1_loss, {"beta": 0.5}, 0.5),
        (F.smooth_l1_loss, {"beta": 0.0}, np.inf),
        (F.huber_loss, {}, 1.0),
        (F.huber_loss, {"delta": 3.0}, 3.0),
    ],
)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_priorities_by_gradient_stop_where_the_loss_turns_linear(
    function, options, limit, reduction
):
    """Then the rows' gradients are all alike; the loss and its gradient stay what they are."""
    errors = torch.tensor([[-5.0], [-0.25], [0.0], [0.75], [40.0]])
    results = []
    for is_by_gradient in (False, True):
        batch = SampledBatch(np.arange(5), torch.ones(5, 1), [], is_by_gradient)
        prediction = torch.zeros(5, 1, requires_grad=True)
        loss = function(prediction, batch.mark(errors.clone()), reduction=reduction, **options)
        loss.sum().backward()
        results.append((loss.detach(), prediction.grad, batch.td_error.abs()))
    (loss, gradient, plain), (same_loss, same_gradient, limited) = results
    assert torch.equal(loss, same_loss) and torch.equal(gradient, same_gradient)
    assert torch.equal(plain, errors.abs())
    assert torch.equal(limited, errors.abs().clamp(max=limit))
    if limit < np.inf:  # in proportion to the size of the gradient
        size = gradient.abs() / gradient.abs().max()
        torch.testing.assert_close(limited / limit, size)


WRITTEN_OUT = {
    "squared": lambda target, q: ((target - q) ** 2).mean(),
    "Huber": lambda target, q: torch.where(
        (q - target).abs() < 1, 0.5 * (q - target) ** 2, (q - target).abs() - 0.5
    ).mean(),
    "a sum": lambda target, q: ((target - q) ** 2).sum(),
    "scaled": lambda target, q: 0.5 * (3 * (target - q) ** 2).mean(),
    "pairs": lambda target, q: (
        ((target - q.unsqueeze(-1)).abs() * torch.tensor([[0.2], [0.8], [0.5]])).sum(-2).mean()
    ),
}


BEHIND_THE_MEAN = {"scaled": 0.5}  # factors that are none of the loss of a row


@pytest.mark.parametrize("weights", ["none", "one", "others"])
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_priorities_by_gradient_of_losses_that_are_written_out(name, weights):
    """They are the lengths of the gradients that each row's own loss has, without its weight."""
    rng = np.random.default_rng(0)
    n = 3 if name == "pairs" else 1
    values = torch.tensor(rng.normal(size=(B, n)), dtype=torch.float32)
    target = torch.tensor(rng.normal(size=(B, 1)) * 3, dtype=torch.float32)
    weight = torch.tensor(rng.uniform(0.1, 2, (B, 1)), dtype=torch.float32)
    weight = {"none": None, "one": torch.ones(B, 1), "others": weight}[weights]
    expand = (lambda t: t.unsqueeze(1) + torch.zeros(1, 1, 4)) if n > 1 else (lambda t: t)

    q = values.clone().requires_grad_()
    batch = SampledBatch(np.arange(B), weight, [], is_by_gradient=True)
    WRITTEN_OUT[name](expand(batch.mark(target.clone())), q * 1.0).backward()
    expected = []
    for row in range(B):
        own = values[row : row + 1].clone().requires_grad_()
        WRITTEN_OUT[name](expand(target[row : row + 1]), own * 1.0).backward()
        expected.append(float(own.grad.norm()) / BEHIND_THE_MEAN.get(name, 1.0))
    torch.testing.assert_close(batch.td_error, torch.tensor(expected))
    assert batch.pending == [batch]
    if weights != "others":
        check = values.clone().requires_grad_()
        WRITTEN_OUT[name](expand(target), check * 1.0).backward()
        torch.testing.assert_close(q.grad, check.grad)


def test_a_weight_of_zero_leaves_the_td_error():
    weight = torch.tensor([[1.0], [0.0]])
    batch = SampledBatch(np.arange(2), weight, [], is_by_gradient=True)
    q = torch.zeros(2, 1, requires_grad=True)
    ((batch.mark(torch.tensor([[3.0], [-4.0]])) - q) ** 2).mean().backward()
    assert batch.td_error.tolist() == [6.0, 4.0]


def test_several_predictions_in_one_error_leave_the_td_error():
    batch = SampledBatch(np.arange(2), torch.ones(2, 1), [], is_by_gradient=True)
    value, advantage = torch.zeros(2, 1, requires_grad=True), torch.ones(2, 1, requires_grad=True)
    target = batch.mark(torch.tensor([[3.0], [-4.0]]))
    ((target - value - advantage) ** 2).mean().backward()
    assert batch.td_error.flatten().tolist() == [2.0, -5.0]


def test_losses_without_a_way_back_leave_no_priorities_by_gradient():
    batch = SampledBatch(np.arange(2), torch.ones(2, 1), [], is_by_gradient=True)
    ((batch.mark(torch.ones(2, 1)) - torch.zeros(2, 1, requires_grad=True)) ** 2).mean()
    assert batch.td_error is None and batch.pending == []


OTHER_SCALES = {
    "a sum over a count": lambda target, q: ((target - q) ** 2).sum() / B,
    "scaled for half precision": lambda target, q: 2.0**16 * ((target - q) ** 2).mean(),
    "a share of the loss": lambda target, q: (0.25 * ((target - q) ** 2).mean()) + 1.0,
    "a negative": lambda target, q: -(-((target - q) ** 2)).mean(),
    "another use of q": lambda target, q: ((target - q) ** 2).mean() + 5 * (q.exp() - q).mean(),
}


@pytest.mark.parametrize("weight", [None, torch.linspace(0.2, 1.5, B).view(B, 1)])
@pytest.mark.parametrize("name", OTHER_SCALES)
def test_priorities_by_gradient_are_those_of_the_row_alone(name, weight):
    """What a loss is scaled by, and what else the prediction is used for, does not count."""
    rng = np.random.default_rng(1)
    target, values = torch.tensor(rng.normal(size=(2, B, 1)), dtype=torch.float32)
    batch = SampledBatch(np.arange(B), weight, [], is_by_gradient=True)
    q = values.clone().requires_grad_()
    OTHER_SCALES[name](batch.mark(target.clone()), q).backward()
    torch.testing.assert_close(batch.td_error, 2 * (target - values).abs().flatten())
    if weight is None:
        check = values.clone().requires_grad_()
        OTHER_SCALES[name](target, check).backward()
        torch.testing.assert_close(q.grad, check.grad)


def test_a_loss_that_is_logged_alone_notes_no_gradient():
    """So the buffer goes on to warn if the loss that is learned from is not recognized."""
    batch = SampledBatch(np.arange(B), torch.full((B, 1), 0.5), [], is_by_gradient=True)
    q = torch.zeros(B, 1, requires_grad=True)
    target = batch.mark(torch.linspace(1, 2, B).view(B, 1))
    assert float((target - q).abs().mean().detach()) > 0
    torch.log(torch.cosh(q - target)).mean().backward()
    assert q.grad.abs().sum() > 0
    assert batch.td_error is None and batch.pending == []


@pytest.mark.parametrize("operation", [torch.Tensor.sub_, torch.Tensor.__isub__])
def test_a_sum_in_place_of_the_prediction(operation):
    batch = SampledBatch(np.arange(2), torch.tensor([[0.5], [2.0]]), [], is_by_gradient=True)
    q = torch.zeros(2, 1, requires_grad=True)
    difference = operation(q * 1.0, batch.mark(torch.tensor([[3.0], [-4.0]])))
    (difference**2).mean().backward()
    assert q.grad.flatten().tolist() == [-3 * 0.5, 4 * 2.0]
    assert batch.td_error.abs().flatten().tolist() in ([6.0, 8.0], [3.0, 4.0])


def test_logs_without_gradients_note_nothing_by_gradient():
    batch = SampledBatch(np.arange(2), torch.tensor([[0.5], [2.0]]), [], is_by_gradient=True)
    q = torch.zeros(2, 1, requires_grad=True)
    td_error = batch.mark(torch.tensor([[3.0], [-4.0]])) - q
    with torch.no_grad():
        assert float(td_error.mean()) == (3 * 0.5 - 4 * 2) / 2
        assert float((td_error**2).sum()) == 9 + 16  # of which nothing can be learned
    (td_error**2).mean().backward()
    assert batch.td_error.tolist() == [6.0, 8.0]


@pytest.mark.parametrize("share", [1e-3, 0.5, 4.0])
def test_two_losses_of_one_prediction(share):
    """The one that counts more has the factor 1."""
    target, values = torch.tensor([[3.0], [-4.0]]), torch.tensor([[1.0], [0.5]])
    batch = SampledBatch(np.arange(2), torch.tensor([[0.5], [2.0]]), [], is_by_gradient=True)
    q = values.clone().requires_grad_()
    td_error = batch.mark(target.clone()) - q
    ((td_error**2).mean() + share * td_error.abs().mean()).backward()
    own = 2 * (target - values).abs() + share
    torch.testing.assert_close(batch.td_error, own.flatten() / max(1.0, share))


def test_twin_critics_whose_losses_are_written_side_by_side():
    target = torch.tensor([[3.0], [-4.0], [0.5]])
    batch = SampledBatch(np.arange(3), torch.ones(3, 1), [], is_by_gradient=True)
    marked = batch.mark(target.clone())
    q1, q2 = (torch.full((3, 1), value).requires_grad_() for value in (0.0, 0.25))
    first, second = marked - q1, marked - q2
    losses = [
        torch.where(one.abs() < 1, 0.5 * one**2, (q - marked).abs() - 0.5).mean()
        for one, q in ((first, q1), (second, q2))
    ]
    sum(losses).backward()
    assert batch.td_error.tolist() == [1.0, 1.0, 0.5]
