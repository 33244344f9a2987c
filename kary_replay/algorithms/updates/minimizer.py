"""Gradient steps with little overhead.

With small networks a gradient step costs what its hundred operations cost to *launch*, not what
they compute. Three things help, and none changes a result:

- the parameters of a network are views of one vector, so that the optimizer, the averaging over
  learners, target networks and publishing take one operation each, whatever the number of layers;
- the loss and its gradient are recorded once, as a list of torch's own operations, and from then
  on run without Python and without autograd: on a CPU as a native program, or by TorchScript's
  interpreter where it has operations that native programs do not know; on a GPU as one CUDA graph;
- Adam is fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...native.program import adam, approach
from .recorded import Function, recorded
from .tape import Tape, active

__all__ = ["Minimizer", "Share", "flatten", "move_towards", "take_up"]

ADAM: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999}


@dataclass(frozen=True)
class Share:
    """Which part of every batch a learner has, and how it averages gradients with the others.

    Parameters
    ----------
    index, count : int
        This learner has the index-th of count equal parts.
    average : function or None
        Replaces a vector by its mean over all learners, in place; None where there are no others.
    """

    index: int = 0
    count: int = 1
    average: Callable[[Tensor], None] | None = None

    def rows(self, n: int) -> slice:
        """Return which of the ``count * n`` rows of a batch are this learner's ``n``."""
        return slice(self.index * n, (self.index + 1) * n)


def flatten(modules: Iterable[nn.Module]) -> Tensor:
    """Return the parameters of some modules as one vector, of which they are views from now on."""
    parameters = parameters_of(modules)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    place(parameters, flat)
    return flat


def parameters_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters of some modules, each once."""
    every = [parameter for module in modules for parameter in module.parameters()]
    return list({id(parameter): parameter for parameter in every}.values())


def place(parameters: Iterable[nn.Parameter], flat: Tensor) -> None:
    """Let parameters be views of a vector, one behind the other, whatever they were."""
    start = 0
    for parameter in parameters:
        parameter.data = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()


Owners = list[tuple[dict[str, Any], str]]


def owners_of(modules: Iterable[nn.Module]) -> Owners:
    """Return where modules keep their parameters: in which dict, under which name."""
    parts = [part for module in modules for part in module.modules()]
    every = [(part._parameters, name) for part in parts for name in part._parameters]
    return [(owner, name) for owner, name in every if owner[name] is not None]


def places_of(owners: Owners) -> list[int | None]:
    """Return where the parameters lie in memory; None if one is not kept there any more."""
    found = [owner.get(name) for owner, name in owners]
    return [None if parameter is None else parameter.data_ptr() for parameter in found]


def take_up(tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Set tensors to those of a state, in place; ValueError, with no change, if sizes differ."""
    for name, tensor in tensors.items():
        if tensor.shape != state[name].shape:
            raise ValueError(
                f"{name} must be {tensor.numel()} numbers, as these networks have, "
                f"got {state[name].numel()}"
            )
    for name, tensor in tensors.items():
        tensor.copy_(state[name])


def is_native(*tensors: Tensor) -> bool:
    """Return whether native code can work on tensors: on a CPU, float32 and contiguous."""
    return all(
        tensor.is_cpu and tensor.dtype == torch.float32 and tensor.is_contiguous()
        for tensor in tensors
    )


def move_towards(target: Tensor, source: Tensor, share: float) -> None:
    """Move a vector by a share of the way to another one, in place; a share of 1 copies it."""
    if is_native(target, source) and target.shape == source.shape:
        tape, n_threads = active(), torch.get_num_threads()
        if tape is not None:
            tape.approach(target, source, share, n_threads)
        approach(target.data_ptr(), source.data_ptr(), target.numel(), share, n_threads)
    else:
        with torch.no_grad():
            target.lerp_(source, share)


