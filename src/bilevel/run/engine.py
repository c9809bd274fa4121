"""The engine of all runs: it takes the steps of stages, records and stores them, and can stop and resume at any step.

    with Run("HyperCleaner.fit", identity=..., checkpoint="fit.safetensors", resume=None) as run:
        start = run.once("start", fit_first_model)                    # a single computation
        learned = run.do(Learning(start), Limits(steps=20, record_every=1))
        if not run.interrupted:
            ...

`minimize`, `HyperCleaner.fit` and `MetaLearner.fit` are such programs. Each stage is a function of the input, the seed
and the stages before it. A resumed run therefore reads the results of finished stages from its file, continues within
the current one, and ends with the same bits as a run that was never interrupted.
"""

from __future__ import annotations

import contextlib
import copy
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from .._files import MALFORMED
from ..errors import BilevelError, EmptySetError, InvalidInputError, NonFiniteError, NotConvergedError
from ..ranks import Ranks
from .checkpoint import Checkpoint, CheckpointFiles, Fact, Outcome, RunDocument
from .progress import Progress, WorkShare, write
from .solution import Status

Callback = Callable[[Any, Any], Any]
FAILURES = (NonFiniteError, NotConvergedError, EmptySetError)
"""Errors of a step that end the run with a status; the last complete state is kept."""


class Stage:
    """The base of the stages of an application: its first state, its steps and its records.

    A state has a number `step` and a method `is_finite()`, and can be stored in a file (see `run._serialization`).
    Randomness is a function of the seed and the step, so that no generator has to be stored.
    """

    name: str
    """The key of the stage in the file, unique within a run."""
    counts: Mapping[str, float] = {}
    """What the steps have cost so far; set back when a step fails."""
    record_start = False
    """Whether the state before the first step is recorded too."""

    def init(self) -> Any:
        """The state before the first step."""
        raise NotImplementedError

    def step(self, state: Any) -> Any:
        """The state after one more step; `state` is not modified."""
        raise NotImplementedError

    def record(self, state: Any, seconds: float) -> Any:
        """One row of the history, or None. It is computed again after an interruption and must have no side effects."""
        return None

    def stop(self, state: Any, row: Any) -> Status | None:
        """The status if the stage ends here, called at every record."""
        return None

    def done(self, state: Any) -> bool:
        """Whether no step is left: the state is then recorded, and `stop` gives the reason."""
        return False

    def conclude(self, state: Any, status: Status, history: Sequence[Any]) -> Status:
        """The final status, if the state or the records tell more than that the limits were reached."""
        return status

    def share(self, state: Any, reached: float) -> float:
        """The fraction of this stage's work that is done; `reached` is the fraction of its steps or seconds."""
        return reached

    def describe(self, state: Any, row: Any) -> str:
        """A text for the progress bar; `row` is the newest record."""
        return self.name

    def view(self, state: Any) -> Any:
        """The state that is passed to callbacks."""
        return state

    def result(self, state: Any) -> Any:
        """The result of this stage, which is stored when the next stage begins; later stages need nothing else."""
        return None

    def gather(self, state: Any) -> Any:
        """The state with the parts of all ranks joined on rank 0, for the file."""
        return state

    def divide(self, state: Any) -> Any:
        """This rank's part of a state from the file."""
        return state


@dataclass(frozen=True)
class Limits:
    """How far a stage runs, and how often it is recorded and, unless `Checkpoint.every` is given, stored."""

    steps: float = math.inf
    seconds: float = math.inf  # of the steps of the run, records not included
    record_every: int = 100
    clock: Callable[[], float] = time.perf_counter

    def ends_period(self, step: int, every: int) -> bool:
        """Whether this step ends a period of this number of steps, or the stage."""
        return step % every == 0 or step == self.steps

    def share(self, step: int, seconds: float) -> float:
        """The fraction of the limits that is reached."""
        return min(max(step / max(self.steps, 1), seconds / self.seconds), 1.0)


