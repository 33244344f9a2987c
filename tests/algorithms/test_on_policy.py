"""PPO and A2C beside what their papers say, computed another way: in float64, step by step."""

import copy
import math
from contextlib import nullcontext
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")
from algorithm_runs import (  # noqa: E402
    BOX,
    DISCRETE,
    NUMBERS,
    SPACES,
    VECTOR,
    make_on_policy,
    observations,
)
from scipy import stats  # noqa: E402

from kary_replay.algorithms import A2COptions, PPOOptions, Share  # noqa: E402
from kary_replay.algorithms.distributions import Categorical, Gaussian  # noqa: E402
from kary_replay.algorithms.on_policy import flat  # noqa: E402
from kary_replay.algorithms.ppo import normalized  # noqa: E402
from kary_replay.algorithms.returns import generalized_advantages, vtrace  # noqa: E402
from kary_replay.algorithms.updates import translation  # noqa: E402
from kary_replay.algorithms.updates.tape import Tape  # noqa: E402
from kary_replay.algorithms.updates.translation import NativeProgram  # noqa: E402
from kary_replay.fields import map_leaves  # noqa: E402

NAMES = ["ppo", "a2c", "impala", "appo"]
LENGTH, N_ENVS = 6, 4
ACTIONS = {"discrete": DISCRETE, "box": BOX}


def make(name, observation_space=VECTOR, action_space=DISCRETE, *, record=False, **options):
    """Return an algorithm with small networks, and rollouts of 6 steps of 4 environments."""
    small = {"hidden": (16, 8), "rollout_length": LENGTH, "n_envs": N_ENVS}
    if "ppo" in name:
        small |= {"batch_size": 8, "n_epochs": 3}
    return make_on_policy(name, observation_space, action_space, record, {**small, **options})


def rollouts(algorithm, seed=0, length=LENGTH, n_envs=N_ENVS):
    """Return rollouts whose actions the algorithm has chosen; every third step ends an episode."""
    rng = np.random.default_rng(seed)
    space, n = algorithm.observation_space, length * n_envs
    seen = observations(space, n, rng)
    chosen = algorithm.choose(seen, np.ones(n, np.float32), rng)
    ends = rng.integers(3, size=(2, n)) == 0
    columns = {
        "observation": seen,
        "next_observation": observations(space, n, rng),
        "reward": torch.from_numpy(rng.normal(size=n).astype(np.float32)),
        "terminated": torch.from_numpy(ends[0]),
        "truncated": torch.from_numpy(ends[1] & (rng.random(n) < 0.7)),
        **{name: torch.from_numpy(column) for name, column in chosen.items()},
    }

    def by_steps(column):
        if isinstance(column, dict):
            return {key: by_steps(part) for key, part in column.items()}
        return column.reshape(length, n_envs, *column.shape[1:])

    return {name: by_steps(column) for name, column in columns.items()}


def parameters(algorithm):
    return algorithm.minimizers["policy_and_value"].flat


# ------------------------------------------------------------------------------------- advantages


def advantage_by_definition(reward, value, next_value, terminated, truncated, gamma, lambda_):
    """Return the exponentially weighted mean of n-step advantages, each added up by itself."""
    length, n_envs = reward.shape
    found = np.zeros((length, n_envs))
    for env in range(n_envs):
        for first in range(length):
            n_step, discounted = [], 0.0
            for k, t in enumerate(range(first, length)):
                discounted += gamma**k * reward[t, env]
                after = 0.0 if terminated[t, env] else next_value[t, env]
                n_step.append(discounted + gamma ** (k + 1) * after - value[first, env])
                if terminated[t, env] or truncated[t, env]:
                    break
            weights = [(1 - lambda_) * lambda_**k for k in range(len(n_step))]
            weights[-1] = lambda_ ** (len(n_step) - 1)  # what is beyond it counts as the last one
            found[first, env] = np.dot(weights, n_step)
    return found


def advantage_case(seed):
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.normal(size=(3, 12, 5))
    terminated, truncated = rng.random((2, 12, 5)) < 0.15
    goes_on = ~(terminated | truncated)[:-1]
    next_value[:-1][goes_on] = value[1:][goes_on]  # the same observation
    return reward, value, next_value, terminated, truncated


