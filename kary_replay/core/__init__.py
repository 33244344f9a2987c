"""What several threads and processes touch: the tree, the slots with their rows, the lock, shared memory. Private.

``concurrency.md`` of the documentation says what is promised. Everything here needs NumPy alone.
"""
