"""DDPG, TD3 and SAC: losses against NumPy and plain torch, delays, targets, and the temperature."""

import copy
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gym = pytest.importorskip("gymnasium")
from algorithm_runs import FAULTS, VECTOR, adam_step, forward, make, make_batch  # noqa: E402
from torch import nn  # noqa: E402

from kary_replay.algorithms import Options  # noqa: E402
from kary_replay.algorithms.actor_critic import Critics  # noqa: E402

CONTINUOUS = ["ddpg", "td3", "sac"]


def diverged(name, **options):
    """An algorithm whose target networks are others than its trained ones."""
    algorithm = make(name, **options)
    generator = torch.Generator().manual_seed(3)
    for target in algorithm.targets.values():
        target += 0.3 * torch.randn(len(target), generator=generator)
    return algorithm


def critics(module, observation, action):
    """Q values in float64, [n, B]: separate networks, one after the other."""
    x = np.concatenate([observation, action], 1)
    return np.stack([forward(q, x)[:, 0] for q in module.q])


def sampled(actor, observation, noise):
    """SAC's action and log density in float64, by the change of variables of a normal one."""
    mean, log_std = np.split(forward(actor.head, observation), 2, axis=1)
    std = np.exp(log_std.clip(-20, 2))
    u = mean + std * noise
    density = (
        np.exp(-0.5 * ((u - mean) / std) ** 2)
        / (std * math.sqrt(2 * math.pi))
        / (1 - np.tanh(u) ** 2)
    )
    return np.tanh(u), np.log(density).sum(1)


def next_noise(algorithm, n):
    """What the next update will draw."""
    copied = copy.deepcopy(algorithm.generator)
    width = {"ddpg": 0, "td3": algorithm.n_actions, "sac": 2 * algorithm.n_actions}[algorithm.name]
    return torch.randn(n, width, generator=copied).double().numpy()


def reference(algorithm, batch):
    """|TD error| of each row, the mean of both critics', in float64."""
    double = {key: value.double().numpy() for key, value in batch.items()}
    after, noise = double["next_observation"], next_noise(algorithm, len(double["reward"]))
    if algorithm.name == "sac":
        action, log_pi = sampled(algorithm.actor, after, noise[:, : algorithm.n_actions])
        value = (
            critics(algorithm.critic_target, after, action).min(0)
            - math.exp(algorithm.alpha.log_alpha.item()) * log_pi
        )
    else:
        action = np.tanh(forward(algorithm.actor_target.mu, after))
        if algorithm.name == "td3":
            action = (action + (0.2 * noise).clip(-0.5, 0.5)).clip(-1, 1)
        value = critics(algorithm.critic_target, after, action).min(0)
    target = double["reward"] + double["discount"] * value
    return np.abs(critics(algorithm.critic, double["observation"], double["action"]) - target).mean(
        0
    )