@pytest.mark.parametrize("lambda_", [0.0, 0.6, 0.95, 1.0])
@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_advantages_are_the_weighted_mean_of_n_step_ones(gamma, lambda_):
    for seed in range(5):
        case = advantage_case(seed)
        expected = advantage_by_definition(*case, gamma, lambda_)
        found = generalized_advantages(*case, gamma, lambda_)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def values_by_definition(log_ratio, case, gamma, lambda_, rho_bar, c_bar):
    """Return V-trace values and advantages: the sums of the paper's equation 1, one by one."""
    reward, value, next_value, terminated, truncated = case
    length, n_envs = reward.shape
    rho = np.minimum(np.exp(log_ratio), rho_bar)
    c = lambda_ * np.minimum(np.exp(log_ratio), c_bar)
    after = np.where(terminated, 0.0, next_value)
    error = rho * (reward + gamma * after - value)
    values, advantage = value.copy(), np.zeros_like(value)
    for env in range(n_envs):
        for first in range(length):
            trace = 1.0
            for t in range(first, length):
                values[first, env] += gamma ** (t - first) * trace * error[t, env]
                if terminated[t, env] or truncated[t, env]:
                    break
                trace *= c[t, env]
    for env in range(n_envs):
        for t in range(length):
            is_over = terminated[t, env] or truncated[t, env] or t == length - 1
            following = after[t, env] if is_over else values[t + 1, env]
            target = reward[t, env] + gamma * following
            advantage[t, env] = rho[t, env] * (target - value[t, env])
    return advantage, values


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 0.7), (0.5, 1.5)])
@pytest.mark.parametrize("lambda_", [0.9, 1.0])
def test_v_trace_is_that_of_the_paper(bounds, lambda_):
    for seed in range(5):
        case = advantage_case(seed)
        log_ratio = np.random.default_rng(seed).normal(size=case[0].shape)
        expected = values_by_definition(log_ratio, case, 0.9, lambda_, *bounds)
        found = vtrace(log_ratio, *case, 0.9, lambda_, *bounds)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
        ignored = vtrace(np.zeros_like(log_ratio), *case, 0.9, lambda_, *bounds)
        assert not np.allclose(ignored[0], expected[0])


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_v_trace_of_the_own_policy_is_the_n_step_return(lambda_):
    """With lambda 1; and with another one what generalized advantage estimation has."""
    for seed in range(5):
        case = advantage_case(seed)
        same = np.zeros_like(case[0])
        advantage, values = vtrace(same, *case, 0.9, lambda_, 1.0, 1.0)
        expected = advantage_by_definition(*case, 0.9, lambda_)
        np.testing.assert_allclose(values, case[1] + expected, rtol=1e-10, atol=1e-12)
        if lambda_ == 1:
            np.testing.assert_allclose(advantage, expected, rtol=1e-10, atol=1e-12)


def test_very_unlikely_actions_do_no_harm():
    case = advantage_case(0)
    for log_ratio in (-1e4, 1e4):
        found = vtrace(np.full_like(case[0], log_ratio), *case, 0.9, 1.0, 1.0, 1.0)
        assert all(np.isfinite(part).all() for part in found)


