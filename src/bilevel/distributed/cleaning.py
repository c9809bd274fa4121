"""The training of `HyperCleaner` with its rows divided among ranks: noise="rows", one weight for each row.

    the noisy rows of rank r, with their weights     on rank r
    the model, the trusted rows, the radius          on every rank

The stages are those of `bilevel.applications.hyper_cleaning.training`, which does not know of ranks: its problems and
its sums over noisy rows are those of all ranks here (`ShardedSettings`), and its journal is written by all of them
(`ShardedJournal`), which also carries Ctrl-C from one rank to the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..applications.hyper_cleaning.design import Design
from ..applications.hyper_cleaning.estimator import solver_of
from ..applications.hyper_cleaning.losses import loss_of
from ..applications.hyper_cleaning.problem import CleaningProblem
from ..applications.hyper_cleaning.training import Cleaned, Moment, Rows, Settings, train
from ..checkpoints import Fact
from ..errors import InvalidInput
from ..journal import FORMAT, VERSION, WHAT, Journal, checked_journal
from ..solvers import Solver
from ..solvers.base import FIXED_SET, needs_of
from .checkpoints import ShardedCheckpoint
from .loop import Pulse
from .ranks import Ranks
from .rows import ShardedCleaningProblem


def clean_rows(
    design: Any,
    labels: Tensor,
    trusted_design: Any,
    trusted_labels: Tensor,
    *,
    ranks: Ranks | None = None,
    classes: int | None = None,
    radius: float | str = "auto",
    solver: str | Solver = "auto",
    steps: int | None = None,
    seed: int = 0,
    checkpoint: str | None = None,
    resume: bool = False,
    identity: Mapping[str, Fact] | None = None,
    about: Mapping[str, Fact] | None = None,
    show: Callable[[Moment], None] | None = None,
) -> Cleaned:
    """Learn one weight per row, and a model that is not fooled by wrong labels, from rows divided among ranks.

    What `HyperCleaner(noise="rows")` does with all rows, to rounding, for any number of ranks. Every rank must call it,
    with the same arguments but for its rows; Ctrl-C on any of them ends learning on all after the step at hand.

    Parameters
    ----------
    design, labels
        The noisy rows of this rank (n_r, d), with columns of about unit scale, and their labels 0, 1, ... (n_r,).
    trusted_design, trusted_labels
        All trusted rows, shapes (m, d) and (m,), on every rank.
    ranks
        Default: those of torch.distributed, or this process alone.
    classes
        How many there are; default one more than the largest label of any rank.
    radius, solver, steps
        As in `HyperCleaner`.
    seed
        For everything drawn at random; the same on every rank.
    checkpoint
        A folder for the state of training, which all ranks write after every step.
    resume
        Go on from `checkpoint`, on any number of ranks.
    identity
        What makes this work this work beside the settings, by name: to be resumed, all of it must be the same.
    about
        Facts to keep with the checkpoint.
    show
        Called with the progress, on every rank.

    Returns
    -------
    Cleaned
        The model, on every rank, and the weights of this rank's rows.

    References
    ----------
    Ours; the problem is that of Shi, Chang & Gu (2024), the paper of DMLCBO, section 5.1.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> rows = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    >>> right = (rows[:, 0] > 0).long()
    >>> given = torch.where(torch.arange(60) % 6 == 0, 1 - right, right)
    >>> cleaned = clean_rows(rows[20:], given[20:], rows[:20], right[:20])
    >>> cleaned.status, cleaned.weights.shape, bool(cleaned.model["weight"].abs().argmax() == 0)
    ('finished', torch.Size([40]), True)
    """
    ranks = Ranks() if ranks is None else ranks
    noisy = trusted = Rows(Design.of(torch.zeros(1, 1)), torch.zeros(1, dtype=torch.int64))
    with ranks.together("looking at its rows"):
        noisy, trusted = Rows(Design.of(design), labels), Rows(Design.of(trusted_design), trusted_labels)
        chosen = solver_of(solver)
        if chosen is not None and FIXED_SET in needs_of(chosen) and radius == "auto":
            raise InvalidInput(f"solver={solver!r} needs a fixed radius: give one, such as radius=1.0")
    known = 1 + max(ranks.gather(max(int(part.max()) if len(part) else 0 for part in (labels, trusted_labels))))
    count = known if classes is None else classes
    settings = ShardedSettings(
        classes=count, noise="rows", loss=loss_of("logistic" if count == 2 else "softmax"), radius=radius,
        solver=solver_of(solver), steps=steps, seed=seed, ranks=ranks,
    )  # fmt: skip
    ranks.agree(settings.identity, "call clean_rows alike on every rank")
    pulse = Pulse(ranks)
    journal = _journal(pulse, noisy, checkpoint, resume, {**settings.identity, **(identity or {})}, about or {})
    with pulse.beating(time.perf_counter), journal.rescued():
        return train(noisy, trusted, settings, show, journal)


@dataclass(frozen=True, kw_only=True)
class ShardedSettings(Settings):
    """Settings whose problems are those of the rows of all ranks."""

    ranks: Ranks = field(default_factory=Ranks)

    @property
    def identity(self) -> dict[str, str | int]:
        texts = super().identity
        return {name: text for name, text in texts.items() if name != "ranks"}

    def problem(self, noisy: Rows, trusted: Rows, **options: Any) -> CleaningProblem:
        if noisy is trusted:  # trusted rows alone, which every rank has
            return super().problem(noisy, trusted, **options)
        kept = {"radius": self.radius, "loss": self.loss, "ridge": self.ridge, "intercept": self.intercept}
        return ShardedCleaningProblem(
            noisy.design, noisy.labels, trusted.design, trusted.labels, ranks=self.ranks, classes=self.classes,
            **{**kept, **options},
        )  # fmt: skip

    def count(self, noisy: Rows) -> int:
        return int(self.ranks.total(len(noisy))[0])

    def means(self, noisy: Rows) -> Tensor:
        design = noisy.design
        ones = torch.ones(len(noisy), 1, dtype=design.dtype, device=design.device)
        return self.ranks.all_sum(design.rmatmul(ones)[:, 0].contiguous()) / self.count(noisy)


class ShardedJournal(Journal):
    """A journal that all ranks keep together, step by step; after each step they hear of Ctrl-C on any of them."""

    def __init__(self, pulse: Pulse, *arguments: Any, **options: Any) -> None:
        self.pulse = pulse
        super().__init__(*arguments, **options)

    def step(self, stage: str, number: int, present: dict[str, Any], progress: dict[str, Any]) -> None:
        super().step(stage, number, present, progress)
        self.pulse.heard(*self.pulse.ranks.total(*self.pulse.told()))

    @contextmanager
    def rescued(self) -> Iterator[None]:
        """Errors name the newest checkpoint; one rank that fails alone cannot write another."""
        try:
            yield
        except BaseException as error:
            if self.files is not None and self.files.step is not None:
                error.add_note(str(self.files))
            raise


def _journal(
    pulse: Pulse,
    noisy: Rows,
    checkpoint: str | None,
    resume: bool,
    identity: Mapping[str, Fact],
    about: Mapping[str, Fact],
) -> ShardedJournal:
    if checkpoint is None:
        if resume:
            raise InvalidInput("resume=True goes on from a checkpoint: name its folder")
        return ShardedJournal(pulse, identity=identity)
    place = ShardedCheckpoint(checkpoint, rows=len(noisy), ranks=pulse.ranks, about=about)
    earlier = None
    if resume:
        earlier = checked_journal(place.load_values(format=FORMAT, version=VERSION, what=WHAT), place.folder.path)
    return ShardedJournal(
        pulse, place, resume=place.path if resume else None, earlier=earlier, identity=identity, call="clean_rows"
    )
