"""What starting costs: `import bilevel` and `bilevel --help` against a bare interpreter and against torch."""

from __future__ import annotations

import subprocess
import sys

from .harness import Row, ratio, seconds


def rows() -> list[Row]:
    def run(*arguments: str) -> object:
        return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    bare, package = run("-c", "pass"), run("-c", "import bilevel")
    torch, help_page = run("-c", "import torch"), run("-m", "bilevel", "--help")
    return [
        Row("import torch / import bilevel", ratio(torch, package, blocks=3), note=f"{seconds(package):.3f} s"),
        Row("import bilevel / bare interpreter", ratio(package, bare, blocks=3), note=f"{seconds(bare):.3f} s bare"),
        Row("bilevel --help / bare interpreter", ratio(help_page, bare, blocks=3), note=f"{seconds(help_page):.3f} s"),
    ]
