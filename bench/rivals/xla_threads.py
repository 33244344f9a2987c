"""How many threads XLA has, which is JAX's compiler."""

from __future__ import annotations

import os


def leave_one_thread() -> None:
    """Leave XLA one thread to work with; call this before JAX is imported.

    XLA works with as many threads as this process finds cores, unless PJRT_NPROC says otherwise. It
    reads that when it starts. The flag beside it alone would not do: the work still goes round in
    several threads. But with one thread to share work with, nothing is gained by cutting products
    up, and the flag keeps XLA from it. The one thread is not the caller's, which waits.
    """
    os.environ.update(
        PJRT_NPROC="1", XLA_FLAGS="--xla_cpu_multi_thread_eigen=false", JAX_PLATFORMS="cpu"
    )
