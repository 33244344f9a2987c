"""One thin wrapper per rival, with the same methods, rows and priorities.

`sample(batch)`, `update(batch)`, `cycle(batch)` and `add()` return a `Contender` whose call is the
rival's own bound method wherever the rival's method can be called as it is, so that no wrapper is
timed. What a rival cannot do is not offered.
"""
