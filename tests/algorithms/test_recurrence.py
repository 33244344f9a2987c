"""Policies that remember, beside the same computed by torch's own LSTM cell, step by step."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from algorithm_runs import (  # noqa: E402
    BOX,
    DISCRETE,
    SPACES,
    VECTOR,
    make_on_policy,
    observations,
)
from torch import nn  # noqa: E402

from kary_replay.algorithms import PPOOptions, Share  # noqa: E402
from kary_replay.algorithms.recurrence import LSTM, parts_of, sequences  # noqa: E402

NAMES = ["ppo", "a2c", "impala", "appo"]
ACTIONS = {"discrete": DISCRETE, "box": BOX}
LENGTH, N_ENVS, UNITS = 6, 4, 5


def make(name, observation_space=VECTOR, action_space=DISCRETE, *, record=False, **options):
    """Return an algorithm with a small LSTM; of PPO two sequences are a step of the optimizer."""
    small = {"hidden": (8,), "rollout_length": LENGTH, "n_envs": N_ENVS, "lstm_hidden_size": UNITS}
    if "ppo" in name:
        small |= {"batch_size": 2 * LENGTH, "n_epochs": 3}
    return make_on_policy(name, observation_space, action_space, record, {**small, **options})


def by_steps(column, n_envs=N_ENVS):
    """Return [T * N, ...] as [T, N, ...]."""
    if isinstance(column, dict):
        return {key: by_steps(part, n_envs) for key, part in column.items()}
    return column.reshape(-1, n_envs, *column.shape[1:])


def at(column, t):
    """Return a step of a column [T, N, ...], or of all in a dict."""
    return (
        {key: at(part, t) for key, part in column.items()}
        if isinstance(column, dict)
        else column[t]
    )


def acted(algorithm, seed=0):
    """Return a rollout as an actor makes it: it begins within episodes, some of which end in it."""
    rng = np.random.default_rng(seed)
    n, space = LENGTH * N_ENVS, algorithm.observation_space
    ends = rng.integers(3, size=(2, LENGTH, N_ENVS)) == 0
    batch = {
        "observation": by_steps(observations(space, n, rng)),
        "next_observation": by_steps(observations(space, n, rng)),
        "reward": torch.from_numpy(rng.normal(size=(LENGTH, N_ENVS)).astype(np.float32)),
        "terminated": torch.from_numpy(ends[0]),
        "truncated": torch.from_numpy(ends[1]),
    }
    state = rng.uniform(-1, 1, (N_ENVS, algorithm.state_size)).astype(np.float32)
    batch["state"] = torch.from_numpy(state[None].copy())
    chosen = []
    for t in range(LENGTH):
        seen = at(batch["observation"], t)
        chosen.append(algorithm.choose(seen, np.ones(N_ENVS, np.float32), rng, state))
        state = chosen[-1].pop("next_state")
        state[ends[:, t].any(0)] = 0
    for name in chosen[0]:
        batch[name] = torch.from_numpy(np.stack([one[name] for one in chosen]))
    return batch


def parameters(algorithm):
    return algorithm.minimizers["policy_and_value"].flat


def cell_of(lstm):
    """Return torch's cell with the same weights, whose gates come in another order."""
    cell = nn.LSTMCell(lstm.inputs.in_features, lstm.n_units)
    enters, stays, leaves, content = np.arange(4 * lstm.n_units).reshape(4, -1)
    order = np.concatenate([enters, stays, content, leaves])
    with torch.no_grad():
        cell.weight_ih.copy_(lstm.inputs.weight[order])
        cell.weight_hh.copy_(lstm.recurrent.weight[order])
        cell.bias_ih.copy_(lstm.inputs.bias[order])
        cell.bias_hh.zero_()
    return cell, order


def by_cell(cell, features, state, begins=None):
    """Return outputs and states [T, N, ...], step by step; zeros where an episode begins."""
    h, c = state.chunk(2, 1)
    outputs, states = [], []
    for t in range(len(features)):
        if begins is not None:
            h, c = (torch.where(begins[t][:, None], 0.0, part) for part in (h, c))
        h, c = cell(features[t], (h, c))
        outputs.append(h)
        states.append(torch.cat([h, c], 1))
    return torch.stack(outputs), torch.stack(states)


def begins_of(batch):
    """Return where a step is the first one of an episode that began within the rollout."""
    ended = batch["terminated"] | batch["truncated"]
    return torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])


# --------------------------------------------------------------------------------------- the LSTM


def lstm_case(seed=0, length=LENGTH):
    torch.manual_seed(seed)
    lstm = LSTM(3, UNITS)
    features, state = torch.randn(length, N_ENVS, 3), torch.randn(N_ENVS, 2 * UNITS)
    begins = torch.rand(length, N_ENVS) < 0.3
    begins[0] = False
    return lstm, features, state, begins


