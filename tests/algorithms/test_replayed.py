"""Updates whose native calls are made again, beside those carried out each time."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from algorithm_runs import DICT, NAMES, make, make_batch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kary_replay.algorithms import MLP, Minimizer, flatten  # noqa: E402
from kary_replay.algorithms.updates.minimizer import Share, move_towards  # noqa: E402
from kary_replay.algorithms.updates.replayed import MAX_TAPES, Replayed  # noqa: E402
from kary_replay.algorithms.updates.tape import CHECK_INTERVAL, Tape  # noqa: E402
from kary_replay.native.program import WORDS, Program, Sequence  # noqa: E402


def pair(name, **options):
    """An algorithm, and one like it that carries each update out."""
    replayed, plain = (make(name, record=True, **options) for _ in range(2))
    plain._replayed = plain._all_steps
    return replayed, plain


def tapes(algorithm):
    return list(algorithm._replayed._tapes.values())


def assert_same(one, other):
    """Assert that two states are the same, bit for bit."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("name", NAMES)
def test_replayed_updates_are_those_carried_out(name):
    replayed, plain = pair(name, learning_rate=1e-2)
    if name == "dqn":
        replayed, plain = pair(name, learning_rate=1e-2, target_interval=3)
    for number in range(20):
        for algorithm in (replayed, plain):
            if number == 12:
                algorithm.advance(0.5)
            if number == 15:
                algorithm.load_state_dict(algorithm.state_dict())
        batch = make_batch(replayed, seed=number)
        assert torch.equal(replayed.update(batch), plain.update(batch))
        if number % 4 == 0:
            assert replayed.figures(batch) == plain.figures(batch)
    assert_same(replayed.state_dict(), plain.state_dict())
    assert all(isinstance(tape, Tape) for tape in tapes(replayed))
    assert len(tapes(replayed)) == {"dqn": 2, "ddpg": 1, "td3": 2, "sac": 1}[name]


def test_a_batch_of_another_size_is_another_kind():
    replayed, plain = pair("sac")
    for n in (12, 12, 5, 12, 5, 5, 12):
        batch = make_batch(replayed, n=n, seed=n)
        assert torch.equal(replayed.update(batch), plain.update(batch))
    assert len(tapes(replayed)) == 2


def test_what_is_not_native_is_carried_out_each_time():
    replayed, plain = pair("sac", observation_space=DICT)
    plain_dqn = make("dqn", record=False)
    for number in range(4):
        batch = make_batch(replayed, seed=number)
        assert torch.equal(replayed.update(batch), plain.update(batch))
        plain_dqn.update(make_batch(plain_dqn, seed=number))
    assert tapes(plain_dqn) == [None]


def test_results_outlast_the_next_update():
    algorithm = make("td3", record=True)
    first = [algorithm.update(make_batch(algorithm, seed=number)) for number in range(8)]
    kept = [one.clone() for one in first]
    algorithm.update(make_batch(algorithm, seed=9))
    assert all(map(torch.equal, first, kept))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_leave_the_original_alone(copied):
    algorithm = make("sac", record=True)
    for number in range(4):
        algorithm.update(make_batch(algorithm, seed=number))
    twin, before = copied(algorithm), copy.deepcopy(algorithm.state_dict())
    assert tapes(twin) == [] and isinstance(tapes(algorithm)[0], Tape)
    for number in range(4):
        twin.update(make_batch(algorithm, seed=number))
    assert_same(algorithm.state_dict(), before)


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_learn_as_the_original_does(copied, name, record):
    algorithm = make(name, record=record)
    for number in range(3):
        algorithm.update(make_batch(algorithm, seed=number))
    twin = copied(algorithm)
    for minimizer in twin.minimizers.values():
        inside = range(minimizer.flat.data_ptr(), minimizer.flat.data_ptr() + minimizer.flat.nbytes)
        assert all(one.data_ptr() in inside for one in minimizer._parameters)
    before = next(twin.policy.parameters()).clone()
    for number in range(3, 8):
        one, other = (each.update(make_batch(each, seed=number)) for each in (algorithm, twin))
        assert torch.equal(one, other)
    assert_same(algorithm.state_dict(), twin.state_dict())
    assert_same(dict(algorithm.policy.state_dict()), dict(twin.policy.state_dict()))
    assert not torch.equal(next(twin.policy.parameters()), before)


def test_networks_that_are_made_anew_are_trained():
    replayed, plain = pair("dqn", learning_rate=1e-2)
    for number in range(12):
        if number == 6:
            for algorithm in (replayed, plain):
                with torch.random.fork_rng():
                    torch.manual_seed(3)
                    algorithm.build()
        batch = make_batch(replayed, seed=number)
        assert torch.equal(replayed.update(batch), plain.update(batch))
    assert_same(replayed.state_dict(), plain.state_dict())
    assert len(tapes(replayed)) == 1 and isinstance(tapes(replayed)[0], Tape)


