"""What the scripts of this folder share: they run in environments of their own, without bilevel.

    python PEER.py DATA.npz OUT.npz STEP SECONDS STEPS adam|descent INNER

DATA holds A, a (rows and labels -1, 1 of the noisy rows), B, b (trusted rows), x0. OUT gets x after some steps, with
the processor seconds on the clock: compilation and storing are not counted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

RIDGE, RADIUS = 1e-3, 1.0
ADAM, INNER = sys.argv[6] == "adam", int(sys.argv[7])
"""How x moves, and how many plain projected steps the lower level takes, or 0: the peer's own way."""


def arguments() -> tuple[dict[str, np.ndarray], float]:
    """The data, and the step size of x."""
    return dict(np.load(sys.argv[1])), float(sys.argv[3])


def record(make: Callable[[], tuple[Callable[[], None], Callable[[], np.ndarray]]]) -> None:
    """Run `make() -> (step, x)` twice: one step to compile, then for SECONDS on the clock, STEPS at most."""
    budget, last = float(sys.argv[4]), int(sys.argv[5])
    make()[0]()
    step, x = make()
    steps, seconds, xs, k, due, clock = [], [], [], 0, 1, 0.0
    while clock < budget and k < last:
        began = time.process_time()
        step()
        clock += time.process_time() - began
        k += 1
        if k >= due or k == last:
            steps.append(k)
            seconds.append(clock)
            xs.append(np.array(x()))
            due = k + max(1, k // 8)
    np.savez(sys.argv[2], steps=steps, seconds=seconds, xs=xs)
