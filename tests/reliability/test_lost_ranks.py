"""Two ranks, one of which is killed or stopped: the other one names it within the time-out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.ranks import free_port

pytestmark = pytest.mark.reliability

RANK = """
import os, signal, sys, torch, bilevel
from bilevel.distributed import connect

lost, number = map(int, sys.argv[1:])
torch.set_num_threads(1)
with connect(timeout=10) as ranks:
    rows = torch.randn(20, 3, generator=torch.Generator().manual_seed(ranks.rank)).double()
    problem = bilevel.Problem(
        lambda x, y: (rows @ y - 1).square().sum(), lambda x, y: (rows @ (y - x)).square().sum() + y.square().sum() / 2,
        bilevel.sets.L1Ball(1.0), x0=torch.zeros(3).double(), y0=torch.zeros(3).double(), ranks=ranks)

    def strike(record, state):
        if state.step == 20 and ranks.rank == lost:
            os.kill(os.getpid(), number)
        if state.step == 20:
            print("struck", flush=True)

    bilevel.minimize(problem, steps=10**6, evaluate_every=10, solver=bilevel.DMLCBO(), callbacks=[strike])
"""


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_rank_is_named_within_the_time_out(lost, number, record_property):
    port, processes = str(free_port()), []
    for rank in range(2):
        told = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_PORT": port}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(lost), str(int(number))], text=True,
                env=os.environ | told | {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
    other = processes[1 - lost]
    try:
        assert other.stdout.readline() == "struck\n", other.communicate()
        began = time.monotonic()
        _, errors = other.communicate(timeout=60)
        seconds = time.monotonic() - began
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert "RankError" in errors, errors
    assert f"rank {1 - lost} lost rank {lost}" in errors
    record_property("figure", f"rank {lost} of 2 {number.name}: named by the other one after {seconds:.1f} s")
    assert seconds < 30  # the time-out of 10 s, and a busy machine
