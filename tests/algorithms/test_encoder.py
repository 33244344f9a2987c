"""What observations are made features by, for learners and for whoever acts."""

import copy
import gc
import multiprocessing
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
torch = pytest.importorskip("torch")
from algorithm_runs import BOARD, DICT, IMAGE, VECTOR  # noqa: E402
from gymnasium import spaces  # noqa: E402
from torch.nn.utils import parametrizations, parametrize  # noqa: E402

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
    encoder.to(memory_format=torch.contiguous_format)
    assert np.array_equal(encoder.numpy(batch), first)
    encoder.double()
    with pytest.raises(RuntimeError, match=r"float|Float|dtype"):
        encoder.numpy(batch)
    check(encoder.float(), batch)


def other_weight(convolutions, layer):
    layer.weight = torch.nn.Parameter(1.5 * layer.weight)


def other_bias(convolutions, layer):
    layer.bias.data = layer.bias + 1


def other_state(convolutions, layer):
    state = {name: 1.5 * value for name, value in convolutions.state_dict().items()}
    convolutions.load_state_dict(state, assign=True)


def other_layout(convolutions, layer):
    convolutions.to(memory_format=torch.channels_last)


def other_strides(convolutions, layer):
    layer.weight.data = layer.weight.data.transpose(2, 3)


def computed(convolutions, layer):
    parametrizations.spectral_norm(layer)


def computed_bias(convolutions, layer):
    parametrize.register_parametrization(layer, "bias", torch.nn.Tanh(), unsafe=True)
    layer.parametrizations.bias.original.data += 1


BY_LAYER = [other_weight, other_bias, other_strides, computed, computed_bias]
CHANGES = [*BY_LAYER, other_state, other_layout]


@pytest.mark.parametrize("change", CHANGES)
def test_part_of_a_network_may_be_changed_after_it_has_acted(change):
    encoder, batch = Encoder(SMALL), batch_of(SMALL, 3)
    former = check(encoder, batch)
    convolutions = encoder.parts[0].cnn
    change(convolutions, convolutions[0])
    encoder.eval()  # else spectral_norm goes on at each call
    changed = check(encoder, batch, atol=1e-3)
    assert change is other_layout or not np.allclose(changed, former, rtol=0.01)
    check(encoder, batch, atol=1e-3)


def test_parts_of_other_dtypes_are_refused_after_it_has_acted():
    encoder, batch = Encoder(SMALL), batch_of(SMALL, 3)
    for change, back in (("half", "float"), ("double", "float")):
        former = check(encoder, batch)
        getattr(encoder.parts[0].cnn, change)()
        with pytest.raises(RuntimeError, match=r"float|Float|Half|dtype|type"):
            encoder.numpy(batch)
        getattr(encoder.parts[0].cnn, back)()
        np.testing.assert_allclose(encoder.numpy(batch), former, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("change", BY_LAYER)
@pytest.mark.parametrize("number", [0, 2])
def test_layers_for_vectors_may_be_changed_after_they_have_acted(change, number):
    mlp, features = networks.MLP(4, (4,), 4), np.random.default_rng(0).normal(size=(3, 4))
    features = features.astype(np.float32)

    def compare(network):
        found = network.numpy(features)
        with torch.no_grad():
            expected = network(torch.from_numpy(features)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        return found

    former = compare(mlp)
    if change is other_strides:
        mlp[number].weight.data = mlp[number].weight.data.clone().t()
    else:
        change(mlp, mlp[number])
    mlp.eval()
    changed = compare(mlp)
    assert not np.allclose(changed, former)
    if change not in (computed, computed_bias):  # which torch cannot pickle
        size = len(pickle.dumps(networks.MLP(4, (4,), 4)))
        assert len(pickle.dumps(mlp)) < size + 64, "views are sent, too"
        assert np.array_equal(pickle.loads(pickle.dumps(mlp)).numpy(features), changed)
    other = copy.deepcopy(mlp)
    with torch.no_grad():
        next(mlp.parameters()).add_(1)
    compare(mlp)
    np.testing.assert_allclose(other.numpy(features), changed, rtol=1e-5, atol=1e-5)


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


def test_strides_of_axes_of_one_do_not_matter():
    space = spaces.Box(0, 1, (1, 10, 10), bool)
    encoder = Encoder(space)
    assert isinstance(encoder.parts[0], networks.BoardCNN)
    many = as_arrays(batch_of(space, 6))
    expected = check(encoder, torch.from_numpy(many[:1]))
    last = np.ascontiguousarray(np.moveaxis(many, 1, -1))
    for images in (many[0][None], many[::6], np.moveaxis(last, -1, 1)[:1]):
        assert np.array_equal(encoder.numpy(images), expected)
    (programs,) = encoder.parts[0]._recorded.programs.values()
    assert isinstance(programs, NativeProgram)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_acts_where_torch_casts(dtype):
    encoder, batch = Encoder(BOARD), batch_of(BOARD, 2)
    plain, found = check(encoder, batch), {}
    for other in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", other):
            found[other] = encoder.numpy(batch)
            with torch.no_grad():
                expected = encoder(batch)
        assert expected.dtype == other and found[other].dtype == np.float32
        np.testing.assert_allclose(found[other], expected.float(), rtol=0.02, atol=0.02)
    assert not np.array_equal(found[dtype], plain)
    assert not np.array_equal(found[torch.bfloat16], found[torch.float16])


def test_no_random_number_of_another_thread_is_drawn_twice(monkeypatch):
    encoder, batch = Encoder(SMALL), batch_of(SMALL, 3)

    def rewound(state):
        raise AssertionError("the generator that all threads share was set back")

    monkeypatch.setattr(torch.random, "set_rng_state", rewound)
    before = torch.get_rng_state()
    encoder.numpy(batch)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_was_recorded_does_not_stay():
    encoder, batch = Encoder(SMALL), batch_of(SMALL, 7)
    gc.collect()
    gc.disable()
    try:
        encoder.numpy(batch)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what torch has deprecated, and gc shows
            every = [each for each in gc.get_objects() if type(each) is torch.Tensor]
        kept = [each for each in every if len(each.shape) == 4 and len(each) == 7]
        assert all(each is batch or each.data_ptr() == batch.data_ptr() for each in kept)
    finally:
        gc.enable()


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
        children = [forked.Process(target=act_alike, args=(encoder, batch, expected))]
        children[0].start()
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(act_until, stop, encoder, batch)
        for _ in range(10):
            children.append(forked.Process(target=act_alike, args=(encoder, batch, expected)))
            children[-1].start()
        stop.set()
        assert busy.result() > 0
    for child in children:
        child.join(60)
        if child.is_alive():
            child.kill()
        assert child.exitcode == 0
    assert np.array_equal(encoder.numpy(batch), expected)


def act_until(stop, encoder, batch):
    n = 0
    while not stop.is_set():
        encoder.numpy(batch)
        n += 1
    return n


def act_alike(encoder, batch, expected):
    """In a forked child: programs are still there, those of threads of its own and of one."""
    (before,) = encoder.parts[0]._recorded.programs.values()
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(encoder.numpy, [batch] * 8):
            assert np.array_equal(found, expected)
    assert np.array_equal(encoder.parts[0]._recorded(batch)[0].numpy(), expected)
    assert list(encoder.parts[0]._recorded.programs.values()) == [before]
    assert np.array_equal(encoder.numpy(batch[:3]), expected[:3])
