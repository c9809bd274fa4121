"""`bilevel.minimize` on several ranks: they stop at the same step, whoever is interrupted and whosever time is up."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .. import loop
from ..checkpoints import Checkpoint
from ..checks import check_vector
from ..errors import Incompatible, InvalidInput
from ..solution import Record, Solution
from ..spaces import leaves
from .checkpoints import ShardedCheckpoint
from .fingerprint import fingerprint
from .ranks import Ranks
from .spaces import ShardedSpace

PATIENCE = 5.0
"""A second Ctrl-C so many seconds after the first ends this rank at once; `torchrun` itself sends two together."""


class Pulse:
    """What all ranks must know at the same time: whether one was interrupted, and what time it is (on rank 0).

    Two numbers, which ride along in a sum that is there anyway: `told` gives them, `heard` takes their sums.

    Examples
    --------
    >>> pulse = Pulse(Ranks())
    >>> interrupted, seconds = pulse.told()
    >>> pulse.heard(interrupted, 12.5)
    >>> pulse.now()
    12.5
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._clock: Callable[[], float] = time.perf_counter
        self._began = self._now = 0.0
        self._interrupted: float | None = None  # when

    def told(self) -> tuple[float, float]:
        """1 where this rank was interrupted, and the time on rank 0."""
        return float(self._interrupted is not None), self._clock() - self._began if self.ranks.rank == 0 else 0.0

    def heard(self, interrupted: float, seconds: float) -> None:
        """The sums over ranks: the time, and KeyboardInterrupt on every rank if one was interrupted."""
        self._now = seconds
        if interrupted:
            self._interrupted = None
            raise KeyboardInterrupt

    def all_finite(self, state: Any) -> bool:
        """Whether a state is finite on all ranks: one round, in which they hear of the rest as well."""
        names = [name for name in ("x", "y", "upper_momentum", "lower_momentum") if hasattr(state, name)]
        vectors = [tensor for name in names for tensor in leaves(getattr(state, name))]
        wrong, *told = self.ranks.total(sum(float((~torch.isfinite(u)).sum()) for u in vectors), *self.told())
        self.heard(*told)
        return wrong == 0

    def now(self) -> float:
        """The time as all ranks last heard it."""
        return self._now

    @contextmanager
    def beating(self, clock: Callable[[], float]) -> Iterator[None]:
        """Measure time by this clock, from now on, and let Ctrl-C wait until the ranks meet next."""
        self._clock, self._began, self._now, self._interrupted = clock, clock(), 0.0, None
        if threading.current_thread() is not threading.main_thread():
            yield  # signals reach the main thread alone
            return
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)

    def _interrupt(self, *_: Any) -> None:
        first = self._interrupted is None
        if not first and time.monotonic() - self._interrupted > PATIENCE:  # type: ignore[operator]
            raise KeyboardInterrupt
        if first:
            self._interrupted = time.monotonic()


def minimize(
    problem: Any,
    x0: Any = None,
    y0: Any = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
    callbacks: Iterable[loop.Callback] = (),
    progress: bool = False,
    **options: Any,
) -> Solution:
    """min_x f(x, y*(x)) with y*(x) = argmin over y in Y of g(x, y), on all ranks of a problem together.

    The run is that of `bilevel.minimize`, to rounding, for any number of ranks. All of them end at the same step: a
    time limit goes by the clock of rank 0, Ctrl-C on any rank interrupts all of them after the step at hand, and a
    callback that stops or fails on one rank stops all.

    Parameters
    ----------
    problem
        One that is divided among ranks, such as `ShardedCleaningProblem`.
    x0, y0
        As in `bilevel.minimize`: x0 this rank's part, y0 the same on every rank.
    clock
        That of rank 0 measures the seconds.
    callbacks
        As in `bilevel.minimize`, called on every rank.
    progress
        Show a progress bar, on rank 0.
    **options
        The other arguments of `bilevel.minimize`, the same on every rank: `checkpoint` and `resume` are a
        `ShardedCheckpoint`, and `delta` is for one process.

    Returns
    -------
    Solution
        The solution: x is this rank's part, y the same on every rank.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, algorithm 1 (the default solver).

    Examples
    --------
    >>> import torch
    >>> from bilevel.distributed import ShardedCleaningProblem, connect
    >>> rows, labels = torch.tensor([[1.0], [2.0], [-1.0]]), torch.tensor([1, 0, 0])
    >>> with connect() as ranks:  # one, unless torchrun started this program
    ...     problem = ShardedCleaningProblem(rows, labels, rows[::2], labels[::2], ranks=ranks)
    ...     solution = minimize(problem, problem.start(), steps=50)
    >>> solution.status.name
    'STEPS'
    """
    pulse = getattr(problem, "pulse", None)
    if not isinstance(pulse, Pulse):
        raise Incompatible(f"{problem!r} is not divided among ranks: use ShardedCleaningProblem, or bilevel.minimize")
    ranks = pulse.ranks
    with ranks.together("looking at the arguments of minimize"):
        _check(ranks, options, x0, problem)
    told = {name: repr(value) for name, value in options.items() if name not in ("checkpoint", "resume")}
    ranks.agree({"the arguments of minimize": dict(sorted(told.items()))}, "call it alike on every rank")
    if options.get("resume") is None:
        ranks.agree(_held_by_all(problem, x0, y0), "start from the same point on every rank")
    if isinstance(options.get("checkpoint") or options.get("resume"), ShardedCheckpoint):
        own = getattr(problem, "identity", {})
        options |= {
            name: replace(value, identity={**own, **value.identity})
            for name, value in options.items()
            if isinstance(value, ShardedCheckpoint)
        }
    together = _Together(pulse, loop._checked_callbacks(callbacks), divided_y=problem.y_divided)
    with pulse.beating(clock):
        return loop.minimize(
            problem, x0, y0, clock=pulse.now, callbacks=[together], progress=progress and ranks.rank == 0, **options
        )


