"""Lines of code per package, beside their budgets in pyproject.toml (tool.bilevel.code-size): `make size`.

Docstrings, comments and blank lines do not count. A package above its budget is an error: merge, delete or simplify, or
raise the budget in the commit that says why. `new` lists the files for what version 0.1 could not do; the last column
counts the other lines, which do what version 0.1 did in 26,171.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "bilevel"
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Lines with code on them."""
    texts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - texts)


def sizes(new: list[str]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Files, lines, and lines of files that are not new, by package; modules at the top are "core"."""
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    former: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        name = place.parts[0] if len(place.parts) > 1 else "core"
        count = code_lines(path.read_text(encoding="utf-8"))
        files[name] += 1
        lines[name] += count
        former[name] += 0 if name in new or str(place) in new else count
    return files, lines, former


def main() -> int:
    """Print the table; 1 if a budget is exceeded."""
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["bilevel"]["code-size"]
    new = budgets.pop("new")
    missing = [name for name in new if not (PACKAGE / name).exists()]
    if missing:
        raise SystemExit(f"pyproject.toml, tool.bilevel.code-size: there is no {', '.join(missing)}")
    files, lines, former = sizes(new)
    print(f"{'package':16}{'files':>7}{'lines':>8}{'budget':>8}{'not new':>9}")
    for name in sorted({*lines, *budgets}):
        mark = "" if lines[name] <= budgets.get(name, 0) else "  above its budget"
        print(f"{name:16}{files[name]:7}{lines[name]:8}{budgets.get(name, 0):8}{former[name]:9}{mark}")
    print(f"{'total':16}{files.total():7}{lines.total():8}{sum(budgets.values()):8}{former.total():9}")
    above = [name for name in lines if lines[name] > budgets.get(name, 0)]
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