class Run:
    """Run the stages of one program and keep its newest complete step in a file.

    Parameters
    ----------
    kind
        The function a user calls, such as "HyperCleaner.fit".
    identity
        The properties that identify this run, by name, large values by fingerprint. A run to resume must agree in all.
    ranks
        The processes of the run; rank 0 writes the files.
    checkpoint
        A path or `Checkpoint(path, every=...)`. An existing file is an error unless it is resumed or `overwrite` is
        set.
    resume
        The path of a checkpoint, or a document read from one.
    callbacks
        Functions of (row, state); a callback that returns a true value ends the stage.
    progress
        Show a bar, or lines if standard error is not a terminal. None shows a bar in a terminal if the run takes long.
    work
        The expected work of each stage, by name and in any unit, for the estimate of the time left.

    Examples
    --------
    >>> with Run("example") as run:
    ...     total = run.once("sum", lambda: 3)
    ...     again = run.once("sum", lambda: 1 / 0)  # never done again
    >>> total, again
    (3, 3)
    """

    def __init__(
        self,
        kind: str,
        *,
        identity: Mapping[str, Fact] | None = None,
        ranks: Ranks | None = None,
        checkpoint: str | Path | Checkpoint | None = None,
        resume: str | Path | Checkpoint | RunDocument | None = None,
        callbacks: Iterable[Callback] = (),
        progress: bool | None = False,
        work: Mapping[str, float] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.ranks: Ranks = Ranks() if ranks is None else ranks
        document = Checkpoint.of(resume).load() if isinstance(resume, str | Path | Checkpoint) else resume
        self.document: RunDocument = (
            document.copy() if document else RunDocument(kind=kind, identity=dict(identity or {}))
        )
        self.document.check_identity(kind, identity or {})
        self.callbacks: list[Any] = list(callbacks)
        self._from_file = self.document.path  # until a step shows that its content makes sense
        self.interrupted = False
        """Whether Ctrl-C ended a stage. Later stages are computed for the user but not written."""
        self._files, self._every = None, None
        if checkpoint is not None:
            with self.ranks.guard("opening the checkpoint"):
                settings = Checkpoint.of(checkpoint)
                self.document.about |= settings.about
                self._files, self._every = CheckpointFiles(settings, self.document, overwrite=overwrite), settings.every
        self._interrupts = Interrupts(patience=0.0 if self.ranks.size == 1 else 5.0)
        self._progress = Progress(progress if self.ranks.rank == 0 else False)
        self._work = WorkShare(work or {}, self.document.finished)
        self._stage: Stage | None = None
        self._begun = self._files is not None and self._files.resumed  # the file is there
        self._unwritten = False  # steps were taken, or a stage ended, since the last write
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self._files is not None:
            with self.ranks.guard("locking the checkpoint"):
                if self.ranks.rank == 0:
                    self._resources.enter_context(self._files)
        self._resources.enter_context(self._interrupts)
        self._resources.enter_context(self._progress)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        with self._resources:
            if error is not None and self._files is not None:
                self._rescue(error, self._files)
        if isinstance(error, MALFORMED) and not isinstance(error, BilevelError) and self._from_file:
            raise InvalidInputError(
                f"{self._from_file}: resuming from this file failed ({type(error).__name__}: {str(error)[:200]}). The "
                "file does not fit this run, or a function of yours fails: use an older copy, or start again"
            ) from error

    def _rescue(self, error: BaseException, files: CheckpointFiles) -> None:
        """Write the last complete step before an error ends the run, and add the path to the message."""
        if files.place is None and not self._unwritten:
            return  # nothing was written, and nothing is lost
        alone = self.ranks.size == 1  # other ranks may not be here to give their parts
        if alone and (self._unwritten or not files.newest_is_good):
            self.document.status = Status.FAILED
            self.write()
        error.add_note(str(files))

    # --- stages -------------------------------------------------------------------------------------------------------

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """A stage of one step: its result from the file, or else computed and written."""
        document = self.document
        if name not in document.finished:
            self._write_first()
            with self.ranks.guard(name):
                result = compute()
            _, pressed, _ = self.ranks.sync(False, self._interrupts.pressed, 0.0)
            document.stage, document.state = name, None
            self._work.end(name)
            self._end(name, result, Status.STEPS)
            if pressed:
                self._interrupts.pressed, self.interrupted = False, True
        return document.finished[name].result

    def do(self, stage: Stage, limits: Limits) -> Outcome:
        """Take the steps of a stage up to its limits, starting from the file if it contains the stage.

        A state that is not finite ends the stage (`Status.DIVERGED`), and so does a projection or inner problem that
        fails (`Status.FAILED`; an error if the first step fails). Ctrl-C ends the stage after the current step, a
        second Ctrl-C at once; the last complete step is kept in any case.
        """
        document, began = self.document, limits.clock()
        if stage.name in document.finished:
            return self._finished(stage)
        begins = document.stage != stage.name
        if begins:
            document.stage, document.state = stage.name, stage.init()
            document.seconds += limits.clock() - began
            document.recorded = document.state.step
        else:
            document.state, stage.counts = self._part(stage, document.state), document.counts
        document.status, self._stage = Status.RUNNING, stage
        first, message = document.state.step, ""
        try:
            status = self._loop(stage, limits, begins)
        except KeyboardInterrupt:  # the second press, or raised by a function of the user
            status = Status.INTERRUPTED
        except FAILURES as error:
            status = Status.DIVERGED if isinstance(error, NonFiniteError) else Status.FAILED
            if status is Status.FAILED and document.state.step == first:
                raise  # nothing is lost
            message = str(error)
        return self._leave(stage, limits, status, message)

    def reopen(self, name: str) -> None:
        """Continue a stage that has ended, from its last state, if the user asks for more steps."""
        if self.document.stage == name:
            self.document.finished.pop(name, None)

    def _finished(self, stage: Stage) -> Outcome:
        document, outcome = self.document, self.document.finished[stage.name]
        self._write_first()
        if document.stage != stage.name:
            return replace(outcome, result=self._part(stage, outcome.result))
        try:
            self._notify("begin", [*document.history])
        finally:
            self._notify("end")
        return replace(outcome, result=self._part(stage, outcome.result), state=self._part(stage, document.state))

    def _part(self, stage: Stage, value: Any) -> Any:
        """This rank's part of the document; a file holds the parts of all ranks."""
        return value if self.document.path is None else stage.divide(value)

    def _loop(self, stage: Stage, limits: Limits, begins: bool) -> Status:
        document, status = self.document, None
        try:
            if begins and stage.record_start:
                document.history.append(stage.record(document.state, document.seconds))
            with self.ranks.guard("in a callback"):
                self._notify("begin", [*document.history])
            self._write_first()
            if document.recorded < document.state.step and limits.ends_period(document.state.step, limits.record_every):
                status, _ = self._record(stage)  # the run was stopped between a step and its record
            self._progress.begin(self.share(stage, limits))
            while status is None and document.state.step < limits.steps:
                status = self._step(stage, limits)
        finally:
            self._notify("end")
        return status or Status.STEPS

    def _step(self, stage: Stage, limits: Limits) -> Status | None:
        document, began, counts = self.document, limits.clock(), stage.counts
        try:
            with self.ranks.guard(f"taking step {document.state.step + 1}", wait=False):
                new = stage.step(document.state)
                bad = not new.is_finite()
            seconds = document.seconds + limits.clock() - began
            bad, pressed, document.seconds = self.ranks.sync(bad, self._interrupts.pressed, seconds)
            if bad:
                raise NonFiniteError("the next state is not finite")
        except BaseException:
            stage.counts = counts
            raise
        document.state, self._unwritten = new, True  # the one commit point
        if not document.finished:  # later stages take the results of earlier ones from the file
            self._from_file = None
        step = new.step
        late, going_on = document.seconds >= limits.seconds, step < limits.steps
        status, recorded = None, late or stage.done(new) or limits.ends_period(step, limits.record_every)
        if recorded:
            status, pressed = self._record(stage)
        if status is None and going_on and (pressed or late):
            status = Status.INTERRUPTED if pressed else Status.TIME
        if self._files and status is None and going_on and limits.ends_period(step, self._every or limits.record_every):
            self.write()
        if recorded or self._progress.is_due():
            self._show(stage, limits)
        return status

    def _record(self, stage: Stage) -> tuple[Status | None, bool]:
        """Compute a row and the status, then append the row; an interrupted record is computed again on resuming.

        Return the status that ends the stage, if any, and whether Ctrl-C was pressed.
        """
        document = self.document
        with self.ranks.guard("making a record", wait=False):
            row = stage.record(document.state, document.seconds)
        answers: list[bool] = []
        with self.ranks.guard("in a callback", wait=False):
            if row is not None:  # copies for each: what it does to them stays there
                from_file, self._from_file = self._from_file, None  # an error in a callback is its own
                for callback in self.callbacks:
                    answers.append(bool(callback(copy.deepcopy(row), stage.view(document.state))))
                self._from_file = from_file
        stopped, pressed, _ = self.ranks.sync(any(answers), self._interrupts.pressed, 0.0)
        status = Status.STOPPED if stopped else stage.stop(document.state, row)
        if row is not None:
            document.history.append(row)
        document.recorded = document.state.step
        return status, pressed

    def _leave(self, stage: Stage, limits: Limits, status: Status, message: str) -> Outcome:
        document, status = self.document, stage.conclude(self.document.state, status, self.document.history)
        document.status, document.message = status, message
        document.result, document.counts = stage.result(document.state), dict(stage.counts)
        if status is Status.INTERRUPTED:
            self._interrupts.pressed = False
            self.write()
            self.interrupted: bool = True
        else:
            self._work.end(stage.name, self._stage_share(stage, limits))
            self._end(stage.name, stage.gather(document.result), status, message)
        if not status.ok:
            message = ". ".join(filter(None, (message, str(self))))
        return Outcome(document.result, status, message, document.state)

    def _end(self, name: str, result: Any, status: Status, message: str = "") -> None:
        self.document.finished[name] = Outcome(result, status, message)
        self._unwritten = True
        self.write()

    def _notify(self, method: str, *arguments: Any) -> None:
        """Call `begin` or `end` of the observers that have it."""
        for callback in self.callbacks:
            getattr(callback, method, lambda *_: None)(*arguments)

    # --- the file and the bar -----------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write the current run as the newest checkpoint; nothing is written after an interruption."""
        if self._files is None or self.interrupted:
            return
        document, stage = self.document, self._stage
        if stage is not None and stage.name == document.stage:
            whole = stage.gather(document.state)
            document = replace(document, state=whole, counts=dict(stage.counts), result=stage.result(whole))
        with self.ranks.guard("writing the checkpoint"):
            written = self.ranks.rank > 0 or self._files.write(document)
        self._begun, self._unwritten = True, not written

    def _write_first(self) -> None:
        """Write once before the first step, so that an unwritable path or state raises early."""
        if not self._begun:
            self.write()

    def __str__(self) -> str:
        """Which step of this run is on the disk, and how to continue from it; empty without a checkpoint."""
        return "" if self._files is None else str(self._files)

    def expect(self, name: str, work: float) -> None:
        """Correct the expected work of a stage; 0 if it is left out."""
        self._work.work[name] = work

    def _stage_share(self, stage: Stage, limits: Limits) -> float:
        state = self.document.state
        return stage.share(state, limits.share(state.step, self.document.seconds))

    def share(self, stage: Stage, limits: Limits) -> float:
        """The fraction of the work of the whole run that is done."""
        return self._work.share(stage.name, self._stage_share(stage, limits))

    def _show(self, stage: Stage, limits: Limits) -> None:
        share, document = self.share(stage, limits), self.document
        counted = math.isfinite(limits.steps) and not self._work.work
        counter = f"step {document.state.step}/{limits.steps:.0f}" if counted else f"{100 * share:.0f} %"
        row = document.history[-1] if document.history else None
        self._progress.show(share, counter, stage.describe(document.state, row))


class Interrupts:
    """Delay Ctrl-C to the end of the step (`pressed`); a second one, `patience` seconds later or more, acts at once.

    Outside the main thread this has no effect, because Python delivers signals to the main thread.
    """

    def __init__(self, patience: float = 0.0) -> None:
        self.pressed, self._patience = False, patience
        self._when = -math.inf
        self._before: Any = None

    def __enter__(self) -> Self:
        self._here = threading.current_thread() is threading.main_thread()
        if self._here:
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._here:
            signal.signal(signal.SIGINT, signal.SIG_DFL if self._before is None else self._before)

    def _press(self, number: int, frame: Any) -> None:
        if self.pressed and time.monotonic() >= self._when + self._patience:
            if callable(self._before):
                self._before(number, frame)
            raise KeyboardInterrupt
        if not self.pressed:
            self.pressed, self._when = True, time.monotonic()
            with contextlib.suppress(RuntimeError, OSError):  # amid another text
                write("bilevel: stopping after this step; press Ctrl-C again to stop at once\n")
