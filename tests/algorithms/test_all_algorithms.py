"""What holds for every algorithm: observations of any kind, recordings, seeds and states."""

import io

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gym = pytest.importorskip("gymnasium")
from algorithm_runs import (  # noqa: E402
    BOX,
    DISCRETE,
    NAMES,
    NUMBERS,
    SPACES,
    VECTOR,
    make,
    make_batch,
    observations,
    parameters,
)

from kary_replay.algorithms import ALGORITHMS, Options  # noqa: E402


def train(algorithm, n, first=0, n_rows=12):
    for seed in range(first, first + n):
        td_error = algorithm.update(make_batch(algorithm, n_rows, seed))
        assert td_error.shape == (n_rows,) and td_error.dtype == torch.float32
        assert (
            (td_error >= 0).all() and torch.isfinite(td_error).all() and not td_error.requires_grad
        )
    return algorithm


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("space", SPACES)
def test_any_observations(name, space):
    n = 3 if space == "vector" else 2
    algorithm = make(name, SPACES[space])
    before = parameters(algorithm).clone()
    train(algorithm, n, n_rows=4)
    assert (parameters(algorithm) != before).any()
    rng = np.random.default_rng(0)
    observation = observations(SPACES[space], 5, rng)
    arrays = (
        {key: part.numpy() for key, part in observation.items()}
        if space == "dict"
        else observation.numpy()
    )
    one, two = (
        algorithm.act(kind, np.full(5, 0.3, np.float32), np.random.default_rng(1))
        for kind in (observation, arrays)
    )
    assert (one == two).all() and one.shape == (5, *algorithm.action_space.shape)
    assert algorithm.td_error(make_batch(algorithm, 3)).shape == (3,)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("space", SPACES)
