"""One thread of torch: several are no faster on small networks, and wait on busy cores."""

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def same_numbers():
    """Each test draws the same numbers, whichever tests came before it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)
