"""Environments of their own for the libraries that we are compared with, made on first use under build/peers."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "build" / "peers"
JAXOPT = ("numpy", "jax==0.4.38", "jaxlib==0.4.38", "jaxopt==0.8.5")
"""Two benchmarks share this environment."""


def peer_python(name: str, *installs: tuple[str, ...], shared: bool = True) -> Path:
    """The interpreter of the environment `name`.

    Parameters
    ----------
    installs
        The arguments of each `pip install`, one after the other.
    shared
        Whether it also sees the packages of this environment: the same torch, of which no other build is fetched.
    """
    folder = PEERS / name
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not (folder / "ready").exists():  # written last: what was cut short is made anew
        print(f"... making an environment for {name}, once", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True, clear=True)
        if shared:
            ask = "import site; print(site.getsitepackages()[0])"
            theirs = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
            Path(theirs, "ours.pth").write_text("\n".join(site.getsitepackages()) + "\n")
        for packages in installs:
            subprocess.run(
                [python, "-m", "pip", "install", "-q", *packages], check=True, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        (folder / "ready").touch()
    return python
