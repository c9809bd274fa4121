"""Workers and schedulers that die: what is repeated, what is given up, and what is said of it."""

import copy
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import psutil
import pytest
from distributed import LocalCluster
from tests.experiments import workers

from bilevel.errors import InvalidInputError, MissingExtraError
from bilevel.experiments.plan import planned_runs
from bilevel.experiments.worker_pools import DaskScheduler, LocalProcesses, SchedulerLostError, WorkerLostError

QUEUED = 1500  # more than Python lets functions call each other


@pytest.fixture
def specs(tiny):
    return list(planned_runs(tiny, {"madelon": "0"}, {}))


@contextmanager
def scheduler_elsewhere():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process, f"tcp://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()  # after SIGKILL


def test_a_scheduler_without_workers_is_told_and_one_that_goes_is_an_error(specs, tmp_path):
    said = []
    with scheduler_elsewhere() as (process, address), DaskScheduler(tmp_path, address, notify=said.append) as pool:
        for _ in range(QUEUED):
            pool.submit((specs[0],))
        assert said == [
            f"whoever reaches {address} can run code on its machines: use trusted networks only, or TLS "
            "(docs/reproduce.md)",
            f"the scheduler at {address} has no workers: runs wait until some have joined by "
            f"`dask worker {address} --nthreads 1`",
        ]
        assert (len(pool), pool.running()) == (QUEUED, 0)
        process.send_signal(signal.SIGKILL)
        with pytest.raises(SchedulerLostError, match=f"{address} has gone: start it and its workers again"):
            pool.next()


def test_workers_with_several_threads_are_refused(specs, tmp_path):
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, protocol="tcp", dashboard_address=None) as own,
        DaskScheduler(tmp_path, own.scheduler_address) as pool,
        pytest.raises(InvalidInputError, match=r"have more than one thread, .* `dask worker ADDRESS --nthreads 1"),
    ):
        pool.submit((specs[0],))


def test_a_run_that_kills_its_workers_is_given_up_and_errors_are_named(specs, tmp_path):
    one, other = (next(spec for spec in specs if spec.method == method) for method in ("dmlcbo", "approx"))
    asked = [one, *(replace(other, seed=seed) for seed in range(3))]
    lines = []
    with LocalProcesses(tmp_path, workers=1, function=workers.die_or_fail, attempts=3, notify=lines.append) as pool:
        for spec in asked:
            pool.submit((spec,))
        found = {group[0]: type(error) for group, error in (pool.next() for _ in asked)}
        assert len(pool) == 0
    assert found == {spec: WorkerLostError if spec is one else LookupError for spec in asked}
    assert (tmp_path / "deaths").read_text() == "xxx"
    assert lines == [f"a worker died (code 7) during run {one.identity}: the run is repeated"] * 2


def test_a_run_whose_worker_died_is_repeated_by_another(specs, tmp_path):
    with LocalProcesses(tmp_path, workers=2, function=workers.die_once) as pool:
        for spec in specs[:2]:
            pool.submit((spec,))
        assert (len(pool), pool.running()) == (2, 2)
        results = dict(pool.next() for _ in range(2))
    assert set(results) == {(spec,) for spec in specs[:2]}
    processes = {pid for (pid,) in results.values()}
    assert os.getpid() not in processes
    assert not any(psutil.pid_exists(pid) for pid in processes)  # the pool has ended its workers


def test_an_error_about_a_missing_package_survives_the_way_from_a_worker():
    error = MissingExtraError("Reading Omniglot", "apps")
    assert str(copy.copy(error)) == str(error)
