"""Where the runs of a sweep are made: in this process, in processes of this machine, or at a Dask scheduler.

Every pool is a context manager that ends its workers when it is left, and has

    submit(specs)    start these as soon as there is room          len(pool)         how many have not ended
    next()           wait for one that has ended                   pool.running()    how many of them are running
"""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..errors import BilevelError, InvalidInputError, MissingExtraError

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from .plan import RunSpec
    from .run_folder import Outcome

ATTEMPTS = 10
"""How many workers may die during one run before it is given up."""

Group = tuple["RunSpec", ...]
Result = tuple[Group, "list[Outcome] | Exception"]


class WorkerLostError(RuntimeError):
    """Every worker that began a run died."""


class SchedulerLostError(BilevelError, OSError):
    """The connection to the scheduler was lost; runs that had ended are stored.

    Examples
    --------
    >>> issubclass(SchedulerLostError, OSError)
    True
    """


def run(specs: Group, folder: Path) -> list[Outcome]:
    """`run.run`, imported when it is called: a worker ignores Ctrl-C before it loads torch."""
    from .run import run

    return run(specs, folder)


class InProcess:
    """One run after the other, in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._waiting = folder, deque[Group]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._waiting.clear()

    def submit(self, specs: Group) -> None:
        self._waiting.append(specs)

    def next(self) -> Result:
        specs = self._waiting.popleft()
        try:
            return specs, run(specs, self._folder)
        except Exception as error:  # as from a worker: the sweep reports it and continues with other runs
            return specs, error

    def __len__(self) -> int:
        return len(self._waiting)

    def running(self) -> int:
        return min(1, len(self._waiting))


class LocalProcesses:
    """Processes of this machine, one run each; a driver and its workers talk through pipes, and no port is opened.

    A run whose worker dies is repeated by another one, up to `attempts` times.

    Parameters
    ----------
    folder
        The data folder.
    workers
        How many processes; as many as there are cores when None.
    function
        Called in a worker with specs and the folder; returns their outcomes.
    attempts
        How many workers may die during one run.
    notify
        Called with a line for the user when a worker has died.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int | None = None,
        function: Callable[[Group, Path], list[Outcome]] = run,
        attempts: int = ATTEMPTS,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._task, self._workers = (folder, function), workers or os.cpu_count() or 1
        self._attempts, self._notify = attempts, notify
        self._deaths: Counter[Group] = Counter()
        self._waiting: deque[Group] = deque()
        self._idle: dict[Connection, SpawnProcess] = {}
        self._busy: dict[Connection, tuple[SpawnProcess, Group]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        for process in [*self._idle.values(), *(process for process, _ in self._busy.values())]:
            process.terminate()
            process.join()

    def submit(self, specs: Group) -> None:
        self._waiting.append(specs)
        self._assign()

    def next(self) -> Result:
        while True:
            ready = wait(list(self._busy))
            pipe = next(pipe for pipe in self._busy if pipe in ready)
            process, specs = self._busy.pop(pipe)
            try:
                result = pipe.recv()
                self._idle[pipe] = process
            except (EOFError, OSError):
                result = self._repeat(specs, process)
            self._assign()
            if result is not None:
                return specs, result

    def _assign(self) -> None:
        """Give waiting runs to idle workers, and start workers as long as there are too few."""
        while self._waiting and len(self._busy) < self._workers:
            specs = self._waiting.popleft()
            pipe, process = self._idle.popitem() if self._idle else self._start()
            with suppress(OSError):  # it died while it was idle: `next` notices
                pipe.send(specs)
            self._busy[pipe] = process, specs

    def _start(self) -> tuple[Connection, SpawnProcess]:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, *self._task), daemon=True)
        process.start()
        theirs.close()
        return ours, process

    def _repeat(self, specs: Group, process: SpawnProcess) -> WorkerLostError | None:
        """Submit a run again whose worker has died, unless too many have."""
        process.join()
        self._deaths[specs] += 1
        if self._deaths[specs] >= self._attempts:
            return WorkerLostError(f"{self._attempts} workers died during it, the last with code {process.exitcode}")
        self._notify(f"a worker died (code {process.exitcode}) during run {specs[0].identity}: the run is repeated")
        self._waiting.appendleft(specs)
        return None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._busy)

    def running(self) -> int:
        return len(self._busy)


