"""The share of public names whose types are complete, by pyright: `make types`. An error below 95 %."""

from __future__ import annotations

import json
import subprocess
import sys

WANTED = 0.95


def main() -> int:
    """Print the share and the names that lack types; 1 if there are too many."""
    command = [sys.executable, "-m", "pyright", "--ignoreexternal", "--verifytypes", "bilevel", "--outputjson"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["typeCompleteness"]
    for symbol in report["symbols"]:
        if symbol["isExported"] and (symbol["isTypeAmbiguous"] or not symbol["isTypeKnown"]):
            print(symbol["name"])
    print(f"{report['completenessScore']:.1%} of the public names have complete types (wanted: {WANTED:.0%})")
    return int(report["completenessScore"] < WANTED)


if __name__ == "__main__":
    sys.exit(main())
