"""What observations are made features by, for learners and for whoever acts."""

import copy
import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
torch = pytest.importorskip("torch")
from algorithm_runs import BOARD, DICT, IMAGE, VECTOR  # noqa: E402
from gymnasium import spaces  # noqa: E402

from kary_replay.algorithms import Encoder, networks  # noqa: E402
from kary_replay.algorithms.updates import recorded  # noqa: E402
from kary_replay.algorithms.updates.translation import NativeProgram  # noqa: E402

SMALL = spaces.Box(0, 255, (2, 36, 37), np.uint8)
SPACES = {
    "image": SMALL,
    "board": BOARD,
    "flat image": spaces.Box(0, 255, (40, 36), np.uint8),
    "dict": DICT,
    "dict of two": spaces.Dict({"camera": SMALL, "board": BOARD}),
    "vector": VECTOR,
    "numbers": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    "bytes": spaces.Box(0, 255, (10, 10, 3), np.uint8),
    "discrete": spaces.Discrete(4, start=-2),
    "bits": spaces.MultiBinary([2, 3]),
}
WITH_CONVOLUTIONS = list(SPACES)[:5]


def batch_of(space, n_rows, seed=0):
    space.seed(seed)
    rows = [space.sample() for _ in range(n_rows)]
    if isinstance(space, spaces.Dict):
        return {key: torch.from_numpy(np.stack([row[key] for row in rows])) for key in space}
    return torch.from_numpy(np.stack(rows))


def as_arrays(batch):
    if isinstance(batch, dict):
        return {key: part.numpy() for key, part in batch.items()}
    return batch.numpy()


def rows_of(batch, rows):
    if isinstance(batch, dict):
        return {key: part[rows] for key, part in batch.items()}
    return batch[rows]


def by_torch(encoder, batch):
    with torch.no_grad():
        return encoder(batch).numpy()


def programs_of(encoder):
    """The programs of an encoder's convolutions, by their numbers of rows."""
    return [
        {kind[1][0][0][0]: program for kind, program in part._recorded.programs.items()}
        for part in encoder.parts
        if isinstance(part, networks.CNN)
    ]


def check(encoder, batch, atol=1e-5):
    """Features for whoever acts are those for learners, but for rounding; return them."""
    found = encoder.numpy(batch)
    expected = by_torch(encoder, batch)
    assert found.dtype == np.float32 and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=atol)
    return found


@pytest.mark.parametrize(
    ("name", "n_features", "n_weights"),
    [("nature", 512, 1_684_128), ("data_efficient", 256, 202_208)],
)
def test_networks_for_images_are_those_of_their_papers(name, n_features, n_weights):
    """Weights and biases, added up by hand; the larger is also that of Stable-Baselines3."""
    encoder = Encoder(IMAGE, name)
    assert encoder.n_features == n_features
    assert sum(parameter.numel() for parameter in encoder.parameters()) == n_weights
    image = torch.randint(256, (3, *IMAGE.shape), dtype=torch.uint8)
    features = encoder(image)
    assert features.shape == (3, n_features) and features.min() == 0 < features.max()
    brighter = image.clone()
    brighter[1] = 255 - brighter[1]
    assert ((encoder(brighter) != features).any(1) == torch.tensor([False, True, False])).all()


def test_images_without_an_axis_of_channels_have_one():
    flat, deep = spaces.Box(0, 255, (84, 80), np.uint8), spaces.Box(0, 255, (1, 84, 80), np.uint8)
    torch.manual_seed(0)
    first = Encoder(flat)
    torch.manual_seed(0)
    second = Encoder(deep)
    assert first.n_features == second.n_features == 512
    image = torch.randint(256, (3, 84, 80), dtype=torch.uint8)
    assert torch.equal(first(image), second(image.unsqueeze(1)))
    assert Encoder(spaces.Dict({"camera": flat})).n_features == 256
    assert Encoder(spaces.Box(0, 255, (84, 3), np.uint8)).n_features == 252  # too small for one
    assert Encoder(spaces.Box(0, 255, (84, 84), np.float32)).n_features == 84 * 84  # not bytes


@pytest.mark.parametrize("name", SPACES)
def test_who_acts_has_the_features_of_who_learns(name):
    encoder, batch = Encoder(SPACES[name]), batch_of(SPACES[name], 5)
    first = check(encoder, batch)
    assert first.std(0).max() > 0, "all observations have the same features"
    before = first.copy()
    assert np.array_equal(encoder.numpy(as_arrays(batch)), before)
    encoder.numpy(batch_of(SPACES[name], 5, seed=1))
    assert np.array_equal(first, before), "the next batch was written over the features of this one"
    for programs in programs_of(encoder):
        assert set(programs) == {5}
        assert all(isinstance(program, NativeProgram) for program in programs.values())


@pytest.mark.parametrize("name", WITH_CONVOLUTIONS)
def test_features_do_not_depend_on_the_batch(name, monkeypatch):
    """To the bit, so that it does not matter which batches came before a run went on."""
    space = SPACES[name]
    monkeypatch.setattr(networks, "MOST_NUMBERS", 9 * 2 * 36 * 37)
    torch.manual_seed(0)
    encoder, batch = Encoder(space), batch_of(space, 23)
    whole = check(encoder, batch)
    for n_rows in (0, 1, 2, 3, 8, 9, 20):
        found = encoder.numpy(rows_of(batch, slice(1, 1 + n_rows)))
        assert np.array_equal(found, whole[1 : 1 + n_rows])
    for programs in programs_of(encoder):
        assert {1, 2, 3, 8} <= set(programs) <= {1, 2, 3, 4, 7, 8, 10, 16, 20, 24}
    if name == "image":
        assert max(programs_of(encoder)[0]) == 8, "more numbers at once than was allowed"


