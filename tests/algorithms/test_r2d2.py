"""Recurrent Q-learning from sequences, beside the same computed step by step in float64."""

import copy
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from algorithm_runs import (  # noqa: E402
    DISCRETE,
    NUMBERS,
    SPACES,
    VECTOR,
    observations,
    parameters,
)
from test_recurrence import cell_of  # noqa: E402

from kary_replay import PrioritizedReplayBuffer  # noqa: E402
from kary_replay.algorithms import R2D2, R2D2Options, Share  # noqa: E402
from kary_replay.algorithms.r2d2 import EPSILON, scaled, unscaled  # noqa: E402
from kary_replay.algorithms.updates import recorded  # noqa: E402
from kary_replay.algorithms.updates.translation import NativeProgram  # noqa: E402

LENGTH, BURN_IN, N_STEP, UNITS, N_ROWS = 12, 3, 2, 5, 7
SMALL = {
    "hidden": (8,),
    "lstm_hidden_size": UNITS,
    "sequence_length": LENGTH,
    "burn_in": BURN_IN,
    "n_step": N_STEP,
    "gamma": 0.9,
    "learning_rate": 0.01,
}


def make(space=VECTOR, *, record=False, seed=0, share=None, apart=True, **options):
    """Return an algorithm whose target network differs from the trained one."""
    made = R2D2(space, DISCRETE, R2D2Options(**{**SMALL, **options}), seed=seed, share=share)
    if apart:
        noise = torch.randn(made.targets["q"].shape, generator=torch.Generator().manual_seed(5))
        made.targets["q"] += 0.3 * noise
    for minimizer in made.minimizers.values():
        if not record:
            minimizer._compute = minimizer._gradient
    return made


def make_batch(algorithm, n=N_ROWS, seed=0):
    """Return random sequences: whole ones, such as end, and such as begin within the burn-in."""
    rng = np.random.default_rng(seed)
    length, burn_in = algorithm.options.sequence_length, algorithm.options.burn_in
    ends = np.zeros((2, n, length), bool)
    mask = np.ones((n, length), bool)
    for row in range(n):
        mask[row, : rng.integers(burn_in + 1) if row % 2 else 0] = False
        kind = row % 3  # 0: goes on, 1: terminated, 2: truncated
        if kind:
            last = int(rng.integers(burn_in, length))
            ends[kind - 1, row, last] = True
            mask[row, last + 1 :] = False
    seen = observations(algorithm.observation_space, n * length, rng)

    def by_sequence(column):
        column = column.reshape(n, length, *column.shape[1:]).clone()
        column[torch.from_numpy(~mask)] = 0
        return column

    state = rng.uniform(-1, 1, (n, algorithm.state_size)).astype(np.float32)
    return {
        "observation": {key: by_sequence(part) for key, part in seen.items()}
        if isinstance(seen, dict)
        else by_sequence(seen),
        "action": by_sequence(torch.from_numpy(rng.integers(3, size=n * length))),
        "reward": by_sequence(torch.from_numpy(rng.normal(size=n * length).astype(np.float32))),
        "terminated": torch.from_numpy(ends[0]),
        "truncated": torch.from_numpy(ends[1]),
        "mask": torch.from_numpy(mask),
        "recurrent_state": torch.from_numpy(state),
        "importance_weight": torch.from_numpy(rng.uniform(0.1, 1, n).astype(np.float32)),
    }


def values_of(network, observation, state, mask):
    """Return the values of every step of sequences, float64 [B, L, n_actions], by torch's cell."""
    network = copy.deepcopy(network)
    n, length = len(state), network_length(observation)
    with torch.no_grad():
        cell = cell_of(network.memory)[0].double()
        h, c = state.double().chunk(2, 1)
        found = []
        for t in range(length):
            if t:
                h, c = (torch.where(mask[:, t - 1 : t], part, 0.0) for part in (h, c))
            seen = (
                {key: part[:, t] for key, part in observation.items()}
                if isinstance(observation, dict)
                else observation[:, t]
            )
            h, c = cell(network.encoder(seen).double(), (h, c))
            advantage = network.advantage.double()(h)
            found.append(advantage)
            if network.value is not None:
                value = network.value.double()(h)
                found[-1] = advantage - advantage.mean(1, keepdim=True) + value
    return torch.stack(found, 1).numpy().reshape(n, length, -1)


