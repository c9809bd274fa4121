"""The directive `chart NAME`: a chart of the measurements in results/, drawn when the manual is built, light and dark.

The content of the directive is the alternative text. A chart is a function below.
"""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from pathlib import Path
from statistics import mean, median
from typing import Any, ClassVar

import matplotlib
from docutils import nodes
from docutils.parsers.rst import Directive
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "_charts"
INK = {"light": "#32363b", "dark": "#ced6dd"}
COLOURS = ["#e8740c", "#3f8fd2", "#35a07c", "#b07cc6", "#9a8b00", "#8a8f98"]
OURS, OTHERS = COLOURS[0], COLOURS[1:]


def read(name: str) -> Any:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def accuracy_against_checked_rows(figure: Figure) -> None:
    """results/cleaning-rivals.json: accuracy of the model trained after cleaning, a panel per data set and noise."""
    cells = read("cleaning-rivals")["cells"]
    panels = sorted({(cell["data"], cell["noise"]) for cell in cells})
    methods = ["HyperCleaner", "cleanlab", "trusted filter", "trusted only", "noisy"]
    labels = {"trusted only": "model of the checked rows", "noisy": "all labels as they are"}
    for axes, panel in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
        inside = sorted((c for c in cells if (c["data"], c["noise"]) == panel), key=lambda c: c["trusted"])
        for method, colour in zip(methods, COLOURS, strict=False):
            values = [mean(run[method]["refit"] for run in cell["runs"]) for cell in inside]
            label = labels.get(method, method)
            axes.plot([c["trusted"] for c in inside], values, "o-", color=colour, label=label, markersize=4)
        axes.set(title="{},\n{} noise".format(*panel), xlabel="checked rows", xticks=[c["trusted"] for c in inside])
    figure.axes[0].set_ylabel("test accuracy in %")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)


def real_tables(figure: Figure) -> None:
    """results/cleaning-real.json: AUROC and accuracy by the kind of noise, means over the tables."""
    cells = [cell for cell in read("cleaning-real")["cells"] if cell["noise"] in ("uniform", "pairs", "confusable")]
    kinds = ["uniform", "pairs", "confusable"]
    methods = ["correction", "cleanlab, boosting", "cleanlab, logistic", "Data-OOB", "all labels"]
    titles = {"auroc": "wrong labels ranked first (AUROC)", "accuracy": "accuracy of the final model"}
    for axes, (what, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for method, colour in zip(methods, COLOURS, strict=False):
            values = [mean(c["methods"][method][what] for c in cells if c["noise"] == kind) for kind in kinds]
            axes.plot(values, kinds, "o", color=colour, label=method.replace("correction", "bilevel"), markersize=7)
        axes.set(title=title, ylim=(2.5, -0.5))
        axes.grid(axis="y", alpha=0.3)
    axes.set_yticklabels([])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)


def performance_profile(figure: Figure) -> None:
    """results/zoo.json: the share of the problems that a method has solved to 1 % after so many seconds."""
    times: dict[str, list[float]] = defaultdict(list)
    for run in read("zoo"):
        times[run["method"]].append(run["seconds_to_near"] or float("inf"))
    axes = figure.subplots()
    for (method, found), colour in zip(times.items(), COLOURS, strict=False):
        solved = sorted(second for second in found if second < float("inf"))
        shares = [100 * k / len(found) for k in range(len(solved) + 1)]
        axes.step([1e-3, *solved, 12], [*shares, shares[-1]], where="post", color=colour, label=method)
    axes.set(xscale="log", xlim=(5e-3, 12), ylim=(0, 103), xlabel="processor seconds", ylabel="problems solved in %")
    axes.legend(frameon=False)


def time_to_value(figure: Figure) -> None:
    """results/time-to-value.json: median seconds until F is within 1e-4 of its bound."""
    found = read("time-to-value")
    seconds = {name: [run["1e-4"] for run in runs if "1e-4" in run] for name, runs in found["seconds"].items()}
    reached = {name: median(runs) if runs else None for name, runs in seconds.items()}
    names = sorted(found["chosen"], key=lambda name: reached.get(name) or float("inf"), reverse=True)
    axes = figure.subplots()
    for row, name in enumerate(names):
        value = reached.get(name)
        ours = name.startswith(("DMLCBO", "minimize"))
        axes.barh(row, value or found["budget"], color=OURS if ours else OTHERS[0], alpha=1 if value else 0.25)
        note = f" {value:.2g} s" if value else f" not in {found['budget']:g} s"
        axes.text(value or found["budget"], row, note, va="center", fontsize=9)
    labels = [textwrap.fill(found["chosen"][name]["label"], 60) for name in names]
    axes.set(yticks=range(len(names)), yticklabels=labels, xscale="log", xlabel="processor seconds to 1e-4")
    axes.set_xlim(right=5 * found["budget"])


CHARTS: dict[str, tuple[Any, tuple[float, float]]] = {
    "accuracy_against_checked_rows": (accuracy_against_checked_rows, (9, 3.6)),
    "real_tables": (real_tables, (9, 3.2)),
    "performance_profile": (performance_profile, (7, 3.4)),
    "time_to_value": (time_to_value, (9, 4.8)),
}


class Chart(Directive):
    """Draw the chart twice, and show the one that fits the reader's colours."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        folder = Path(self.state.document.settings.env.app.srcdir) / FOLDER
        folder.mkdir(exist_ok=True)
        frame = nodes.container(classes=["chart-frame"])
        for scheme, ink in INK.items():
            draw(name, folder / f"{name}-{scheme}.svg", ink)
            uri, alt = f"/{FOLDER}/{name}-{scheme}.svg", " ".join(self.content)
            frame += nodes.image(uri=uri, alt=alt, classes=[f"only-{scheme}", "chart"])
        return [frame]


def draw(name: str, path: Path, ink: str) -> None:
    plot, size = CHARTS[name]
    style = {
        "text.color": ink,
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "svg.hashsalt": name,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        plot(figure)
        figure.savefig(path, transparent=True, metadata={"Date": None})


GALLERY = ["which_labels_were_wrong", "tune_the_radius", "sets_in_the_plane", "compare_solvers", "portfolio"]
"""The examples that the gallery shows first; the others follow by name."""


def by_topic(filename: str) -> tuple[int, str]:
    """Where an example stands in the gallery."""
    name = filename.removeprefix("plot_").removesuffix(".py")
    return GALLERY.index(name) if name in GALLERY else len(GALLERY), name


def enlarge_text(*_: Any) -> None:
    """The text of the gallery's figures, which are read as thumbnails too."""
    matplotlib.rcParams["font.size"] = 12


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("chart", Chart)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
