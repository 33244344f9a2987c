"""Networks that explore by noise in their weights, against computations in NumPy."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gymnasium")
from algorithm_runs import make, make_batch  # noqa: E402

from kary_replay.algorithms import Share  # noqa: E402
from kary_replay.algorithms.noisy import NoisyMLP, factorized_noise  # noqa: E402

VARIANTS = {
    "alone": {},
    "dueling": {"dueling": True},
    "rainbow": {"dueling": True, "n_atoms": 7, "v_min": -2.0, "v_max": 2.0},
    "quantiles": {"n_quantiles": 5},
}


def made(name="alone", **options):
    algorithm = make("dqn", noisy=True, **VARIANTS[name], **options)
    generator = torch.Generator().manual_seed(3)
    algorithm.targets["q"] += 0.3 * torch.randn(len(algorithm.targets["q"]), generator=generator)
    return algorithm


def drawn(n, seed):
    return factorized_noise(torch.randn(n, generator=torch.Generator().manual_seed(seed)))


def disturbed(layers, features, noise):
    """Equations 9 to 11 of arXiv:1706.10295, in float64; without noise the means alone."""
    x, start = features.double().numpy(), 0
    linears = [layer for layer in layers.means if hasattr(layer, "weight")]
    for number, linear in enumerate(linears):
        weight, bias, weight_size, bias_size = (
            part.detach().double().numpy()
            for part in (
                linear.weight,
                linear.bias,
                layers.weight_sizes[number],
                layers.bias_sizes[number],
            )
        )
        if noise is not None:
            n_inputs, n_outputs = linear.in_features, linear.out_features
            numbers = noise[start : start + n_inputs + n_outputs].double().numpy()
            start += n_inputs + n_outputs
            weight = weight + weight_size * np.outer(numbers[n_inputs:], numbers[:n_inputs])
            bias = bias + bias_size * numbers[n_inputs:]
        x = (np.maximum(x, 0) if number else x) @ weight.T + bias
    return x


def test_factorized_noise():
    numbers = torch.tensor([4.0, -9.0, 0.0, 0.25])
    torch.testing.assert_close(factorized_noise(numbers), torch.tensor([2.0, -3.0, 0.0, 0.5]))


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_layers_with_and_without_noise(seed):
    torch.manual_seed(0)
    layers, features = NoisyMLP(5, (8, 6), 3, 0.5), torch.randn(11, 5)
    noise = None if seed is None else drawn(layers.n_noise, seed)
    expected = disturbed(layers, features, noise)
    np.testing.assert_allclose(layers(features, noise).detach(), expected, atol=1e-5)
    if noise is not None:
        layers.disturb(noise)
    for _ in range(2):
        np.testing.assert_allclose(layers.numpy(features.numpy()), expected, atol=1e-5)


def test_the_noise_at_first():
    layers = NoisyMLP(16, (64,), 3, 0.5)
    first, second = layers.weight_sizes
    assert (first == 0.5 / 4).all() and (second == 0.5 / 8).all()
    assert (layers.bias_sizes[0] == 0.5 / 4).all()
    assert layers.noise_share() == pytest.approx(0.5)
    assert layers.n_noise == 16 + 64 + 64 + 3
    assert max(part.abs().max() for part in layers.means[0].parameters()) <= 1 / 4


def outputs(network, observation, noise):
    """What a network says, [B, actions, outputs], in float64."""
    n, n_rows = network.shape[1] if len(network.shape) > 1 else 1, len(observation)
    parts = torch.split(noise, [part.n_noise for part in network.noisy])
    found = disturbed(network.advantage, observation, parts[0]).reshape(n_rows, -1, n)
    if network.value is not None:
        state = disturbed(network.value, observation, parts[1]).reshape(n_rows, 1, n)
        found = state + found - found.mean(1, keepdims=True)
    return found


def reference(algorithm, batch, noise, target_noise):
    """|TD error| of each row, of means; for networks without atoms."""
    rows = np.arange(len(batch["reward"]))
    online = outputs(algorithm.q, batch["next_observation"], noise).mean(2)
    target = outputs(algorithm.q_target, batch["next_observation"], target_noise).mean(2)
    chosen = outputs(algorithm.q, batch["observation"], noise).mean(2)
    following = target[rows, online.argmax(1)]
    reward, discount = batch["reward"].double().numpy(), batch["discount"].double().numpy()
    return np.abs(reward + discount * following - chosen[rows, batch["action"]])


@pytest.mark.parametrize("name", ["alone", "dueling", "quantiles"])
@pytest.mark.parametrize("record", [False, True])
def test_an_update_has_one_noise_for_what_it_trains_and_one_for_the_target(
    name, record, monkeypatch
):
    algorithm = made(name, prioritize_by="td_error", record=record)
    draw = algorithm.noises
    for seed in range(4):
        noises, batch = draw(24), make_batch(algorithm, 24, seed)
        expected = reference(algorithm, batch, *noises.values())
        exchanged = reference(algorithm, batch, *reversed(noises.values()))
        monkeypatch.setattr(algorithm, "noises", lambda n_rows, noises=noises: noises)
        found = algorithm.update(batch).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert not np.allclose(found, exchanged, rtol=1e-2)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_gradient_is_that_of_means_and_of_sizes(name):
    """Against differences of the loss, in its direction and in another."""
    algorithm = made(name)
    batch, noises = make_batch(algorithm), algorithm.noises(12)
    columns = "observation", "action", "reward", "next_observation", "discount"
    rows = [batch[column] for column in (*columns, "importance_weight")]
    flat, parameters = algorithm.minimizers["q"].flat, list(algorithm.q.parameters())

    def loss():
        return algorithm.loss(*rows, *noises.values())[0]

    parts = torch.autograd.grad(loss(), parameters)
    assert all((part != 0).any() for part in parts)
    gradient = torch.cat([part.flatten() for part in parts])
    generator = torch.Generator().manual_seed(1)
    for way in (gradient, gradient * torch.rand(len(flat), generator=generator)):
        step, before, ends = 1e-3 * way / way.norm(), flat.clone(), []
        for sign in (1, -1):
            flat.copy_(before + sign * step)
            ends.append(loss().item())
        flat.copy_(before)
        assert (ends[0] - ends[1]) / 2 == pytest.approx(float(gradient @ step), rel=0.02)


def test_every_update_draws_anew_and_all_learners_the_same():
    learners = [made(share=Share(index, 2)) for index in range(2)]
    seen = []
    for _ in range(3):
        one, other = (algorithm.noises(6) for algorithm in learners)
        for kind in ("noise", "target_noise"):
            assert torch.equal(one[kind], other[kind])
            assert not any(torch.equal(one[kind], former) for former in seen)
            seen.append(one[kind])


@pytest.mark.parametrize("name", VARIANTS)
def test_networks_act_by_the_noise_of_a_seed(name):
    algorithm, observation = made(name), torch.randn(50, 5)
    batch = make_batch(algorithm)

    def acts_by(noise):
        with torch.no_grad():
            best = algorithm.returns.mean(algorithm.q(observation, noise)).argmax(1).numpy()
        found = algorithm.act(observation, np.zeros(50, np.float32), np.random.default_rng(0))
        return (found == best).all()

    means, errors = algorithm.outputs(observation).copy(), algorithm.td_error(batch)
    assert acts_by(None)
    algorithm.resample_noise((0, 1, 2))
    disturbed = algorithm.outputs(observation).copy()
    assert acts_by(algorithm.acting_noise) and not np.allclose(disturbed, means)
    algorithm.resample_noise((0, 1, 3))
    assert not np.allclose(algorithm.outputs(observation), disturbed)
    algorithm.resample_noise((0, 1, 2))
    np.testing.assert_array_equal(algorithm.outputs(observation), disturbed)
    torch.testing.assert_close(algorithm.td_error(batch), errors)


def test_nothing_else_explores():
    algorithm = made(exploration_initial=1.0, exploration_final=0.5)
    assert algorithm.exploration(0.0) == algorithm.exploration(1.0) == 0.0
    figures = algorithm.figures(make_batch(algorithm))
    assert figures["epsilon"] == 0.0
    assert figures["noise/advantage"] == pytest.approx(0.5, rel=1e-3)