def network_length(observation):
    one = next(iter(observation.values())) if isinstance(observation, dict) else observation
    return one.shape[1]


def h(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + EPSILON * x


def h_inverse(x):
    inner = np.sqrt(1 + 4 * EPSILON * (np.abs(x) + 1 + EPSILON)) - 1
    return np.sign(x) * ((inner / (2 * EPSILON)) ** 2 - 1)


def expected_of(algorithm, batch, network=None):
    """Return errors by (row, step), and priorities: what is learned from, step by step."""
    options = algorithm.options
    network = network or algorithm.q_target
    state = batch["recurrent_state"] * float(options.stored_state)
    q = values_of(algorithm.q, batch["observation"], state, batch["mask"])
    following = values_of(network, batch["observation"], state, batch["mask"])
    chooser = q if options.double or network is algorithm.q else following
    to, back = (h, h_inverse) if options.rescaling else (lambda x: x, lambda x: x)
    action, reward = batch["action"].numpy(), batch["reward"].double().numpy()
    errors, priorities = {}, []
    for row in range(len(action)):
        n_real = int(np.flatnonzero(batch["mask"][row].numpy())[-1]) + 1
        ends = bool(batch["terminated"][row].any())
        cut = bool(batch["truncated"][row].any())
        own = []
        for t in range(options.burn_in, n_real):
            left = n_real - 1 - t  # steps after this one
            if left >= options.n_step:
                n, bootstraps = options.n_step, True
            elif ends:
                n, bootstraps = left + 1, False
            elif cut and left:
                n, bootstraps = left, True
            else:
                continue
            target = sum(options.gamma**k * reward[row, t + k] for k in range(n))
            if bootstraps:
                best = chooser[row, t + n].argmax()
                target += options.gamma**n * back(following[row, t + n, best])
            errors[row, t] = q[row, t, action[row, t]] - to(target)
            own.append(abs(errors[row, t]))
        largest, mean = (max(own), np.mean(own)) if own else (0.0, 0.0)
        priorities.append(options.eta * largest + (1 - options.eta) * mean)
    return errors, np.array(priorities)


def found_of(algorithm, batch):
    """Return the same of the algorithm."""
    rows = algorithm.rows(batch)
    *read, weight = rows.values()
    with torch.no_grad():
        q, target, priority = algorithm.values(algorithm.q_target, *read)
    n, burn_in = len(batch["mask"]), algorithm.options.burn_in
    error = (q - target).reshape(-1, n).numpy()
    learned = rows["is_learned"].reshape(-1, n).numpy()
    weights = weight.reshape(-1, n).numpy()
    where = {(row, t + burn_in) for t, row in zip(*np.nonzero(learned), strict=True)}
    return (
        {(row, t): error[t - burn_in, row] for row, t in where},
        {(row, t): weights[t - burn_in, row] for row, t in where},
        priority.numpy(),
        float(np.abs(weights[learned == 0]).max(initial=0)),
    )


CASES = {
    "as usual": {},
    "no burn-in": {"burn_in": 0},
    "one step": {"n_step": 1},
    "not double": {"double": False},
    "not dueling": {"dueling": False},
    "from zeros": {"stored_state": False},
    "on the scale of rewards": {"rescaling": False},
    "by the mean": {"eta": 0.0},
    "long look": {"n_step": 8},
}


def assert_as_expected(algorithm, batch):
    errors, priorities = expected_of(algorithm, batch)
    found, weights, priority, beside = found_of(algorithm, batch)
    assert found.keys() == errors.keys() and beside == 0
    np.testing.assert_allclose(
        [found[key] for key in errors], [errors[key] for key in errors], rtol=1e-4, atol=1e-5
    )
    weight = batch["importance_weight"].numpy()
    np.testing.assert_array_equal(
        [weights[key] for key in errors], [weight[row] for row, _ in errors]
    )
    np.testing.assert_allclose(priority, priorities, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_errors_and_priorities_are_those_of_single_steps(case):
    algorithm = make(**CASES[case])
    for seed in range(4):
        assert_as_expected(algorithm, make_batch(algorithm, seed=seed))


@pytest.mark.parametrize("kind", ["image", "dict"])
def test_of_any_observations(kind):
    algorithm = make(SPACES[kind], sequence_length=6, burn_in=2)
    assert_as_expected(algorithm, make_batch(algorithm, 3))


def goes_on_from_padding(algorithm):
    rows = algorithm.rows
    algorithm.rows = lambda batch: (
        (found := rows(batch)) | {"goes_on": torch.ones_like(found["goes_on"])}
    )


FAULTS = {
    "the burn-in is learned from": lambda a: setattr(a.q, "burn_in", 0),
    "padding is remembered": goes_on_from_padding,
    "states are forgotten": lambda a: setattr(a, "options", replace(a.options, stored_state=False)),
    "targets look further": lambda a: setattr(a, "options", replace(a.options, n_step=3)),
    "another discount": lambda a: setattr(a, "options", replace(a.options, gamma=0.8)),
    "no rescaling": lambda a: setattr(a, "options", replace(a.options, rescaling=False)),
    "the trained network values": lambda a: setattr(a, "q_target", a.q),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_would_be_noticed(fault):
    right, wrong = make(), make()
    batch = make_batch(right)
    FAULTS[fault](wrong)
    errors, _ = expected_of(right, batch)
    try:
        found = found_of(wrong, batch)[0]
    except (RuntimeError, IndexError):
        return  # sizes that do not fit
    assert found.keys() != errors.keys() or not np.allclose(
        [found[key] for key in errors], list(errors.values()), rtol=1e-3, atol=1e-4
    )


def test_the_gradient_is_that_of_the_weighted_loss():
    algorithm = make(huber_delta=0.5)
    batch = make_batch(algorithm)
    rows = algorithm.rows(batch)
    loss, _ = algorithm.loss(*rows.values())
    errors, _ = expected_of(algorithm, batch)
    weight, delta = batch["importance_weight"].double().numpy(), 0.5
    huber = {
        key: 0.5 * e * e if abs(e) <= delta else delta * (abs(e) - 0.5 * delta)
        for key, e in errors.items()
    }
    n_rows = N_ROWS * (LENGTH - BURN_IN)
    expected = sum(weight[row] * huber[row, t] for row, t in errors) / n_rows
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)
    loss.backward()
    trained = algorithm.q.memory.recurrent.weight
    for place in [(0, 0), (7, 3), (19, 4)]:
        steps = []
        for sign in (1, -1):
            other = copy.deepcopy(algorithm)
            other.minimizers["q"].flat.copy_(algorithm.minimizers["q"].flat)
            with torch.no_grad():
                other.q.memory.recurrent.weight[place] += sign * 1e-2
            steps.append(float(fixed_targets(other, algorithm, rows)))
        numeric = (steps[0] - steps[1]) / 2e-2
        assert float(trained.grad[place]) == pytest.approx(numeric, rel=0.05, abs=1e-5)


def fixed_targets(algorithm, fixed, rows):
    """Return the loss of an algorithm with the targets, and the burnt-in states, of another."""
    *read, weight = rows.values()
    with torch.no_grad():
        target = fixed.values(fixed.q_target, *read)[1]
        n_before = BURN_IN * N_ROWS
        goes_on = rows["goes_on"]
        seen = rows["observation"][:n_before]
        _, states = fixed.q.memory(seen, rows["state"], goes_on[:n_before])
        state = states[-N_ROWS:] * goes_on[n_before:].unsqueeze(1)
        network = copy.deepcopy(algorithm.q)
        network.burn_in = 0
        outputs = network(rows["observation"][n_before:], state, goes_on)
        q = outputs.gather(1, rows["action"].unsqueeze(1)).squeeze(1)
        delta = fixed.options.huber_delta
        loss = torch.nn.functional.huber_loss(q, target, reduction="none", delta=delta)
        return (weight * loss).mean()


def test_what_lies_behind_the_end_does_not_matter():
    algorithm = make()
    batch = make_batch(algorithm)
    other = {name: column.clone() for name, column in batch.items()}
    behind = ~batch["mask"]
    other["observation"][behind] = 3.0
    other["reward"][behind] = 7.0
    other["action"][behind] = 2
    one, two = (algorithm.update(each) for each in (batch, other))
    again = make()
    assert not torch.equal(one, two)  # the second came after the first
    assert torch.equal(one, again.update(other))
    assert not behind.all() and behind.any()


def test_the_figure_of_values_is_of_the_steps_that_are_learned_from():
    algorithm = make()
    batch = make_batch(algorithm)
    other = {name: column.clone() for name, column in batch.items()}
    other["observation"][~batch["mask"]] = 3.0
    other["action"][~batch["mask"]] = 2
    assert algorithm.figures(batch)["q"] == algorithm.figures(other)["q"] != 0


def test_values_come_back_from_their_scale():
    x = torch.cat([torch.linspace(-5, 5, 101), torch.tensor([-1e4, -300.0, 300.0, 1e4, 1e-5])])
    np.testing.assert_allclose(scaled(x), h(x.double().numpy()), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(unscaled(x), h_inverse(x.double().numpy()), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(unscaled(scaled(x)), x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", [*CASES, "numbers of any dtype"])
def test_updates_are_native_programs_and_do_the_same(case):
    space = VECTOR if case in CASES else NUMBERS["all"]
    native, plain = (make(space, record=record, **CASES.get(case, {})) for record in (True, False))
    for seed in range(6):
        batch = make_batch(plain, seed=seed)
        one, two = (algorithm.update(batch) for algorithm in (native, plain))
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(parameters(native), parameters(plain), rtol=1e-3, atol=1e-4)
    (program,) = native.minimizers["q"]._compute.programs.values()
    assert isinstance(program, NativeProgram)
    assert [tape is not None for tape in native._replayed._tapes.values()] == [True]


def test_what_actors_ask_is_what_learners_find_with_caught_up_targets():
    algorithm = make(apart=False)
    batch = make_batch(algorithm)
    error = algorithm.td_error({k: v for k, v in batch.items() if k != "importance_weight"})
    torch.testing.assert_close(error, algorithm.update(batch))


def test_two_learners_take_the_step_of_one():
    whole = make()
    batch = make_batch(whole, 8)
    together = [make(share=Share(index, 2, lambda vector: None)) for index in range(2)]
    gradients = []
    for index, learner in enumerate(together):
        rows = slice(4 * index, 4 * index + 4)
        part = {name: column[rows] for name, column in batch.items()}
        gradients.append(learner.minimizers["q"]._gradient(*learner.rows(part).values())[0])
    expected = whole.minimizers["q"]._gradient(*whole.rows(batch).values())[0]
    mean = whole.minimizers["q"]._clipped((gradients[0] + gradients[1]) / 2)
    torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-6)


def test_a_blank_batch_changes_no_number_to_nan():
    algorithm = make()
    blank = {name: torch.zeros_like(column) for name, column in make_batch(algorithm).items()}
    before = parameters(algorithm).clone()
    algorithm.warm_up(blank)
    assert torch.equal(parameters(algorithm), before)
    assert torch.isfinite(algorithm.update(blank)).all()


def test_programs_are_compared_on_a_batch_that_is_learned_from(monkeypatch):
    """The batch of zeros that a learner begins with would let any gradient pass."""
    compared, agrees = [], recorded.agrees

    def spy(program, graph, tensors):
        compared.append(program(*tensors)[0].abs().max())
        return agrees(program, graph, tensors)

    monkeypatch.setattr(recorded, "agrees", spy)
    algorithm = make(record=True)
    blank = {name: torch.zeros_like(column) for name, column in make_batch(algorithm).items()}
    blank["importance_weight"] += 1
    algorithm.warm_up(blank)
    assert compared and all(size > 0 for size in compared)


def test_a_row_stands_for_the_steps_that_are_learned_from():
    assert make().steps_per_row == LENGTH - BURN_IN - N_STEP
    assert make(sequence_period=4).steps_per_row == 4


def test_acting_goes_on_as_the_learner_reads_sequences():
    algorithm = make(burn_in=0)
    batch = make_batch(algorithm)
    every = torch.ones_like(batch["mask"])
    q = values_of(algorithm.q, batch["observation"], batch["recurrent_state"], every)
    state = batch["recurrent_state"].numpy()
    for t in range(LENGTH):
        outputs, state = algorithm.outputs_and_state(batch["observation"][:, t], state)
        advantage = q[:, t] - q[:, t].mean(1, keepdims=True)
        np.testing.assert_allclose(
            outputs - outputs.mean(1, keepdims=True), advantage, rtol=1e-4, atol=1e-5
        )


def test_the_writer_cuts_what_actors_do():
    algorithm = make(sequence_period=4)
    buffer = PrioritizedReplayBuffer(100, algorithm.columns(), seed=0)
    writer = algorithm.writer(buffer, 2)
    rng = np.random.default_rng(0)
    state, seen = algorithm.initial_state(2), rng.normal(size=(21, 2, 5)).astype(np.float32)
    carried = []
    for t in range(20):
        outputs, following = algorithm.outputs_and_state(torch.from_numpy(seen[t]), state)
        carried.append(state)
        ends = np.array([t == 19, t == 15])
        writer.add(
            observation=seen[t],
            next_observation=seen[t + 1],
            action=outputs.argmax(1),
            reward=np.full(2, t, np.float32),
            terminated=ends,
            truncated=np.zeros(2, bool),
            state=state,
        )
        state = np.where(ends[:, None], 0, following).astype(np.float32)
    rows = {name: buffer.field_view(name)[: len(buffer)] for name in buffer.fields}
    n_before = rows["mask"].argmax(1)  # steps of padding
    starts = [int(reward[n]) for reward, n in zip(rows["reward"], n_before, strict=True)]
    assert sorted(zip(starts, n_before, strict=True)) == [
        *((0, BURN_IN) for _ in range(2)), (1, 0), (1, 0), (5, 0), (5, 0), (9, 0)
    ]  # fmt: skip
    for row, start in enumerate(starts):
        first = rows["observation"][row, n_before[row]]
        env = next(e for e in range(2) if (first == seen[start, e]).all())
        np.testing.assert_array_equal(rows["recurrent_state"][row], carried[start][env])


def test_a_reset_of_one_environment_leaves_the_steps_of_others():
    algorithm = make()
    buffer = PrioritizedReplayBuffer(10, algorithm.columns(), seed=0)
    writer = algorithm.writer(buffer, 2)
    n_steps = LENGTH - BURN_IN  # padding comes before them
    for t in range(n_steps):
        if t == n_steps - 1:
            writer.reset(0)
        writer.add(
            observation=np.zeros((2, 5), np.float32),
            next_observation=np.zeros((2, 5), np.float32),
            action=np.zeros(2, np.int64),
            reward=np.array([t, 100 + t], np.float32),
            terminated=np.zeros(2, bool),
            truncated=np.zeros(2, bool),
            state=algorithm.initial_state(2),
        )
    expected = [[0] * BURN_IN + [100 + t for t in range(n_steps)]]
    assert buffer.field_view("reward")[: len(buffer)].tolist() == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"burn_in": 80}, "burn_in must be from 0 to 79, shorter than a sequence, got 80"),
        ({"sequence_length": 13}, r"above burn_in \+ n_step = 13, got 13: there would be nothing"),
        ({"sequence_period": 68}, "at most sequence_length - burn_in - n_step = 67, got 68"),
        ({"lstm_hidden_size": 0}, "lstm_hidden_size"),
        ({"eta": 1.5}, "eta"),
        ({"sequence_period": 0}, "sequence_period"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        R2D2Options(**options)
