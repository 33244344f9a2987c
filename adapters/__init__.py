"""Replay buffers of kary-replay that speak the language of other reinforcement learning libraries.

One folder per library, each needing only that library: ``kary_replay.adapters.sb3`` for
Stable-Baselines3, ``kary_replay.adapters.tianshou`` for Tianshou. An adapter keeps the names and
the behaviour its users know; the priorities, and for Stable-Baselines3 the rows, are held natively
by ``kary_replay``.
"""
