"""What several threads and processes touch: the tree, the slots, the lock, shared memory.

It is private to the package and needs NumPy alone. ``concurrency.md`` of the documentation says
what is promised.
"""
