"""Sweeps whose workers and drivers are killed, and sweeps on any number of workers, end with the same table."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from bilevel.experiments import ResultsStore

pytestmark = pytest.mark.reliability

TABLE = """
experiment = "table-2"
title = "small runs"
application = "hyper-cleaning"
[run]
iterations = {iterations}
evaluate_every = {iterations}
seeds = {seeds}
[grid]
[datasets.madelon]
rows = 300
trusted = 300
scaling = "standard"
[methods.dmlcbo]
solver = "dmlcbo"
settings = {{ Q = 3, eta = 0.1 }}
grid = {{ upper_step = [1.0, 0.5, 0.2, 0.1, 0.05], lower_step = [1.0, 0.1] }}
[methods.approx]
solver = "approx"
settings = {{ upper_step_per_row = true, step_rule = "fixed", inner_steps = 5 }}
grid = {{ upper_step = [1.0, 0.5, 0.2, 0.1, 0.05], lower_step = [1.0, 0.1] }}
"""
WORKER_KILLS, DRIVER_KILLS, RUNS = 10, 2, 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "data" / "madelon").mkdir(parents=True)
    for name, n in (("train", 2000), ("valid", 600)):
        X = rng.integers(0, 1000, (n, 500))
        y = np.where(X[:, :3].sum(1) + rng.normal(0, 200, n) > 1500, 1, -1)
        np.savetxt(tmp_path / "data" / "madelon" / f"madelon_{name}.data", X, fmt="%d")
        np.savetxt(tmp_path / "data" / "madelon" / f"madelon_{name}.labels", y, fmt="%d")
    return tmp_path


def bilevel(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "bilevel", *arguments],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def reproduce(folder: Path, results: str, *more: str) -> subprocess.Popen[bytes]:
    options = ["--configuration", "table.toml", "--data", "data", "--results", results]
    return bilevel(folder, "reproduce", "table-2", *options, *more)


def finish(process: subprocess.Popen[bytes]) -> str:
    _, errors = process.communicate(timeout=1800)
    assert process.returncode == 0, errors.decode()
    return errors.decode()


def exported(folder: Path, results: str) -> bytes:
    """The table of a sweep without its timing columns."""
    out = f"{results}.csv"
    finish(bilevel(folder, "results", "export", "--results", results, "--without-timing", "--out", out))
    return (folder / out).read_bytes()


def workers_of(driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        children = psutil.Process(driver.pid).children(recursive=True)
        return [child for child in children if any("spawn_main" in part for part in child.cmdline())]
    except psutil.Error:
        return []


def stored(folder: Path, results: str) -> int:
    return sum(1 for _ in (folder / results / "runs").glob("[0-9a-f]*")) if (folder / results / "runs").exists() else 0


def test_killed_workers_and_drivers_change_nothing(folder, record_property):
    """100 runs, 3 workers; 10 workers and 2 drivers are killed at random moments."""
    record_property("figure", f"a sweep with {WORKER_KILLS} workers and {DRIVER_KILLS} drivers killed: the same bits")
    (folder / "table.toml").write_text(TABLE.format(iterations=60, seeds=40))
    finish(reproduce(folder, "whole", "--workers", "3"))
    moments = random.Random(0)
    # Each kill waits until so many runs are stored: the sweep is disturbed from its beginning to its end.
    kills = [(at, "worker") for at in sorted(moments.sample(range(2, 90), WORKER_KILLS))]
    kills += [(at, "driver") for at in moments.sample(range(10, 80), DRIVER_KILLS)]
    killed = {"worker": 0, "driver": 0}
    driver = reproduce(folder, "disturbed", "--workers", "3")
    for at, kind in sorted(kills):
        while stored(folder, "disturbed") < at:
            assert driver.poll() is None, driver.communicate()[1].decode()
            time.sleep(0.02)
        time.sleep(0.3 * moments.random())
        if kind == "worker":
            while not (workers := workers_of(driver)):  # all of them may be starting anew
                assert driver.poll() is None, driver.communicate()[1].decode()
                time.sleep(0.02)
            moments.choice(workers).send_signal(signal.SIGKILL)
        else:
            driver.send_signal(signal.SIGKILL)
            driver.communicate()
            driver = reproduce(folder, "disturbed", "--workers", "3")
        killed[kind] += 1
    finish(driver)
    finish(reproduce(folder, "disturbed", "--workers", "3"))
    assert killed == {"worker": WORKER_KILLS, "driver": DRIVER_KILLS}
    store = ResultsStore(folder / "disturbed")
    records = store.records()
    assert len(records) == len({record.identity for record in records}) == RUNS == stored(folder, "disturbed")
    assert all(record.status == "iterations" for record in records)
    assert exported(folder, "disturbed") == exported(folder, "whole")


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[str]:
    """`dask scheduler` and `dask worker` processes on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    port = address.rsplit(":", 1)[1]
    scheduler = [sys.executable, "-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"]
    worker = [
        sys.executable,
        "-m",
        "dask",
        "worker",
        address,
        "--nthreads",
        "1",
        "--no-dashboard",
        "--memory-limit",
        "0",
    ]
    quiet = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen(command, **quiet) for command in [scheduler, *[worker] * workers]]
    try:
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(timeout=60)


def test_the_number_and_place_of_workers_change_no_bit(folder):
    """1, 2 and 3 local workers, and two workers of a scheduler that runs on its own."""
    (folder / "table.toml").write_text(TABLE.format(iterations=30, seeds=3))
    tables = []
    for workers in (1, 2, 3):
        finish(reproduce(folder, f"with-{workers}", "--workers", str(workers)))
        tables.append(exported(folder, f"with-{workers}"))
    with cluster(folder, 2) as address:
        finish(reproduce(folder, "elsewhere", "--scheduler", address))
    tables.append(exported(folder, "elsewhere"))
    assert tables[0].count(b"\n") == 1 + 26
    assert len(set(tables)) == 1


def test_ctrl_c_ends_in_order_and_the_same_command_goes_on(folder):
    (folder / "table.toml").write_text(TABLE.format(iterations=60, seeds=2))
    driver = reproduce(folder, "stopped", "--workers", "2")
    while stored(folder, "stopped") < 3:
        assert driver.poll() is None, driver.communicate()[1].decode()
        time.sleep(0.05)
    workers = workers_of(driver)
    assert len(workers) == 2
    for process in (psutil.Process(driver.pid), *workers):  # nothing listens to a network
        assert process.net_connections(kind="inet") == []
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: every process of the group
    _, errors = driver.communicate(timeout=60)
    assert driver.returncode == 130, errors.decode()
    assert "the same command continues" in errors.decode()
    assert "Traceback" not in errors.decode()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert alive == []
    before = stored(folder, "stopped")
    finish(reproduce(folder, "stopped", "--workers", "2"))
    assert stored(folder, "stopped") == 24 > before
