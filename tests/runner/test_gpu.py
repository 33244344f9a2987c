"""Runs whose networks are on a GPU, where there is one."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from runs import config, hosted, worker  # noqa: E402

from kary_replay.runner import Runner  # noqa: E402
from kary_replay.runner.policies.checkpoint_policy import checkpoint_policy  # noqa: E402
from kary_replay.runner.streams.parameters import published  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

IMAGES = "bench.runs.synthetic_envs:images"
NO_COST = {"env_options": {"waiting": 0.0, "computing": 0.0}}
FEW = {**NO_COST, "buffer_capacity": 500}
RUNS = {
    "dqn": ("dqn", "CartPole-v1", {}, {}),
    "c51, dueling": ("dqn", "CartPole-v1", {"n_atoms": 11, "dueling": True}, {}),
    "rainbow": ("dqn", "CartPole-v1", {"n_atoms": 11, "dueling": True, "noisy": True}, {}),
    "quantiles": ("dqn", "CartPole-v1", {"n_quantiles": 5}, {}),
    "quantiles, noisy": ("dqn", IMAGES, {"n_quantiles": 5, "noisy": True}, FEW),
    "r2d2": ("r2d2", "CartPole-v1", {}, {}),
    "r2d2 of images": ("r2d2", IMAGES, {}, FEW),
    "frames": ("dqn", "stacked_envs:make", {"n_step": 3}, {}),
    "dqn of images": ("dqn", IMAGES, {}, FEW),
    "ddpg": ("ddpg", "Pendulum-v1", {}, {}),
    "td3": ("td3", "Pendulum-v1", {}, {}),
    "sac": ("sac", "Pendulum-v1", {}, {}),
    "a2c": ("a2c", "CartPole-v1", {}, {}),
    "ppo": ("ppo", "Pendulum-v1", {}, {"normalize_observations": True}),
    "impala": ("impala", "CartPole-v1", {}, {}),
    "appo": ("appo", "CartPole-v1", {}, {}),
    "ppo of images": ("ppo", IMAGES, {}, NO_COST),
    "ppo that remembers": ("ppo", "CartPole-v1", {"lstm_hidden_size": 6}, {}),
    "impala that remembers": ("impala", "CartPole-v1", {"lstm_hidden_size": 6}, {}),
}


def run(name, directory, **settings):
    algorithm, env, options, others = RUNS[name]
    how = {"total_env_steps": 800, "device": "cuda", **others, **settings}
    return Runner(config(algorithm, env, directory, options, **how)).run()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_and_its_policy_plays_on_the_cpu(name, tmp_path):
    result = run(name, tmp_path / "run")
    assert result.updates > 0
    again = Runner.resume(tmp_path / "run", total_env_steps=result.env_steps + 400).run()
    assert again.env_steps >= result.env_steps + 400 and again.updates > result.updates
    policy = checkpoint_policy(tmp_path / "run")
    env = policy.env_factory()
    observation, _ = env.reset(seed=0)
    action = policy.act(observation[None])
    assert env.action_space.contains(action[0])
    env.close()
    for vector in published(policy.algorithm, whole=True):
        assert vector.device.type == "cpu" and vector.isfinite().all()


@pytest.mark.parametrize(
    "name",
    ["dqn", "rainbow", "frames", "r2d2", "sac", "ppo", "ppo of images", "ppo that remembers"],
)
def test_policy_workers_answer_from_a_gpu(name, tmp_path):
    how = {"inference": "worker", "inference_device": "cuda", "backend": "process", "actors": 2}
    for device in ("cpu", "cuda"):
        result = run(name, tmp_path / device, device=device, **how)
        assert result.env_steps >= 800 and result.updates > 0


@pytest.mark.parametrize("options", [{}, {"lstm_hidden_size": 6}])
def test_a_learner_there_evaluates_what_was_acted(options, tmp_path):
    """The actor's log pi(a|s) were computed on the CPU."""
    made = config("a2c", "CartPole-v1", tmp_path / "run", options, device="cuda")
    flow = hosted(made)
    learner, actor = worker(flow, "learner"), worker(flow, "actor")
    for _ in range(4):
        while not learner.experience.may_draw(0, 0.0):
            actor.work(0.0)
        batch = learner.as_tensors(learner.experience.draw())
        rows = learner.algorithm.evaluated(batch)
        with torch.no_grad():
            outputs, _ = learner.algorithm.network(rows["observation"])
        log_pi = learner.algorithm.network.distribution.log_prob(outputs, rows["action"])
        assert log_pi.device.type == "cuda"
        acted = batch["log_prob"].reshape(-1).to(log_pi.device)
        torch.testing.assert_close(log_pi.reshape(-1), acted, atol=1e-4, rtol=1e-4)
        assert learner.work(0.0)
    actor.close()
    flow.close()
