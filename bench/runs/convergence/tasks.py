"""What has to be learned, and when it counts as learned. No rival is imported here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """An algorithm on an environment."""

    algorithm: str
    env_id: str
    threshold: float  # mean return of 100 greedy episodes
    # environment steps after which a run gives up: several times what the slowest rival usually
    # needs
    budget: int
    snapshot_every: int  # environment steps
    snapshots_per_chunk: int = 4  # training goes on for so long before its snapshots are evaluated

    @property
    def label(self) -> str:
        """The task as people would name it."""
        return f"{self.algorithm.upper()}, {self.env_id}"


TASKS = {
    "cartpole_dqn": Task("dqn", "CartPole-v1", 475.0, 300_000, 500, 10),
    "pendulum_ddpg": Task("ddpg", "Pendulum-v1", -200.0, 60_000, 500),
    "pendulum_td3": Task("td3", "Pendulum-v1", -200.0, 60_000, 500),
    "pendulum_sac": Task("sac", "Pendulum-v1", -200.0, 60_000, 500),
    "lunarlander_dqn": Task("dqn", "LunarLander-v3", 200.0, 600_000, 5_000, 2),
    # on-policy: all have the same settings, of RL Baselines3 Zoo, and for A2C of our preset
    "cartpole_ppo": Task("ppo", "CartPole-v1", 475.0, 200_000, 1_000, 10),
    "pendulum_ppo": Task("ppo", "Pendulum-v1", -200.0, 300_000, 4_096),
    "cartpole_a2c": Task("a2c", "CartPole-v1", 475.0, 500_000, 5_000),
}
UNITS = (64, 256)
RIVALS = ("sb3", "sbx", "tianshou", "rllib", "cleanrl", "sample_factory", "runner")
# rivals that run these tasks alone
ONLY = {
    # what its tuned examples have settings for; it has no DDPG and no TD3
    "rllib": ("cartpole_dqn", "pendulum_sac"),
    # its batches are whole rollouts; Pendulum's are of 64 steps, and its rollouts of 1,024
    "sample_factory": ("cartpole_ppo",),
}

# who has these algorithms; the others have those that learn from replay
ON_POLICY_RIVALS = {
    "ppo": ("sb3", "sbx", "cleanrl", "sample_factory", "runner"),
    "a2c": ("sb3", "runner"),
}
ON_POLICY_TASKS = tuple(name for name, task in TASKS.items() if task.algorithm in ON_POLICY_RIVALS)
OFF_POLICY_TASKS = tuple(name for name in TASKS if name not in ON_POLICY_TASKS)


def takes_part(rival: str, task: str) -> bool:
    """Whether a rival runs a task."""
    if task not in ONLY.get(rival, TASKS):
        return False
    if task in ON_POLICY_TASKS:
        return rival in ON_POLICY_RIVALS[TASKS[task].algorithm]
    return rival != "cleanrl"


# who trains with whose settings, where they are the same for all: ours in one process, where acting
# and learning take turns, and in parallel
SB3, SBX, IN_TURN, PARALLEL = MACHINES = ("sb3", "sbx", "in turn", "parallel")
THEIRS, OURS = SETTINGS_OF = ("sb3", "kary-replay")