def _serve(pipe: Connection, folder: Path, function: Callable[[Group, Path], list[Outcome]]) -> None:
    """A worker: makes the runs that it is sent, until its driver ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which then ends its workers
    with suppress(EOFError, OSError):  # the driver has ended
        while True:
            specs = pipe.recv()
            try:
                pipe.send(function(specs, folder))
            except Exception as error:
                pipe.send(error)


class DaskScheduler:
    """The workers of a Dask scheduler that is running already. Trust its network, or use TLS: see docs/reproduce.md.

    Parameters
    ----------
    folder
        The data folder, as the workers see it.
    scheduler
        Its address, such as ``tcp://127.0.0.1:8786``.
    notify
        Called with lines for the user.
    """

    def __init__(self, folder: Path, scheduler: str, *, notify: Callable[[str], None] = lambda text: None) -> None:
        self._folder, self._scheduler, self._notify = folder, scheduler, notify
        self._groups: dict[Any, Group] = {}
        self._submitted = 0
        self._client: Any = None

    def __enter__(self) -> Self:
        return self

    def _connect(self) -> Any:
        """With the first run: when nothing is missing no scheduler is needed."""
        try:
            from distributed import Client, as_completed
        except ImportError:
            raise MissingExtraError("A sweep on several machines (--scheduler)", "cluster") from None
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        try:
            self._client = Client(self._scheduler, timeout=20, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise InvalidInputError(
                f"no Dask scheduler answers at {self._scheduler!r} ({error}): start one by `dask scheduler`, and "
                "workers by `dask worker ADDRESS --nthreads 1`, or leave --scheduler out"
            ) from None
        self._ended = as_completed([], loop=self._client.loop)
        if not self._scheduler.startswith("tls:"):
            self._notify(
                f"whoever reaches {self._scheduler} can run code on its machines: use trusted networks only, or TLS "
                "(docs/reproduce.md)"
            )
        threads = self._client.nthreads()
        if not threads:
            self._notify(
                f"the scheduler at {self._scheduler} has no workers: runs wait until some have joined by "
                f"`dask worker {self._scheduler} --nthreads 1`"
            )
        _check_threads(threads)
        return self._client

    def __exit__(self, *_: Any) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.cancel(list(self._groups), force=True)
            with suppress(Exception):
                self._client.close(timeout=5)

    def submit(self, specs: Group) -> None:
        client = self._client or self._connect()
        self._submitted += 1
        # Keys with one beginning are one group to the scheduler, which keeps large groups until a worker is free.
        key = f"run-{specs[0].identity}-{os.getpid()}-{self._submitted}"
        future = client.submit(run, specs, self._folder, key=key, pure=False, priority=-self._submitted)
        self._groups[future] = specs
        self._ended.add(future)

    def next(self) -> Result:
        from distributed import KilledWorker
        from distributed.client import FutureCancelledError

        while True:
            future = next(self._ended)
            specs = self._groups.pop(future)
            try:
                return specs, future.result()
            except KilledWorker:  # the scheduler has tried as often as its `allowed-failures` says
                return specs, WorkerLostError("every worker that began it was lost, and it is not tried again now")
            except FutureCancelledError:  # the result went with the worker, or everything with the scheduler
                if self._client.status != "running":
                    raise SchedulerLostError(
                        f"the Dask scheduler at {self._client.scheduler.address} has gone: start it and its workers "
                        "again, then the same command; runs that had ended are stored"
                    ) from None
                self.submit(specs)
            except Exception as error:
                return specs, error

    def __len__(self) -> int:
        return len(self._groups)

    def running(self) -> int:
        threads: Mapping[str, int] = {}
        with suppress(Exception):  # not connected yet, or lost: `next` tells
            threads = self._client.nthreads()
        _check_threads(threads)  # of workers that have joined since as well
        return min(len(threads), len(self._groups))


def _check_threads(threads: Mapping[str, int]) -> None:
    """Runs in one process share its settings, and bits repeat with one thread only."""
    if several := sorted(address for address, number in threads.items() if number > 1):
        raise InvalidInputError(
            f"the workers {', '.join(several[:3])}{' ...' if len(several) > 3 else ''} have more than one thread, and "
            "runs need one each: start them by `dask worker ADDRESS --nthreads 1 --nworkers N`"
        )


Pool = InProcess | LocalProcesses | DaskScheduler
