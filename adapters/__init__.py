"""Replay buffers of kary-replay that speak the language of other reinforcement learning libraries.

One folder per library, each needing only that library: ``kary_replay.adapters.sb3`` for
Stable-Baselines3. An adapter keeps the names and the behaviour its users know and holds its rows and
priorities in a native ``kary_replay`` buffer.
"""