def assigned(module):
    module.load_state_dict(copy.deepcopy(module.state_dict()), assign=True)


def taken_by_another(module):
    flatten([module])


def converted(module):
    module.double().float()


def parametrized(module):
    first = next(one for one in module.modules() if isinstance(one, torch.nn.Linear))
    torch.nn.utils.parametrizations.orthogonal(first)


@pytest.mark.parametrize("change", [assigned, taken_by_another, converted, parametrized])
def test_replayed_steps_notice_parameters_that_have_other_memory(change):
    algorithm = make("sac", record=True)
    for number in range(4):
        algorithm.update(make_batch(algorithm, seed=number))
    assert isinstance(tapes(algorithm)[0], Tape)

    def updates():
        for number in range(CHECK_INTERVAL):
            algorithm.update(make_batch(algorithm, seed=number))

    updates()
    change(algorithm.policy)
    with pytest.raises(RuntimeError, match="parameters that are trained have other memory"):
        updates()


def test_columns_of_one_array_may_lie_anywhere_in_it():
    replayed, plain = pair("ddpg")
    rng = np.random.default_rng(0)
    for number in range(6):
        batch = make_batch(replayed, seed=number)
        sizes = [batch[name].numel() for name in batch]
        whole = torch.zeros(2 * sum(sizes))
        starts = np.cumsum([0, *rng.permutation(sizes)])[: len(sizes)] + rng.integers(0, 9)
        order, moved, at = rng.permutation(list(batch)), {}, int(starts[0])
        for name in order:
            part = batch[name]
            moved[name] = whole[at : at + part.numel()].view(part.shape)
            moved[name].copy_(part)
            at += part.numel() + int(rng.integers(3))
        moved = {name: moved[name] for name in batch}
        assert torch.equal(replayed.update(moved), plain.update(batch))
    assert isinstance(tapes(replayed)[0], Tape)


def test_an_action_out_of_range_is_an_error_each_time():
    algorithm = make("dqn", record=True)
    for number in range(4):
        algorithm.update(make_batch(algorithm, seed=number))
    batch = make_batch(algorithm)
    batch["action"][3] = 7
    with pytest.raises(IndexError, match="actions count from 0"):
        algorithm.update(batch)
    algorithm.update(make_batch(algorithm))


class Trained:
    """A network, and functions that train it in ways of their own."""

    def __init__(self):
        torch.manual_seed(0)
        self.network, self.target = MLP(3, (8,), 1), MLP(3, (8,), 1)
        self.minimizer = Minimizer([self.network], self.loss, 1e-2)
        self.n_calls = 0

    def loss(self, x, y):
        value = self.network(x).squeeze(1)
        return F.mse_loss(value, y, reduction="none").mean(), (value.detach() - y).abs()

    def step(self, batch):
        self.n_calls += 1
        return self.minimizer.step(batch["x"], batch["y"])[0]

    def of_part(self, batch):
        self.n_calls += 1
        return self.minimizer.step(batch["x"][2:], batch["y"][:-2])[0]

    def with_an_operation(self, batch):
        return self.step({**batch, "y": batch["y"] * 2})

    def with_an_operation_after(self, batch):
        return self.step(batch) * 2

    def twice(self, batch):
        return self.step({**batch, "y": self.step(batch)})

    def of_a_clone(self, batch):
        return self.step({**batch, "y": batch["y"].clone()})

    def of_a_clone_of_parameters(self, batch):
        y = self.minimizer.flat[: len(batch["y"])].clone()
        self.step(batch)
        return self.minimizer.step(batch["x"], y)[0]

    def in_place(self, batch):
        error = self.step(batch)
        with torch.no_grad():
            self.network[0].bias.zero_()
        return error

    def by_hand(self, batch):
        error = self.step(batch)
        move_towards(self.minimizer.flat, torch.ones_like(self.minimizer.flat), 0.1)
        return error

    def of_numpy(self, batch):
        return self.step({**batch, "y": torch.from_numpy(batch["y"].numpy() * 2)})

    def cut(self, batch):
        return self.step(batch)[:5]

    def beside(self, batch):
        return self.step({**batch, "y": batch["y"]._base[:12]})

    def reshaped(self, batch):
        return self.step({**batch, "y": batch["y"].view(2, 6).T.reshape(-1)})

    def as_other_numbers(self, batch):
        return self.step({**batch, "y": batch["y"].view(torch.int32).view(torch.float32)})


