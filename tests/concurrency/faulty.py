"""Buffers and trees with planted races, for the proof that the checks in this folder see them.

Each is the real thing with one promise broken, the way a plausible implementation would break it.
"""

import time

import numpy as np

import kary_replay as kr


def let_others_run():
    """Give up the interpreter lock, so that another thread may run between two steps."""
    time.sleep(0)


class ReadsWithoutLooking(kr.PrioritizedReplayBuffer):
    """Copies the words of rows again, without asking whether the rows changed meanwhile."""

    def sample(self, batch_size, **options):
        batch = super().sample(batch_size, **options)
        name = "words" if "words" in self.fields else "body"
        vars(batch)[name] = self.field_view(name)[batch.index]
        return batch


class AppliesStaleHandles(kr.PrioritizedReplayBuffer):
    """Gives the priority to whoever lives in the slot now."""

    def update_priorities(self, handle, td_error):
        self.tree.set(handle["index"], np.abs(td_error) + self.priority_epsilon)
        return len(handle)


class ChecksHandlesTooEarly(kr.PrioritizedReplayBuffer):
    """Looks whether the handles are current, and writes the priorities a moment later."""

    def update_priorities(self, handle, td_error):
        before = self.tree.get(handle["index"])
        n_applied = super().update_priorities(handle, td_error)
        if n_applied == len(handle):
            mass = self.tree.get(handle["index"])
            let_others_run()
            self.tree.set(handle["index"], np.where(before > 0, mass, before))
        return n_applied


class WritesAfterPublishing(kr.PrioritizedReplayBuffer):
    """Writes half of each row's words when the slot may already be another writer's."""

    def add(self, *, priority=None, **fields):
        index = super().add(priority=priority, **fields)
        let_others_run()
        words = np.asarray(fields["words"])
        self.field_view("words")[index, : words.shape[-1] // 2] = words[:, : words.shape[-1] // 2]
        return index


class UpdatesInTwoSteps(kr.PrioritizedReplayBuffer):
    """Lets others see a mass that nobody asked for."""

    def update_priorities(self, handle, td_error):
        self.tree.set(handle["index"][:1], 2.0)
        let_others_run()
        return super().update_priorities(handle, td_error)


class AddsDifferences(kr.PrioritizedReplayBuffer):
    """Adds the difference between the new mass and one that may have changed since it was read."""

    def update_priorities(self, handle, td_error):
        difference = np.abs(td_error) + self.priority_epsilon - self.tree.get(handle["index"])
        let_others_run()
        self.tree.set(handle["index"], np.maximum(self.tree.get(handle["index"]) + difference, 0.0))
        return len(handle)


class LosesUpdates(kr.SumTree):
    """Reads all masses, changes some, writes all."""

    def set(self, index, mass):
        masses = self.get(np.arange(self.capacity))
        masses[index] = mass
        let_others_run()
        super().set(np.arange(self.capacity), masses)


class FindsTheNextLeaf(kr.SumTree):
    """Returns the leaf after the right one."""

    def sample(self, batch_size, **options):
        return (super().sample(batch_size, **options) + 1) % self.capacity
