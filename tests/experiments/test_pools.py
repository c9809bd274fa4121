"""Runs on a Dask scheduler that runs elsewhere: what it must have, and what happens when it or its workers go."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from distributed import LocalCluster

from bilevel.errors import InvalidInput
from bilevel.experiments import pools
from bilevel.experiments.plan import planned
from bilevel.experiments.pools import OnCluster, SchedulerGone, WorkerGone

QUEUED = 1500  # more than Python lets functions call each other


@pytest.fixture
def specs(tiny):
    return list(planned(tiny, {"madelon": "0"}, {}))


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
        process.wait(timeout=30)


def test_a_scheduler_without_workers_is_told_and_one_that_goes_is_an_error(specs, tmp_path):
    said = []
    with scheduler_elsewhere() as (process, address), OnCluster(tmp_path, scheduler=address, say=said.append) as pool:
        for _ in range(QUEUED):
            pool.submit((specs[0],))
        assert said == [
            f"the scheduler at {address} has no workers: runs wait until some have joined by "
            f"`dask worker {address} --nthreads 1`"
        ]
        assert (len(pool), pool.running()) == (QUEUED, 0)
        process.send_signal(signal.SIGKILL)
        with pytest.raises(SchedulerGone, match=f"{address} has gone: start it and its workers again"):
            pool.next()


def test_workers_with_several_threads_are_refused(specs, tmp_path):
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, protocol="tcp", dashboard_address=None) as own,
        OnCluster(tmp_path, scheduler=own.scheduler_address) as pool,
        pytest.raises(InvalidInput, match=r"have more than one thread, .* `dask worker ADDRESS --nthreads 1"),
    ):
        pool.submit((specs[0],))


@pytest.mark.reliability
def test_a_run_that_kills_its_workers_is_given_up_and_errors_are_named(specs, tmp_path, monkeypatch):
    def deadly(group, folder):
        if group[0].method == "approx":
            raise LookupError("a mistake")
        with (folder / "deaths").open("a") as file:
            file.write("x")
        os._exit(1)

    monkeypatch.setattr(pools, "RETRIES", 3)
    monkeypatch.setattr(pools, "run", deadly)
    one, other = (next(spec for spec in specs if spec.method == method) for method in ("dmlcbo", "approx"))
    asked = [one, *(replace(other, seed=seed) for seed in range(5))]
    with OnCluster(tmp_path, workers=1) as pool:
        for spec in asked:
            pool.submit((spec,))
        found = {group[0]: type(error) for group, error in (pool.next() for _ in asked)}
    assert found == {spec: WorkerGone if spec is one else LookupError for spec in asked}
    assert (tmp_path / "deaths").read_text() == "xxx"
