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
    parts: dict[str, list] = {}
    for report in (report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())):
        if report.when == "call":
            parts.setdefault(report.nodeid.partition("::")[0], []).append(report)
    summaries = {}
    for part, reports in sorted(parts.items()):
        failed, seconds = sum(report.failed for report in reports), sum(report.duration for report in reports)
        verdict = f"{failed} FAILED" if failed else "passed"
        figures = [
            f"{value} ({report.duration:.0f} s)"
            for report in reports
            for name, value in report.user_properties
            if name == "figure"
        ]
        summaries[part] = {"summary": f"{len(reports)} tests, {verdict}, {seconds:.0f} s", "figures": figures}
        terminalreporter.write_line(f"{part}: {summaries[part]['summary']}")
        for figure in figures:
            terminalreporter.write_line(f"    {figure}")
    if config.getoption("figures"):
        store_figures(config.getoption("figures"), summaries)


def store_figures(folder: Path, summaries: dict[str, dict]) -> None:
    """Add these parts to reliability.json and reliability.md of a folder."""
    stored = folder / "reliability.json"
    parts = json.loads(stored.read_text()) if stored.exists() else {}
    parts = dict(sorted({**parts, **summaries}.items()))
    stored.write_text(json.dumps(parts, indent=1) + "\n")
    rows = [
        f"| `{Path(part).name}` | {found['summary']} | {'<br>'.join(found['figures'])} |"
        for part, found in parts.items()
    ]
    (folder / "reliability.md").write_text("\n".join(["| part | tests | figures |", "| --- | --- | --- |", *rows, ""]))