class Minimizer:
    """Adam on one loss over the parameters of some modules.

    Parameters
    ----------
    modules : iterable of nn.Module
        Whose parameters are changed. They become views of one vector, ``flat``.
    loss : function of tensors, or dicts of them
        Returns a tuple of the loss, a scalar, and any other tensors. It is `Recorded`, without the
        value of the loss itself: only the gradient is needed.
    learning_rate : float
        Of Adam.
    max_gradient_norm : float, optional
        Longer gradients are scaled down to this length.
    share : Share
        With several learners, how they average gradients.
    epsilon : float
        Of Adam, beside the root of the squares.
    record : bool
        False: run the loss anew each time, for instance to debug it. On other devices than CPUs and
        GPUs of CUDA it always is.

    Attributes
    ----------
    learning_rate_share : float
        What steps take of the learning rate, for schedules; 1 at first.
    inputs : tuple
        Of the last step; or the tape that can tell them, its number there, and the tape's inputs.

    Notes
    -----
    A step raises RuntimeError if its parameters were given other memory since, as by a second
    minimizer of theirs; of updates that are replayed, one of 16 of a kind does. Copies, by
    `copy.deepcopy` or `pickle`, go on by themselves.

    Learners whose parts make up a batch take the same step as one with the whole of it, to within
    rounding, where the loss is a mean over rows: gradients are averaged before they are clipped.
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        loss: Function,
        learning_rate: float,
        *,
        max_gradient_norm: float | None = None,
        share: Share | None = None,
        epsilon: float = 1e-8,
        record: bool = True,
    ) -> None:
        modules = self.modules = list(modules)
        self.flat = flatten(modules)
        self._parameters, self._owners = parameters_of(modules), owners_of(modules)
        self._places = places_of(self._owners)
        self._loss, self._max_norm = loss, max_gradient_norm
        self._average = (share or Share()).average
        self._learning_rate, self.learning_rate_share = learning_rate, 1.0
        self._adam_settings = {**ADAM, "eps": epsilon}
        self._compute = recorded(self._gradient, self.flat.device) if record else self._gradient
        # of gradients, as Adam keeps them
        self._mean, self._square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self._n_steps = torch.zeros((), dtype=torch.float32, device=self.flat.device)
        self._is_native = is_native(self.flat)
        self.inputs: tuple[Any, ...] = ()

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self._learning_rate * self.learning_rate_share

    def step(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Take one step with tensors, or dicts of them.

        Return what the loss returned besides itself, by the parameters before the step.
        """
        self.check_places()
        self.inputs = inputs
        tape = active()
        if tape is not None:
            tape.step(self, inputs)
            tape.is_whole &= self._average is None  # it may be anything
        gradient, *others = self._compute(*inputs)
        if self._average is not None:
            with torch.inference_mode():
                self._average(gradient)
                gradient = self._clipped(gradient)
        self._adam(gradient)
        return tuple([other.clone() for other in others])

    def check_places(self) -> None:
        """Raise RuntimeError if the parameters are no longer views of ``flat``."""
        if places_of(self._owners) != self._places:
            raise RuntimeError(
                "parameters that are trained have other memory than when their Minimizer was made, "
                "so it would train what nobody reads. If another Minimizer or flatten has them, "
                "too, give those that networks share to one alone; and change parameters in place, "
                "not by load_state_dict(assign=True), to() or a new nn.Parameter"
            )

    def _adam(self, gradient: Tensor) -> None:
        """Take a step of Adam along a gradient."""
        if self._is_native:
            tensors = self.flat, gradient, self._mean, self._square, self._n_steps
            tape, n_threads = active(), torch.get_num_threads()
            if tape is not None:
                tape.adam(self, tensors, n_threads, **self._adam_settings)
            flat, given, mean, square, n_steps = [tensor.data_ptr() for tensor in tensors]
            n, rate = self.flat.numel(), self.learning_rate
            own = self._adam_settings
            adam(flat, given, mean, square, n, n_steps, rate, **own, n_threads=n_threads)
            return
        with torch.inference_mode():
            self._n_steps += 1
            # torch.optim.Adam(fused=True) comes down to this. What it does around it takes 90 µs,
            # half of an update.
            torch._fused_adam_(
                [self.flat],
                [gradient],
                [self._mean],
                [self._square],
                [],
                [self._n_steps],
                lr=self.learning_rate,
                weight_decay=0.0,
                amsgrad=False,
                maximize=False,
                **self._adam_settings,
            )

    def figures(self) -> dict[str, float]:
        """Return the loss of the last step's rows now, and the length of its gradient.

        A step does not compute them. They cost a step without a recording, and change nothing.
        """
        inputs = self.inputs
        if not inputs:
            return {}
        if isinstance(inputs[0], Tape):
            tape, number, given = inputs
            inputs = tape.inputs_of(number, given)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            loss = self._loss(*inputs)[0]
            gradients = torch.autograd.grad(loss, self._parameters)
        length = torch.cat([part.reshape(-1) for part in gradients]).norm()
        return {"loss": float(loss.detach()), "gradient_norm": float(length)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "inputs": ()}  # tapes have no copies

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        place(self._parameters, self.flat)  # copies of parameters lie apart
        self._owners = owners_of(self.modules)
        self._places = places_of(self._owners)

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters and the optimizer's state."""
        return {name: tensor.clone() for name, tensor in self._state().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state, in place; ValueError if it is that of networks of other sizes."""
        take_up(self._state(), state)

    def _state(self) -> dict[str, Tensor]:
        return {
            "parameters": self.flat,
            "mean": self._mean,
            "square": self._square,
            "n_steps": self._n_steps,
        }

    def _gradient(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Return the flat gradient of the loss, then what the loss returned besides itself."""
        with torch.enable_grad():
            loss, *others = self._loss(*inputs)
            gradients = torch.autograd.grad(loss, self._parameters)
        gradient = torch.cat([part.reshape(-1) for part in gradients])
        if self._average is None:
            gradient = self._clipped(gradient)
        return (gradient, *(other.detach() for other in others))

    def _clipped(self, gradient: Tensor) -> Tensor:
        """Return the gradient, scaled down if it is too long."""
        if self._max_norm is None:
            return gradient
        scale: Tensor = (self._max_norm / (gradient.norm() + 1e-6)).clamp(max=1.0)
        return gradient * scale
