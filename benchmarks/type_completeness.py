"""The share of public names whose types are complete, by pyright: `make types`. An error below 95 %."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

WANTED = 0.95


def main() -> int:
    """Print the share and the names that lack types; 1 if there are too many."""
    command = [sys.executable, "-m", "pyright", "--ignoreexternal", "--verifytypes", "bilevel", "--outputjson"]
    # --verifytypes asks the first `python` of PATH where packages are, whatever --pythonpath says.
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    answer = subprocess.run(command, capture_output=True, text=True, env=environment)
    report = json.loads(answer.stdout)["typeCompleteness"]
    for symbol in report["symbols"]:
        if symbol["isExported"] and (symbol["isTypeAmbiguous"] or not symbol["isTypeKnown"]):
            print(symbol["name"])
    print(f"{report['completenessScore']:.1%} of the public names have complete types (wanted: {WANTED:.0%})")
    return int(report["completenessScore"] < WANTED)


if __name__ == "__main__":
    sys.exit(main())
