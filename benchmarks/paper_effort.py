"""What each method spends until F is near the best, from stored runs of `bilevel reproduce table-2`.

    python -m benchmarks.paper_effort RESULTS... --command "what made them" [--out results/paper/effort.md]

RESULTS are folders of `bilevel reproduce --results`; their runs are taken together. F(x), lower level solved, above the
lowest value that any method reached on the same seed, against processor seconds of training, against gradients and
products with second derivatives, and against passes over the training rows: as a table (.md) and a picture (.svg and
.png); beside them the curves (-curves.csv), all runs (-runs.csv) and where they come from (-provenance.md).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

GAPS = (1e-3, 1e-4, 1e-5)
FLOOR = 1e-6
"""F is that of a lower level solved to 1e-7: smaller differences say nothing, and are drawn as this one."""
AXES = {
    "training_seconds": "processor seconds of training",
    "gradients": "gradients and products",
    "data_passes": "passes over the training rows",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_effort", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("results", type=Path, nargs="+", help="folders of `bilevel reproduce --results`")
    parser.add_argument("--command", required=True, help="what made the runs; it stands in the provenance")
    parser.add_argument("--out", type=Path, default=Path("build/effort.md"))
    arguments = parser.parse_args()
    from bilevel.experiments import ResultsStore
    from bilevel.experiments.report.writing import render_provenance, runs_csv

    stores = [ResultsStore(folder, reading=True) for folder in arguments.results]
    records = list({record.identity: record for store in stores for record in store.records()}.values())
    final = [record for record in records if record.role == "final"]
    distances, out = distances_of_f(final), arguments.out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(markdown(final, distances))
    draw(final, distances, out.with_suffix(".svg"))
    for name, text in (
        ("curves.csv", points(final, distances)),
        ("runs.csv", runs_csv(records)),
        ("provenance.md", render_provenance(records, command=arguments.command)),
    ):
        out.with_name(f"{out.stem}-{name}").write_text(text)
    print(f"{markdown(final, distances)}\nstored in {out}")


def distances_of_f(records: Iterable[Any]) -> dict[str, np.ndarray]:
    """By run: F(x) at each evaluation, above the lowest value of any method on the same rows."""
    values = {record.identity: np.array(record.curve["solved_upper_value"], dtype=float) for record in records}
    lowest: dict[tuple[str, int], float] = {}
    for record in records:
        place = record.dataset, record.seed
        lowest[place] = min(lowest.get(place, math.inf), float(np.nanmin(values[record.identity])))
    return {record.identity: values[record.identity] - lowest[record.dataset, record.seed] for record in records}


def arrival(record: Any, distance: np.ndarray, gap: float) -> dict[str, float] | None:
    """Step and costs at the first evaluation that is so near; None if there is none."""
    near = np.flatnonzero(distance <= gap)
    return {name: record.curve[name][near[0]] for name in ("step", *AXES)} if len(near) else None


def groups(records: Iterable[Any]) -> dict[str, dict[str, list[Any]]]:
    """The runs by data set and by what ran, both in the order of the paper."""
    from bilevel.experiments.paper_values import DATASETS, METHODS

    order = [*METHODS]

    def place(record: Any) -> tuple[int, int, int]:
        known = order.index(record.method) if record.method in order else len(order)
        return [*DATASETS].index(record.dataset), known, record.seed

    found: dict[str, dict[str, list[Any]]] = {}
    for record in sorted(records, key=place):
        label = record.configuration.get("label") or record.method
        found.setdefault(record.dataset, {}).setdefault(label, []).append(record)
    return found


def markdown(records: list[Any], distances: dict[str, np.ndarray]) -> str:
    """What each method spends until F is near the lowest: means over seeds, where all arrive."""
    from bilevel.experiments.paper_values import DATASETS

    heads = ["dataset", "method", "upper, lower step", "runs", "steps", "s", "end above the lowest F"]
    heads += [f"s to {gap:.0e}".replace("e-0", "e-") for gap in GAPS]
    heads += ["gradients and products to 1e-4", "passes to 1e-4", "ended"]
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for dataset, methods in groups(records).items():
        for label, runs in methods.items():
            arrived = {gap: [arrival(run, distances[run.identity], gap) for run in runs] for gap in GAPS}
            ends = [run.status for run in runs]
            chosen = (runs[0].settings.get(name, math.nan) for name in ("upper_step", "lower_step"))
            cells = [
                DATASETS[dataset], label, ", ".join(f"{step:g}" for step in chosen), str(len(runs)),
                f"{mean(run.final['step'] for run in runs):.0f}", f"{mean(run.training_seconds for run in runs):.1f}",
                ", ".join(f"{distances[run.identity][-1]:.0e}".replace("e-0", "e-") for run in runs),
                *(averaged(arrived[gap], "training_seconds", 2) for gap in GAPS),
                averaged(arrived[1e-4], "gradients", 0), averaged(arrived[1e-4], "data_passes", 0),
                ", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(ends)),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def averaged(found: list[dict[str, float] | None], name: str, digits: int) -> str:
    """The mean over the runs that arrived, and how many did where some did not."""
    values = [each[name] for each in found if each is not None]
    if not values:
        return "–"
    return f"{mean(values):,.{digits}f}" + ("" if len(values) == len(found) else f" ({len(values)} of {len(found)})")


def points(records: list[Any], distances: dict[str, np.ndarray]) -> str:
    """All curves as CSV."""
    lines = ["dataset,method,seed,step,training_seconds,gradients,data_passes,F_above_lowest"]
    for record in records:
        run = f"{record.dataset},{record.method},{record.seed},"
        rows = zip(*(record.curve[name] for name in ("step", *AXES)), distances[record.identity], strict=True)
        lines += [run + ",".join(f"{value:.6g}" for value in row) for row in rows]
    return "\n".join(lines) + "\n"


def draw(records: list[Any], distances: dict[str, np.ndarray], path: Path) -> None:
    """A column per data set, a row per cost; a line per run, in the colour of its method."""
    import matplotlib
    from matplotlib.figure import Figure

    from bilevel._html import ON_WHITE, SERIES, style_on_white
    from bilevel.experiments.paper_values import DATASETS
    from bilevel.experiments.report.figures import DASHES

    found = groups(records)
    labels = list(dict.fromkeys(label for methods in found.values() for label in methods))
    handles: dict[str, Any] = {}
    with matplotlib.rc_context(style_on_white("effort")):
        figure = Figure(figsize=(3.3 * len(found), 2.9 * len(AXES) + 0.8), layout="constrained")
        grid = figure.subplots(len(AXES), len(found), squeeze=False, sharey="col")
        for (row, column), axes in np.ndenumerate(grid):
            dataset, (against, words) = [*found][column], [*AXES.items()][row]
            runs = [(label, run) for label, group in found[dataset].items() for run in group]
            for label, run in runs:
                place, costs = labels.index(label), np.array(run.curve[against])
                heights = np.maximum(distances[run.identity], FLOOR)
                look = {"color": ON_WHITE[SERIES[place]], "linestyle": DASHES[place], "linewidth": 1.4}
                (handles[label],) = axes.plot(costs[costs > 0], heights[costs > 0], **look)
            axes.set(xscale="log", yscale="log", xlabel=words)
            axes.set_title("" if row else DATASETS[dataset], fontsize="medium")
            axes.set_ylabel("" if column else "F above the lowest")
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, handlelength=3.2)
        figure.savefig(path, metadata={"Date": None})
        figure.savefig(path.with_suffix(".png"), dpi=130)


if __name__ == "__main__":
    main()
