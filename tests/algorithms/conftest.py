"""One thread of torch: several are no faster on small networks, and wait on busy cores."""

import pytest

torch = pytest.importorskip("torch")


from same_numbers import same_numbers  # noqa: E402, F401


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)
