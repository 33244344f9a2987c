"""Importance weights for losses that know nothing of priorities, and the return of their TD errors.

``train()`` of an SB3 algorithm has no place for importance weights. But every batch takes one path:
from the rewards over the target into the loss. So the rewards of a batch are a `PrioritizedTensor`,
which acts on two lines of ``train()``::

    target = rewards + (1 - dones) * gamma * next_q
    loss = F.mse_loss(current_q, target)

The target is a `PrioritizedTensor`, too, by ``__torch_function__``. The loss therefore arrives in
`SampledBatch.loss`, which

- notes |current_q - target| for each row,
- multiplies the loss of each row by its weight,
- returns the mean as an ordinary tensor, whose `backward` begins at the losses of the rows.

A loss that is written out, such as the quantile losses of sb3-contrib, is recognized at two places.
The sum of rewards, next values and prediction is the TD error, whatever its sign. The final
``.mean()`` is weighted. Where priorities are sizes of gradients, the backward pass brings them: one
hook reads, row by row, what reaches the losses, another what leaves the sum for the prediction.
What either is scaled by, and what else the prediction is used for, does not matter.

A tensor is marked as one of the batch. A listed set of operations, which leave row i of the batch
at row i, pass the mark on, and no other operations do. After any other operation the result is an
ordinary tensor. A weight may get lost in this way, but it is never applied to the wrong row. The
buffer warns if no loss of a batch is recognized; if one of several is not, it cannot tell. Writes
into `rewards[:]`, `rewards.data`, or memory that the tensor shares with an array can move rows
without notice.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

# What `torch.autograd.backward` calls in the end, which is not public.
_engine = getattr(torch.autograd.Variable, "_execution_engine", None)

# Within this context a PrioritizedTensor acts like an ordinary tensor.
_plain = torch._C.DisableTorchFunctionSubclass


class SampledBatch:
    """A sampled batch, remembered until its TD errors are in the tree.

    Parameters
    ----------
    handle : np.ndarray
        The native buffer's handles of the rows, [B].
    importance_weight : torch.Tensor or None
        The importance weights, float32 [B, 1], on the device of the batch. None: all are 1.
    pending : list of SampledBatch
        The list to which the batch adds itself when it has TD errors to write back. The buffer
        empties the list.
    is_by_gradient : bool
        Whether what counts as the TD error of a row is the size of the gradient that its loss has
        with respect to the prediction.
    """

    __slots__ = (
        "apart",
        "handle",
        "importance_weight",
        "is_by_gradient",
        "is_by_hand",
        "pending",
        "td_error",
    )

    def __init__(
        self,
        handle: np.ndarray,
        importance_weight: torch.Tensor | None,
        pending: list[SampledBatch],
        is_by_gradient: bool = False,
    ) -> None:
        self.handle = handle
        self.is_by_gradient = is_by_gradient
        self.importance_weight = importance_weight
        self.pending = pending
        # The largest TD error of any loss so far, by row, on the device of the batch.
        self.td_error: torch.Tensor | None = None
        self.is_by_hand = False  # no loss counts any more then
        # Predictions that have entered sums, and their views for sums alone; weakly.
        self.apart: list[tuple[Any, Any]] = []

    def __len__(self) -> int:
        return len(self.handle)

    def mark(self, tensor: torch.Tensor) -> PrioritizedTensor:
        """Return `tensor` [B, …], whose row i is row i of the batch, marked as of this batch."""
        marked = (
            tensor if type(tensor) is PrioritizedTensor else tensor.as_subclass(PrioritizedTensor)
        )
        marked.batch = self
        return marked

    def prediction_apart(self, prediction: torch.Tensor) -> torch.Tensor:
        """Return a view of a prediction that sums with rows of the batch alone are to use.

        It is the same one for all of them, as long as one of their results is there.
        """
        for known, its_view in self.apart:
            if known() is prediction:
                view = its_view()
                if view is not None:
                    return view
        view = prediction.view_as(prediction)
        self.apart = [pair for pair in self.apart if pair[1]() is not None]
        self.apart.append((weakref.ref(prediction), weakref.ref(view)))
        return view

    def record(self, td_error: torch.Tensor) -> None:
        """Note the TD errors of one loss, [B, …]. Of several losses, the largest error counts."""
        # No tensor of a vmap may outlive it, so the batch counts as one without a loss.
        if self.is_by_hand or _is_batched(td_error):
            return
        by_row = self.by_row(td_error)
        if self.td_error is not None:
            by_row = torch.maximum(self.td_error.abs().flatten(), by_row.abs().flatten())
        self.td_error = by_row
        if self not in self.pending:
            self.pending.append(self)

    def record_by_hand(self, td_error: torch.Tensor) -> None:
        """Note TD errors [B] in place of those of all losses, whether before or after."""
        self.td_error, self.is_by_hand = None, False
        self.record(td_error)
        self.is_by_hand = True

    def by_row(self, td_error: torch.Tensor) -> torch.Tensor:
        """Return the TD error of each row, [B] or [B, 1, …]: the mean size if a row has several."""
        is_by_row = td_error.numel() == len(self.handle)
        return td_error if is_by_row else td_error.abs().flatten(1).mean(1)

    def weighted(self, losses: torch.Tensor) -> torch.Tensor:
        """Return losses [B, …] times the importance weights of their rows."""
        weight = self.importance_weight
        if weight is None:
            return losses
        if losses.dim() != 2:
            weight = weight.view(-1, *(1,) * (losses.dim() - 1))
        return losses * weight

    def loss(
        self,
        function: Callable[..., torch.Tensor],
        input: torch.Tensor,
        target: torch.Tensor,
        reduction: str = "mean",
        **options: Any,
    ) -> torch.Tensor:
        """Return `function(input, target)` with the loss of each row multiplied by its weight.

        Parameters
        ----------
        function : callable
            One of `LOSSES`.
        input, target : torch.Tensor
            The operands of the loss, [B, …], with the same number of axes.
        reduction : {"mean", "sum", "none"}
            The reduction of the weighted losses; "none" returns them one by one.
        **options
            Further arguments of the loss, such as ``beta`` or ``delta``.

        Returns
        -------
        torch.Tensor
            An ordinary tensor. With all weights 1, value and gradient are those of the unweighted
            loss.

        Raises
        ------
        ValueError
            If one of the shapes is not that of a batch, the reduction is unknown, or an option
            would weight or average the loss in a way of its own.
        """
        shape, target_shape = input.shape, target.shape
        if shape != target_shape or shape[:1] != (len(self.handle),):
            self._check_shapes(function, shape, target_shape)
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(
                f"{function.__name__}: reduction={reduction!r} must be 'mean', 'sum' or 'none'"
            )
        for option in _REFUSED:
            if options.pop(option, None) is not None:
                raise ValueError(
                    f"{function.__name__}: {option}= cannot be combined with the importance "
                    "weights of a prioritized batch; leave it out, and multiply the result of "
                    "reduction='none' by weights of your own"
                )
        kernel = _KERNELS.get(function)
        if kernel and shape == target_shape and all(options.values()):
            losses = kernel(input, target, 0, *options.values())
        else:
            losses = function(input, target, reduction="none", **options)
        td_error = input.detach() - (target.detach() if target.requires_grad else target)
        if self.is_by_gradient and function in _TURNS_LINEAR:
            limit = options.get(_TURNS_LINEAR[function], 1.0)
            td_error = td_error.clamp(-limit, limit) if limit > 0 else td_error
        self.record(td_error)
        weighted = self.weighted(losses)
        if reduction != "mean":
            return weighted.sum() if reduction == "sum" else weighted
        mean, weight = weighted.mean(), self.importance_weight
        is_alike = weight is None or (losses.shape == weight.shape and losses.dtype is weight.dtype)
        if is_alike and mean.requires_grad and mean.is_cpu:
            mean.backward = _MeanBackward(mean, losses, weight)
        return mean

    def _check_shapes(
        self, function: Callable[..., torch.Tensor], shape: torch.Size, target_shape: torch.Size
    ) -> None:
        """Raise ValueError unless input and target of a loss have the rows of the batch."""
        n_axes, rows = len(shape), (len(self),)
        if n_axes != len(target_shape) or shape[:1] != rows or target_shape[:1] != rows:
            raise ValueError(
                f"{function.__name__}: input {tuple(shape)} and target {tuple(target_shape)} must "
                f"both have the {len(self)} rows of the batch as their leading axis and the same "
                "number of axes; reshape one of them"
            )

    def reduced(
        self, function: Callable[..., torch.Tensor], losses: PrioritizedTensor, **options: Any
    ) -> torch.Tensor:
        """Return the weighted mean or sum of losses [B, …] that were written out.

        The TD error is the sum that the prediction entered, as it was before any other operation. A
        loss without such a sum, such as a cross entropy, is its own TD error, as in Hessel et al.
        2018, arXiv:1710.02298.
        """
        td_error = losses.detach() if losses.td_error is None else losses.td_error
        prediction, by_row = losses.prediction, losses.as_subclass(torch.Tensor)
        if not self.is_by_gradient or prediction is None or _is_batched(prediction):
            self.record(td_error)
        elif by_row.requires_grad:  # and is not computed for a log, under no_grad
            n_averaged = by_row.numel() // len(self) if function in _MEANS else 1
            gradients = getattr(prediction, "_row_gradients", None)
            if gradients is None or gradients.batch is not self:
                gradients = prediction._row_gradients = _RowGradients(self, td_error)
                prediction.register_hook(gradients.reached_prediction)
            by_row.register_hook(functools.partial(gradients.reached_losses, n_averaged=n_averaged))
        return function(self.weighted(by_row), **options)


class _RowGradients:
    """Notes, in the backward pass, the sizes of the gradients of the losses of the rows.

    The loss of a row is the mean or the sum of its elements. Of several losses of one prediction,
    that which counts most has the factor 1, and the others are added to it. A loss that no backward
    pass goes through notes nothing.

    Parameters
    ----------
    batch : SampledBatch
        The batch of the rows.
    td_error : torch.Tensor
        What stands in for a row whose weight is so small that it is 0 in float32, [B, …].
    """

    __slots__ = ("batch", "reached", "td_error")

    def __init__(self, batch: SampledBatch, td_error: torch.Tensor) -> None:
        self.batch, self.td_error = batch, td_error
        self.reached: torch.Tensor | None = None

    def reached_losses(self, gradient: torch.Tensor, *, n_averaged: int) -> None:
        """Remember what reaches the losses of the rows, the same for all elements of a row.

        ``n_averaged`` is the number of elements that the loss of a row is the mean of.
        """
        first = gradient.detach()[(slice(None), *(0,) * (gradient.dim() - 1))]
        factor = first.abs() * n_averaged
        self.reached = factor if self.reached is None else torch.maximum(self.reached, factor)

    def reached_prediction(self, gradient: torch.Tensor) -> None:
        """Note the sizes of the gradients that arrive at the prediction, without that factor."""
        if self.reached is None:
            return
        factor, self.reached = self.reached, None
        size = gradient.detach().reshape(len(self.batch), -1).norm(dim=1)
        stand_in = self.batch.by_row(self.td_error).abs().flatten()
        self.batch.record(torch.where(factor > 0, size / factor, stand_in))


class _MeanBackward:
    """The method `backward` of a weighted mean, which begins at the losses of the rows, [B, …].

    The gradient is bit for bit the one that goes through the mean and the product. Small networks
    feel these two operations, and what torch does in Python before it begins. If the mean has hooks
    or was changed in place, torch's own method does the work. It does so on a GPU, too.
    """

    __slots__ = ("losses", "mean", "unchanged", "weight")

    def __init__(
        self, mean: torch.Tensor, losses: torch.Tensor, weight: torch.Tensor | None
    ) -> None:
        self.mean = weakref.ref(mean)  # the mean has this object
        self.unchanged = mean.detach()  # both have one count of changes
        self.losses, self.weight = losses, weight

    def __call__(
        self,
        gradient: torch.Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        mean = self.mean()
        is_plain = mean is None or (
            mean.requires_grad and not mean.retains_grad and not mean._backward_hooks
        )
        if not is_plain or self.unchanged._version != 0:
            if mean is None:
                raise RuntimeError("keep a reference to a loss that you change in place")
            torch.Tensor.backward(mean, gradient, retain_graph, create_graph, inputs)
            return
        part = 1 / self.losses.numel()
        seed = torch.full_like(self.losses, part) if self.weight is None else self.weight * part
        if gradient is None and not create_graph and inputs is None and _engine is not None:
            _engine.run_backward(
                (self.losses,),
                (seed,),
                bool(retain_graph),
                False,
                (),
                allow_unreachable=True,
                accumulate_grad=True,
            )
        else:
            seed = seed if gradient is None else seed * gradient
            torch.autograd.backward(self.losses, seed, retain_graph, create_graph, inputs=inputs)

    def __reduce__(self) -> Any:
        return functools.partial, (_backward_of_copy,)  # copies of the mean have no graph


def _backward_of_copy(*_: Any, **__: Any) -> None:
    raise RuntimeError("a copy of a loss has no graph to go back through")


class PrioritizedTensor(torch.Tensor):
    """A tensor whose row i belongs to row i of a sampled batch.

    Arithmetic passes the mark on, and a loss uses it. ``tensor.as_subclass(torch.Tensor)`` has the
    same data without the mark, for a loss that is neither to be weighted nor to give TD errors.
    Copies that `copy` and `pickle` make have no mark either.
    """

    # The batch, or None for a tensor that has lost its mark: an in-place operation may have moved
    # its rows.
    batch: SampledBatch | None = None
    # ±(target - prediction) by row, once a prediction has entered a sum.
    td_error: torch.Tensor | None = None
    # Whether the tensor has been through additions only, so that the next term belongs to the TD
    # error.
    is_sum: bool = False
    # The prediction in that sum, [B, …].
    prediction: torch.Tensor | None = None

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with _plain():
            if func in LOSSES:
                # torch hands over input and target by position, and all else by keyword.
                batch = _common_batch(args)
                if batch is not None:
                    return batch.loss(func, *args, **kwargs)
            elif func in _REDUCTIONS:
                if not args:
                    kwargs = dict(kwargs)
                    args = (kwargs.pop("input"),)
                if _is_final_loss(args, kwargs):
                    return args[0].batch.reduced(func, args[0], **kwargs)
            if func in _SUMS_APART:
                args = _with_prediction_apart(args)
            result = func(*args, **kwargs)
            if isinstance(result, torch.Tensor):
                batch = _batch_of_result(func, result, args, kwargs)
                if batch is not None:
                    marked = batch.mark(result)
                    if marked.requires_grad:
                        marked.td_error, marked.is_sum = _td_error(func, batch, marked, args)
                        if batch.is_by_gradient and marked.td_error is not None:
                            marked.prediction = _prediction(batch, args)
                    return marked
                if type(result) is cls:
                    result.batch = None
            return result

    def __add__(self, other: Any) -> torch.Tensor:
        """Return the sum. This one operation makes every target, so it takes a shorter way."""
        if type(other) is torch.Tensor:
            with _plain():
                batch, total = self.batch, torch.Tensor.add(self, other)
                if batch is not None and not total.requires_grad and total.shape == self.shape:
                    return batch.mark(total)
        return super().__add__(other)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return copy.deepcopy(self.as_subclass(torch.Tensor), memo)

    def __reduce_ex__(self, protocol: int) -> Any:
        return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)


LOSSES = frozenset({F.l1_loss, F.mse_loss, F.smooth_l1_loss, F.huber_loss})

# The option that says from which error on a loss is linear, so that its gradient grows no more.
_TURNS_LINEAR = {F.smooth_l1_loss: "beta", F.huber_loss: "delta"}

_REFUSED = ("weight", "size_average", "reduce")

# The functions call these kernels after they have brought both operands to one shape, which takes
# as long as the loss itself. The arguments are input, target, 0 for no reduction, and beta or
# delta, the only option that is left.
_KERNELS = {
    getattr(F, name): getattr(torch._C._nn, name)
    for name in ("l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss")
    if hasattr(torch._C._nn, name)
}


def _operations(names: str, also_in_place: bool = True) -> frozenset[Any]:
    """Return every form of the operations: functions, methods, in-place methods and operators."""
    affixes = _AFFIXES + _AFFIXES_IN_PLACE if also_in_place else _AFFIXES
    spellings = [f"{before}{name}{after}" for name in names.split() for before, after in affixes]
    return frozenset(
        getattr(owner, spelling)
        for owner in (torch, torch.Tensor)
        for spelling in spellings
        if hasattr(owner, spelling)
    )


_AFFIXES = (("", ""), ("__", "__"), ("__r", "__"))
_AFFIXES_IN_PLACE = (("", "_"), ("__i", "__"))

_MEANS = frozenset({torch.mean, torch.Tensor.mean})
_REDUCTIONS = _MEANS | {torch.sum, torch.Tensor.sum}
_ADDING = "add sub subtract neg negative"
_SUMS = _operations(_ADDING) | {torch.rsub}
# Those that write into an operand need that operand itself.
_SUMS_APART = _operations(_ADDING, also_in_place=False) | {torch.rsub}

# These operations compute row i of the result from row i of the operands, as long as broadcasting
# adds no leading axis.
_ELEMENTWISE = _operations(
    "add sub subtract mul multiply div divide truediv true_divide floordiv floor_divide remainder "
    "pow neg negative abs absolute square sqrt exp log sign tanh sigmoid relu nan_to_num "
    "clamp clip clamp_min clamp_max min max minimum maximum fmin fmax where lerp addcmul addcdiv "
    "masked_fill clone detach requires_grad_ to type type_as float double half bfloat16 cpu cuda "
    "contiguous pin_memory expand expand_as"
) | {torch.Tensor.data.__get__}

# These operations take values from their first operand only. The others lend a shape, a dtype or a
# device.
_OF_THE_FIRST = _operations("to type type_as expand expand_as view view_as reshape")

# These operations change the axes but not the order of the elements. If the leading axis of the
# result has B rows, they are the rows of the batch.
_RESHAPING = _operations("reshape view view_as flatten squeeze unsqueeze")


def _common_batch(operands: Iterable[Any], n_axes: int | None = None) -> SampledBatch | None:
    """Return the one batch of the operands, or of those with `n_axes` axes; otherwise None."""
    common = None
    for x in operands:
        if type(x) is PrioritizedTensor and (n_axes is None or x.dim() == n_axes):
            batch = x.batch
            if common is None:
                common = batch
            elif batch is not None and batch is not common:
                return None
    return common


def _batch_of_result(
    func: Any, result: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> SampledBatch | None:
    """Return the batch whose row i is certainly at row i of `result`, or None."""
    if func in _OF_THE_FIRST:
        args, kwargs = args[:1], {}
    if func in _ELEMENTWISE:
        if kwargs:
            args = (*args, *(value for name, value in kwargs.items() if name != "out"))
        batch = _common_batch(args, result.dim())
    elif (
        func in _RESHAPING
        or (func is torch.Tensor.__getitem__ and _keeps_rows(args[1]))
        or (func in _REDUCTIONS and _leaves_rows_alone(args, kwargs))
    ):
        batch = _common_batch(args)
    else:
        return None
    return batch if batch is not None and result.shape[:1] == (len(batch),) else None


def _keeps_rows(index: Any) -> bool:
    """Tell whether `tensor[index]` takes all rows in order: no index gathers, the first is `:`."""
    first, *rest = index if isinstance(index, tuple) else (index,)
    return (
        isinstance(first, slice)
        and first == slice(None)
        and all(i is None or i is Ellipsis or isinstance(i, (int, slice)) for i in rest)
    )


def _axes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...] | None:
    """Return the axes that a mean or sum goes over, or None for all axes."""
    given = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
    if given is None:
        return None
    axes = given if isinstance(given, (tuple, list)) else (given, *args[2:])
    return tuple(axes) or None


def _leaves_rows_alone(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether a mean or sum goes over axes other than that of the rows."""
    axes = _axes(args, kwargs)
    return axes is not None and all(
        type(axis) is int and axis % args[0].dim() != 0 for axis in axes
    )


