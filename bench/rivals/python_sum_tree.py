"""Prioritized replay in plain Python: what people paste from GitHub into an SB3 project.

A binary sum tree in a Python list (quicker to index one by one than a NumPy array, which others
use), one walk down per sampled row, one walk up per updated row, and NumPy for the rest. The loops
bind their names to locals first.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer


class SumTree:
    """Node 1 is the root, the children of node i are 2i and 2i + 1, the last half are leaves."""

    def __init__(self, capacity: int) -> None:
        self.first_leaf = 1 << max(capacity - 1, 1).bit_length()
        self.nodes = [0.0] * (2 * self.first_leaf)

    @property
    def total(self) -> float:
        return self.nodes[1]

    def set(self, leaf: int, mass: float) -> None:
        """Change one leaf and every sum above it."""
        nodes = self.nodes
        node = leaf + self.first_leaf
        change = mass - nodes[node]
        while node:
            nodes[node] += change
            node >>= 1

    def find(self, prefix: float) -> int:
        """Walk down to the leaf at which the running sum of masses passes `prefix`."""
        nodes, first_leaf, node = self.nodes, self.first_leaf, 1
        while node < first_leaf:
            node *= 2
            left = nodes[node]
            if prefix >= left:
                prefix -= left
                node += 1
        return node - first_leaf

    def fill(self, masses: list[float]) -> None:
        """Set the first leaves at once, for the benchmark's set-up."""
        nodes, first_leaf = self.nodes, self.first_leaf
        nodes[first_leaf : first_leaf + len(masses)] = masses
        for node in range(first_leaf - 1, 0, -1):
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]


class PrioritizedSamples(NamedTuple):
    """SB3's samples, with importance weights and the indices for `update_priorities`."""

    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    rewards: torch.Tensor
    weights: torch.Tensor
    indices: np.ndarray


class PythonPrioritizedReplayBuffer(ReplayBuffer):
    """Proportional prioritization (Schaul et al. 2016) for one environment, on SB3's storage."""

    def __init__(
        self,
        *args: Any,
        alpha: float = 0.6,
        beta: float = 0.4,
        priority_epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.alpha, self.beta, self.priority_epsilon = alpha, beta, priority_epsilon
        self.tree = SumTree(self.buffer_size)
        self.max_mass = 1.0

    def add(self, *args: Any, **kwargs: Any) -> None:
        self.tree.set(self.pos, self.max_mass)
        super().add(*args, **kwargs)

    def sample(self, batch_size: int, env: Any = None) -> PrioritizedSamples:
        """Draw one row from each of `batch_size` equal parts of the total mass."""
        tree = self.tree
        find, nodes, first_leaf = tree.find, tree.nodes, tree.first_leaf
        part = tree.total / batch_size
        last = self.size() - 1
        indices, masses = [], []
        for i in range(batch_size):
            # rounding may lead past the last row
            index = min(find((i + random.random()) * part), last)
            indices.append(index)
            masses.append(nodes[first_leaf + index])
        weights = (np.array(masses) * ((last + 1) / tree.total)) ** -self.beta
        weights /= weights.max()
        index_array = np.array(indices)
        rows = self._get_samples(index_array, env)
        return PrioritizedSamples(
            *rows[:5], self.to_torch(weights.astype(np.float32).reshape(-1, 1)), index_array
        )

    def update_priorities(self, indices: np.ndarray, td_errors: np.ndarray) -> None:
        """Set the priority of each row to |TD error| + epsilon."""
        masses = (np.abs(td_errors) + self.priority_epsilon) ** self.alpha
        set_mass = self.tree.set
        for index, mass in zip(indices.tolist(), masses.tolist(), strict=True):
            set_mass(index, mass)
        self.max_mass = max(self.max_mass, float(masses.max()))
