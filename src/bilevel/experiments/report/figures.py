"""Figures 1 and 2: test accuracy against training time, all methods, mean and one standard deviation over seeds."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import MissingExtra
from ...pages.picture import ON_WHITE, SERIES, STYLE, Picture, picture_of, style_on_white
from ..export import csv_text
from ..printed import DATASETS, METHODS, printed_table
from ..record import RunRecord
from .cells import PERCENT, cells_of
from .curves import Band, band

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter
except ImportError:
    raise MissingExtra("The report", "apps") from None

DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (9, 2)), (0, (3, 1)), (0, (1, 3)))
WIDTH = 5.0  # inches of 72 pixels: texts keep their size on a telephone

ACCURACY = {"accuracy": ("test accuracy, %", "the paper's measure: accuracy of the run's own y")}
MEASURES: dict[str, dict[str, tuple[str, str]]] = {
    "table-2": ACCURACY | {"solved_upper_value": ("F(x)", "F(x), lower level solved; lower is better")},
    "table-3": {"accuracy": ("accuracy on novel classes, %", "accuracy on novel classes")},
}
"""What the figures of an experiment show: name of the axis, and in words."""
FIGURES = {"table-2": "figure-1", "table-3": "figure-2"}


@dataclass(frozen=True)
class Panel:
    """One picture: a dataset, a measure, and a line per method; `numbers` are the places of methods among colours."""

    experiment: str
    dataset: str
    measure: str
    lines: dict[str, Band]
    numbers: Mapping[str, int]

    @property
    def title(self) -> str:
        """The dataset, as the paper calls it."""
        return DATASETS.get(self.dataset, self.dataset)

    @property
    def axis(self) -> str:
        """Name of the vertical axis."""
        return MEASURES[self.experiment][self.measure][0]

    @property
    def description(self) -> str:
        """The ends of the lines in words."""
        missing = [name for name in printed_table(self.experiment).columns if name not in self.lines]
        ends = [
            f"{label(name)} ends at {line.mean[-1]:.4g} after {line.times[-1]:.3g} s"
            for name, line in self.lines.items()
        ]
        not_run = f" Not run: {', '.join(label(str(name)) for name in missing)}." if missing else ""
        words = MEASURES[self.experiment][self.measure][1]
        return f"{words[0].upper()}{words[1:]}. {'; '.join(ends) or 'No runs'}.{not_run}"


def label(method: str) -> str:
    """The paper's name of a method, or ours."""
    return METHODS.get(method, method)


def panels_of(records: Sequence[RunRecord], experiment: str) -> list[Panel]:
    """The pictures of a figure, by measure and dataset as in the paper; of several settings the one with most runs."""
    cells = sorted((cell for cell in cells_of(records, experiment) if cell.runs), key=lambda cell: len(cell.runs))
    runs = {(cell.dataset, str(cell.column)): cell.runs for cell in cells}
    datasets = dict.fromkeys([*printed_table(experiment).cells, *sorted(dataset for dataset, _ in runs)])
    names = list(dict.fromkeys([*METHODS, *sorted(method for _, method in runs)]))
    numbers = {name: place for place, name in enumerate(names)}
    return [
        Panel(experiment, dataset, measure, _lines(runs, dataset, names, measure), numbers)
        for measure in MEASURES[experiment]
        for dataset in datasets
    ]


def _lines(runs: Mapping[tuple[str, str], Any], dataset: str, names: Sequence[str], measure: str) -> dict[str, Band]:
    found = {name: band(runs.get((dataset, name), ()), measure) for name in names}
    scale = 100.0 if measure in PERCENT else 1.0
    return {name: Band(line.times, scale * line.mean, scale * line.std) for name, line in found.items() if line}


def pictures_of(panels: Sequence[Panel]) -> list[Picture]:
    """Each panel as a picture of the page, with its own legend; the measures of a dataset beside each other."""
    datasets = list(dict.fromkeys(panel.dataset for panel in panels))
    return [_picture(panel) for panel in sorted(panels, key=lambda p: datasets.index(p.dataset)) if panel.lines]


def _picture(panel: Panel) -> Picture:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.4 + 0.2 * ((len(panel.lines) + 1) // 2)), layout="constrained")
        _draw(figure.subplots(), panel, colour=lambda stand_in: stand_in)
        figure.legend(loc="outside upper left", ncols=2, handlelength=3.2)
        return picture_of(figure, f"{panel.title}: {panel.axis} against training time", panel.description)


def figure_files(panels: Sequence[Panel], name: str) -> dict[str, bytes]:
    """The whole figure as NAME.svg and NAME.png, and what is drawn in it as NAME.csv."""
    datasets = list(dict.fromkeys(panel.dataset for panel in panels))
    lines = len(panels) // len(datasets)
    with matplotlib.rc_context(style_on_white(name)):
        figure = Figure(figsize=(3.4 * len(datasets), 0.8 + 3.0 * lines), layout="constrained")
        grid = figure.subplots(lines, len(datasets), squeeze=False)
        handles: dict[str, Any] = {}
        for axes, panel in zip(grid.flat, panels, strict=True):
            _draw(axes, panel, colour=ON_WHITE.__getitem__)
            axes.set_title(panel.title, fontsize="medium")
            handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        if handles:
            figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=8, handlelength=3.2)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        files = {f"{name}.svg": _saved(figure, "svg", metadata=nothing), f"{name}.png": _saved(figure, "png", dpi=150)}
    return files | {f"{name}.csv": _drawn(panels).encode()}


def _saved(figure: Any, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=kind, **options)
    return file.getvalue()


def _draw(axes: Any, panel: Panel, colour: Callable[[str], str]) -> None:
    for name, line in panel.lines.items():
        place = panel.numbers[name]
        shade = colour(SERIES[place % len(SERIES)])
        axes.plot(
            line.times, line.mean, color=shade, linestyle=DASHES[place % len(DASHES)], linewidth=1.9, label=label(name),
            marker="o" if len(line.times) == 1 else None,
        )  # fmt: skip
        axes.fill_between(line.times, line.mean - line.std, line.mean + line.std, color=shade, alpha=0.16, linewidth=0)
    if not panel.lines:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", va="center")
        axes.set(xticks=[], yticks=[])
        return
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    between = "25" if high < 20 * low else ""  # where few powers of ten are in sight
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in between else ""))
    axes.set(xlabel="training time, s", ylabel=panel.axis)


def _drawn(panels: Sequence[Panel]) -> str:
    rows = (
        (panel.dataset, panel.measure, name, *(f"{number:.6g}" for number in point))
        for panel in panels
        for name, line in panel.lines.items()
        for point in zip(*line, strict=True)
    )
    return csv_text(("dataset", "measure", "method", "training_seconds", "mean", "std"), rows)
