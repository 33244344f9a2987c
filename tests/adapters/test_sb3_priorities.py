"""After training, tree and losses are those of an account of the TD errors kept in NumPy."""

import pytest
import torch
from sb3_runs import ALGORITHMS, audited_run

from kary_replay.adapters.sb3 import PrioritizedReplayBuffer
from kary_replay.adapters.sb3.prioritized_loss import PrioritizedTensor, SampledBatch

LOSSES = {"DQN": 1, "DDPG": 1, "TD3": 2, "SAC": 2, "QRDQN": 1, "TQC": 1, "CrossQ": 2}


AS_0_1_0 = {"uniform_share": 0.0, "prioritize_by": "td_error"}
PRIORITIZED = {"uniform_share": 0.1}  # what the default becomes where priorities pay


@pytest.mark.parametrize(
    "options", [{}, PRIORITIZED, AS_0_1_0], ids=["default", "prioritized", "0.1.0"]
)
@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_tree_and_losses_agree_with_the_account(name, n_envs, options, monkeypatch):
    account = audited_run(name, monkeypatch, n_envs=n_envs, **options).replay_buffer
    assert account.n_batches >= 25
    assert account.n_losses == LOSSES[name] * account.n_batches


@pytest.mark.parametrize(
    ("alpha", "beta", "epsilon"), [(1.0, 1.0, 1e-6), (0.3, 0.0, 0.05), (0.0, 1.0, 1e-6)]
)
def test_exponents_and_epsilon(alpha, beta, epsilon, monkeypatch):
    exponents = {"alpha": alpha, "beta": beta, "priority_epsilon": epsilon}
    audited_run("TD3", monkeypatch, **exponents, **PRIORITIZED)


def drop_the_weights(monkeypatch):
    def loss(self, function, input, target, **options):
        self.record(input.detach() - target)
        return function(input, target, **options)

    monkeypatch.setattr(SampledBatch, "loss", loss)


def shift_the_weights(monkeypatch):
    true_loss = SampledBatch.loss

    def loss(self, *args, **kwargs):
        shifted = SampledBatch(self.handle, self.importance_weight.roll(1, 0), [])
        result = true_loss(shifted, *args, **kwargs)
        self.record(shifted.td_error)
        return result

    monkeypatch.setattr(SampledBatch, "loss", loss)


def average_the_critics(monkeypatch):
    true_record = SampledBatch.record

    def record(self, td_error):
        first = self.td_error
        true_record(self, td_error)
        if first is not None:
            self.td_error = (first.abs() + td_error.abs()) / 2

    monkeypatch.setattr(SampledBatch, "record", record)


def keep_the_last_critic_only(monkeypatch):
    true_record = SampledBatch.record

    def record(self, td_error):
        self.td_error = None
        true_record(self, td_error)

    monkeypatch.setattr(SampledBatch, "record", record)


def misplace_the_errors(monkeypatch):
    true_record = SampledBatch.record
    monkeypatch.setattr(
        SampledBatch, "record", lambda self, td_error: true_record(self, td_error.roll(1, 0))
    )


def lose_every_write(monkeypatch):
    monkeypatch.setattr(
        PrioritizedReplayBuffer, "flush_priorities", lambda self: self._updates.pending.clear()
    )


def draw_before_writing(monkeypatch):
    true_sample = PrioritizedReplayBuffer.sample
    true_flush = PrioritizedReplayBuffer.flush_priorities

    def sample(self, *args):
        monkeypatch.setattr(PrioritizedReplayBuffer, "flush_priorities", lambda self: None)
        samples = true_sample(self, *args)
        monkeypatch.setattr(PrioritizedReplayBuffer, "flush_priorities", true_flush)
        self.flush_priorities()
        return samples

    monkeypatch.setattr(PrioritizedReplayBuffer, "sample", sample)


def forget_the_batch(monkeypatch):
    def unmarked(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(PrioritizedTensor, "__torch_function__", classmethod(unmarked))


@pytest.mark.filterwarnings("ignore:PrioritizedReplayBuffer. a batch was sampled")
@pytest.mark.parametrize(
    "fault",
    [
        drop_the_weights,
        shift_the_weights,
        average_the_critics,
        keep_the_last_critic_only,
        misplace_the_errors,
        lose_every_write,
        draw_before_writing,
        forget_the_batch,
    ],
    ids=lambda fault: fault.__name__,
)
def test_rejects_a_planted_fault(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        audited_run("TD3", monkeypatch, alpha=0.6, beta=0.4, **PRIORITIZED)
