"""Episodes: small classification tasks drawn from a set of images with many classes.

A k-way task with n shots has k classes, n labelled images of each class (support) and m further images to classify
(query). Labels are 0 .. k-1 within the task.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._checks import check_count
from ..errors import InvalidInputError, InvalidTypeError, NonFiniteError
from ..random import plain_generator

PADDING = 4  # pixels on each side for random crops, as is usual for CIFAR


@dataclass(frozen=True)
class Tasks:
    """A batch of tasks.

    Parameters
    ----------
    support, query
        Images, (tasks, ways * shots, channels, height, width) and (tasks, ways * queries, ...), in [0, 1] if they were
        uint8. Images of the same class are adjacent.
    support_labels, query_labels
        0 .. ways - 1, (tasks, ways * shots) and (tasks, ways * queries), int64.
    support_mask
        Booleans (tasks, ways * shots): which support images exist, for tasks with different numbers of them; None if
        all do. Images where it is false are ignored.

    Examples
    --------
    >>> import torch
    >>> from bilevel.few_shot import ConvNet, Episodes, MetaLearner, SVMHead, generated_images
    >>> episodes = Episodes(generated_images(20, 8, 16), ways=3, shots=2, queries=4)
    >>> tasks = episodes.sample(2, torch.Generator().manual_seed(0))
    >>> tuple(tasks.support.shape), tasks.support_labels[0].tolist()
    ((2, 6, 1, 16, 16), [0, 0, 1, 1, 2, 2])
    """

    support: Tensor
    support_labels: Tensor
    query: Tensor
    query_labels: Tensor
    support_mask: Tensor | None = None

    def __len__(self) -> int:
        return len(self.support)


class Episodes:
    """Draws tasks from the images of many classes.

    Parameters
    ----------
    images
        (classes, per_class, channels, height, width), uint8, which is scaled to [0, 1], or floats, which are not.
    ways
        The number of classes of a task.
    shots, queries
        The numbers of support and query images of each class.
    rotations
        Images rotated by 90, 180 and 270 degrees form further classes, so that there are four times as many. Usual for
        training on Omniglot; images must be square.
    augment
        Shift every image by up to 4 pixels (a random crop of the image with a border of zeros) and mirror half of
        them. Usual for training on FC100; not for tests.
    dtype
        The dtype of the images of the tasks.

    References
    ----------
    Vinyals, Blundell, Lillicrap, Kavukcuoglu & Wierstra (2016).

    Examples
    --------
    >>> episodes = Episodes(generated_images(10, 8), ways=5, shots=1, queries=3)
    >>> tasks = episodes.sample(2, torch.Generator().manual_seed(0))
    >>> tasks.support.shape, tasks.query_labels.shape
    (torch.Size([2, 5, 1, 28, 28]), torch.Size([2, 15]))
    """

    def __init__(
        self,
        images: Tensor | np.ndarray,
        ways: int,
        shots: int,
        queries: int,
        *,
        rotations: bool = False,
        augment: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.images: Tensor = _checked_images(images)
        self.ways: int = check_count("ways", ways)
        self.shots: int = check_count("shots", shots)
        self.queries: int = check_count("queries", queries)
        self.rotations = rotations
        self.augment = augment
        self.dtype = dtype
        self._check_sizes()

    @property
    def classes(self) -> int:
        """The number of classes, including rotated ones."""
        return len(self.images) * (4 if self.rotations else 1)

    def sample(self, count: int, generator: torch.Generator) -> Tasks:
        """Draw `count` tasks, a function of the state of the generator, which must be on the CPU."""
        count = check_count("count", count)
        classes = _distinct((count,), self.classes, self.ways, generator)
        each = self.shots + self.queries
        chosen = _distinct((count, self.ways), self.images.shape[1], each, generator)
        classes = classes.unsqueeze(-1).expand_as(chosen)
        images = self._pictures(classes.reshape(-1), chosen.reshape(-1), generator)
        images = images.reshape(count, self.ways, each, *self.images.shape[2:])
        support, query = images[:, :, : self.shots].flatten(1, 2), images[:, :, self.shots :].flatten(1, 2)
        return Tasks(support, self._labels(count, self.shots), query, self._labels(count, self.queries))

    def _labels(self, count: int, each: int) -> Tensor:
        labels = torch.arange(self.ways, device=self.images.device).repeat_interleave(each)
        return labels.expand(count, -1).contiguous()

    def _pictures(self, classes: Tensor, chosen: Tensor, generator: torch.Generator) -> Tensor:
        """Images by class and number, turned and augmented; (n, channels, height, width)."""
        device = self.images.device
        turns = classes // len(self.images)  # class c turned k times has the number c + k * classes
        images = self.images[(classes % len(self.images)).to(device), chosen.to(device)]
        for quarter in range(1, 4 if self.rotations else 1):
            these = (turns == quarter).to(device)
            images[these] = images[these].rot90(quarter, (-2, -1))
        images = images.to(self.dtype) / 255 if images.dtype == torch.uint8 else images.to(self.dtype)
        return shifted_and_mirrored(images, generator) if self.augment else images

    def _check_sizes(self) -> None:
        _, per_class, _, height, width = self.images.shape
        if self.ways < 2:
            raise InvalidInputError(f"ways must be at least 2, got {self.ways}")
        if self.ways > self.classes:
            raise InvalidInputError(f"ways must be at most the {self.classes} classes of images, got {self.ways}")
        if self.shots + self.queries > per_class:
            raise InvalidInputError(
                f"shots + queries must be at most the {per_class} images of a class, got {self.shots} + {self.queries}"
            )
        if self.rotations and height != width:
            raise InvalidInputError(f"rotations need square images, got {height} x {width}: crop them")


def shifted_and_mirrored(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image shifted by up to 4 pixels either way, zeros coming in, and mirrored with probability 1/2."""
    count, _, height, width = images.shape
    device = images.device
    shifts = torch.randint(0, 2 * PADDING + 1, (2, count, 1), generator=generator).to(device)
    mirrored = torch.rand(count, 1, generator=generator).to(device) < 0.5
    rows, columns = torch.arange(height, device=device), torch.arange(width, device=device)
    columns = torch.where(mirrored, columns.flip(0), columns)
    padded = torch.nn.functional.pad(images, (PADDING,) * 4)
    rows, columns = (rows + shifts[0])[:, :, None], (columns + shifts[1])[:, None, :]
    picked = padded[torch.arange(count, device=device)[:, None, None], :, rows, columns]
    return picked.permute(0, 3, 1, 2).contiguous()