REPLAYED = {"step": 2, "of_part": 2, "of_a_clone": 2, "as_other_numbers": 2}


@pytest.mark.parametrize(
    "how",
    [
        "step",
        "of_part",
        "with_an_operation",
        "with_an_operation_after",
        "twice",
        "of_a_clone",
        "of_a_clone_of_parameters",
        "in_place",
        "by_hand",
        "of_numpy",
        "cut",
        "beside",
        "reshaped",
        "as_other_numbers",
    ],
)
def test_whatever_a_function_does_it_is_done_each_time(how):
    one, other = Trained(), Trained()
    replayed, plain = Replayed(getattr(one, how)), getattr(other, how)
    for number in range(6):
        generator = torch.Generator().manual_seed(number)
        batch = {
            "x": torch.randn(12, 3, generator=generator),
            "y": torch.randn(24, generator=generator)[6:18],
        }
        with torch.inference_mode(number > 0 and how == "reshaped"):
            assert torch.equal(replayed(batch), plain(batch)), number
        assert torch.equal(one.minimizer.flat, other.minimizer.flat), number
    assert one.n_calls == REPLAYED.get(how, other.n_calls)


def test_whatever_averages_gradients_is_asked_each_time():
    calls = []
    algorithm = make("sac", record=True, share=Share(0, 2, calls.append))
    for number in range(6):
        algorithm.update(make_batch(algorithm, seed=number))
    assert len(calls) == 18 and tapes(algorithm) == [None]


def test_columns_that_no_step_reads_may_be_anything():
    replayed, plain = pair("dqn")
    for number in range(4):
        batch = make_batch(replayed, seed=number)
        for extra in (np.arange(12), None, [1], 3, {"a": {"b": torch.ones(1)}}):
            td_error = replayed.update({**batch, "extra": extra})
            assert torch.equal(td_error, plain.update(batch))
    for number in range(100):
        replayed.update({**batch, "extra": torch.zeros(number)})
    assert len(replayed._replayed._seen) <= MAX_TAPES


def test_batches_are_not_kept():
    algorithm, kept = make("td3", record=True), []
    for number in range(12):
        for n in range(3, 9):
            batch = make_batch(algorithm, n=n, seed=number)
            kept.append(weakref.ref(batch["observation"]))
            algorithm.update(batch)
    del batch
    gc.collect()
    assert sum(one() is not None for one in kept) <= 2


def test_columns_that_overlap_are_no_riddle():
    one, other = Trained(), Trained()
    replayed, plain = Replayed(one.step), other.step
    for number in range(6):
        whole = torch.randn(60, generator=torch.Generator().manual_seed(number))
        batch = {"x": whole[:36].view(12, 3), "y": whole[number : 12 + number]}
        assert torch.equal(replayed(batch), plain(batch)), number


def test_tapes_do_not_pile_up():
    one = Trained()
    replayed = Replayed(one.step)
    for n in range(1, MAX_TAPES + 9):
        for _ in range(2):
            replayed({"x": torch.ones(n, 3), "y": torch.ones(n)})
    assert len(replayed._tapes) == MAX_TAPES


def test_a_failure_while_it_is_written_down_leaves_nothing_behind():
    one, fails = Trained(), [False, True]

    def step(batch):
        error = one.step(batch)
        if fails and fails.pop(0):
            raise ValueError("no")
        return error

    replayed, batch = Replayed(step), {"x": torch.ones(4, 3), "y": torch.ones(4)}
    replayed(batch)
    with pytest.raises(ValueError, match="no"):
        replayed(batch)
    for _ in range(4):
        replayed(batch)
    assert torch.ones(2).add(1).sum() == 4 and one.n_calls == 4


def test_sequences_say_what_does_not_fit():
    sequence = Sequence()
    program = Program(np.zeros((0, 1 + WORDS), np.int64), np.zeros((0, 2)), 2)
    with pytest.raises(ValueError, match="works on 2 pieces, got 1"):
        sequence.add_program(program, [(0, 0)])
    with pytest.raises(ValueError, match="5 addresses, got 2"):
        sequence.add_adam([(0, 0), (0, 4)], 1, 0.9, 0.999, 1e-8)
    with pytest.raises(ValueError, match="2 addresses, got 1"):
        sequence.add_approach([(0, 0)], 1, 0.5)
    sequence.add_program(program, [(0, 0), (3, 0)])
    with pytest.raises(ValueError, match="0 steps of Adam, got 1 rates"):
        sequence.run([], [0.1])
    with pytest.raises(ValueError, match="address 1 is in piece 3 of 1"):
        sequence.run([lambda: 0], [])
