"""Writes requirements.txt: the versions of constraints.txt with the SHA-256 of their files, torch left out.

    python benchmarks/pin_hashes.py          # after a change of constraints.txt: `make pins` calls it
    python benchmarks/pin_hashes.py fits     # exit code 0 if the hashes are for this Python and platform

pip knows the files of one platform at a time, so requirements.txt names its platform; elsewhere `make` installs by
version. torch is left out since its builds for processors and graphics cards have one version and other files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

CONSTRAINTS, REQUIREMENTS = Path("constraints.txt"), Path("requirements.txt")
PLATFORM = f"# platform: {sysconfig.get_platform()}, CPython {sys.version_info.major}.{sys.version_info.minor}"


def fits() -> bool:
    """Whether requirements.txt is for this Python and platform, and as new as constraints.txt."""
    lines = REQUIREMENTS.read_text().splitlines() if REQUIREMENTS.exists() else []
    return PLATFORM in lines and [line.split(" ")[0] for line in lines if "==" in line] == pins()


def pins() -> list[str]:
    """All of constraints.txt but torch."""
    lines = [line.strip() for line in CONSTRAINTS.read_text().splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "torch=="))]


def main() -> None:
    """Ask pip for the files of every pin, and write their hashes."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder, "pins.txt"), Path(folder, "report.json")
        wanted.write_text("\n".join(pins()))
        options = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", str(report)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, "-r", str(wanted)], check=True)
        found = json.loads(report.read_text())["install"]
    hashes = {normal(each["metadata"]["name"]): each["download_info"]["archive_info"]["hashes"] for each in found}
    lines = [f"{pin} --hash=sha256:{hashes[normal(pin.partition('==')[0])]['sha256']}" for pin in pins()]
    heading = "# Made by benchmarks/pin_hashes.py from constraints.txt, for pip install --require-hashes --no-deps."
    REQUIREMENTS.write_text("\n".join([heading, PLATFORM, *lines]) + "\n")


def normal(name: str) -> str:
    """The name of a package as indices compare it."""
    return name.lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    sys.exit(main() if sys.argv[1:] != ["fits"] else not fits())