def test_sizes_of_programs_are_few_and_little_is_too_much():
    cnn = networks.BoardCNN(BOARD.shape)
    cnn._most_rows = 64
    met = set()
    for n_rows in range(200):
        sizes = list(cnn._sizes(n_rows))
        assert n_rows <= sum(sizes) and sum(sizes[:-1]) < max(1, n_rows)
        assert sum(sizes) < 1.25 * n_rows or not n_rows
        assert len(sizes) == -(-n_rows // 64)
        met |= set(sizes)
    assert sorted(met) == [*range(1, 9), *range(10, 17, 2), *range(20, 33, 4), *range(40, 65, 8)]


@pytest.mark.parametrize("name", ["image", "board", "flat image"])
def test_observations_of_another_shape_are_refused(name):
    space = SPACES[name]
    encoder, batch = Encoder(space), batch_of(space, 4)
    shape = tuple(batch.shape)
    others = [shape[1:], (2, 2, *shape[1:]), (*shape[:-2], shape[-1] + 1, shape[-2]), (4, -1)]
    for other in [*others, (4, *reversed(shape[1:])), (2, *shape[1:-1], -1)]:
        if int(np.prod(other)) == batch.numel() or -1 in other:
            wrong = batch.reshape(other)
        else:
            wrong = torch.zeros(other, dtype=batch.dtype)
        with pytest.raises(ValueError, match=r"images must be \[B, \*\("):
            encoder.numpy(wrong)


@pytest.mark.parametrize("name", WITH_CONVOLUTIONS)
def test_it_acts_by_the_parameters_of_now(name):
    encoder, batch = Encoder(SPACES[name]), batch_of(SPACES[name], 4)
    first = check(encoder, batch)
    other = pickle.loads(pickle.dumps(copy.deepcopy(encoder)))
    for parameter in encoder.parameters():
        parameter.data = 2 * parameter.data  # as where a minimizer makes one vector of all
    with torch.no_grad():
        next(encoder.parameters()).add_(0.01)
    assert not np.allclose(check(encoder, batch, atol=1e-4), first)
    assert np.array_equal(other.numpy(batch), first), "a copy reads the parameters of the original"
    assert list(encoder.state_dict()) == list(other.state_dict())
    assert not any("._" in f".{name}" for name in encoder.state_dict())
    encoder.load_state_dict(other.state_dict(), assign=True)
    assert np.array_equal(encoder.numpy(batch), first), "the parameters before are still read"
    encoder.to(memory_format=torch.channels_last)
    check(encoder, batch)
    encoder.double()
    with pytest.raises(RuntimeError, match=r"float|Float|dtype"):
        encoder.numpy(batch)
    check(encoder.float(), batch)


def test_an_empty_network_is_filled():
    with torch.device("meta"):
        encoder = Encoder(BOARD)
    full, batch = Encoder(BOARD), batch_of(BOARD, 2)
    encoder.to_empty(device="cpu").load_state_dict(full.state_dict())
    assert np.array_equal(encoder.numpy(batch), full.numpy(batch))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_it_is_native_whatever_torch_keeps_of_gradients(mode):
    encoder, batch = Encoder(DICT), as_arrays(batch_of(DICT, 4))
    with mode():
        inside = encoder.numpy(batch)
    (programs,) = programs_of(encoder)
    assert isinstance(programs[4], NativeProgram)
    assert np.array_equal(encoder.numpy(batch), inside) and programs_of(encoder) == [programs]


def test_images_of_any_layout_and_dtype():
    encoder, batch = Encoder(SMALL), as_arrays(batch_of(SMALL, 4))
    expected = check(encoder, torch.from_numpy(batch))
    last = np.ascontiguousarray(np.moveaxis(batch, 1, -1))
    twice = np.repeat(batch, 2, axis=3)[..., ::2]
    for images in (np.moveaxis(last, -1, 1), twice, batch.astype(np.float64), batch.astype(int)):
        assert np.array_equal(encoder.numpy(images), expected)
    assert all(isinstance(program, NativeProgram) for program in programs_of(encoder)[0].values())


def test_threads_may_act_by_the_same_convolutions():
    encoder = Encoder(BOARD)
    batches = [batch_of(BOARD, 5, seed) for seed in range(4)]
    alone = [encoder.numpy(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        together = [pool.submit(encoder.numpy, batch) for batch in 250 * batches]
        for number, features in enumerate(together):
            assert np.array_equal(features.result(), alone[number % 4])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_acts_whatever_threads_of_its_parent_did():
    encoder, batch = Encoder(BOARD), batch_of(BOARD, 4)
    expected = encoder.numpy(batch)
    forked = multiprocessing.get_context("fork")
    with encoder.parts[0]._recorded._lock, recorded.RECORDING:
        child = forked.Process(target=act_alike, args=(encoder, batch, expected))
        child.start()
        child.join(60)
    if child.is_alive():
        child.kill()
    assert child.exitcode == 0
    assert np.array_equal(encoder.numpy(batch), expected)


def act_alike(encoder, batch, expected):
    assert np.array_equal(encoder.numpy(batch), expected)
