"""DQN's losses, targets and actions against computations in NumPy."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gym = pytest.importorskip("gymnasium")
from algorithm_runs import (  # noqa: E402
    DISCRETE,
    FAULTS,
    VECTOR,
    adam_step,
    forward,
    make,
    make_batch,
)
from torch import nn  # noqa: E402

from kary_replay.algorithms import dqn  # noqa: E402

VARIANTS = {
    "plain": {"double": False},
    "double": {},
    "dueling": {"dueling": True},
    "distributional": {"n_atoms": 11, "v_min": -2.0, "v_max": 2.0},
    "all": {"n_atoms": 7, "v_min": -1.0, "v_max": 3.0, "dueling": True},
    "quantiles": {"n_quantiles": 6},
    "quantiles, dueling": {"n_quantiles": 5, "dueling": True, "double": False},
}


def values(q, observation, options):
    """The network's output in float64: [B, actions, atoms or quantiles], one without either."""
    x, n = observation.double().numpy(), max(options.n_atoms, options.n_quantiles)
    advantage = forward(q.advantage, x).reshape(len(x), -1, n)
    if options.dueling:
        state = forward(q.value, x).reshape(len(x), 1, n)
        advantage = state + advantage - advantage.mean(1, keepdims=True)
    return advantage


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def atoms_of(options):
    return np.linspace(options.v_min, options.v_max, options.n_atoms)


def expected_returns(output, options):
    return softmax(output) @ atoms_of(options) if options.n_atoms > 1 else output.mean(2)


def projected(reward, discount, probability, atoms):
    """Equation 7 of arXiv:1707.06887, atom by atom."""
    low, high, spacing = atoms[0], atoms[-1], atoms[1] - atoms[0]
    target = np.zeros(len(atoms))
    for atom, p in zip(atoms, probability, strict=True):
        position = (min(max(reward + discount * atom, low), high) - low) / spacing
        below = min(int(np.floor(position + 1e-12)), len(atoms) - 1)
        above = min(below + 1, len(atoms) - 1)
        target[below] += p * (1 - (position - below))
        if position > below:
            target[above] += p * (position - below)
    return target


def quantile_loss(quantiles, target, delta):
    """Equation 10 of arXiv:1710.10044, pair by pair."""
    loss, n = 0.0, len(quantiles)
    for number, quantile in enumerate(quantiles):
        share = (2 * number + 1) / (2 * n)
        for following in target:
            u = float(following) - quantile
            huber = 0.5 * u**2 if abs(u.item()) <= delta else delta * (u.abs() - 0.5 * delta)
            loss = loss + abs(share - float(u.item() < 0)) * huber / delta / len(target)
    return loss


def reference(algorithm, batch):
    """|TD error| of each row, in float64; the next test has the gradient."""
    options, n = algorithm.options, len(batch["reward"])
    online = values(algorithm.q, batch["next_observation"], options)
    target = values(algorithm.q_target, batch["next_observation"], options)
    best = expected_returns(online if options.double else target, options).argmax(1)
    chosen = values(algorithm.q, batch["observation"], options)[np.arange(n), batch["action"]]
    reward, discount = batch["reward"].double().numpy(), batch["discount"].double().numpy()
    if options.n_atoms == 1:
        following = target[np.arange(n), best].mean(1)
        return np.abs(reward + discount * following - chosen.mean(1))
    errors, atoms = [], atoms_of(options)
    for row in range(n):
        m = projected(reward[row], discount[row], softmax(target[row, best[row]]), atoms)
        log_p = np.log(softmax(chosen[row]))
        errors.append(sum(m[k] * (np.log(max(m[k], 1e-8)) - log_p[k]) for k in range(len(atoms))))
    return np.array(errors)


def diverged(name, prioritize_by="td_error", **options):
    """An algorithm whose target network is another than its trained one."""
    algorithm = make("dqn", **VARIANTS[name], prioritize_by=prioritize_by, **options)
    algorithm.targets["q"] += 0.3 * torch.randn(
        len(algorithm.targets["q"]), generator=torch.Generator().manual_seed(3)
    )
    return algorithm


