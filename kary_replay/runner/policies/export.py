"""Hands a trained policy to other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from ...algorithms.actor_critic import Critics
from ...algorithms.dqn import QNetwork
from ...algorithms.networks import ACTIVATIONS, MLP, Flatten
from ...algorithms.spaces import is_board, is_image
from ..config import ConfigError
from ..records.run_directory import PolicyName
from .checkpoint_policy import CheckpointPolicy, checkpoint_algorithm, checkpoint_policy
from .output import NewFile, check_output, say

__all__ = ["export"]

MOST_BUFFER_BYTES = 2**30  # of the replay buffer that the model makes when it is loaded
CHECKED = 64  # observations on which both must act alike
# of half the range of actions: sums in another order differ, the more the larger observations are
TOLERANCE = 1e-4
VALUE_TOLERANCE = 1e-5  # of the largest value of an action, within which two are equally good


def export(
    directory: Path,
    /,
    *,
    to: Literal["sb3"] = "sb3",
    which: PolicyName = "best",
    output: Path | None = None,
) -> Path:
    """Make a model of the policy of a run that another library loads.

    It has the same weights, and takes the same greedy actions.

    Parameters
    ----------
    directory
        Folder of the run.
    to
        sb3: a .zip for Stable-Baselines3's load(), which needs no kary-replay.
    which
        best or last: of the run's evaluations; without any it is that of the last checkpoint.
        Critics and target networks are those of the last checkpoint.
    output
        The file; by default DIRECTORY/sb3.zip.

    Returns
    -------
    Path
        The file.
    """
    try:
        import stable_baselines3 as sb3
    except ImportError:
        raise ConfigError(
            'export to sb3 needs Stable-Baselines3: pip install "kary-replay[sb3]"'
        ) from None
    shown = output or directory / "sb3.zip"
    path = shown.absolute()  # the environment may change the working directory
    found = checkpoint_policy(directory, which)
    whole = checkpoint_algorithm(found)
    check_output(path, ".zip")
    _check(found)
    name = MODELS[found.config.algorithm]
    model = _model(getattr(sb3, name), found, whole)
    samples = _samples(found.algorithm)
    ours = found.act(samples)
    # Networks of two moments: each has learned with the normalization of its own.
    for algorithm in (found.algorithm, whole):
        _fold_in(algorithm)
    whole.policy.load_state_dict(found.algorithm.policy.state_dict())
    COPY[found.config.algorithm](whole, model)
    model.policy.set_training_mode(False)
    _compare(found.algorithm, ours, model, samples)
    file = NewFile(path)
    with file.being_written():
        model.save(file.path)
        file.complete()
    say(
        f"{found.described}\n"
        f"wrote {shown}; load it with: stable_baselines3.{name}.load({str(shown)!r})"
    )
    return path


def _check(policy: CheckpointPolicy) -> None:
    """Raise ConfigError if Stable-Baselines3 has no place for the policy."""
    from stable_baselines3.common.preprocessing import is_image_space as is_image_there
    from stable_baselines3.common.preprocessing import is_image_space_channels_first

    config, algorithm = policy.config, policy.algorithm
    if config.algorithm not in COPY:
        raise ConfigError(f"Stable-Baselines3 has no {config.algorithm}, only {', '.join(COPY)}")
    space = algorithm.observation_space
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
    images = {"image_network": "nature"} if any(map(is_image, parts)) else {}
    for name, without in {**NO_PLACE, **images}.items():
        if getattr(config.options, name, without) != without:
            value = getattr(config.options, name)
            raise ConfigError(
                f"Stable-Baselines3's {MODELS[config.algorithm]} has no place for networks with "
                f"{name}={value}: train with {name}={without}"
            )
    for part in [*parts, algorithm.action_space]:
        if isinstance(part, spaces.Discrete) and part.start != 0:
            raise ConfigError(f"Stable-Baselines3 has no place for {part}: it counts from 0")
        if isinstance(part, spaces.MultiDiscrete):
            raise ConfigError(
                f"Stable-Baselines3 has no place for {part} as numbers: it makes them one-hot"
            )
        if is_board(part):
            raise ConfigError(f"Stable-Baselines3 has no convolution for boards such as {part}")
        if is_image(part) and (
            (part.low != 0).any() or (part.high != 255).any() or np.argmin(part.shape) != 0
        ):
            raise ConfigError(
                f"Stable-Baselines3 takes images from 0 to 255 with few channels, got {part}"
            )
        if is_image(part) and len(part.shape) == 2:
            raise ConfigError(
                f"Stable-Baselines3 takes images with an axis of channels, got {part}: train with "
                "gymnasium.wrappers.ReshapeObservation"
            )
        if (
            isinstance(space, spaces.Dict)
            and len(part.shape) == 3
            and part.dtype == np.uint8
            and not is_image(part)
        ):
            raise ConfigError(
                f"Stable-Baselines3 sends {part} through convolutions for which it is too small"
            )
        if is_image_there(part) and not is_image_space_channels_first(part):
            raise ConfigError(
                f"Stable-Baselines3 moves the last axis of {part} to the front, and this policy "
                "has learned from its numbers in their order: train with "
                "gymnasium.wrappers.FlattenObservation, or with the channels first"
            )


def _model(cls: Any, policy: CheckpointPolicy, whole: Any) -> Any:
    """Return an untrained model whose networks are like ours; `whole` is the checkpoint's."""
    config, algorithm = policy.config, policy.algorithm
    options: Any = config.options
    space = algorithm.observation_space
    parts: list[Any] = list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]
    has_images = any(is_image(part) for part in parts)
    kind = (
        "MultiInputPolicy"
        if isinstance(space, spaces.Dict)
        else "CnnPolicy"
        if has_images
        else "MlpPolicy"
    )
    settings = _replay_settings if config.learns_from == "replay" else _rollout_settings
    model = cls(
        kind,
        _Spaces(space, algorithm.action_space),
        learning_rate=options.learning_rate,
        gamma=options.gamma,
        device="cpu",
        seed=config.seed,
        policy_kwargs={
            "net_arch": list(options.hidden),
            "activation_fn": ACTIVATIONS[getattr(options, "activation", "relu")][0],
            "optimizer_kwargs": {"eps": options.adam_epsilon},
            "normalize_images": has_images,
        },
        **settings(config, whole),
    )
    if config.learns_from == "replay":
        nbytes = 2 * sum(int(np.prod(part.shape)) * part.dtype.itemsize for part in parts) + 64
        model.buffer_size = max(1, min(config.buffer_capacity, MOST_BUFFER_BYTES // nbytes))
    return model


def _replay_settings(config: Any, whole: Any) -> dict[str, Any]:
    """Return the settings of a model that learns from replay; its buffer is made when it loads."""
    options = config.options
    own: dict[str, Any] = {}
    if config.algorithm == "dqn":
        own = {
            "target_update_interval": options.target_interval,
            "max_grad_norm": options.max_gradient_norm,
            "exploration_initial_eps": options.exploration_initial,
            "exploration_final_eps": options.exploration_final,
            "exploration_fraction": max(options.exploration_fraction, 1e-9),  # SB3 divides by it
        }
    elif config.algorithm == "sac":
        own = {"target_update_interval": options.target_interval}
        if options.target_entropy is not None:
            own["target_entropy"] = options.target_entropy
        if options.ent_coef is not None:
            own["ent_coef"] = options.ent_coef * _reward_scale(whole)
    elif options.exploration_noise:
        from stable_baselines3.common.noise import NormalActionNoise

        mean = np.zeros(whole.action_space.shape)
        own = {"action_noise": NormalActionNoise(mean, mean + options.exploration_noise)}
    if config.algorithm == "td3":
        own |= {
            "policy_delay": options.policy_delay,
            "target_policy_noise": options.target_noise,
            "target_noise_clip": options.target_noise_clip,
        }
    if options.n_step > 1 and not isinstance(whole.observation_space, spaces.Dict):
        # SB3 has n-step returns for arrays alone
        from stable_baselines3.common.buffers import NStepReplayBuffer

        own["replay_buffer_class"] = NStepReplayBuffer
        own["replay_buffer_kwargs"] = {"n_steps": options.n_step, "gamma": options.gamma}
    return {
        "tau": options.tau,
        "batch_size": options.batch_size,
        "learning_starts": config.learning_starts,
        "buffer_size": 1,
        **own,
    }


def _rollout_settings(config: Any, whole: Any) -> dict[str, Any]:
    """Return the settings of a model that learns from rollouts, of one environment.

    Its rewards are raw. Where ours were divided by something, the parts of the loss keep their
    weights by each other: the policy's grows with the rewards, unless advantages are normalized,
    and the values' with their square.
    """
    options, scale = config.options, _reward_scale(whole)
    growth = 1.0 if getattr(options, "normalize_advantage", False) else scale
    own: dict[str, Any] = {"use_rms_prop": False}
    if MODELS[config.algorithm] == "PPO":
        bound = options.clip_range_vf
        own = {
            "batch_size": options.batch_size,
            "n_epochs": options.n_epochs,
            "clip_range": options.clip_range,
            "clip_range_vf": None if bound is None else bound * scale,
            "normalize_advantage": options.normalize_advantage,
            # SB3 stops above 1.5 times this
            "target_kl": None if options.target_kl is None else options.target_kl / 1.5,
        }
    return {
        "n_steps": config.rows_per_update,
        "gae_lambda": options.gae_lambda,
        "ent_coef": options.ent_coef * growth,
        "vf_coef": options.vf_coef * growth / scale**2,
        "max_grad_norm": options.max_gradient_norm * growth,
        **own,
    }


class _Spaces(gymnasium.Env[Any, Any]):
    """An environment of which only the spaces count."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space


def _copy_dqn(algorithm: Any, model: Any) -> None:
    for ours, theirs in (
        (algorithm.q, model.policy.q_net),
        (algorithm.q_target, model.policy.q_net_target),
    ):
        _copy_encoder(ours.encoder, theirs.features_extractor)
        _copy(ours.advantage, theirs.q_net)
    model.exploration_rate = model.exploration_final_eps


def _copy_ddpg(algorithm: Any, model: Any) -> None:
    for suffix in ("", "_target"):
        ours, theirs = getattr(algorithm, f"actor{suffix}"), getattr(model.policy, f"actor{suffix}")
        _copy_encoder(ours.encoder, theirs.features_extractor)
        _copy(ours.mu, theirs.mu)
        _copy_critics(
            getattr(algorithm, f"critic{suffix}"), getattr(model.policy, f"critic{suffix}")
        )


def _copy_sac(algorithm: Any, model: Any) -> None:
    actor = model.policy.actor
    _copy_encoder(algorithm.actor.encoder, actor.features_extractor)
    *hidden, last = algorithm.actor.head
    _copy(nn.Sequential(*hidden), actor.latent_pi)
    halves = zip((actor.mu, actor.log_std), last.weight.chunk(2), last.bias.chunk(2), strict=True)
    for layer, weight, bias in halves:
        layer.load_state_dict({"weight": weight, "bias": bias})
    _copy_critics(algorithm.critic, model.policy.critic)
    _copy_critics(algorithm.critic_target, model.policy.critic_target)
    if model.log_ent_coef is not None:
        model.log_ent_coef.data.fill_(float(algorithm.alpha.log_alpha.detach()))


def _copy_policy_and_value(algorithm: Any, model: Any) -> None:
    """Copy both; Stable-Baselines3's policy has the environment's own actions, and clips them."""
    ours, theirs = algorithm.network, model.policy
    _copy_encoder(ours.encoder, theirs.features_extractor)
    extractor = theirs.mlp_extractor
    for mlp, hidden, last in (
        (ours.pi, extractor.policy_net, theirs.action_net),
        (ours.v, extractor.value_net, theirs.value_net),
    ):
        *layers, head = mlp
        _copy(nn.Sequential(*layers), hidden)
        _copy(head, last)
    space = algorithm.action_space
    if isinstance(space, spaces.Discrete):
        return
    half, middle = ((space.high - space.low) / 2).ravel(), ((space.high + space.low) / 2).ravel()
    half, middle = torch.from_numpy(half), torch.from_numpy(middle)
    with torch.no_grad():
        theirs.action_net.weight.mul_(half[:, None])
        theirs.action_net.bias.mul_(half).add_(middle)
        theirs.log_std.copy_(ours.distribution.log_std + half.log())


COPY = {
    "dqn": _copy_dqn,
    "ddpg": _copy_ddpg,
    "td3": _copy_ddpg,
    "sac": _copy_sac,
    **dict.fromkeys(("a2c", "ppo", "impala", "appo"), _copy_policy_and_value),
}
NO_PLACE = {
    "dueling": False,
    "n_atoms": 1,
    "n_quantiles": 1,
    "noisy": False,
    "lstm_hidden_size": None,
}
"""Options that Stable-Baselines3's networks do not have, and what they must be."""
MODELS = {**{name: name.upper() for name in COPY}, "impala": "A2C", "appo": "PPO"}


def _copy_critics(ours: Any, theirs: Any) -> None:
    _copy_encoder(ours.encoder, theirs.features_extractor)
    for number, q in enumerate(ours.q):
        _copy(q, getattr(theirs, f"qf{number}"))


def _copy_encoder(ours: Any, theirs: Any) -> None:
    extractors = [theirs] if ours.keys is None else [theirs.extractors[key] for key in ours.keys]
    for part, extractor in zip(ours.parts, extractors, strict=True):
        _copy(part, extractor)


def _copy(ours: nn.Module, theirs: nn.Module) -> None:
    """Copy parameters, one after another: the layers are the same, whatever their names."""
    sources, goals = list(ours.parameters()), list(theirs.parameters())
    if [source.shape for source in sources] != [goal.shape for goal in goals]:
        raise ConfigError(
            "Stable-Baselines3 makes other networks of these observations: "
            "there is no place for the weights"
        )
    with torch.no_grad():
        for source, goal in zip(sources, goals, strict=True):
            goal.copy_(source)


def _fold_in(algorithm: Any) -> None:
    """Make networks for raw observations and rewards of those for normalized ones, in place.

    A first layer takes over shift and factor of its inputs. The last one of a critic undoes the
    factor of the rewards, and the worth of entropy with it.
    """
    normalization = algorithm.normalization
    if normalization is None:
        return
    networks = {one for one in vars(algorithm.algorithm).values() if hasattr(one, "encoder")}
    scale = _reward_scale(algorithm)
    with torch.no_grad():
        for network in networks:
            shift, factor = _of_features(normalization, network.encoder)
            for mlp in (part for part in network.modules() if isinstance(part, MLP)):
                first: Any = mlp[0]
                last: Any = mlp[-1]
                inputs = first.weight[:, : len(shift)]
                inputs *= factor
                first.bias.copy_(first.bias.double() - inputs.double() @ shift.double())
                if isinstance(network, (QNetwork, Critics)) or mlp is getattr(network, "v", None):
                    last.weight *= scale
                    last.bias *= scale
        if hasattr(algorithm, "alpha"):
            algorithm.alpha.log_alpha += float(np.log(scale))


def _reward_scale(algorithm: Any) -> float:
    """Return by what rewards have been divided."""
    normalization = algorithm.normalization
    if normalization is None or normalization.reward_factor is None:
        return 1.0
    return 1 / float(normalization.reward_factor)


def _of_features(normalization: Any, encoder: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the shift and the factor of each feature of an encoder."""
    shifts, factors = [], []
    for key, part in zip(encoder.keys or [None], encoder.parts, strict=True):
        is_normalized = key in normalization.shifts
        n = part.n_features if isinstance(part, Flatten) else part.linear[0].out_features
        shifts.append(normalization.shifts[key].flatten() if is_normalized else torch.zeros(n))
        factors.append(normalization.factors[key].flatten() if is_normalized else torch.ones(n))
    return torch.cat(shifts), torch.cat(factors)


def _samples(algorithm: Any) -> Any:
    """Return observations drawn at random: of normalized numbers, such as the run has seen."""
    space = algorithm.observation_space
    space.seed(0)
    samples = [space.sample() for _ in range(CHECKED)]
    if not isinstance(space, spaces.Dict):
        return _as_seen(algorithm.normalization, None, space, np.stack(samples))
    return {
        key: _as_seen(algorithm.normalization, key, part, np.stack([one[key] for one in samples]))
        for key, part in space.spaces.items()
    }


def _as_seen(normalization: Any, key: str | None, space: Any, samples: Any) -> Any:
    """Return samples of a part of the space, or others of the mean and spread that it has had."""
    if normalization is None or key not in normalization.shifts:
        return samples
    mean, factor = normalization.shifts[key].numpy(), normalization.factors[key].numpy()
    spread = np.random.default_rng(0).standard_normal(samples.shape)
    return np.clip(mean + spread / factor, space.low, space.high).astype(samples.dtype)


def _compare(algorithm: Any, ours: Any, model: Any, samples: Any) -> None:
    """Make sure that the model acts as we have acted."""
    action_space = algorithm.action_space
    if isinstance(action_space, spaces.Discrete):
        values = _values(model, samples)
        rows = np.arange(CHECKED)
        loss = values.max(1) - values[rows, ours]
        is_alike = np.isfinite(values) & (loss <= VALUE_TOLERANCE * np.abs(values).max(1))[:, None]
    else:
        theirs = model.predict(samples, deterministic=True)[0]
        half = (action_space.high - action_space.low) / 2
        is_alike = np.abs(ours - theirs) <= TOLERANCE * half
    if not is_alike.all():
        reason = (
            ": it reads raw observations, and those that are large beside their spread lose their "
            "last digits; let the environment subtract an offset"
        )
        raise ConfigError(
            "Stable-Baselines3's model would act otherwise than this policy, so it was not written"
            + reason * (algorithm.normalization is not None)
        )


def _values(model: Any, samples: Any) -> Any:
    """Return what the model thinks of every action, [rows, actions]: it takes the best one."""
    policy = model.policy
    with torch.no_grad():
        read = policy.obs_to_tensor(samples)[0]
        values = (
            policy.q_net(read)
            if hasattr(policy, "q_net")
            else policy.get_distribution(read).distribution.logits
        )
    return values.numpy()
