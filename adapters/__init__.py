"""Replay buffers of kary-replay with the interfaces of other reinforcement learning libraries.

Each library has a package of its own, which needs that library and no other:
``kary_replay.adapters.sb3`` for Stable-Baselines3, ``kary_replay.adapters.tianshou`` for Tianshou,
``kary_replay.adapters.rllib`` for RLlib. An adapter keeps the names and the behaviour that its
users know. The native buffer and tree of kary_replay hold the priorities and, but for Tianshou, the
rows as well.
"""
