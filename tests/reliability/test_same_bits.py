"""The promise of the README: on one thread, machine and build the same seed gives the same bits, also after resume."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import bits

sys.path.pop(0)

QUICK = {"DMLCBO", "random truncation"}


def test_three_repetitions_and_a_resumed_run():
    once, again, third = (dict(bits.digests(6, names=QUICK, problems=4)) for _ in range(3))
    assert len(once) >= 6
    assert once == again == third
    assert dict(bits.digests(6, 5, names=QUICK, problems=4)) == once


def in_a_process(*arguments: int, hash_seed: int) -> dict[str, str]:
    finished = subprocess.run(
        [sys.executable, bits.__file__, *map(str, arguments)], capture_output=True, text=True, timeout=1500,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-2000:]
    return dict(reversed(line.split(" ", 1)) for line in finished.stdout.splitlines())


@pytest.mark.reliability
def test_every_solver_in_three_processes_and_resumed():
    """In fresh processes, so that nothing is shared but the seed; text is hashed differently in each."""
    first, second, third = (in_a_process(20, hash_seed=seed) for seed in (1, 2, 3))
    assert len(first) > 100
    assert first == second == third
    assert in_a_process(20, 10, hash_seed=4) == first
