"""`bilevel doctor`: what is installed, what it runs on, and what is missing; `bilevel completion`."""

from __future__ import annotations

import json as formats
import os
import platform
import re
import sys
from importlib import metadata
from typing import Any, Literal

from cyclopts import App

from .._version import __version__
from ..errors import BilevelError

EXTRAS = {
    "apps": "bilevel clean, reports, plots, data sets, the command line",
    "sets": "from_cvxpy, Polyhedron, MonotoneCone",
    "cluster": "sweeps over several machines",
    "tensorboard": "the observer TensorBoard",
}
"""The optional parts that users may want, and what each is for."""
FACTS = {
    "bilevel": "bilevel",
    "python": "Python",
    "platform": "system",
    "torch": "torch",
    "threads": "threads",
    "devices": "devices",
    "data_folder": "data folder",
    "small_problem": "a small problem",
}
"""The facts of the JSON document that the text shows, and their names there."""


def add_to(app: App) -> None:
    """Give the program these commands."""
    app.command(doctor)

    @app.command
    def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
        """Print a script for tab completion. No file is changed: the examples show where to save it.

        Parameters
        ----------
        shell
            The shell that reads the script.
        """
        print(app.generate_completion(shell=shell))


def doctor(*, json: bool = False) -> int:
    """Show versions, threads, devices, the data folder and optional packages, with the pip command for missing ones.

    A small problem is solved to test the installation. Exit codes: 0 success (optional packages may be missing), 2 a
    required package does not work.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    found = examine()
    print(formats.dumps(found, indent=2) if json else _text(found))
    return 0 if found["ok"] else 2


def examine() -> dict[str, Any]:
    """Collect the facts; a failure becomes a text."""
    found = {
        "ok": False,
        "bilevel": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "data_folder": _data_folder(),
        "missing": {extra: lacking for extra in EXTRAS if (lacking := _missing(extra))},
        "threads": "unknown",
        "devices": [],
        "small_problem": "not tried",
    }
    try:
        import torch
    except ImportError as error:
        return found | {"torch": f"cannot be imported: {error}"}
    cards = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    solved = _small_problem()
    return found | {
        "ok": solved == "solved",
        "torch": torch.__version__,
        "threads": f"{torch.get_num_threads()} (OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')})",
        "devices": ["cpu", *cards, *(["mps"] if torch.backends.mps.is_available() else [])],
        "small_problem": solved,
    }


def _text(found: dict[str, Any]) -> str:
    facts = found | {"devices": ", ".join(found["devices"])}
    lines = [f"{title:<16}{facts[name]}" for name, title in FACTS.items()]
    lines += ["", "optional parts"]
    for extra, purpose in EXTRAS.items():
        lacking = found["missing"].get(extra)
        remedy = f"missing {', '.join(lacking)}: pip install 'bilevel[{extra}]'" if lacking else "installed"
        lines.append(f"  {extra:<14}{remedy}  ({purpose})")
    return "\n".join(lines)


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
    except Exception as error:  # whatever it is, the user wants to read it
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
    installed = {_normalized(distribution.name) for distribution in metadata.distributions()}
    names = [re.split(r"[\s<>=!~;\[(]", line, maxsplit=1)[0] for line in wanted]
    return [name for name in names if _normalized(name) not in installed]


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
