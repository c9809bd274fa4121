"""What every test run shares."""

import json
import os
from pathlib import Path

# Before NumPy and torch are imported: one thread per process. Our tensors are small, and the runs are already
# parallel over processes (pytest-xdist).
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")  # no test opens a window

import hypothesis  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)

# The same examples in every run, so that a failure can be repeated; no deadline, since machines are busy.
hypothesis.settings.register_profile("bilevel", derandomize=True, deadline=None)
hypothesis.settings.load_profile("bilevel")


def pytest_addoption(parser) -> None:
    parser.addoption("--figures", type=Path, help="also store what `make reliability` prints in this folder")


def pytest_terminal_summary(terminalreporter, config) -> None:
    """After `make reliability`: what each part found, as its tests recorded it, and how long the part took."""
    if not str(config.getoption("markexpr")).startswith("reliability"):
        return
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.stats.get(kind, ())]
    calls = [report for report in reports if report.when == "call"]
    for part in sorted({report.nodeid.partition("::")[0] for report in calls}):
        mine = [report for report in calls if report.nodeid.startswith(part)]
        failed, seconds = sum(report.failed for report in mine), sum(report.duration for report in mine)
        terminalreporter.write_line(
            f"{part}: {len(mine)} tests, {f'{failed} FAILED' if failed else 'passed'}, {seconds:.0f} s"
        )
        for figure in summed(figures_of(mine)):
            terminalreporter.write_line("    {figure} ({seconds} s)".format(**figure))
    if config.getoption("figures"):
        store_figures(config.getoption("figures"), figures_of(calls))


def figures_of(reports: list) -> list[dict]:
    """The figures that tests recorded by `record_property("figure", ...)`, with the "counts" that fill their braces."""
    found = []
    for each in reports:
        properties = dict(each.user_properties)
        if "figure" in properties:
            about = {"test": each.nodeid, "seconds": round(each.duration), "passed": each.passed}
            found.append({**about, "figure": properties["figure"], "counts": properties.get("counts", {})})
    return found


def summed(figures: list[dict]) -> list[dict]:
    """The counts and seconds of the pieces of one figure added up."""
    parts: dict[tuple, list[dict]] = {}
    for each in figures:
        parts.setdefault((each["test"].partition("[")[0], each["figure"], each["passed"]), []).append(each)
    rows = []
    for (test, figure, passed), pieces in parts.items():
        totals = {name: sum(piece["counts"][name] for piece in pieces) for name in pieces[0].get("counts", {})}
        text = figure.format(**totals) if totals else figure
        seconds = sum(piece["seconds"] for piece in pieces)
        rows.append({"test": test, "figure": text if passed else f"FAILED: {text}", "seconds": seconds})
    return rows


def store_figures(folder: Path, figures: list[dict]) -> None:
    """Put these figures into reliability.json and reliability.md of a folder, in the place of earlier ones."""
    stored = folder / "reliability.json"
    earlier = json.loads(stored.read_text()) if stored.exists() else []
    every = {each["test"]: each for each in (*earlier, *figures)}
    figures = [every[test] for test in sorted(every)]
    stored.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    rows = [
        f"| {each['figure']} | `{Path(each['test'].partition('::')[0]).name}` | {each['seconds']} s |"
        for each in summed(figures)
    ]
    head = ["| measured | `pytest -m reliability` in `tests/reliability` | duration |", "| --- | --- | --- |"]
    (folder / "reliability.md").write_text("\n".join([*head, *rows, ""]))