class _Together:
    """All callbacks of a rank as one, which ends the run where one of any rank asks for it."""

    def __init__(self, pulse: Pulse, callbacks: list[loop.Callback], *, divided_y: bool) -> None:
        self._pulse, self._callbacks, self._divided_y = pulse, callbacks, divided_y

    def __call__(self, record: Record, state: Any) -> bool:
        if not self._divided_y:
            self._pulse.ranks.agree(
                {f"the checksum of y after {record.step} steps": fingerprint(state.y)},
                "the same arithmetic gave other bits there: use processors, libraries and threads of one kind",
            )
        stop = False
        with self._pulse.ranks.together("in a callback"):
            answers = [callback(record, state) for callback in self._callbacks]
            stop = any(answer is not None and bool(answer) for answer in answers)
        return bool(self._meet(float(stop)))

    def begin(self, history: Any) -> None:
        with self._pulse.ranks.together("in a callback"):
            loop._tell(self._callbacks, "begin", history)
        self._meet()  # steps are measured from here

    def end(self) -> None:
        loop._tell(self._callbacks, "end")

    def _meet(self, number: float = 0.0) -> float:
        total, *told = self._pulse.ranks.total(number, *self._pulse.told())
        self._pulse.heard(*told)
        return total


def _held_by_all(problem: Any, x0: Any, y0: Any) -> dict[str, str]:
    """What of the starting point every rank holds as a whole: shapes, and checksums."""
    x, y = problem.x0 if x0 is None else x0, problem.y0 if y0 is None else y0
    space, found = problem.x_space, {}
    if not isinstance(space, ShardedSpace):
        found["x0"] = x
    elif isinstance(x, dict):
        found |= {f"x0[{name!r}]": value for name, value in x.items() if name in space.whole}
    if not problem.y_divided:
        found["y0"] = y
    return {name: f"{_shapes(value)}, checksum {fingerprint(value)}" for name, value in found.items()}


def _shapes(vector: Any) -> str:
    return "absent" if vector is None else " and ".join(str(tuple(u.shape)) for u in leaves(vector))


def _check(ranks: Ranks, options: dict[str, Any], x0: Any, problem: Any) -> None:
    if ranks.size > 1 and options.get("delta") is not None:
        raise InvalidInput(f"delta={options['delta']!r} is for one process, and there are {ranks.size} ranks")
    for name in ("checkpoint", "resume"):
        value = options.get(name)
        if ranks.size > 1 and isinstance(value, str | Path | Checkpoint) and not isinstance(value, ShardedCheckpoint):
            raise InvalidInput(f"{name}={value!r} is for one process: ShardedCheckpoint(path, rows=..., ranks=...)")
        if value is not None and problem.y_divided:
            raise InvalidInput(
                f"{name}={value!r}: runs whose lower variable is divided among ranks cannot be stored; save solution.x "
                "and solution.y of each rank, and start from them"
            )
    if options.get("resume") is None:
        x = check_vector("x0", problem.x0 if x0 is None else x0)
        wanted = problem.start() if hasattr(problem, "start") else x
        shapes = [[tuple(u.shape) for u in leaves(v)] for v in (x, wanted)]
        if shapes[0] != shapes[1]:
            raise InvalidInput(f"x0 has the shapes {shapes[0]}, this rank needs {shapes[1]}")