FAULTS = {
    "a cut episode counts as ended": lambda r, v, n, end, cut: (r, v, n, end | cut, cut),
    "an ended episode goes on": lambda r, v, n, end, cut: (r, v, n, end & False, cut | end),
    "a cut is overlooked": lambda r, v, n, end, cut: (r, v, n, end, cut & False),
    "values come late": lambda r, v, n, end, cut: (r, v, np.roll(n, 1, 0), end, cut),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_advantages_would_be_noticed(fault):
    case = advantage_case(0)
    found = generalized_advantages(*FAULTS[fault](*case), 0.9, 0.95)
    assert not np.allclose(found, advantage_by_definition(*case, 0.9, 0.95))


@pytest.mark.parametrize("kind", ["vector", "dict"])
def test_rollouts_are_evaluated_by_the_networks(kind):
    """Values after a cut, and after the last step, are those of the next observation."""
    algorithm = make("a2c", SPACES[kind], gamma=0.9, gae_lambda=0.7)
    batch = rollouts(algorithm)
    rows = algorithm.evaluated(batch)
    with torch.no_grad():
        value = algorithm.network.value(map_leaves(batch["observation"], flat))
        after = algorithm.network.value(map_leaves(batch["next_observation"], flat)).reshape(
            LENGTH, N_ENVS
        )
    value = value.reshape(LENGTH, N_ENVS).double().numpy()
    terminated, truncated = batch["terminated"].numpy(), batch["truncated"].numpy()
    following = np.concatenate([value[1:], value[:1]])
    cut = truncated.copy()
    cut[-1] = True
    next_value = np.where(cut, after.double().numpy(), following)
    reward = batch["reward"].double().numpy()
    expected = advantage_by_definition(reward, value, next_value, terminated, truncated, 0.9, 0.7)
    advantage = rows["advantage"].reshape(LENGTH, N_ENVS).numpy()
    np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        rows["return_"].reshape(LENGTH, N_ENVS).numpy(), expected + value, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("actions", ACTIONS)
def test_v_trace_is_of_the_policy_that_learns(actions):
    """Of what an older policy did; what is its own is as without."""
    algorithm = make("impala", VECTOR, ACTIONS[actions], gamma=0.9)
    batch = rollouts(algorithm)
    own = algorithm.evaluated(batch)
    plain = make("a2c", VECTOR, ACTIONS[actions], gamma=0.9).evaluated(batch)
    for name in ("advantage", "return_"):
        torch.testing.assert_close(own[name], plain[name], rtol=1e-4, atol=1e-5)
    flat_parameters = parameters(algorithm)
    flat_parameters += 0.3 * torch.randn(flat_parameters.shape)
    newer = algorithm.evaluated(batch)
    with torch.no_grad():
        outputs, _ = algorithm.network(newer["observation"])
        log_pi = algorithm.network.distribution.log_prob(outputs, newer["action"])
    assert torch.equal(newer["log_prob"], newer["before"])  # what it is compared with from now on
    log_ratio = (log_pi - own["log_prob"]).double().numpy().reshape(LENGTH, N_ENVS)
    assert (log_ratio > 0.1).any() and (log_ratio < -0.1).any()
    algorithm.options = replace(algorithm.options, vtrace=False)
    assert not torch.allclose(newer["advantage"], algorithm.evaluated(batch)["advantage"])


# ----------------------------------------------------------------------------------- distributions


def test_drawn_actions_have_the_probabilities_that_are_told():
    rng = np.random.default_rng(0)
    outputs = np.tile(np.array([[0.3, -1.0, 2.0, -60.0]], np.float32), (200_000, 1))
    distribution = Categorical(4)
    action, log_prob = distribution.draw(distribution.parameters_of(outputs), rng)
    p = np.exp(outputs[0].astype(np.float64))
    p /= p.sum()
    counts = np.bincount(action, minlength=4)
    assert counts[3] == 0 and action.dtype == np.int64 and log_prob.dtype == np.float32
    assert stats.chisquare(counts[:3], len(action) * p[:3] / p[:3].sum()).pvalue > 1e-6
    assert stats.chisquare(counts[:3], len(action) * np.array([0.15, 0.05, 0.8])).pvalue < 1e-6
    np.testing.assert_allclose(log_prob, np.log(p)[action], atol=1e-5)
    told = distribution.log_prob(torch.from_numpy(outputs), torch.from_numpy(action))
    np.testing.assert_allclose(log_prob, told, atol=1e-6)
    assert (distribution.mode(distribution.parameters_of(outputs)) == 2).all()
    entropy = distribution.entropy(torch.from_numpy(outputs[:1]))
    assert float(entropy) == pytest.approx(-(p * np.log(p)).sum(), rel=1e-5)


def test_drawn_numbers_have_the_density_that_is_told():
    rng = np.random.default_rng(0)
    distribution = Gaussian((2, 1), -0.5)
    distribution.log_std.data[1] = 0.3
    outputs = np.tile(np.array([[0.5, -2.0]], np.float32), (50_000, 1))
    action, log_prob = distribution.draw(distribution.parameters_of(outputs), rng)
    assert action.shape == (50_000, 2, 1) and action.dtype == log_prob.dtype == np.float32
    std = np.exp([-0.5, 0.3])
    laws = [stats.norm(0.5, std[0]), stats.norm(-2.0, std[1])]
    for law, other, numbers in zip(laws, laws[::-1], action[:, :, 0].T, strict=True):
        assert stats.kstest(numbers, law.cdf).pvalue > 1e-6
        assert stats.kstest(numbers, other.cdf).pvalue < 1e-6
    expected = sum(law.logpdf(action[:, i, 0].astype(float)) for i, law in enumerate(laws))
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        told = distribution.log_prob(torch.from_numpy(outputs), torch.from_numpy(action))
        entropy = distribution.entropy(torch.from_numpy(outputs[:3]))
    np.testing.assert_allclose(log_prob, told, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(entropy, [sum(law.entropy() for law in laws)] * 3, rtol=1e-5)
    assert (distribution.mode(distribution.parameters_of(outputs))[:, :, 0] == outputs).all()


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("name", NAMES)
def test_what_an_actor_tells_is_what_the_learner_finds(name, kind, actions):
    algorithm = make(name, SPACES[kind], ACTIONS[actions])
    batch = rollouts(algorithm)
    rows = algorithm.evaluated(batch)
    with torch.no_grad():
        outputs, value = algorithm.network(rows["observation"])
        log_pi = algorithm.network.distribution.log_prob(outputs, rows["action"])
    torch.testing.assert_close(log_pi, rows["log_prob"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(value, rows["value"], rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------ losses


def tanh_layers(stack, x):
    """Return what linear layers with tanh in between do, in float64."""
    linears = [layer for layer in stack if hasattr(layer, "weight")]
    for linear in linears:
        x = x @ linear.weight.detach().double().numpy().T + linear.bias.detach().double().numpy()
        x = x if linear is linears[-1] else np.tanh(x)
    return x


def densities(algorithm, observation, action):
    """Return log probabilities and entropies, in float64."""
    outputs = tanh_layers(algorithm.network.pi, observation)
    if action.ndim == 1:
        log_p = outputs - np.log(np.exp(outputs).sum(1, keepdims=True))
        return log_p[np.arange(len(action)), action], -(np.exp(log_p) * log_p).sum(1)
    std = np.exp(algorithm.network.distribution.log_std.detach().double().numpy())
    law = stats.norm(outputs, std)
    return law.logpdf(action.reshape(len(action), -1)).sum(1), law.entropy().sum(1)


def numpy_loss(algorithm, rows):
    """Return the loss of some rows by the papers, in float64."""
    options = algorithm.options
    observation = rows["observation"].double().numpy()
    log_pi, entropy = densities(algorithm, observation, rows["action"].numpy())
    value = tanh_layers(algorithm.network.v, observation)[:, 0]
    old_value, advantage, return_, log_prob = (
        rows[name].double().numpy() for name in ("value", "advantage", "return_", "log_prob")
    )
    error = np.square(value - return_)
    if isinstance(options, PPOOptions):
        if options.normalize_advantage:
            advantage = (advantage - advantage.mean()) / advantage.std(ddof=1)
        ratio, c = np.exp(log_pi - log_prob), options.clip_range
        gain = np.minimum(ratio * advantage, ratio.clip(1 - c, 1 + c) * advantage)
        if options.clip_range_vf is not None:
            v = options.clip_range_vf
            near = old_value + (value - old_value).clip(-v, v)
            error = np.maximum(error, np.square(near - return_))
    else:
        gain = log_pi * advantage
    return options.vf_coef * error.mean() - gain.mean() - options.ent_coef * entropy.mean()


LOSSES = [
    ("ppo", {}),
    ("ppo", {"clip_range_vf": 0.05, "ent_coef": 0.02, "vf_coef": 0.7}),
    ("ppo", {"clip_range": 0.02, "normalize_advantage": False}),
    ("a2c", {"ent_coef": 0.02, "vf_coef": 0.3}),
    ("impala", {"ent_coef": 0.02, "rho_bar": 2.0}),
    ("appo", {"clip_range_vf": 0.05}),
]


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize(("name", "options"), LOSSES)
def test_losses_are_those_of_the_papers(name, options, actions):
    """Also away from the policy that has acted: some ratios and values are beyond their bounds."""
    n_rows = LENGTH * N_ENVS
    batch_size = {"batch_size": n_rows} if "ppo" in name else {}
    algorithm = make(name, VECTOR, ACTIONS[actions], **options, **batch_size)
    minimizer = algorithm.minimizers["policy_and_value"]
    rows = algorithm.evaluated(rollouts(algorithm))
    generator = torch.Generator().manual_seed(1)
    for scale in (0.0, 0.01, 0.1):
        minimizer.flat += scale * torch.randn(minimizer.flat.shape, generator=generator)
        (piece, *_) = algorithm.pieces(rows)
        inputs = [piece[key] for key in ("observation", "action", "log_prob", "advantage")]
        inputs += [piece[key] for key in ("return_", "value")]
        loss, log_pi = algorithm.loss(*inputs, *piece["schedules"].values())
        expected = numpy_loss(algorithm, rows)
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-4, abs=1e-5)
        found, _ = densities(algorithm, inputs[0].double().numpy(), inputs[1].numpy())
        np.testing.assert_allclose(log_pi, found, rtol=1e-4, atol=1e-5)


def plain_update(algorithm, batch):
    """Do what an update does with torch's own optimizer and autograd, row by row of each piece."""
    options, network = algorithm.options, algorithm.network
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate, eps=1e-5)
    rows = algorithm.evaluated(batch)
    n_rows = len(rows["advantage"])
    for _ in range(getattr(options, "n_epochs", 1)):
        order = torch.arange(n_rows)
        size = n_rows
        if isinstance(options, PPOOptions):
            order = torch.randperm(n_rows, generator=algorithm.generator)
            size = options.batch_size
        for first in range(0, n_rows, size):
            one = order[first : first + size]
            outputs, value = network(rows["observation"][one])
            if network.distribution.n_outputs == 3:
                law = torch.distributions.Categorical(logits=outputs)
                log_pi, entropy = law.log_prob(rows["action"][one]), law.entropy()
            else:
                law = torch.distributions.Normal(outputs, network.distribution.log_std.exp())
                log_pi, entropy = law.log_prob(rows["action"][one]).sum(1), law.entropy().sum(1)
            advantage = rows["advantage"][one]
            if isinstance(options, PPOOptions):
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                ratio = torch.exp(log_pi - rows["log_prob"][one])
                bounded = ratio.clamp(1 - options.clip_range, 1 + options.clip_range)
                gain = torch.min(ratio * advantage, bounded * advantage)
            else:
                gain = log_pi * advantage
            loss = options.vf_coef * (value - rows["return_"][one]).square().mean() - gain.mean()
            loss = loss - options.ent_coef * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), options.max_gradient_norm)
            optimizer.step()


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_an_update_is_that_of_torch(name, record, actions):
    own, plain = (
        make(name, VECTOR, ACTIONS[actions], record=kind, ent_coef=0.01, learning_rate=3e-3)
        for kind in (record, False)
    )
    batch = rollouts(own)
    before = parameters(own).clone()
    own.update(batch)
    plain_update(plain, batch)
    assert not torch.allclose(parameters(own), before, atol=1e-3)
    torch.testing.assert_close(parameters(own), parameters(plain), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("actions", ACTIONS)
def test_a2c_is_ppo_with_one_epoch_of_all_rows(actions):
    """Huang et al. (2022), arXiv:2205.09123: in the first epoch no ratio is beyond its bound."""
    shared = {"gae_lambda": 1.0, "learning_rate": 2e-3, "ent_coef": 0.01}
    everything = {"batch_size": LENGTH * N_ENVS, "n_epochs": 1, "normalize_advantage": False}
    a2c = make("a2c", VECTOR, ACTIONS[actions], **shared)
    ppo = make("ppo", VECTOR, ACTIONS[actions], **shared, **everything)
    assert torch.equal(parameters(a2c), parameters(ppo))
    for seed in range(5):
        batch = rollouts(a2c, seed)
        for algorithm in (a2c, ppo):
            algorithm.update(batch)
        torch.testing.assert_close(parameters(a2c), parameters(ppo), rtol=1e-4, atol=1e-5)
    two_epochs = make("ppo", VECTOR, ACTIONS[actions], **shared, **{**everything, "n_epochs": 2})
    two_epochs.update(rollouts(two_epochs))
    once = make("a2c", VECTOR, ACTIONS[actions], **shared)
    once.update(rollouts(once))
    assert not torch.allclose(parameters(once), parameters(two_epochs), atol=1e-4)


def test_advantages_are_normalized_step_by_step():
    advantage = torch.randn(24, dtype=torch.float64) * 7 + 3
    parts = normalized(advantage, 8).reshape(3, 8)
    torch.testing.assert_close(parts.mean(1), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(parts.std(1), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("name", ["impala", "ppo", "appo"])
def test_old_data_are_corrected_for_once(name):
    """The gradient of the policy on data of another one, beside the exact expectation.

    One state and two actions, of which the second has the reward 1: by the policy gradient theorem
    the logit of that one should change by p (1 - p).
    """
    space = gym.spaces.Box(0, 1, (1,), np.float32)
    big = {"batch_size": 4000, "normalize_advantage": False, "clip_range": 1e6, "n_epochs": 1}
    own = big if "ppo" in name else {}
    n = {"n_envs": 4000, "rollout_length": 1, "hidden": ()}
    algorithm = make(name, space, gym.spaces.Discrete(2), vf_coef=0.0, gae_lambda=1.0, **n, **own)
    p, mu = 0.5, 0.9
    with torch.no_grad():
        algorithm.network.pi[0].weight.zero_()
        algorithm.network.v[0].weight.zero_()
        algorithm.network.v[0].bias.fill_(0.5)  # a baseline
    action = (np.arange(4000) < 4000 * mu).astype(np.int64)[None]
    batch = {
        "observation": torch.zeros(1, 4000, 1),
        "next_observation": torch.zeros(1, 4000, 1),
        "action": torch.from_numpy(action),
        "reward": torch.from_numpy(action).float(),
        "terminated": torch.ones(1, 4000, dtype=torch.bool),
        "truncated": torch.zeros(1, 4000, dtype=torch.bool),
        "log_prob": torch.from_numpy(np.log(np.where(action, mu, 1 - mu))).float(),
    }
    if algorithm.options.vtrace:
        algorithm.options = replace(algorithm.options, rho_bar=100.0, c_bar=100.0)
    (piece,) = algorithm.pieces(algorithm.evaluated(batch))
    inputs = [piece[key] for key in ("observation", "action", "log_prob", "advantage")]
    inputs += [piece["return_"], piece["value"], *piece["schedules"].values()]
    loss, _ = algorithm.loss(*inputs)
    (gradient,) = torch.autograd.grad(loss, [algorithm.network.pi[0].bias])
    exact = p * (1 - p)
    found = -float(gradient[1])
    assert found == pytest.approx(exact, rel=1e-3)


def test_the_divergence_is_that_from_the_policy_before_the_update():
    """Not from an older one that has acted: else an update would end at its first step."""
    algorithm = make("ppo", learning_rate=1e-7, target_kl=0.01)
    batch = rollouts(algorithm)
    parameters(algorithm)[:] += 0.5 * torch.randn(parameters(algorithm).shape)
    n_steps, replayed = 0, algorithm._replayed

    def counting(rows):
        nonlocal n_steps
        n_steps += 1
        return replayed(rows)

    algorithm._replayed = counting
    algorithm.update(batch)
    assert n_steps == 9
    assert algorithm.figures(batch)["kl"] < 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_the_figure_of_divergence_is_of_the_policies_before_and_after_the_update(name):
    algorithm = make(name, learning_rate=0.01)
    batch = rollouts(algorithm)
    rows = flat(batch["observation"]).double().numpy(), flat(batch["action"]).numpy()
    before, _ = densities(algorithm, *rows)
    algorithm.update(batch)
    after, _ = densities(algorithm, *rows)
    expected = (np.exp(after - before) - 1 - (after - before)).mean()
    assert expected > 1e-4
    assert algorithm.figures(batch)["kl"] == pytest.approx(expected, rel=1e-3)


def test_an_update_ends_early_when_the_policy_has_moved_enough():
    counts = {}
    for target_kl in (None, 1e9, 0.003):
        algorithm = make("ppo", learning_rate=0.02, n_epochs=20, target_kl=target_kl)
        n_steps, replayed = 0, algorithm._replayed

        def counting(rows, replayed=replayed):
            nonlocal n_steps
            n_steps += 1
            return replayed(rows)

        algorithm._replayed = counting
        algorithm.update(rollouts(algorithm))
        counts[target_kl] = n_steps
    assert counts[None] == counts[1e9] == 60 and 1 < counts[0.003] < 60


def test_the_clip_range_falls():
    algorithm = make("ppo", clip_range=0.2, clip_range_final_share=0.5)
    for progress, expected in ((0.0, 0.2), (0.5, 0.15), (1.0, 0.1)):
        algorithm.advance(progress)
        clip_range, inverse = map(float, algorithm.schedules())
        assert (clip_range, inverse) == pytest.approx((expected, 1 / expected))


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("name", NAMES)
def test_any_observations(name, kind):
    algorithm = make(name, SPACES[kind], BOX, activation="relu", record=True)
    before, state = parameters(algorithm).clone(), algorithm.state_dict()
    batch = rollouts(algorithm)
    algorithm.warm_up(batch)
    assert torch.equal(parameters(algorithm), before)
    assert torch.equal(algorithm.generator.get_state(), state["generator"])
    for seed in range(3):
        error = algorithm.update(rollouts(algorithm, seed))
        assert error.shape == (LENGTH * N_ENVS,) and (error >= 0).all() and error.isfinite().all()
    assert (parameters(algorithm) != before).any()
    figures = algorithm.figures(batch)
    assert {"entropy", "kl", "explained_variance", "value", "learning_rate"} <= figures.keys()
    assert all(math.isfinite(value) for value in figures.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_state_goes_on_to_the_bit(name):
    first, second = make(name, record=True), make(name, record=True, seed=9)
    first.update(rollouts(first))
    second.load_state_dict(first.state_dict())
    for seed in range(1, 4):
        batch = rollouts(first, seed)
        for algorithm in (first, second):
            algorithm.update(batch)
    assert torch.equal(parameters(first), parameters(second))
    assert first.n_updates == second.n_updates == 4


@pytest.mark.parametrize("name", NAMES)
def test_the_explained_variance_is_of_the_values_before_an_update(name):
    algorithm = make(name, learning_rate=0.05)
    batch = rollouts(algorithm)
    rows = algorithm.evaluated(batch)
    value, return_ = (rows[column].double().numpy() for column in ("value", "return_"))
    expected = 1 - (return_ - value).var() / return_.var()
    assert algorithm.figures(batch)["explained_variance"] == pytest.approx(expected, rel=1e-4)
    algorithm.update(batch)
    assert algorithm.figures(batch)["explained_variance"] == pytest.approx(expected, rel=1e-4)
    assert algorithm.figures(batch)["value"] != pytest.approx(value.mean(), rel=1e-4)


def test_without_exploration_the_best_action_is_chosen():
    for space in (DISCRETE, BOX):
        algorithm = make("ppo", VECTOR, space)
        observation = observations(VECTOR, 50, np.random.default_rng(0))
        outputs, _ = algorithm.network.numpy(observation, algorithm.initial_state(50))
        best = outputs.argmax(1) if space is DISCRETE else outputs
        greedy = algorithm.act(observation, np.zeros(50, np.float32), np.random.default_rng(0))
        drawn = algorithm.act(observation, np.ones(50, np.float32), np.random.default_rng(0))
        chosen = algorithm.choose(observation, np.ones(50, np.float32), np.random.default_rng(0))
        assert (greedy == best).all() and (drawn != best).any()
        assert (drawn == chosen["action"]).all()


def test_learners_average_what_they_find_of_the_divergence():
    def average(vector):
        vector.mul_(0.5)

    algorithm = make("ppo", share=Share(1, 2, average))
    change = torch.full((4,), 0.2)
    alone = math.exp(0.2) - 1 - 0.2
    assert algorithm.divergence(change) == pytest.approx(alone / 2, rel=1e-5)


BAD = [
    ("ppo", {"n_envs": 0}, "n_envs"),
    ("ppo", {"rollout_length": 2.5}, "rollout_length"),
    ("ppo", {"batch_size": 7}, "batch_size must divide n_envs · rollout_length = 24"),
    ("ppo", {"batch_size": 1}, "normalize_advantage"),
    ("ppo", {"clip_range": 0.0}, "clip_range"),
    ("ppo", {"clip_range_vf": -1.0}, "clip_range_vf"),
    ("ppo", {"target_kl": math.nan}, "target_kl"),
    ("ppo", {"clip_range_final_share": 1.5}, "clip_range_final_share"),
    ("ppo", {"normalize_advantage": 1}, "normalize_advantage"),
    ("a2c", {"gae_lambda": -0.1}, "gae_lambda"),
    ("a2c", {"ent_coef": -1.0}, "ent_coef"),
    ("a2c", {"vf_coef": math.inf}, "vf_coef"),
    ("a2c", {"activation": "gelu"}, "activation must be one of relu, tanh"),
    ("a2c", {"max_gradient_norm": 0.0}, "max_gradient_norm"),
    ("a2c", {"log_std": math.nan}, "log_std"),
    ("impala", {"envs_per_update": 5}, "envs_per_update must be at most n_envs=4"),
    (
        "appo",
        {"envs_per_update": 3},
        "batch_size must divide envs_per_update · rollout_length = 18",
    ),
    ("impala", {"vtrace": 1}, "vtrace must be True or False"),
    ("ppo", {"orthogonal_init": "no"}, "orthogonal_init must be True or False"),
    ("impala", {"rho_bar": 0.0}, "rho_bar"),
    ("impala", {"rho_bar": 0.5, "c_bar": 0.6}, "c_bar must be at most rho_bar=0.5, got 0.6"),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD)
def test_hyperparameters_without_meaning_are_refused(name, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(name, **options)


@pytest.mark.parametrize("lstm_hidden_size", [None, 8])
def test_weights_begin_orthogonal_or_as_torch_has_them(lstm_hidden_size):
    shared = {"hidden": (32, 32), "lstm_hidden_size": lstm_hidden_size, "batch_size": 24}
    even, other = (
        make("ppo", VECTOR, orthogonal_init=first, **shared).network for first in (True, False)
    )
    for last, gain in ((even.pi[-1], 0.01), (even.v[-1], 1.0)):
        products = last.weight @ last.weight.T
        torch.testing.assert_close(products, gain**2 * torch.eye(len(products)))
        assert not last.bias.any()
    for last in (other.pi[-1], other.v[-1]):
        bound = 32**-0.5  # uniform, which has a standard deviation of bound / √3
        assert last.weight.abs().max() <= bound and last.bias.abs().max() <= bound
        assert 0.3 * bound < last.weight.std() < 0.9 * bound and last.bias.any()


def test_actions_that_nobody_can_draw_are_refused():
    for space in (gym.spaces.MultiBinary(3), gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)):
        with pytest.raises(ValueError, match="ppo needs"):
            make("ppo", VECTOR, space)


def test_defaults_fit_each_other():
    for options in (PPOOptions(), A2COptions()):
        assert replace(options) == options


@pytest.mark.parametrize("name", ["a2c", "ppo", "impala"])
def test_copies_learn_as_the_original_does(name):
    algorithm = make(name, record=True)
    algorithm.update(rollouts(algorithm))
    twin = copy.deepcopy(algorithm)
    before = next(twin.policy.parameters()).clone()
    for number in range(1, 4):
        batch = rollouts(algorithm, number)
        assert torch.equal(algorithm.update(batch), twin.update(batch))
    for one, other in zip(algorithm.policy.parameters(), twin.policy.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(next(twin.policy.parameters()), before)


@pytest.mark.parametrize("n_actions", [2, 3, 5, 6, 7, 18])
@pytest.mark.parametrize("name", ["a2c", "ppo", "impala"])
def test_updates_are_native_though_the_first_batch_is_blank(name, n_actions):
    """With an entropy bonus and layers that begin with zeros, its gradients are only rounding."""
    options = {"ent_coef": 0.01, "orthogonal_init": True}
    algorithm = make(name, action_space=gym.spaces.Discrete(n_actions), record=True, **options)
    blank = {key: torch.zeros_like(column) for key, column in rollouts(algorithm).items()}
    algorithm.warm_up(blank)
    programs = algorithm.minimizers["policy_and_value"]._compute.programs
    assert [type(program) for program in programs.values()] == [NativeProgram]
    tapes = algorithm._replayed._tapes
    assert [type(tape) for tape in tapes.values()] == [Tape]


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_any_dtype_are_read_by_native_programs(name):
    native, plain = (make(name, NUMBERS["all"], BOX, record=record) for record in (True, False))
    batch = rollouts(native)
    native.warm_up(batch)
    for algorithm in (native, plain):
        algorithm.update(batch)
    torch.testing.assert_close(parameters(native), parameters(plain), rtol=1e-3, atol=1e-4)
    programs = [*native.minimizers["policy_and_value"]._compute.programs.values()]
    programs += native._evaluate.programs.values()
    assert {type(program) for program in programs} == {NativeProgram}
    assert [type(tape) for tape in native._replayed._tapes.values()] == [Tape]


@pytest.mark.parametrize("is_right", [True, False])
def test_a_wrong_translation_is_noticed_on_a_blank_batch(is_right, monkeypatch):
    """Of zeros, the gradients of the first layers are zeros whatever a program does."""
    unmask = torch.ops.aten.threshold_backward.default

    def unmasked(t, node):
        t.product(*map(t.matrix, node.args[0].args), t._result(node))

    if not is_right:
        monkeypatch.setitem(translation.OPERATIONS, unmask, unmasked)
    algorithm = make("a2c", record=True, activation="relu")
    blank = {key: torch.zeros_like(column) for key, column in rollouts(algorithm).items()}
    with nullcontext() if is_right else pytest.warns(RuntimeWarning, match="gives other results"):
        algorithm.warm_up(blank)
    programs = algorithm.minimizers["policy_and_value"]._compute.programs
    assert [type(one) is NativeProgram for one in programs.values()] == [is_right]
