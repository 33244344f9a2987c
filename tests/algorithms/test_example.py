"""The recipe of an algorithm from outside: it does what its paper says, as built-in ones do."""

import io
import runpy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gym = pytest.importorskip("gymnasium")
from algorithm_runs import (  # noqa: E402
    BOX,
    DISCRETE,
    VECTOR,
    forward,
    make,
    make_batch,
    parameters,
)

from kary_replay.algorithms import (  # noqa: E402
    ALGORITHMS,
    DQN,
    Algorithm,
    DQNOptions,
    OffPolicy,
    Options,
    UnsuitableSpaceError,
    register,
)

RECIPE = Path(__file__).resolve().parents[2] / "docs" / "recipes" / "new_algorithm.py"
NAME = "munchausen-dqn"


@pytest.fixture(autouse=True)
def registered():
    """The recipe's class in the table, as if it had been imported, during a test."""
    before = dict(ALGORITHMS)
    runpy.run_path(str(RECIPE), run_name="new_algorithm")
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)


def test_it_is_found_by_its_name_and_short():
    assert ALGORITHMS[NAME].__mro__[1:3] == (OffPolicy, Algorithm)
    assert RECIPE.read_text(encoding="utf-8").split("def main()")[0].count("\n") < 100


def test_rows_of_several_steps_are_refused():
    with pytest.raises(ValueError, match="n_step must be 1, got 3"):
        make(NAME, n_step=3)


def test_its_errors_are_those_of_the_paper():
    """Equation 1 of arXiv:2007.14430: the policy is the softmax of the target network's values."""
    algorithm = make(NAME, temperature=0.3, scale=0.9, lowest=-0.5)
    algorithm.targets["q"] += 0.3 * torch.randn(
        len(algorithm.targets["q"]), generator=torch.Generator().manual_seed(3)
    )
    assert_errors(algorithm, algorithm.q, lambda batch: algorithm.td_error(batch))  # in actors
    assert_errors(algorithm, algorithm.q_target, lambda batch: algorithm.update(batch))
    batch = make_batch(algorithm, 24)
    assert (algorithm.update(batch) - algorithm.update(batch)).abs().max() > 1e-4  # it learns


def assert_errors(algorithm, network, found):
    batch = make_batch(algorithm, 24)
    double = {key: value.numpy() for key, value in batch.items()}

    def policy(observation):
        e = np.exp(forward(network, observation.astype(np.float64)) / 0.3)
        return e / e.sum(1, keepdims=True)

    rows, action = np.arange(24), double["action"]
    pi, after = policy(double["observation"]), policy(double["next_observation"])
    bonus = 0.9 * np.clip(0.3 * np.log(pi[rows, action]), -0.5, 0)
    value = (after * (forward(network, double["next_observation"]) - 0.3 * np.log(after))).sum(1)
    target = double["reward"] + bonus + double["discount"] * value
    expected = np.abs(forward(algorithm.q, double["observation"])[rows, action] - target)
    np.testing.assert_allclose(found(batch).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_it_behaves_as_the_built_in_ones():
    recorded, plain = make(NAME, record=True), make(NAME)
    for seed in range(10):
        assert torch.equal(
            recorded.update(make_batch(recorded, seed=seed)),
            plain.update(make_batch(plain, seed=seed)),
        )
    assert torch.equal(parameters(recorded), parameters(plain))
    file = io.BytesIO()
    torch.save(recorded.state_dict(), file)
    file.seek(0)
    other = make(NAME, seed=5)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(parameters(recorded), parameters(other))
    action = other.act(torch.randn(50, 5), np.full(50, 1.0, np.float32), np.random.default_rng(0))
    assert action.shape == (50,) and set(action) == {0, 1, 2}
    for spaces in (
        (VECTOR, BOX),
        (gym.spaces.Text(3), DISCRETE),
        (gym.spaces.Box(-1, 1, (2, 3)), DISCRETE),
    ):
        with pytest.raises(UnsuitableSpaceError, match=NAME):
            ALGORITHMS[NAME].check_spaces(*spaces)


def test_a_taken_name_is_refused():
    class Other(DQN):
        pass

    before = dict(ALGORITHMS)
    with pytest.raises(
        ValueError,
        match=r"the name 'dqn' belongs to kary_replay\.algorithms\.dqn\.DQN: choose another",
    ):
        register(Other)
    assert before == ALGORITHMS
    assert register(DQN) is DQN  # again is no harm


def test_a_class_defined_anew_takes_its_own_place():
    def define():
        class Mine(DQN):
            name = "mine"

        return register(Mine)

    first, second = define(), define()
    assert first is not second and ALGORITHMS["mine"] is second


def test_what_is_no_algorithm_is_refused():
    class Former(Algorithm):
        """As an algorithm was written before Algorithm became the base of others, too."""

        name, paper = "former", "https://example.org"

    class FormerOptions(DQN):
        name, options_class = "former", Options

    @dataclass(frozen=True)
    class Width:
        width: int = 64

    class Direct(Algorithm):
        name, paper, flow, options_class = "direct", "https://example.org", "replay", Width

    Direct.__abstractmethods__ = frozenset()  # as if all of it was there

    class Abstract(OffPolicy):
        name, paper = "abstract", "https://example.org"

    class Given(DQN):
        name = "given"

        @classmethod
        def columns(cls, observation_space, action_space):
            return {}

    class Nameless(DQN):
        name = ""

    class Optionless(DQN):
        name, options_class = "optionless", dict

    class MoreOptions(DQNOptions):
        tau: float = 0.5

    class Undecorated(DQN):
        name, options_class = "undecorated", MoreOptions

    cases = {
        "Former names no flow: derive it from kary_replay.algorithms.OffPolicy": Former,
        "must be derived from kary_replay.algorithms.OffPolicyOptions": FormerOptions,
        r"must be derived from kary_replay.algorithms.Options, got .*Width": Direct,
        "is abstract: it still needs build": Abstract,
        "columns of Given must be a method": Given,
        "needs the class attributes name and paper": Nameless,
        "options_class of Optionless must be a dataclass": Optionless,
        r"options_class of Undecorated must be .*: write @dataclass\(frozen=True\)": Undecorated,
        "must be a subclass of Algorithm": dict,
        "subclass of Algorithm, got 'dqn'": "dqn",
    }
    for message, case in cases.items():
        with pytest.raises(TypeError, match=message):
            register(case)
    assert not {"abstract", "", "direct", "optionless", "former", "given"} & set(ALGORITHMS)


def test_what_decide_returns_must_be_a_dict():
    class Bare(DQN):
        name = "bare"

        def decide(self, outputs, exploration, rng):
            return super().decide(outputs, exploration, rng)["action"]

    algorithm = Bare(VECTOR, DISCRETE, DQNOptions(), seed=0)
    with pytest.raises(TypeError, match="decide of Bare must return a dict of arrays with 'action"):
        algorithm.act(
            np.zeros((2, *VECTOR.shape), np.float32), np.zeros(2), np.random.default_rng()
        )
