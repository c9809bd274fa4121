"""Where the runs of a sweep are made: in this process, in a local Dask cluster, or at a Dask scheduler elsewhere."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self

from ..errors import BilevelError, InvalidInput, MissingExtra
from .plan import RunSpec
from .run import Outcome, run

RETRIES = 10
"""How many workers are lost with one run before it is given up."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

Group = tuple[RunSpec, ...]


class WorkerGone(RuntimeError):
    """Workers were lost with a run, as often as is tried."""


class SchedulerGone(BilevelError, OSError):
    """The connection to the scheduler was lost; what had ended is stored.

    Examples
    --------
    >>> issubclass(SchedulerGone, OSError)
    True
    """


class Pool(Protocol):
    """Where runs are made."""

    def submit(self, specs: Group) -> None:
        """Begin with these as soon as there is room."""
        ...

    def next(self) -> tuple[Group, list[Outcome] | Exception]:
        """Wait for one that has ended."""
        ...

    def __len__(self) -> int:
        """How many have not ended."""
        ...

    def running(self) -> int:
        """How many of them are being made now."""
        ...


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

    def next(self) -> tuple[Group, list[Outcome] | Exception]:
        specs = self._waiting.popleft()
        try:
            return specs, run(specs, self._folder)
        except Exception as error:  # as a worker would; the sweep tells which run it was and goes on with the others
            return specs, error

    def __len__(self) -> int:
        return len(self._waiting)

    def running(self) -> int:
        return min(1, len(self._waiting))


class OnCluster:
    """Dask distributed: a local cluster of workers with one thread each, or a scheduler that runs already.

    Parameters
    ----------
    folder
        The data folder, as the workers see it.
    workers
        Of the local cluster; as many as there are cores when None.
    scheduler
        The address of a scheduler, such as ``tcp://127.0.0.1:8786``, instead.
    say
        Told what the user should know.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int | None = None,
        scheduler: str | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._folder, self._workers, self._scheduler, self._say = folder, workers, scheduler, say
        self._groups: dict[Any, Group] = {}
        self._attempts: dict[str, int] = {}
        self._cluster: Any = None
        self._client: Any = None

    def __enter__(self) -> Self:
        return self

    def _start(self) -> Any:
        """With the first run: when nothing is missing no process is started."""
        try:
            from dask import config
            from distributed import Client, LocalCluster, as_completed
        except ImportError:
            raise MissingExtra("A sweep in several processes (--workers 0 does without)", "cluster") from None
        # A lost worker counts against every run that was given to it: none waits there, all wait at the scheduler.
        config.set(
            {"distributed.scheduler.allowed-failures": RETRIES - 1, "distributed.scheduler.worker-saturation": 1.0}
        )
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        if self._scheduler is None:
            self._cluster = LocalCluster(
                n_workers=self._workers or os.cpu_count() or 1, threads_per_worker=1, processes=True, memory_limit=0,
                dashboard_address=None, env=ONE_THREAD,  # type: ignore[arg-type]
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # a free port, and nobody else's machine
                silence_logs=logging.CRITICAL, preload=f"{__package__}.on_worker",
            )  # fmt: skip
        try:
            self._client = Client(self._cluster or self._scheduler, timeout=20, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise InvalidInput(
                f"no Dask scheduler answers at {self._scheduler!r} ({error}): start one by `dask scheduler`, and "
                "workers by `dask worker ADDRESS --nthreads 1`, or leave --scheduler out"
            ) from None
        self._ended = as_completed([], loop=self._client.loop)
        threads = self._client.nthreads()
        if not threads:
            self._say(
                f"the scheduler at {self._scheduler} has no workers: runs wait until some have joined by "
                f"`dask worker {self._scheduler} --nthreads 1`"
            )
        _check_threads(threads)
        return self._client

    def __exit__(self, *_: Any) -> None:
        if self._client is None:
            return
        with suppress(Exception):
            self._client.cancel(list(self._groups), force=True)
        with suppress(Exception):
            self._client.close(timeout=5)
        if self._cluster is not None:
            with suppress(Exception):
                self._cluster.close(timeout=10)

    def submit(self, specs: Group) -> None:
        client = self._client or self._start()
        attempt = self._attempts[specs[0].identity] = self._attempts.get(specs[0].identity, 0) + 1
        # Keys with one beginning are one group to the scheduler, which keeps large groups until a worker is free.
        key = f"run-{specs[0].identity}-{os.getpid()}-{attempt}"
        future = client.submit(run, specs, self._folder, key=key, pure=False, priority=-len(self._attempts))
        self._groups[future] = specs
        self._ended.add(future)

    def next(self) -> tuple[Group, list[Outcome] | Exception]:
        from distributed import KilledWorker
        from distributed.client import FutureCancelledError

        while True:
            future = next(self._ended)
            specs = self._groups.pop(future)
            try:
                return specs, future.result()
            except KilledWorker:  # the scheduler has tried as often as it may
                return specs, WorkerGone("every worker that began it was lost, and it is not tried again now")
            except FutureCancelledError:  # the result went with the worker, or everything with the scheduler
                if self._client.status != "running":
                    raise SchedulerGone(
                        f"the Dask scheduler at {self._client.scheduler.address} has gone: start it and its workers "
                        "again, then the same command; runs that had ended are stored"
                    ) from None
            except Exception as error:
                return specs, error
            if self._attempts[specs[0].identity] >= RETRIES:
                return specs, WorkerGone(f"its result was lost {RETRIES} times")
            self.submit(specs)

    def __len__(self) -> int:
        return len(self._groups)

    def running(self) -> int:
        threads: Mapping[str, int] = {}
        with suppress(Exception):  # not started yet, or gone: `next` tells
            threads = self._client.nthreads()
        _check_threads(threads)  # of workers that have joined since as well
        return min(len(threads), len(self._groups))


def _check_threads(threads: Mapping[str, int]) -> None:
    """Runs in one process share its settings, and bits repeat with one thread only."""
    if several := sorted(address for address, number in threads.items() if number > 1):
        raise InvalidInput(
            f"the workers {', '.join(several[:3])}{' ...' if len(several) > 3 else ''} have more than one thread, and "
            "runs need one each: start them by `dask worker ADDRESS --nthreads 1 --nworkers N`"
        )