def check_td_error(algorithm, batch):
    expected = reference(algorithm, batch)
    np.testing.assert_allclose(algorithm.update(batch).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("record", [True, False])
def test_td_errors(name, record):
    algorithm = diverged(name, record=record)
    for seed in range(5):  # of networks that have moved on
        check_td_error(algorithm, make_batch(algorithm, 24, seed))


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_target_would_be_noticed(name, fault, monkeypatch):
    algorithm = diverged(name)
    update = algorithm.update
    monkeypatch.setattr(algorithm, "update", lambda batch: update(FAULTS[fault](batch)))
    with pytest.raises(AssertionError):
        check_td_error(algorithm, make_batch(algorithm, 24))


@pytest.mark.parametrize(
    ("name", "options"), [("td3", {"target_noise": 0.0}), ("td3", {"target_noise_clip": 0.1})]
)
def test_another_smoothing_would_be_noticed(name, options):
    algorithm = diverged(name, **options)
    with pytest.raises(AssertionError):
        check_td_error(algorithm, make_batch(algorithm, 24))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_terminated_rows_do_not_bootstrap(name):
    batch = make_batch(diverged(name))
    ended = batch["discount"] == 0
    one, two = (
        diverged(name).update(rows)
        for rows in (batch, {**batch, "next_observation": batch["next_observation"] + 1})
    )
    assert ended.any() and torch.equal(one[ended], two[ended])
    assert not torch.isclose(one[~ended], two[~ended]).any()


def gradients(algorithm, batch, weight):
    """The critic's and the actor's gradient, put together row by row with plain torch modules."""
    noise = torch.from_numpy(next_noise(algorithm, len(weight))).float()
    n_actions, n = algorithm.n_actions, len(weight)
    td = [torch.tensor(0.0)] * 2
    critic, actor = copy.deepcopy(algorithm.critic), copy.deepcopy(algorithm.actor)
    alpha = math.exp(algorithm.alpha.log_alpha.item()) if algorithm.name == "sac" else 0.0
    after, target = batch["next_observation"].double().numpy(), None
    if algorithm.name == "sac":
        action, log_pi = sampled(algorithm.actor, after, noise[:, :n_actions].double().numpy())
        target = critics(algorithm.critic_target, after, action).min(0) - alpha * log_pi
    else:
        action = np.tanh(forward(algorithm.actor_target.mu, after))
        if algorithm.name == "td3":
            action = (action + (0.2 * noise.double().numpy()).clip(-0.5, 0.5)).clip(-1, 1)
        target = critics(algorithm.critic_target, after, action).min(0)
    target = batch["reward"] + batch["discount"] * torch.from_numpy(target).float()
    for row in range(n):
        inputs = torch.cat([batch["observation"][row], batch["action"][row]])
        td[0] = td[0] + sum(weight[row] * (q(inputs) - target[row]) ** 2 for q in critic.q) / n
    of_critic = torch.autograd.grad(td[0], list(critic.parameters()))

    def of_actor(critic):
        loss = torch.tensor(0.0)
        for row in range(n):
            observation = batch["observation"][row]
            if algorithm.name == "sac":
                mean, log_std = actor.head(observation).chunk(2)
                normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
                u = mean + log_std.clamp(-20, 2).exp() * noise[row, n_actions:]
                log_pi = (normal.log_prob(u) - torch.log(1 - u.tanh() ** 2)).sum()
                values = [q(torch.cat([observation, u.tanh()])) for q in critic.q]
                loss = loss + weight[row] / n * (alpha * log_pi - torch.minimum(*values))
            else:
                loss = loss - weight[row] / n * critic.q[0](
                    torch.cat([observation, actor.mu(observation).tanh()])
                )
        return nn.utils.parameters_to_vector(
            torch.autograd.grad(loss.squeeze(), list(actor.parameters()))
        )

    return nn.utils.parameters_to_vector(of_critic), of_actor


def check_step(algorithm, batch, weight):
    of_critic, of_actor = gradients(algorithm, batch, weight)
    before = {name: minimizer.flat.clone() for name, minimizer in algorithm.minimizers.items()}
    algorithm.update(batch)
    # the actor climbs the new critic
    for name, gradient in (("critic", of_critic), ("actor", of_actor(algorithm.critic))):
        mean = algorithm.minimizers[name].state_dict()["mean"]
        np.testing.assert_allclose(mean.numpy(), 0.1 * gradient.numpy(), rtol=1e-3, atol=1e-6)
        sure = (gradient.abs() > 1e-5).numpy()
        expected = adam_step(before[name], gradient, algorithm.options.learning_rate)
        np.testing.assert_allclose(
            algorithm.minimizers[name].flat.numpy()[sure], expected[sure], rtol=0, atol=2e-6
        )


@pytest.mark.parametrize("name", CONTINUOUS)
def test_the_step_is_down_the_weighted_mean(name):
    algorithm = diverged(name, **({"policy_delay": 1} if name == "td3" else {}))
    batch = make_batch(algorithm)
    check_step(algorithm, batch, batch["importance_weight"])


@pytest.mark.parametrize("name", CONTINUOUS)
def test_ignored_weights_would_be_noticed(name):
    algorithm = diverged(name, **({"policy_delay": 1} if name == "td3" else {}))
    with pytest.raises(AssertionError):
        check_step(algorithm, make_batch(algorithm), torch.ones(12))


@pytest.mark.parametrize(("delay", "interval"), [(1, 1), (2, 2), (3, 3), (3, 1)])
def test_the_actor_and_the_targets_wait(delay, interval):
    algorithm = diverged("td3", policy_delay=delay, target_interval=interval, tau=0.1)
    expected = {name: target.clone() for name, target in algorithm.targets.items()}
    for number in range(1, 10):
        actor = algorithm.minimizers["actor"].flat.clone()
        algorithm.update(make_batch(algorithm, seed=number))
        assert torch.equal(actor, algorithm.minimizers["actor"].flat) == (number % delay != 0)
        if number % interval == 0:
            for name, target in expected.items():
                target.mul_(0.9).add_(0.1 * algorithm.minimizers[name].flat)
        for name, target in expected.items():
            torch.testing.assert_close(algorithm.targets[name], target, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_trained_and_target_networks_begin_as_one(name):
    algorithm = make(name)
    assert set(algorithm.targets) == ({"critic"} if name == "sac" else {"critic", "actor"})
    for key, target in algorithm.targets.items():
        assert torch.equal(target, algorithm.minimizers[key].flat)
    assert (
        not torch.equal(*(q[0].weight for q in algorithm.critic.q))
        if name != "ddpg"
        else len(algorithm.critic.q) == 1
    )


def test_twins_are_two_separate_networks():
    """With the weights of two stock networks they give the same values, bit for bit."""
    twins = Critics(VECTOR, 2, Options(hidden=(16, 8)), 2)
    stock = [
        nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
        for _ in range(2)
    ]
    for mine, theirs in zip(twins.q, stock, strict=True):
        mine.load_state_dict(theirs.state_dict())
    observation, action = torch.randn(20, 5), torch.rand(20, 2)
    expected = torch.cat([network(torch.cat([observation, action], 1)) for network in stock], 1)
    assert torch.equal(twins(observation, action), expected)
    assert torch.equal(twins.first(observation, action), expected[:, 0])
    twins(observation, action)[:, 1].sum().backward()
    # nothing of one reaches the other
    assert not twins.q[0][0].weight.grad.any() and twins.q[1][0].weight.grad.any()


def test_initial_weights_are_those_of_torch():
    """Uniform between ±1/√inputs; of 200 networks the largest weight comes close to that."""
    layers = [
        [
            layer
            for layer in Critics(VECTOR, 2, Options(hidden=(16, 8)), 2).q[1]
            if hasattr(layer, "weight")
        ]
        for _ in range(200)
    ]
    for number, n_inputs in enumerate((7, 16, 8)):
        weights = torch.cat(
            [layer[number].weight.detach().reshape(-1) for layer in layers]
        ) * math.sqrt(n_inputs)
        assert (
            0.995 < weights.abs().max() <= 1 and abs(float(weights.std()) - 1 / math.sqrt(3)) < 0.02
        )


def test_the_temperature_moves_to_where_the_entropy_is_the_target():
    """A step down mean(weight · (−log π − target)) in log alpha, by the update's densities."""
    algorithm = make("sac", target_entropy=-1.0, learning_rate=1e-2)
    batch = make_batch(algorithm, 64)
    noise = next_noise(algorithm, 64)[:, 2:]
    log_pi = sampled(algorithm.actor, batch["observation"].double().numpy(), noise)[1]
    weight = batch["importance_weight"].numpy()
    expected = -(weight * (log_pi - 1.0)).mean()
    algorithm.update(batch)
    np.testing.assert_allclose(
        algorithm.minimizers["alpha"].state_dict()["mean"].item(), 0.1 * expected, rtol=1e-4
    )
    assert algorithm.alpha.log_alpha.item() == pytest.approx(-1e-2 * np.sign(expected), rel=1e-4)


@pytest.mark.parametrize(("target", "sign"), [(-20.0, -1), (20.0, 1)])
def test_entropy_above_its_target_is_worth_less_and_less(target, sign):
    algorithm = make("sac", target_entropy=target, learning_rate=1e-2)
    for seed in range(20):
        algorithm.update(make_batch(algorithm, seed=seed))
    assert algorithm.alpha.log_alpha.item() * sign > 0.1
    assert make("sac").target_entropy == -2.0


def test_a_fixed_temperature_stays():
    algorithm = make("sac", ent_coef=0.3)
    assert set(algorithm.minimizers) == {"critic", "actor"}
    for seed in range(3):
        check_td_error(algorithm, make_batch(algorithm, seed=seed))
    assert algorithm.alpha().item() == pytest.approx(0.3)
    for bad in (0.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="ent_coef must be finite and above 0"):
            make("sac", ent_coef=bad)


def test_densities_far_out_are_finite_and_right():
    """Where tanh is one to all digits of float32, log(1 − tanh²) must not be −∞."""
    actor = make("sac").actor
    with torch.no_grad():
        actor.head[-1].weight.zero_()
        # means 0 and 30; log std 0, and -30 cut to -20
        actor.head[-1].bias.copy_(torch.tensor([0.0, 30.0, 0.0, -30.0]))
        action, log_pi = actor.sample(torch.zeros(1, 5), torch.zeros(1, 2))
    normal = -0.5 * math.log(2 * math.pi) * 2 + 20
    assert action.tolist() == [[0.0, 1.0]]
    assert log_pi.item() == pytest.approx(normal - (2 * math.log(2) - 60), rel=1e-5)


def test_actors_explore_within_the_bounds_of_the_standard_deviation():
    algorithm = make("sac")
    beyond, at_bounds = (
        algorithm.decide(
            np.tile(np.array([[0, 0, *log_std]], np.float32), (50, 1)),
            np.ones(50, np.float32),
            np.random.default_rng(0),
        )["action"]
        for log_std in ((50, -50), (2, -20))
    )
    np.testing.assert_array_equal(beyond, at_bounds)
    assert np.ptp(np.abs(beyond[:, 0])) > 0.5 and beyond[:, 1].any()


@pytest.mark.parametrize("name", CONTINUOUS)
def test_td_errors_of_actors_are_those_of_the_trained_networks(name):
    algorithm = diverged(name)
    batch = make_batch(algorithm)
    after = batch["next_observation"].double().numpy()
    if name == "sac":
        action, log_pi = sampled(algorithm.actor, after, np.zeros((12, 2)))
    else:
        action, log_pi = np.tanh(forward(algorithm.actor.mu, after)), 0.0
    target = batch["reward"].numpy() + batch["discount"].numpy() * (
        critics(algorithm.critic, after, action).min(0) - log_pi
    )
    q = critics(algorithm.critic, batch["observation"].double().numpy(), batch["action"].numpy())
    del batch["importance_weight"]
    state = algorithm.generator.get_state()
    np.testing.assert_allclose(
        algorithm.td_error(batch).numpy(), np.abs(q - target).mean(0), rtol=1e-4, atol=1e-5
    )
    assert torch.equal(state, algorithm.generator.get_state())  # it draws nothing