def test_outputs_states_and_gradients_are_those_of_torchs_cell():
    lstm, features, state, begins = lstm_case()
    cell, order = cell_of(lstm)
    weight = torch.randn(LENGTH, N_ENVS, UNITS)
    rows = features.reshape(-1, 3).clone().requires_grad_()
    outputs, states = lstm(rows, state, 1 - begins.reshape(-1).float())
    (by_steps(outputs) * weight).sum().backward()
    features.requires_grad_()
    expected, after = by_cell(cell, features, state, begins)
    (expected * weight).sum().backward()
    torch.testing.assert_close(by_steps(outputs), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(by_steps(states), after, rtol=1e-5, atol=1e-6)
    for own, other in (
        (rows.grad, features.grad.reshape(-1, 3)),
        (lstm.inputs.weight.grad[order], cell.weight_ih.grad),
        (lstm.recurrent.weight.grad[order], cell.weight_hh.grad),
        (lstm.inputs.bias.grad[order], cell.bias_ih.grad),
    ):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_a_step_by_numpy_is_one_by_torch():
    lstm, features, state, _ = lstm_case()
    for large in (1.0, 1e4):  # gates that are shut
        with torch.no_grad(), np.errstate(all="raise", under="ignore"):
            expected = lstm(large * features[0], state)
            found = lstm.numpy((large * features[0]).numpy(), state.numpy())
        for own, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        lstm.inputs.weight.data = lstm.inputs.weight.data + 1  # other memory
        expected = lstm(features[0], state)[0]
    np.testing.assert_allclose(
        lstm.numpy(features[0].numpy(), state.numpy())[0], expected, rtol=1e-5
    )


@pytest.mark.parametrize("kind", SPACES)
def test_sequences_come_apart_as_they_were_joined(kind):
    seen = observations(SPACES[kind], 6, np.random.default_rng(0))
    state, goes_on = torch.randn(2, 4), torch.ones(6)
    keys = list(SPACES[kind].spaces) if kind == "dict" else None
    found, states, again = parts_of(sequences(seen, state, goes_on), keys)
    assert again is goes_on and torch.equal(states[:2], state) and torch.equal(states[4:], state)
    parts = zip(found.values(), seen.values(), strict=True) if keys else [(found, seen)]
    assert all(torch.equal(one, other) for one, other in parts)


# ------------------------------------------------------------------------------- what is evaluated


def expected_of(algorithm, batch):
    """Return log pi(a|s), values, and those of the next observations, [T, N], step by step."""
    network = algorithm.network
    cell, _ = cell_of(network.memory)
    with torch.no_grad():
        encoded = torch.stack([network.encoder(at(batch["observation"], t)) for t in range(LENGTH)])
        features, states = by_cell(cell, encoded, batch["state"][0], begins_of(batch))
        flat = features.reshape(-1, UNITS)
        action = batch["action"].reshape(-1, *batch["action"].shape[2:])
        log_pi = network.distribution.log_prob(network.pi(flat), action)
        next_value = []
        for t in range(LENGTH):
            following = network.encoder(at(batch["next_observation"], t))
            h, _ = cell(following, tuple(states[t].chunk(2, 1)))
            next_value.append(network.v(h).squeeze(1))
    return by_steps(log_pi), by_steps(network.v(flat).squeeze(1).detach()), torch.stack(next_value)


def advantages(batch, value, next_value, gamma, lambda_):
    """Return advantages, added up backwards; values within episodes are those of the next step."""
    reward, ended = batch["reward"].double(), batch["terminated"] | batch["truncated"]
    found, later = torch.zeros_like(reward), torch.zeros(N_ENVS, dtype=torch.float64)
    for t in reversed(range(LENGTH)):
        is_last = t == LENGTH - 1
        goes_on = ~ended[t] if not is_last else torch.zeros_like(ended[t])
        after = torch.where(goes_on, value[t if is_last else t + 1], next_value[t]).double()
        after = torch.where(batch["terminated"][t], 0.0, after)
        error = reward[t] + gamma * after - value[t].double()
        found[t] = later = error + gamma * lambda_ * goes_on * later
    return found


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("name", NAMES)
def test_the_learner_finds_what_the_actor_told_and_values_step_by_step(name, kind, actions):
    algorithm = make(name, SPACES[kind], ACTIONS[actions], gamma=0.9, gae_lambda=0.7)
    batch = acted(algorithm)
    rows = algorithm.evaluated(batch)
    log_pi, value, next_value = expected_of(algorithm, batch)
    for found, expected in (
        (rows["before"], log_pi),
        (batch["log_prob"].reshape(-1), log_pi),
        (rows["value"], value),
        (rows["return_"], value + advantages(batch, value, next_value, 0.9, 0.7)),
    ):
        torch.testing.assert_close(
            found.double(), expected.reshape(-1).double(), rtol=1e-4, atol=1e-5
        )
    with torch.no_grad():
        outputs, again = algorithm.network(rows["observation"])
    torch.testing.assert_close(again, rows["value"])
    log_pi_again = algorithm.network.distribution.log_prob(outputs, rows["action"])
    torch.testing.assert_close(log_pi_again, rows["before"])


FAULTS = {
    "states are not reset": lambda batch: {
        **batch,
        "terminated": torch.zeros_like(batch["terminated"]),
        "truncated": torch.zeros_like(batch["truncated"]),
    },
    "the state is not stored": lambda batch: {**batch, "state": torch.zeros_like(batch["state"])},
    "states are exchanged": lambda batch: {**batch, "state": batch["state"].roll(1, 1)},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_states_would_be_noticed(fault):
    algorithm = make("ppo")
    batch = acted(algorithm)
    rows = algorithm.evaluated(FAULTS[fault](batch))
    assert not torch.allclose(rows["before"], batch["log_prob"].reshape(-1), atol=1e-4)


def test_v_trace_corrects_by_the_newer_policy_on_the_same_sequences():
    algorithm = make("impala")
    batch = acted(algorithm)
    generator = torch.Generator().manual_seed(0)
    flat = parameters(algorithm)
    flat += 0.3 * torch.randn(flat.shape, generator=generator)
    rows = algorithm.evaluated(batch)
    log_pi, value, _ = expected_of(algorithm, batch)
    assert not torch.allclose(log_pi, batch["log_prob"], atol=0.01)
    torch.testing.assert_close(by_steps(rows["log_prob"]), log_pi, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(by_steps(rows["value"]), value, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------ updates


def plain_update(algorithm, batch):
    """Do what an update does with torch's cell, optimizer and autograd, sequence by sequence."""
    options, network = algorithm.options, algorithm.network
    memory = network.memory
    cell, order = cell_of(memory)
    own = [part for part in network.parameters() if all(part is not m for m in memory.parameters())]
    learned = [*own, cell.weight_ih, cell.weight_hh, cell.bias_ih]
    optimizer = torch.optim.Adam(learned, lr=options.learning_rate, eps=1e-5)
    rows = {
        name: by_steps(column)
        for name, column in algorithm.evaluated(batch).items()
        if name != "observation"
    }
    begins, is_ppo = begins_of(batch), isinstance(options, PPOOptions)
    for _ in range(options.n_epochs if is_ppo else 1):
        envs, size = torch.arange(N_ENVS), N_ENVS
        if is_ppo:
            envs = torch.randperm(N_ENVS, generator=algorithm.generator)
            size = options.batch_size // LENGTH
        for some in envs.split(size):
            encoded = network.encoder(batch["observation"][:, some].flatten(0, 1))
            encoded = encoded.reshape(LENGTH, size, -1)
            features, _ = by_cell(cell, encoded, batch["state"][0, some], begins[:, some])
            flat = features.flatten(0, 1)
            one = {name: column[:, some].flatten(0, 1) for name, column in rows.items()}
            law = torch.distributions.Categorical(logits=network.pi(flat))
            log_pi, advantage = law.log_prob(one["action"]), one["advantage"]
            if is_ppo:
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                ratio = torch.exp(log_pi - one["log_prob"])
                bounded = ratio.clamp(1 - options.clip_range, 1 + options.clip_range)
                gain = torch.min(ratio * advantage, bounded * advantage)
            else:
                gain = log_pi * advantage
            error = (network.v(flat).squeeze(1) - one["return_"]).square().mean()
            loss = options.vf_coef * error - gain.mean() - options.ent_coef * law.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learned, options.max_gradient_norm)
            optimizer.step()
    with torch.no_grad():
        memory.inputs.weight[order] = cell.weight_ih
        memory.recurrent.weight[order] = cell.weight_hh
        memory.inputs.bias[order] = cell.bias_ih


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_an_update_is_that_of_torch(name, record):
    own, plain = (
        make(name, record=kind, ent_coef=0.01, learning_rate=3e-3) for kind in (record, False)
    )
    batch = acted(own)
    before = parameters(own).clone()
    own.update(batch)
    plain_update(plain, batch)
    assert not torch.allclose(parameters(own), before, atol=1e-3)
    torch.testing.assert_close(parameters(own), parameters(plain), rtol=1e-3, atol=2e-5)


def test_the_gradient_of_sequences_is_a_native_program():
    algorithm = make("ppo", record=True)
    algorithm.warm_up(acted(algorithm))
    (program,) = algorithm.minimizers["policy_and_value"]._compute.programs.values()
    assert type(program).__name__ == "NativeProgram"
    assert all(tape is not None for tape in algorithm._replayed._tapes.values())


def test_each_step_has_whole_sequences_and_each_epoch_all_of_them():
    algorithm = make("ppo")
    order = algorithm.order(LENGTH * N_ENVS, 2 * LENGTH).reshape(2, LENGTH, 2)
    envs = order[:, 0]
    assert sorted(envs.reshape(-1).tolist()) == list(range(N_ENVS))
    steps = N_ENVS * torch.arange(LENGTH).reshape(1, -1, 1)
    assert torch.equal(order, envs.unsqueeze(1) + steps)
    orders = {tuple(algorithm.order(LENGTH * N_ENVS, 2 * LENGTH).tolist()) for _ in range(20)}
    assert len(orders) > 5


def test_learners_with_a_part_of_the_environments_find_the_gradient_of_all():
    whole = make("a2c", max_gradient_norm=1e9)
    batch = acted(whole)
    found = []
    for index in range(2):
        part = make("a2c", max_gradient_norm=1e9, share=Share(index, 2, found.append))
        mine = part.share.rows(N_ENVS // 2)
        part.update({name: column[:, mine] for name, column in batch.items()})
    expected = []
    alone = make("a2c", max_gradient_norm=1e9, share=Share(0, 1, expected.append))
    alone.update(batch)
    torch.testing.assert_close(sum(found) / 2, expected[0], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(found[0], found[1], atol=1e-3)


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("name", NAMES)
def test_any_observations(name, kind):
    algorithm = make(name, SPACES[kind], BOX, activation="relu", record=True)
    before = parameters(algorithm).clone()
    batch = acted(algorithm)
    algorithm.warm_up(batch)
    assert torch.equal(parameters(algorithm), before)
    for seed in range(3):
        error = algorithm.update(acted(algorithm, seed))
        assert error.shape == (LENGTH * N_ENVS,) and error.isfinite().all()
    assert (parameters(algorithm) != before).any()
    figures = algorithm.figures(batch)
    assert all(np.isfinite(value) for value in figures.values()) and figures["kl"] > 0


def test_a_saved_state_goes_on_to_the_bit():
    first, second = make("ppo", record=True), make("ppo", record=True, seed=9)
    first.update(acted(first))
    second.load_state_dict(first.state_dict())
    for seed in range(1, 4):
        batch = acted(first, seed)
        for algorithm in (first, second):
            algorithm.update(batch)
    assert torch.equal(parameters(first), parameters(second))


def test_what_is_chosen_depends_on_what_was_seen_before():
    algorithm, rng = make("ppo", VECTOR, BOX), np.random.default_rng(0)
    first, second = (observations(VECTOR, 3, rng) for _ in range(2))
    none = np.zeros(3, np.float32)
    begun = algorithm.choose(second, none, rng)
    state = algorithm.choose(first, none, rng)["next_state"]
    later = algorithm.choose(second, none, rng, state)
    assert (begun["action"] != later["action"]).any()
    assert (algorithm.act(second, none, rng) == begun["action"]).all()
    assert state.shape == (3, algorithm.state_size) == (3, 2 * UNITS) and state.dtype == np.float32


def test_without_memory_nothing_is_carried():
    algorithm, rng = make("ppo", lstm_hidden_size=None), np.random.default_rng(0)
    assert algorithm.state_size == 0 and algorithm.network.memory is None
    chosen = algorithm.choose(observations(VECTOR, 3, rng), np.ones(3, np.float32), rng)
    assert chosen.keys() == {"action", "log_prob"}


@pytest.mark.parametrize("name", NAMES)
def test_rollouts_of_one_step_are_sequences_too(name):
    own = {"batch_size": 2} if "ppo" in name else {}
    algorithm = make(name, rollout_length=1, **own)
    batch = {key: column[:1] for key, column in acted(make(name)).items()}
    rows = algorithm.evaluated(batch)
    torch.testing.assert_close(rows["before"], batch["log_prob"].reshape(-1))
    assert algorithm.update(batch).isfinite().all()


BAD = [
    ("a2c", {"lstm_hidden_size": 0}, "lstm_hidden_size must be at least 1, got 0"),
    ("ppo", {"lstm_hidden_size": 2.5}, "lstm_hidden_size must be"),
    ("ppo", {"batch_size": 8}, "batch_size must be a multiple of rollout_length=6 with lstm_hid"),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD)
def test_hyperparameters_without_meaning_are_refused(name, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(name, **options)
    replace(make("ppo", lstm_hidden_size=None, batch_size=8).options, n_epochs=1)
