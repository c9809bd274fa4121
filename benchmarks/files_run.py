"""The files of the library whose functions run in a call, beside the paths of ARCHITECTURE.md.

    python -m benchmarks.files_run

Every call is made twice, and the second one counts: what runs when modules are imported does not.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import bilevel
from bilevel.cli import main as command

from .step_overhead import functions

PACKAGE = Path(bilevel.__file__).parent
OPTIMIZED = 1  # the flag of code objects of functions; class bodies lack it


def minimize(**options: Any) -> None:
    upper, lower, x, y = functions(150, 30, 50)
    bilevel.minimize(bilevel.Problem(upper, lower, bilevel.sets.L1Ball(1.0)), x, y, steps=100, **options)


def fit(**options: Any) -> None:
    X = np.random.default_rng(0).normal(size=(400, 10))
    bilevel.HyperCleaner(**options).fit(X, X[:, 0] > 0, trusted=np.arange(400) < 60)


def clean() -> None:
    table = "penguins/train.csv --label Species --trusted penguins/checked.csv"
    command(f"clean {table} --report report.html --force".split())


CALLS: dict[str, Callable[[], None]] = {
    "minimize(problem, x0, y0)": minimize,
    "minimize(problem, x0, y0, solver=DMLCBO())": lambda: minimize(solver=bilevel.DMLCBO()),
    "HyperCleaner().fit(X, y, trusted=...)": fit,
    'HyperCleaner(noise="rows").fit(X, y, trusted=...)': lambda: fit(noise="rows"),
    "bilevel clean TABLE --label NAME --trusted FILE --report PAGE": clean,
}


def files_run(call: Callable[[], None]) -> list[str]:
    """The files whose functions run in the second of two calls, in their order."""
    found: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event == "call" and code.co_flags & OPTIMIZED and path.suffix == ".py" and path.is_relative_to(PACKAGE):
            found[str(path.relative_to(PACKAGE))] = None

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        call()
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    return list(found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        command(["example", "penguins"])
        for name, call in CALLS.items():
            files = files_run(call)
            print(f"{len(files):3}  {name}\n     {', '.join(files)}", flush=True)
