"""A step is torch's Adam on the loss's gradient, recorded or not, of one or several learners.

To within rounding: `test_native.py` says how near single gradients and steps are.
"""

import io

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kary_replay.algorithms import Minimizer, Share, flatten  # noqa: E402

N_STEPS = 50


def network(seed=0, units=32):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(3, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU(), nn.Linear(units, 1)
    )


def batches(n=N_STEPS, n_rows=12, scale=1.0):
    generator = torch.Generator().manual_seed(1)
    for _ in range(n):
        x = scale * torch.randn(n_rows, 3, generator=generator)
        yield x, x.prod(1), torch.rand(n_rows, generator=generator)


def minimizer(module, **options):
    def loss(x, y, weight):
        error = module(x).squeeze(1) - y
        return (weight * error.square()).mean(), error.abs()

    return Minimizer([module], loss, 1e-2, **options)


def by_torch(module, max_gradient_norm=None):
    """The same training by a stock optimizer on one parameter; the module's are its views."""
    flat = nn.Parameter(flatten([module]))
    optimizer = torch.optim.Adam([flat], lr=1e-2, fused=True)
    for x, y, weight in batches():
        loss = (weight * (module(x).squeeze(1) - y).square()).mean()
        flat.grad = torch.cat(
            [
                gradient.reshape(-1)
                for gradient in torch.autograd.grad(loss, list(module.parameters()))
            ]
        )
        if max_gradient_norm:
            nn.utils.clip_grad_norm_([flat], max_gradient_norm)
        optimizer.step()
    return flat.detach()


@pytest.mark.parametrize("max_gradient_norm", [None, 0.05, 1e6])
@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("units", [32, 256])
def test_steps_are_those_of_torch(max_gradient_norm, record, units):
    ours = minimizer(network(units=units), max_gradient_norm=max_gradient_norm, record=record)
    for batch in batches():
        ours.step(*batch)
    theirs = by_torch(network(units=units), max_gradient_norm)
    others = by_torch(network(units=units), 0.06)
    # Rounding grows from step to step, the most where a gradient is near 0.
    apart = (ours.flat - theirs).norm() / (others - theirs).norm()
    assert apart < 0.01, "the comparison can fail: another clipping is that far away"


