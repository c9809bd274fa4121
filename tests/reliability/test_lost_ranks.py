"""Two ranks, one of which is killed or stopped: the other one names it within the time-out."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
from tests.ranks import free_port

TIMEOUT = 10
pytestmark = pytest.mark.reliability

RANK = f"""
import os, signal, sys, time, torch, bilevel
from bilevel.distributed import connect

lost, number = map(int, sys.argv[1:])
torch.set_num_threads(1)
with connect(timeout={TIMEOUT}) as ranks:
    rows = torch.randn(20, 3, generator=torch.Generator().manual_seed(ranks.rank)).double()
    problem = bilevel.Problem(
        lambda x, y: (rows @ y - 1).square().sum(), lambda x, y: (rows @ (y - x)).square().sum() + y.square().sum() / 2,
        bilevel.sets.L1Ball(1.0), x0=torch.zeros(3).double(), y0=torch.zeros(3).double(), ranks=ranks)

    def strike(record, state):
        if state.step == 20 and ranks.rank == lost:
            os.kill(os.getpid(), number)
        if state.step == 20:
            struck.append(time.monotonic())
            print("struck", flush=True)

    struck = []
    try:
        bilevel.minimize(problem, steps=10**6, evaluate_every=10, solver=bilevel.DMLCBO(), callbacks=[strike])
    except bilevel.errors.RankError:
        print(time.monotonic() - struck[0], flush=True)
        raise
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize(("size", "lost"), [(2, 0), (2, 1), (3, 0), (3, 1)])
def test_a_lost_rank_is_named_within_the_time_out(size, lost, number, record_property):
    port, processes = str(free_port()), []
    for rank in range(size):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_PORT": port}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(lost), str(int(number))], text=True,
                env=os.environ | variables | {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
    others, seconds = [process for rank, process in enumerate(processes) if rank != lost], 0.0
    try:
        for other in others:
            assert other.stdout.readline() == "struck\n", other.communicate()
        for other in others:
            told, errors = other.communicate(timeout=60)
            assert "RankError" in errors, errors
            seconds = max(seconds, float(told))
            assert re.search(rf"lost (rank \d or )?rank {lost}\b", errors), errors
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    record_property(
        "figure", f"rank {lost} of {size} {number.name}: named by the others after {seconds:.1f} s of {TIMEOUT}"
    )
    assert seconds < TIMEOUT + 5  # on a busy machine
