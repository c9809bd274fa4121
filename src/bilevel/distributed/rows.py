"""Hyper-cleaning with its rows divided among ranks."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..applications.hyper_cleaning import CleaningProblem
from ..applications.hyper_cleaning.design import Design
from ..applications.hyper_cleaning.fused import FusedStep
from ..applications.hyper_cleaning.row_mean import RowMean, Share
from ..errors import InvalidInput
from ..machine import processor
from ..spaces import Space, Vector
from .fingerprint import fingerprint, of_rows
from .fused import ShardedStep
from .loop import Pulse
from .ranks import Ranks
from .spaces import ShardedSpace

MACHINE = ("torch", "numpy", "the number of threads", "the name of the processor", "the processor")
"""What ranks must have in common that a run which goes on elsewhere need not."""


class ShardedCleaningProblem(CleaningProblem):
    """The `CleaningProblem` of all rows, of which rank r holds the part r with its entries of x; y is on every rank.

        g(x, y) = (1/n) sum over ranks r, rows i of r of phi_i(x, s_i)  +  ...          n = n_1 + ... + n_R

    A value, gradient in y or Hessian product is a sum over the rows at hand and one sum over ranks, of as many numbers
    as y has (on a face: as its support has). Derivatives in weights of rows stay where the rows are. Every solver of
    the library takes it, through `bilevel.distributed.minimize` or `bilevel.minimize`, with the same arguments on every
    rank. Where the weights of rows are x, x0 and solution.x are those of this rank's rows.

    Parameters
    ----------
    design, labels
        The noisy rows of this rank: at least one.
    trusted_design, trusted_labels
        The trusted rows, all of them on every rank: they are few.
    ranks
        Default: those of torch.distributed's default group, or this process alone.
    classes
        How many classes there are; default one more than the largest label of any rank.
    **options
        Those of `CleaningProblem`; `witnesses` are
        this rank's part of them; batches are not there.

    References
    ----------
    Ours; the problem is that of Shi, Chang & Gu (2024), the paper of DMLCBO, section 5.1.

    Examples
    --------
    >>> from bilevel.distributed import Ranks, minimize
    >>> rows, labels = torch.tensor([[1.0], [2.0], [-1.0]]), torch.tensor([1, 0, 0])
    >>> trusted = torch.tensor([[1.5], [-1.5]]), torch.tensor([1, 0])
    >>> ranks = Ranks()
    >>> mine = slice(ranks.rank, None, ranks.size)  # with one rank: all rows
    >>> problem = ShardedCleaningProblem(rows[mine], labels[mine], *trusted, ranks=ranks)
    >>> solution = minimize(problem, problem.start(), steps=100)
    >>> int(solution.x.argmin())  # the row whose label misleads
    1
    """

    y_divided = False

    def __init__(
        self,
        design: Any,
        labels: Any,
        trusted_design: Any,
        trusted_labels: Any,
        *,
        ranks: Ranks | None = None,
        classes: int | None = None,
        **options: Any,
    ) -> None:
        self.ranks = Ranks() if ranks is None else ranks
        self.pulse = Pulse(self.ranks)
        with self.ranks.together("looking at its rows"):
            if options.get("batch_size") is not None:
                raise InvalidInput(
                    f"batch_size={options['batch_size']!r}: rows that are divided among ranks are all used in each "
                    "step; leave it out"
                )
            largest = max(_largest_label(part) for part in (labels, trusted_labels))
        known = max(self.ranks.gather(largest)) + 1
        with self.ranks.together("making its part of the problem"):
            count = known if classes is None else classes
            super().__init__(design, labels, trusted_design, trusted_labels, classes=count, **options)
            self._check_device()
        self.ranks.agree(self._common(), "give every rank the same trusted rows, columns and settings")
        counts = self.ranks.gather([d.shape[0] for d in self._divided_designs])
        self.counts: list[int] = [each[0] for each in counts]
        """How many rows each rank holds."""
        self._firsts = [sum(part[: self.ranks.rank]) for part in zip(*counts, strict=True)]
        self._shares = [Share(sum(part), max(part), self._total) for part in zip(*counts, strict=True)]

    @cached_property
    def identity(self) -> dict[str, str]:
        """What makes this problem this problem, for any number of ranks, in texts by name: its checkpoints hold it.

        Of rows that are not dense, the labels alone are looked at. All ranks must ask for it together.
        """
        alike = {name: value for name, value in self._common().items() if name not in MACHINE}
        rows = [(self.design, self.labels), *(() if self.witnesses is None else (self.witnesses[:2],))]
        marks = [_mark(each[0], each[1], first) for each, first in zip(rows, self._firsts, strict=True)]
        summed = self.ranks.all_sum(torch.tensor(marks, device=self.ranks.device)).tolist()
        return {
            "the rows and labels": f"sha256:{fingerprint(summed)}",
            **{name: str(value) for name, value in alike.items()},
        }

    @property
    def first_row(self) -> int:
        """The number of this rank's first row among all rows, in the order of ranks."""
        return self._firsts[0]

    @cached_property
    def x_space(self) -> Space:
        """Divided where x has one entry per row; a radius is on every rank."""
        return ShardedSpace(ranks=self.ranks, whole=frozenset({"log_radius"})) if self.noise.per_row else Space()

    def is_finite(self, state: Any) -> bool:
        """On all ranks, in one round; `ShardedStep` knows already."""
        step = getattr(self._fused, "step", None)
        if isinstance(step, ShardedStep) and step.made is state:
            return step.is_finite()
        return self.pulse.all_finite(state)

    def _written_out(self, solver: Any) -> FusedStep:
        return FusedStep(self, solver) if self.ranks.size == 1 else ShardedStep(self, solver)

    def noisy_mean(self, x: Vector, y: Any, batch: Tensor | None = None, **known: Any) -> RowMean:
        return super().noisy_mean(x, y, batch, **known, share=self._shares[0])

    def evidence_mean(self, x: Vector, y: Any, batch: Tensor | None = None, **known: Any) -> RowMean:
        if self.witnesses is None:
            return self.noisy_mean(x, y, batch, **known)
        return super().evidence_mean(x, y, batch, **known, share=self._shares[1])

    def _total(self, part: Tensor) -> Tensor:
        if part.requires_grad:
            raise InvalidInput(
                "autograd does not follow sums over ranks: ask problem.linearize(x, y) for values and derivatives"
            )
        return self.ranks.all_sum(part)

    @property
    def _divided_designs(self) -> list[Design]:
        return [self.design, *(() if self.witnesses is None else self.witnesses[:1])]

    def _check_device(self) -> None:
        needed = self.ranks.device
        if needed.type == "cuda" and self.design.device.type != "cuda":
            raise InvalidInput(
                f"the rows are on {self.design.device} and the ranks meet by nccl, on GPUs: move the rows to {needed}, "
                'or connect("gloo")'
            )

    def _common(self) -> dict[str, Any]:
        """What must be the same everywhere: y and all decisions are computed on every rank, to the same bits."""
        device, point = self.design.device.type, self.start()
        return {
            "the number of columns": self.design.shape[1],
            "the dtype": str(self.design.dtype),
            "the kind of rows": [type(design).__name__ for design in (*self._divided_designs, self.trusted_design)],
            "classes": self.classes,
            "loss": repr(self.loss),
            "noise": repr(self.noise),
            "the set of the model": repr(self.constraint_at(point)),
            "the ridges": self.ridges,
            "the entries of the model": {name: list(entry.shape) for name, entry in self.y0.items()},  # type: ignore[union-attr]
            "trusted_in_lower": self.trusted_in_lower,
            "evidence": self.evidence,
            "fused": self.fused,
            "the trusted rows (by their checksum)": _checksum(self.trusted_design, self.trusted_labels),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "the number of threads": torch.get_num_threads(),
            "the name of the processor": processor(),
            "the processor": torch.cuda.get_device_name()
            if device == "cuda"
            else torch.backends.cpu.get_cpu_capability(),
        }


def _mark(design: Design, labels: Tensor, first: int) -> int:
    """Of these rows; the sum over all ranks is the same for every division."""
    total, known = 0, labels.cpu().numpy()
    for rows, block in design.blocks():
        array = getattr(block, "array", None)
        columns = [] if array is None else array.detach().cpu().numpy().T
        total += of_rows([*columns, known[rows]], first + rows.start)
    return (total + 2**63) % 2**64 - 2**63


def _largest_label(labels: Any) -> int:
    """Of labels that are yet to be checked; 0 where they are not numbers, which is found later."""
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    return int(array.max()) if array.size and array.dtype.kind in "iu" else 0


def _checksum(design: Design, labels: Tensor) -> str:
    """The same for the same rows and labels, however they lie in memory."""
    found = hashlib.blake2b(labels.cpu().numpy().tobytes(), digest_size=16)
    probe = torch.arange(1, design.shape[1] + 1, device=design.device).to(design.dtype).sqrt()[:, None]
    for _, block in design.blocks():
        numbers = getattr(block, "array", None)
        found.update((block.matmul(probe) if numbers is None else numbers).cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
