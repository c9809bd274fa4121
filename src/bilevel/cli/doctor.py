"""`bilevel doctor`: what is installed, what it runs on, and what is missing."""

from __future__ import annotations

import json as formats
import os
import platform
import re
import sys
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..errors import BilevelError
from .common import examples

if TYPE_CHECKING:
    from cyclopts import App

EXTRAS = {
    "apps": "bilevel clean, reports, plots, data sets, the command line",
    "sets": "from_cvxpy, Polyhedron, MonotoneCone",
    "cluster": "sweeps over several machines",
    "fast": "compiled steps of hyper-cleaning",
    "tensorboard": "the observer TensorBoard",
}
"""The optional parts that users may want, and what each is for."""


def add_to(app: App) -> None:
    """Give the program this command."""
    app.command(
        doctor,
        help_epilogue=examples(
            "bilevel doctor",
            "bilevel doctor --json    # for programs, and for bug reports",
        ),
    )


def doctor(*, json: bool = False) -> int:
    """Show versions, threads, devices, the data folder and optional parts, with the pip line for each missing one.

    A small problem is solved to see that everything works together. Exit codes: 0 all is well (optional parts may be
    missing), 2 something that every use needs does not work.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    found = examine()
    print(formats.dumps(asdict(found), indent=2) if json else found.text())
    return 0 if found.ok else 2


@dataclass
class Findings:
    """What was looked at."""

    ok: bool
    bilevel: str
    python: str
    platform: str
    torch: str
    threads: str
    devices: list[str]
    data_folder: str
    small_problem: str
    missing: dict[str, list[str]] = field(default_factory=dict)
    """By optional part: the packages that are not installed."""

    def text(self) -> str:
        facts = {
            "bilevel": self.bilevel, "Python": self.python, "system": self.platform, "torch": self.torch,
            "threads": self.threads, "devices": ", ".join(self.devices), "data folder": self.data_folder,
            "a small problem": self.small_problem,
        }  # fmt: skip
        lines = [f"{name:<16}{value}" for name, value in facts.items()]
        lines += ["", "optional parts"]
        for extra, purpose in EXTRAS.items():
            lacking = self.missing.get(extra)
            remedy = f"missing {', '.join(lacking)}: pip install 'bilevel[{extra}]'" if lacking else "installed"
            lines.append(f"  {extra:<14}{remedy}  ({purpose})")
        return "\n".join(lines)


def examine() -> Findings:
    """Look at everything; what fails becomes a text."""
    facts: dict[str, Any] = {
        "bilevel": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "data_folder": _data_folder(),
        "missing": {extra: lacking for extra in EXTRAS if (lacking := _missing(extra))},
    }
    try:
        import torch
    except ImportError as error:
        nothing = {"threads": "unknown", "devices": [], "small_problem": "not tried"}
        return Findings(ok=False, torch=f"cannot be imported: {error}", **nothing, **facts)
    threads = f"{torch.get_num_threads()} (OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')})"
    solved = _small_problem()
    return Findings(
        ok=solved == "solved",
        torch=torch.__version__,
        threads=threads,
        devices=_devices(),
        small_problem=solved,
        **facts,
    )


def _devices() -> list[str]:
    import torch

    cards = (
        [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return ["cpu", *cards, *(["mps"] if torch.backends.mps.is_available() else [])]


def _data_folder() -> str:
    try:
        from ..datasets import CATALOGUE, data_folder

        folder = data_folder()
    except (BilevelError, ImportError) as error:
        return str(error)
    here = [name for name in CATALOGUE if (folder / name).exists()]
    return f"{folder} ({', '.join(here) or 'nothing there yet'})"


def _small_problem() -> str:
    """min |y* - t|^2 with y* the projection of x on an l1 ball: whether a run ends at y* = t."""
    try:
        import torch

        import bilevel

        target = torch.tensor([0.5, -0.2])
        problem = bilevel.Problem(
            lambda x, y: (y - target).square().sum(), lambda x, y: (y - x).square().sum(), bilevel.sets.L1Ball(1.0)
        )
        y: Any = bilevel.minimize(problem, torch.zeros(2), torch.zeros(2), steps=300).y
        return "solved" if (y - target).abs().max() < 0.05 else f"ended at {y.tolist()} instead of {target.tolist()}"
    except Exception as error:  # whatever it is, it is what the user wants to hear of
        return f"{type(error).__name__}: {error}"


def _missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed, by the metadata of this package."""
    try:
        needed = metadata.requires("bilevel") or []
    except metadata.PackageNotFoundError:
        return []
    wanted = [line for line in needed if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    if not wanted:  # an installation from before there was such a part
        return [f"what {extra} needs"]
    names = [re.split(r"[\s<>=!~;\[(]", line, maxsplit=1)[0] for line in wanted]
    return [name for name in names if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