def _is_final_loss(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether a mean or sum reduces to one number a marked tensor with a prediction in it."""
    losses = args[0]
    return (
        type(losses) is PrioritizedTensor
        and losses.batch is not None
        and losses.requires_grad
        and _axes(args, kwargs) is None
        and losses.shape[:1] == (len(losses.batch),)
    )


def _td_error(
    func: Any, batch: SampledBatch, result: torch.Tensor, args: tuple[Any, ...]
) -> tuple[torch.Tensor | None, bool]:
    """Return the TD errors of a result or None, and whether the result is nothing but a sum."""
    operands = [x for x in args if type(x) is PrioritizedTensor and x.td_error is not None]
    is_sum = all(x.is_sum for x in operands)
    if func in _SUMS and is_sum:
        return batch.by_row(result.detach()), True
    found = None
    for x in operands:
        if x.td_error is not found:
            found = x.td_error if found is None else torch.maximum(found.abs(), x.td_error.abs())
    return found, is_sum and found is not None and func in _RESHAPING


def _prediction(batch: SampledBatch, args: tuple[Any, ...]) -> torch.Tensor | None:
    """Return the operand that is learned, with a row for each of the batch, or that of an operand.

    None if there is none, or several are: no gradient is that of all of them then.
    """
    found: dict[int, torch.Tensor | None] = {}
    for x in args:
        if _is_learned(x):
            is_loss = type(x) is PrioritizedTensor and x.td_error is not None
            prediction = x.prediction if is_loss else x
            found[id(prediction)] = prediction
    only = found.popitem()[1] if len(found) == 1 else None
    return only if only is not None and only.shape[:1] == (len(batch),) else None


def _with_prediction_apart(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the operands of a sum, the one that is learned as a view that only sums use.

    So the gradient that arrives there has come through them.
    """
    batch = _common_batch(args)
    if batch is None or not batch.is_by_gradient or not torch.is_grad_enabled():
        return args
    return tuple(
        batch.prediction_apart(x) if type(x) is not PrioritizedTensor and _is_learned(x) else x
        for x in args
    )


def _is_learned(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _is_batched(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor stands for many at once, as inside `torch.vmap`."""
    return torch._C._functorch.is_batchedtensor(tensor)