def test_every_part_of_an_observation_matters(name, space):
    options = {"prioritize_by": "td_error"} if name == "dqn" else {}
    algorithm = make(name, SPACES[space], **options)
    batch = make_batch(algorithm, 4)
    td_error = algorithm.td_error(batch)
    keys = batch["observation"] if space == "dict" else [None]
    for key in keys:
        changed = (batch["observation"][key] if key else batch["observation"]).roll(1, 0)
        changed = {**batch["observation"], key: changed} if key else changed
        assert not torch.equal(td_error, algorithm.td_error({**batch, "observation": changed})), key


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("space", SPACES)
def test_recorded_is_unrecorded(name, space):
    n, n_rows = (20, 12) if space == "vector" else (2, 3)
    recorded, plain = (
        train(make(name, SPACES[space], record=record), n, n_rows=n_rows)
        for record in (True, False)
    )
    torch.testing.assert_close(*map(parameters, (recorded, plain)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_what_native_programs_do_not_know_is_recorded_to_the_bit(name):
    half = gym.spaces.Box(-1, 1, (2,), np.float16)
    space = gym.spaces.Dict({**SPACES["dict"].spaces, "half": half})
    recorded, plain = (train(make(name, space, record=kind), 2, n_rows=3) for kind in (True, False))
    assert torch.equal(parameters(recorded), parameters(plain))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_any_dtype_are_read_by_native_programs(name, kind):
    native, plain = (make(name, NUMBERS[kind], record=record) for record in (True, False))
    for seed in range(3):
        errors = [algorithm.update(make_batch(algorithm, 3, seed)) for algorithm in (native, plain)]
        torch.testing.assert_close(*errors, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(parameters(native), parameters(plain), rtol=1e-3, atol=1e-4)
    assert all(tape is not None for tape in native._replayed._tapes.values())
    assert native._replayed._tapes


@pytest.mark.parametrize("name", NAMES)
def test_a_large_epsilon_damps_steps_along_small_gradients(name):
    """Adam's first step is the rate times g / (|g| + epsilon)."""
    moved = []
    for epsilon in (1e-8, 1e3):
        algorithm = make(name, adam_epsilon=epsilon)
        (weights, *_) = [minimizer.flat for minimizer in algorithm.minimizers.values()]
        before = weights.clone()
        train(algorithm, 1)
        moved.append(float((weights - before).abs().max()))
    assert 0 < moved[1] < 0.05 * moved[0]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_minimizer_has_the_epsilon_that_is_asked_for(name):
    cls = ALGORITHMS[name]
    space = BOX if name in ("ddpg", "td3", "sac") else DISCRETE
    for epsilon in (None, 0.25):
        given = {} if epsilon is None else {"adam_epsilon": epsilon}
        algorithm = cls(VECTOR, space, cls.options_class(**given))
        wanted = epsilon or (1e-5 if cls.learns_from == "rollouts" else 1e-8)
        assert [one._adam_settings["eps"] for one in algorithm.minimizers.values()] == [
            wanted
        ] * len(algorithm.minimizers)


@pytest.mark.parametrize("name", NAMES)
def test_the_sizes_of_batches_may_change(name):
    algorithms = [make(name, record=record) for record in (True, False)]
    for number, n_rows in enumerate((12, 5, 12, 1, 5)):
        for algorithm in algorithms:
            train(algorithm, 1, number, n_rows)
    torch.testing.assert_close(*map(parameters, algorithms), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides(name):
    torch.manual_seed(1)
    one = train(make(name, seed=3), 4)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two, other = train(make(name, seed=3), 4), train(make(name, seed=4), 4)
    assert torch.equal(parameters(one), parameters(two)) and not torch.equal(
        parameters(one), parameters(other)
    )
    assert torch.equal(state, torch.get_rng_state())  # the global stream is the caller's


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_before", [3, 4])
def test_a_saved_state_goes_on_to_the_bit(name, n_before):
    options = {"target_interval": 3, "tau": 0.5}
    first = train(make(name, record=True, **options), n_before)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    train(first, 8, n_before)
    # with recordings that have to go on
    second = train(make(name, seed=9, record=True, **options), 1)
    second.load_state_dict(torch.load(file, weights_only=True))
    train(second, 8, n_before)
    assert (
        torch.equal(parameters(first), parameters(second)) and first.n_updates == second.n_updates
    )
    assert torch.equal(first.noise(5, 5), second.noise(5, 5))
    rng = np.random.default_rng
    actions = [a.act(torch.ones(4, 5), np.ones(4, np.float32), rng(0)) for a in (first, second)]
    assert (actions[0] == actions[1]).all()


PARTS = [
    (name, lost) for name in NAMES for lost in ("minimizers", "targets", "generator", "n_updates")
]
DRAW_NOTHING = [("dqn", "generator"), ("ddpg", "generator")]


@pytest.mark.parametrize(("name", "lost"), [pair for pair in PARTS if pair not in DRAW_NOTHING])
def test_a_lost_part_of_a_state_would_be_noticed(name, lost):
    first = train(make(name, target_interval=3, tau=0.5), 4)
    state = {**first.state_dict(), lost: make(name).state_dict()[lost]}
    train(first, 8, 4)
    second = make(name, target_interval=3, tau=0.5)
    second.load_state_dict(state)
    train(second, 8, 4)
    assert not torch.equal(parameters(first), parameters(second))


@pytest.mark.parametrize("name", NAMES)
def test_the_policy_is_what_acting_needs(name):
    """The policy's parameters alone, in another object, give the same actions."""
    trained, actor = train(make(name), 3), make(name, seed=7)
    actor.policy.load_state_dict(trained.policy.state_dict())
    exploration = np.full(50, 0.5, np.float32)
    one, two = (
        algorithm.act(torch.ones(50, 5), exploration, np.random.default_rng(0))
        for algorithm in (trained, actor)
    )
    assert (one == two).all()
    n_policy = sum(parameter.numel() for parameter in trained.policy.parameters())
    assert (
        n_policy
        <= (minimizer := trained.minimizers.get("actor") or trained.minimizers["q"]).flat.numel()
    )
    assert minimizer.flat.data_ptr() == next(trained.policy.parameters()).data_ptr()


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_names_itself_its_paper_and_its_options(name):
    cls = ALGORITHMS[name]
    assert (
        cls.name == name
        and cls.paper.startswith("https://")
        and issubclass(cls.options_class, Options)
    )
    assert cls.options_class().gamma == 0.99
