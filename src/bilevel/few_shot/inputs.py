"""Checks of features, labels and tasks, made before anything is computed; each names argument, value and remedy."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import InvalidInputError, InvalidTypeError, NonFiniteError

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class TaskBatch(Protocol):
    """A batch of t tasks; `support_mask` (t, n) may be left out when all support examples are there."""

    @property
    def support(self) -> Tensor: ...  # (t, n, ...)
    @property
    def support_labels(self) -> Tensor: ...  # (t, n)
    @property
    def query(self) -> Tensor: ...  # (t, m, ...)
    @property
    def query_labels(self) -> Tensor: ...  # (t, m)


def check_features(name: str, features: Any) -> None:
    """A floating-point tensor (..., examples, features)."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        shown = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise InvalidTypeError(f"{name} must be a floating-point tensor of features, got {shown}")
    if features.ndim < 2 or features.numel() == 0:
        raise InvalidInputError(f"{name} must have the shape (..., examples, features), got {tuple(features.shape)}")


def check_network_output(features: Any, count: int) -> None:
    """One row of floating-point features per image."""
    fits = isinstance(features, Tensor) and features.ndim >= 2 and len(features) == count and features.numel() > 0
    if not fits or not features.is_floating_point():
        shown = f"{features.dtype} {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise InvalidInputError(
            f"network returned {shown} for {count} images: it must return float features ({count}, d)"
        )


def check_same_dtype(network: nn.Module, images: Tensor) -> None:
    """Check that the images have the dtype of the network's parameters."""
    dtypes = {value.dtype for value in network.parameters() if value.is_floating_point()}
    if len(dtypes) == 1 and images.dtype not in dtypes:
        dtype = dtypes.pop()
        raise InvalidTypeError(
            f"the images are {images.dtype} and the network is {dtype}: draw them as Episodes(dtype={dtype})"
        )


def check_finite(name: str, features: Tensor, mask: Tensor | None = None) -> None:
    """Check that existing examples have no NaN and no infinity."""
    if bool(torch.isfinite(features.detach().sum())):  # one pass; a sum that overflows is looked at more closely
        return
    finite = torch.isfinite(features.detach()).all(-1)
    finite = finite if mask is None else finite | ~mask
    if not bool(finite.all()):
        raise NonFiniteError(
            f"{name} has NaN or infinite features in {int((~finite).sum())} examples, the first at index "
            f"{(~finite).nonzero()[0].tolist()}: has the network diverged? Lower the learning rate"
        )


def check_mask(labels: Any, shape: torch.Size, mask: Any) -> Tensor:
    """Check that labels and mask have the shape of the support examples; without a mask all examples exist."""
    if not isinstance(labels, Tensor) or labels.dtype not in INTEGERS:
        shown = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise InvalidTypeError(f"labels must be an integer tensor, got {shown}: use labels.long()")
    if labels.shape != shape:
        raise InvalidInputError(
            f"labels of shape {tuple(labels.shape)} do not fit support: give one label per example, {tuple(shape)}"
        )
    if mask is None:
        return torch.ones_like(labels, dtype=torch.bool)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != shape:
        shown = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise InvalidInputError(f"mask must be booleans of shape {tuple(shape)}, one per support example, got {shown}")
    return mask


def check_labels(labels: Tensor, mask: Tensor, ways: int) -> None:
    """Check that labels are from 0 to ways - 1, and that each class of each task has an example."""
    outside = ((labels < 0) | (labels >= ways)) & mask
    if bool(outside.any()):
        at = outside.nonzero()[0].tolist()
        raise InvalidInputError(
            f"labels has {int(labels[tuple(at)])} at index {at}, but a {ways}-way head takes 0 to {ways - 1}: "
            "number the classes of each task from 0, or make the head with more ways"
        )
    counts = torch.nn.functional.one_hot(labels.where(mask, 0).long(), ways).where(mask.unsqueeze(-1), 0).sum(-2)
    if bool((counts == 0).any()):
        *task, missing = (counts == 0).nonzero()[0].tolist()
        where = f" of task {task[0] if len(task) == 1 else task}" if task else ""
        raise InvalidInputError(
            f"class {missing}{where} has no support example: give each of the {ways} classes at least one, or make the "
            "head for the number of classes there are, SVMHead(ways=...)"
        )


def check_tasks(tasks: Any, ways: int) -> Tensor | None:
    """Check that images and labels fit each other and the head; return the mask of the support examples."""
    for name in ("support", "support_labels", "query", "query_labels"):
        if not isinstance(getattr(tasks, name, None), Tensor):
            raise InvalidTypeError(
                f"tasks must have a tensor {name!r}, such as Episodes.sample gives, got {tasks!r:.60}"
            )
    for name in ("support", "query"):
        images, labels = getattr(tasks, name), getattr(tasks, f"{name}_labels")
        if images.ndim < 3 or images.shape[:2] != labels.shape or labels.is_floating_point():
            raise InvalidInputError(
                f"tasks.{name} of shape {tuple(images.shape)} and tasks.{name}_labels of shape {tuple(labels.shape)} "
                f"and {labels.dtype} do not fit: give images (tasks, count, ...) and integer labels (tasks, count)"
            )
    if tasks.support.shape[0] != tasks.query.shape[0] or tasks.support.shape[2:] != tasks.query.shape[2:]:
        raise InvalidInputError(
            f"tasks.support of shape {tuple(tasks.support.shape)} and tasks.query of shape {tuple(tasks.query.shape)} "
            "differ in more than the number of examples"
        )
    given = getattr(tasks, "support_mask", None)
    mask = check_mask(tasks.support_labels, tasks.support.shape[:2], given)
    check_labels(tasks.support_labels, mask, ways)
    outside = (tasks.query_labels < 0) | (tasks.query_labels >= ways)
    if bool(outside.any()):
        raise InvalidInputError(
            f"tasks.query_labels has {int(tasks.query_labels[outside][0])}, but a {ways}-way head takes 0 to {ways - 1}"
        )
    return None if given is None else mask