def check_td_error(algorithm, batch):
    expected, options = reference(algorithm, batch), algorithm.options
    if options.prioritize_by == "gradient" and options.n_atoms == options.n_quantiles == 1:
        expected = np.minimum(expected, options.huber_delta)
    np.testing.assert_allclose(algorithm.update(batch).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("by", ["td_error", "gradient"])
@pytest.mark.parametrize("record", [True, False])
def test_td_errors(name, by, record):
    algorithm = diverged(name, prioritize_by=by, record=record)
    for seed in range(5):  # of networks that have moved on
        check_td_error(algorithm, make_batch(algorithm, 24, seed))


@pytest.mark.parametrize("name", VARIANTS)
def test_the_td_error_that_is_shown_has_no_bound(name):
    """What an update returns ends where the gradient does, or is a divergence."""
    algorithm = diverged(name, prioritize_by="gradient")
    batch = make_batch(algorithm, 24)
    batch["reward"] += 1000.0
    algorithm.update(batch)
    options, rows = algorithm.options, np.arange(24)
    online, target, chosen = (
        expected_returns(values(network, batch[which], options), options)
        for network, which in (
            (algorithm.q, "next_observation"),
            (algorithm.q_target, "next_observation"),
            (algorithm.q, "observation"),
        )
    )
    best = (online if options.double else target).argmax(1)
    following = batch["reward"].numpy() + batch["discount"].numpy() * target[rows, best]
    expected = np.abs(following - chosen[rows, batch["action"].numpy()]).mean()
    assert algorithm.figures(batch)["td_error"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_target_would_be_noticed(name, fault, monkeypatch):
    algorithm = diverged(name)
    update = algorithm.update
    monkeypatch.setattr(algorithm, "update", lambda batch: update(FAULTS[fault](batch)))
    with pytest.raises(AssertionError):
        check_td_error(algorithm, make_batch(algorithm, 24))


def test_single_where_double_is_wanted_would_be_noticed(monkeypatch):
    algorithm = diverged("plain")
    batch = make_batch(algorithm, 200)
    got = algorithm.update(batch).numpy()
    algorithm = diverged("double")
    assert not np.allclose(got, reference(algorithm, batch), atol=1e-5)


def gradient_by_rows(algorithm, batch, weight):
    """The gradient of mean(weight · loss), row by row, by the targets of the reference."""
    options = algorithm.options
    names = list(dict(algorithm.q.named_parameters()))
    total = {
        name: torch.zeros_like(parameter) for name, parameter in algorithm.q.named_parameters()
    }
    n = len(weight)
    target = values(algorithm.q_target, batch["next_observation"], options)
    best = expected_returns(
        values(algorithm.q, batch["next_observation"], options), options
    ).argmax(1)
    for row in range(n):
        output = algorithm.q(batch["observation"][row : row + 1])[0, batch["action"][row]]
        reward, discount = float(batch["reward"][row]), float(batch["discount"][row])
        following = target[row, best[row]]
        if options.n_quantiles > 1:
            loss = quantile_loss(output, reward + discount * following, options.huber_delta)
        elif options.n_atoms == 1:
            error = output - (reward + discount * following[0])
            loss = 0.5 * error**2 if abs(error.item()) < 1 else error.abs() - 0.5
        else:
            m = projected(reward, discount, softmax(following), atoms_of(options))
            loss = -(torch.tensor(m, dtype=torch.float32) * output.log_softmax(0)).sum()
        for name, part in zip(
            names, torch.autograd.grad(loss, list(algorithm.q.parameters())), strict=True
        ):
            total[name] += float(weight[row]) / n * part
    return nn.utils.parameters_to_vector(total.values())


def check_step(algorithm, batch, weight):
    gradient = gradient_by_rows(algorithm, batch, weight)
    norm = float(gradient.norm())
    gradient *= min(1.0, algorithm.options.max_gradient_norm / norm)
    before = algorithm.minimizers["q"].flat.clone()
    algorithm.update(batch)
    expected = adam_step(before, gradient, algorithm.options.learning_rate)
    # Where the gradient is nothing but rounding, Adam's first step takes its sign for a direction.
    sure = (gradient.abs() > 1e-6).numpy()
    assert sure.mean() > 0.3
    np.testing.assert_allclose(
        algorithm.minimizers["q"].flat.numpy()[sure], expected[sure], rtol=0, atol=2e-6
    )
    mean = algorithm.minimizers["q"].state_dict()["mean"].numpy()
    np.testing.assert_allclose(mean, 0.1 * gradient.numpy(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["double", "dueling", "distributional", "all", "quantiles"])
@pytest.mark.parametrize("max_gradient_norm", [10.0, 0.01])
def test_the_step_is_down_the_weighted_mean(name, max_gradient_norm):
    algorithm = diverged(name, max_gradient_norm=max_gradient_norm)
    batch = make_batch(algorithm)
    check_step(algorithm, batch, batch["importance_weight"])


@pytest.mark.parametrize("name", ["double", "distributional", "quantiles"])
def test_ignored_weights_would_be_noticed(name):
    algorithm = diverged(name)
    batch = make_batch(algorithm)
    with pytest.raises(AssertionError):
        check_step(algorithm, batch, torch.ones(12))


def test_the_projection_at_the_ends_and_on_the_atoms():
    """Returns beyond the support, or on an atom, where a naive projection loses mass."""
    algorithm = make("dqn", n_atoms=5, v_min=-2.0, v_max=2.0)
    batch = make_batch(algorithm, 4)
    batch["reward"], batch["discount"] = (
        torch.tensor([50.0, -50.0, 1.0, 0.0]),
        torch.tensor([0.0, 0.9, 0.0, 1.0]),
    )
    check_td_error(algorithm, batch)


@pytest.mark.parametrize("name", VARIANTS)
def test_terminated_rows_do_not_bootstrap(name):
    batch = make_batch(diverged(name))
    ended = batch["discount"] == 0
    assert 0 < ended.sum() < 12
    other = {**batch, "next_observation": batch["next_observation"] + 1}
    one, two = (diverged(name).update(rows) for rows in (batch, other))
    # a distribution sums up to one but for rounding
    torch.testing.assert_close(one[ended], two[ended])
    assert not torch.isclose(one[~ended], two[~ended]).any()


def test_the_discount_is_taken_from_the_row_so_that_n_steps_need_nothing_more():
    algorithm = diverged("double", n_step=3)
    batch = make_batch(algorithm)
    batch["discount"] = torch.linspace(0, 0.99**3, 12)
    check_td_error(algorithm, batch)


@pytest.mark.parametrize("name", VARIANTS)
def test_td_errors_of_actors_are_those_of_the_trained_network(name):
    algorithm = diverged(name)
    batch = make_batch(algorithm)
    del batch["importance_weight"]
    of_actors = algorithm.td_error(batch)
    algorithm.targets["q"].copy_(algorithm.minimizers["q"].flat)  # actors have no target network
    np.testing.assert_allclose(of_actors.numpy(), reference(algorithm, batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_actors_and_learners_measure_td_errors_on_one_scale(name):
    """What an actor gives a new row as priority is what a learner would have given it."""
    algorithm = make("dqn", **VARIANTS[name])  # whose target network is the trained one
    batch = make_batch(algorithm, 200)
    of_actors = algorithm.td_error(batch).clone()
    assert of_actors.min() >= 0
    torch.testing.assert_close(of_actors, algorithm.update(batch))


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("delta", [0.01, 0.5, 1.0, 10.0, 1000.0])
def test_the_huber_loss_is_quadratic_inside_and_its_gradient_clipped_beyond(delta, record):
    """So that delta does not shrink the gradient of small errors; delta = 1 changes nothing."""
    algorithm = make("dqn", huber_delta=delta, max_gradient_norm=1e9, record=record)
    algorithm.targets["q"] += 0.3
    batch = make_batch(algorithm, 64)
    rows = [batch[column] for column in dqn.ROWS]
    q, target = algorithm.values(algorithm.q_target, *rows)
    error = q.detach() - target
    if delta == 1.0:
        old = torch.nn.functional.smooth_l1_loss(q, target, reduction="none")
        new = torch.nn.functional.huber_loss(q, target, reduction="none", delta=1.0)
        assert torch.equal(old, new)
    (q * error.clamp(-delta, delta) * batch["importance_weight"] / 64).sum().backward()
    gradients = [parameter.grad for parameter in algorithm.q.parameters()]
    expected = nn.utils.parameters_to_vector(gradients)
    algorithm.q.zero_grad(set_to_none=True)
    algorithm.update(batch)
    mean = algorithm.minimizers["q"].state_dict()["mean"]
    torch.testing.assert_close(mean, 0.1 * expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("delta", [0.01, 1.0, 1000.0])
def test_priorities_are_td_errors_or_sizes_of_gradients(delta, record):
    sizes = {}
    for by in ("td_error", "gradient"):
        algorithm = make("dqn", huber_delta=delta, prioritize_by=by, record=record)
        batch = make_batch(algorithm, 64)
        q, target = algorithm.values(algorithm.q_target, *(batch[name] for name in dqn.ROWS))
        of_actors = algorithm.td_error(batch).clone()
        sizes[by] = algorithm.update(batch).clone()
        torch.testing.assert_close(of_actors, sizes[by])
    error = (q - target).abs().detach()
    torch.testing.assert_close(sizes["td_error"], error)
    torch.testing.assert_close(sizes["gradient"], error.clamp(max=delta))
    with pytest.raises(ValueError, match="prioritize_by must be 'td_error' or 'gradient', got 1"):
        dqn.DQNOptions(prioritize_by=1)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_best_action(name):
    algorithm = diverged(name)
    observation = torch.randn(500, 5)
    options = algorithm.options
    expected = expected_returns(values(algorithm.q, observation, options), options).argmax(1)
    for kind in (observation, observation.numpy()):
        action = algorithm.act(kind, np.zeros(500, np.float32), np.random.default_rng(0))
        assert action.dtype == np.int64 and action.shape == (500,)
        assert (action == expected).mean() > 0.995  # but for ties within rounding


@pytest.mark.parametrize(("tau", "interval"), [(1.0, 5), (0.1, 1), (0.3, 3)])
def test_the_target_network_follows(tau, interval):
    algorithm = make("dqn", tau=tau, target_interval=interval)
    expected = algorithm.targets["q"].clone()
    for number in range(1, 17):
        algorithm.update(make_batch(algorithm, seed=number))
        if number % interval == 0:
            expected = (1 - tau) * expected + tau * algorithm.minimizers["q"].flat
        torch.testing.assert_close(algorithm.targets["q"], expected, rtol=1e-5, atol=1e-6)
        assert (
            number % interval
            or tau < 1
            or torch.equal(algorithm.targets["q"], algorithm.minimizers["q"].flat)
        )


def test_both_networks_begin_as_one():
    algorithm = make("dqn")
    assert torch.equal(algorithm.targets["q"], algorithm.minimizers["q"].flat)
    observation = torch.randn(3, 5)
    assert torch.equal(algorithm.q(observation), algorithm.q_target(observation))


def test_the_plan_of_exploration():
    algorithm = make(
        "dqn", exploration_initial=0.8, exploration_final=0.2, exploration_fraction=0.5
    )
    plan = [algorithm.exploration(progress) for progress in (0, 0.25, 0.5, 0.75, 1)]
    np.testing.assert_allclose(plan, [0.8, 0.5, 0.2, 0.2, 0.2])
    assert make("dqn", exploration_final=0.3, exploration_fraction=0.0).exploration(
        0
    ) == pytest.approx(0.3)


def test_options_are_checked():
    assert make("dqn", VECTOR, DISCRETE).options.double
    for bad in (
        {"n_atoms": 0},
        {"n_quantiles": 0},
        {"n_quantiles": 5, "n_atoms": 5},
        {"noise_size": 0.0},
        {"n_atoms": 5, "v_min": 1.0, "v_max": 1.0},
        {"gamma": 1.5},
        {"batch_size": 0},
        {"tau": 0.0},
    ):
        with pytest.raises(ValueError, match=next(iter(bad)) if "v_min" not in bad else "v_min"):
            make("dqn", **bad)
    for name in ("double", "dueling", "noisy"):
        with pytest.raises(TypeError, match=f"{name} must be True or False, got 'no'"):
            make("dqn", **{name: "no"})