def generated_images(classes: int = 20, per_class: int = 20, size: int = 28, seed: int = 0) -> Tensor:
    """A small image data set for tests and examples: classes are pen strokes, images are shaky drawings of them.

    Each class has two quadratic Bezier curves with random control points in the unit square; each image perturbs the
    points and shifts all of them. The ink at p is exp(-|p - c|^2 / (2 w^2)), with c the nearest point of a curve.

    Parameters
    ----------
    classes, per_class
        The number of classes, and of images of each.
    size
        The width and height in pixels.
    seed
        The seed of the strokes.

    Returns
    -------
    Tensor
        Images, uint8, (classes, per_class, 1, size, size).

    Examples
    --------
    >>> generated_images(3, 4, size=16).shape
    torch.Size([3, 4, 1, 16, 16])
    """
    classes, per_class, size = (
        check_count(name, value) for name, value in (("classes", classes), ("per_class", per_class), ("size", size))
    )
    generator = plain_generator(seed)
    points = 0.15 + 0.7 * torch.rand(classes, 1, 2, 3, 2, generator=generator)
    hand = 0.03 * torch.randn(classes, per_class, 2, 3, 2, generator=generator)
    shift = 0.04 * torch.randn(classes, per_class, 1, 1, 2, generator=generator)
    t = torch.linspace(0, 1, 24)
    bernstein = torch.stack([(1 - t) ** 2, 2 * t * (1 - t), t**2])
    curves = torch.einsum("kt,cpskd->cpstd", bernstein, points + hand + shift).flatten(2, 3)
    pixels = (torch.arange(size) + 0.5) / size
    images = torch.empty(classes, per_class, 1, size, size, dtype=torch.uint8)
    for image, curve in zip(images, curves, strict=True):  # one class at a time: memory
        across, down = ((pixels[:, None] - curve[:, None, :, axis]) ** 2 for axis in (0, 1))
        nearest = (down[:, :, None, :] + across[:, None, :, :]).amin(-1)
        image[:, 0] = (255 * torch.exp(-nearest / (2 * 0.035**2))).round()
    return images


def _distinct(shape: tuple[int, ...], total: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` different numbers below `total` for every entry of `shape`, in random order."""
    return torch.rand(*shape, total, dtype=torch.float64, generator=generator).topk(count).indices


def _checked_images(images: Tensor | np.ndarray) -> Tensor:
    try:
        tensor = torch.as_tensor(images)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidTypeError(
            "images must be one tensor or array with as many images of each class, "
            f"got {type(images).__name__}: torch.stack the classes, cut to the smallest"
        ) from None
    if tensor.dtype != torch.uint8 and not tensor.is_floating_point():
        raise InvalidTypeError(f"images must be uint8 or floats, got {tensor.dtype}: convert them")
    if tensor.ndim != 5 or 0 in tensor.shape:
        raise InvalidInputError(
            f"images must have shape (classes, per_class, channels, height, width), got {tuple(tensor.shape)}"
        )
    if tensor.is_floating_point():
        finite = tensor.isfinite().flatten(1).all(1)
        if not finite.all():
            first = int((~finite).nonzero()[0])
            raise NonFiniteError(
                f"images of {int((~finite).sum())} classes, first class {first}, have NaN or infinite pixels"
            )
    return tensor