def test_steps_are_those_of_adam_on_each_parameter():
    """As everybody writes it; to within rounding, for the vectors end elsewhere."""
    ours, module = minimizer(network()), network()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for batch in batches():
        x, y, weight = batch
        (errors,) = ours.step(*batch)
        loss = (weight * (module(x).squeeze(1) - y).square()).mean()
        torch.testing.assert_close(
            errors, (module(x).squeeze(1) - y).abs().detach(), rtol=1e-3, atol=1e-4
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(
        ours.flat, nn.utils.parameters_to_vector(module.parameters()).detach(), rtol=1e-3, atol=1e-4
    )


def test_the_parameters_are_views_of_one_vector():
    module = network()
    before = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    flat = minimizer(module).flat
    assert torch.equal(flat, before)
    flat.zero_()
    assert all((parameter == 0).all() for parameter in module.parameters())


def test_batches_of_other_sizes_and_dicts():
    flats = []
    for record in (True, False):
        module = network()

        def loss(parts, y, module=module):
            error = module(torch.cat([parts["left"], parts["right"]], 1)).squeeze(1) - y
            return error.square().mean(), error.abs()

        ours = Minimizer([module], loss, 1e-2, record=record)
        for number, (x, y, _) in enumerate(batches(20)):
            rows = slice(0, 4 + 4 * (number % 3))
            parts = {"left": x[rows, :1], "right": x[rows, 1:]}
            parts = dict(reversed(parts.items())) if number % 2 else parts
            assert ours.step(parts, y[rows])[0].shape == y[rows].shape
        flats.append(ours.flat)
    torch.testing.assert_close(*flats, rtol=1e-3, atol=1e-4)
    assert not torch.equal(flats[0], flatten([network()]))


def test_what_is_returned_can_be_used_in_any_way():
    for record in (True, False):
        (errors,) = minimizer(network(), record=record).step(*next(batches()))
        assert not errors.is_inference() and not errors.requires_grad
        errors += 1
        weight = torch.ones((), requires_grad=True)
        (weight * errors).sum().backward()
        assert weight.grad == errors.sum()


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("max_gradient_norm", [None, 0.05])
def test_the_average_replaces_the_gradient_before_it_is_clipped(record, max_gradient_norm):
    seen = []

    def average(gradient):
        seen.append(gradient.clone())
        gradient.mul_(0).add_(torch.linspace(-1, 1, len(gradient)))

    ours = minimizer(
        network(), max_gradient_norm=max_gradient_norm, record=record, share=Share(0, 2, average)
    )
    module = network()
    flat = nn.Parameter(flatten([module]))
    optimizer = torch.optim.Adam([flat], lr=1e-2, fused=True)
    for batch in batches(5):
        ours.step(*batch)
        flat.grad = torch.linspace(-1, 1, len(flat))
        if max_gradient_norm:
            nn.utils.clip_grad_norm_([flat], max_gradient_norm)
        optimizer.step()
    torch.testing.assert_close(ours.flat, flat.detach(), rtol=1e-6, atol=1e-7)
    x, y, weight = next(batches())
    whole = network()
    loss = (weight * (whole(x).squeeze(1) - y).square()).mean()
    expected = torch.cat(
        [gradient.reshape(-1) for gradient in torch.autograd.grad(loss, list(whole.parameters()))]
    )
    torch.testing.assert_close(seen[0], expected)


@pytest.mark.parametrize("n_learners", [2, 3])
def test_parts_of_a_batch_average_to_the_whole(n_learners):
    module = network()

    def gradient(rows, x, y, weight):
        return torch.cat(
            [
                part.reshape(-1)
                for part in torch.autograd.grad(
                    (weight[rows] * (module(x[rows]).squeeze(1) - y[rows]).square()).mean(),
                    list(module.parameters()),
                )
            ]
        )

    batch = next(batches())
    shares = [Share(number, n_learners) for number in range(n_learners)]
    parts = [gradient(share.rows(12 // n_learners), *batch) for share in shares]
    torch.testing.assert_close(sum(parts) / n_learners, gradient(slice(None), *batch))


def test_a_saved_state_goes_on_to_the_bit():
    first = minimizer(network())
    rows = list(batches())
    for batch in rows[:20]:
        first.step(*batch)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    for batch in rows[20:]:
        first.step(*batch)
    second = minimizer(network(seed=5))
    second.step(*rows[3])  # with a recording that has to go on
    second.load_state_dict(torch.load(file, weights_only=True))
    for batch in rows[20:]:
        second.step(*batch)
    assert torch.equal(first.flat, second.flat)


def test_a_state_is_a_copy():
    ours = minimizer(network())
    state = ours.state_dict()
    before = {name: tensor.clone() for name, tensor in state.items()}
    ours.step(*next(batches()))
    assert all(torch.equal(before[name], state[name]) for name in before)


def test_a_step_takes_the_share_of_the_learning_rate_that_a_schedule_leaves():
    ours, alone = minimizer(network()), flatten([network()])
    ours.step(*next(batches()))
    moved = ours.flat - alone
    scheduled = minimizer(network())
    scheduled.learning_rate_share = 0.25
    scheduled.step(*next(batches()))
    assert scheduled.learning_rate == 0.25e-2
    torch.testing.assert_close(scheduled.flat - alone, 0.25 * moved, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("record", [True, False])
def test_figures_are_of_the_rows_of_the_last_step_and_change_nothing(record):
    module = network()
    ours = minimizer(module, max_gradient_norm=1e-3, record=record)
    assert ours.figures() == {}
    x, y, weight = next(batches())
    ours.step(x, y, weight)
    state, random = ours.state_dict(), torch.random.get_rng_state()
    loss = (weight * (module(x).squeeze(1) - y).square()).mean()
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    length = torch.cat([gradient.reshape(-1) for gradient in gradients]).norm()
    found = ours.figures()
    assert found == pytest.approx({"loss": float(loss), "gradient_norm": float(length)})
    assert float(length) > 1e-3  # it was clipped
    assert all(torch.equal(state[name], tensor) for name, tensor in ours.state_dict().items())
    assert torch.equal(random, torch.random.get_rng_state())


def test_parameters_that_two_minimizers_share_are_refused():
    encoder, critic, actor = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 2)

    def loss(x):
        return (critic(encoder(x)).square().mean(),)

    first = Minimizer([nn.Sequential(encoder, critic)], loss, 1e-2)
    Minimizer([nn.Sequential(encoder, actor)], loss, 1e-2)
    before = first.flat.clone()
    with pytest.raises(RuntimeError, match="give those that networks share to one alone"):
        first.step(torch.ones(2, 3))
    assert torch.equal(first.flat, before)
    first = Minimizer([encoder, critic], loss, 1e-2)
    Minimizer([actor], lambda x: (actor(encoder(x)).mean(),), 1e-2)
    first.step(torch.ones(2, 3))


def test_parameters_that_come_twice_count_once():
    shared, head = nn.Linear(3, 3), nn.Linear(3, 1)

    def loss(x):
        return ((head(shared(x)) - 5).square().mean(),)

    ours = Minimizer([shared, nn.Sequential(shared, head)], loss, 1e-2, max_gradient_norm=0.1)
    assert ours.flat.numel() == 12 + 4
    before = ours.flat.clone()
    ours.step(torch.ones(2, 3))
    assert ours._mean.norm().item() == pytest.approx(0.1 * 0.1, rel=1e-4)
    assert (ours.flat != before).all()


def test_the_value_of_what_is_learned_is_refused_wherever_it_is_asked_for():
    """Also before anything else is done with it."""
    module, temperature = network(), nn.Parameter(torch.tensor(0.5))

    def loss(x, y, weight):
        scale = temperature.item()
        return (scale * module(x).mean() * temperature,)

    ours = Minimizer([module, nn.ParameterList([temperature])], loss, 1e-2)
    with pytest.raises(RuntimeError, match="asks for the value of a tensor"):
        ours.step(*next(batches()))


def test_a_loss_that_branches_on_values_is_refused_and_nothing_moves():
    module = network()

    def loss(x, y, weight):
        error = module(x).squeeze(1) - y
        return ((error if error.mean() > 0 else F.relu(error)).mean(),)

    ours = Minimizer([module], loss, 1e-2)
    before = ours.flat.clone()
    with pytest.raises(RuntimeError, match="asks for the value of a tensor"):
        ours.step(*next(batches()))
    assert torch.equal(before, ours.flat)
    unrecorded = Minimizer([module], loss, 1e-2, record=False)
    unrecorded.step(*next(batches()))
    assert not torch.equal(before, unrecorded.flat)
