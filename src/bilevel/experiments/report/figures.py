"""Figures of a report: measures against training time or cost, all methods, mean and standard deviation over seeds."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..._html import ON_WHITE, SERIES, STYLE, Picture, make_picture, style_on_white
from ...errors import MissingExtraError
from ..paper_values import DATASETS, METHODS, printed_table
from ..run_folder import RunRecord, csv_text
from .curves import Band, band
from .tables import CAPTIONS, PERCENT, find_application, make_cells

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter
except ImportError:
    raise MissingExtraError("The report", "apps") from None

DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (9, 2)), (0, (3, 1)), (0, (1, 3)))
AGAINST = {"training_seconds": "training time, s", "data_passes": "passes over the data"}
"""The horizontal axes, by the column of a curve."""
WIDTH = 5.0  # inches of 72 pixels: texts keep their size on a telephone


@dataclass(frozen=True)
class Panel:
    """One picture: a dataset, a measure, and a line per method.

    Parameters
    ----------
    axis, words
        Name of the vertical axis, and what it shows in words.
    against
        The column of the curves on the horizontal axis.
    lines
        By method.
    missing
        Methods of the paper without a line.
    labels
        What ran, by method.
    numbers
        The places of methods among the colours.
    """

    dataset: str
    measure: str
    axis: str
    words: str
    against: str
    lines: dict[str, Band]
    missing: list[str]
    labels: Mapping[str, str]
    numbers: Mapping[str, int]

    @property
    def title(self) -> str:
        """The dataset, as the paper calls it."""
        return DATASETS.get(self.dataset, self.dataset)

    @property
    def description(self) -> str:
        """The ends of the lines in words."""
        unit = AGAINST[self.against].removeprefix("training time, ")
        ends = [
            f"{self.labels[name]} ends at {line.mean[-1]:.4g} after {line.times[-1]:.3g} {unit}"
            for name, line in self.lines.items()
        ]
        not_run = f" Not run: {', '.join(METHODS.get(name, name) for name in self.missing)}." if self.missing else ""
        return f"{self.words[0].upper()}{self.words[1:]}. {'; '.join(ends) or 'No runs'}.{not_run}"


def make_panels(records: Sequence[RunRecord], experiment: str) -> list[Panel]:
    """The pictures of a figure, by measure and dataset as in the paper; of several settings the one with most runs."""
    cells = sorted((cell for cell in make_cells(records, experiment) if cell.runs), key=lambda cell: len(cell.runs))
    runs = {(cell.dataset, str(cell.column)): cell.runs for cell in cells}
    labels = {str(cell.column): cell.title for cell in cells}
    datasets = dict.fromkeys([*printed_table(experiment).cells, *sorted(dataset for dataset, _ in runs)])
    names = list(dict.fromkeys([*METHODS, *sorted(method for _, method in runs)]))
    numbers = {name: place for place, name in enumerate(names)}
    panels = []
    for about in CAPTIONS["figures"][find_application(records, experiment)]:
        measure, against = about["measure"], about["against"]
        if runs and not any(against in run.curve for cell in runs.values() for run in cell):
            continue  # runs of an older version
        scale = 100.0 if measure in PERCENT else 1.0
        for dataset in datasets:
            bands = {name: band(runs.get((dataset, name), ()), measure, scale, against) for name in names}
            lines = {name: line for name, line in bands.items() if line}
            missing = [str(name) for name in printed_table(experiment).columns if name not in lines]
            panels.append(Panel(dataset, **about, lines=lines, missing=missing, labels=labels, numbers=numbers))
    return panels


def page_pictures(panels: Sequence[Panel]) -> list[Picture]:
    """Each panel as a picture of the page, with its own legend; the measures of a dataset beside each other."""
    datasets = list(dict.fromkeys(panel.dataset for panel in panels))
    return [_picture(panel) for panel in sorted(panels, key=lambda p: datasets.index(p.dataset)) if panel.lines]


def _picture(panel: Panel) -> Picture:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.4 + 0.2 * len(panel.lines)), layout="constrained")
        _draw(figure.subplots(), panel, colour=lambda stand_in: stand_in)
        figure.legend(loc="outside upper left", handlelength=3.2)
        across = AGAINST[panel.against].partition(",")[0]
        return make_picture(figure, f"{panel.title}: {panel.axis} against {across}", panel.description)


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
            figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, handlelength=3.2)
        no_date = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        files = {f"{name}.svg": _saved(figure, "svg", metadata=no_date)}
        figure.set_layout_engine("none")  # it has been laid out, which takes half of the time
        files[f"{name}.png"] = _saved(figure, "png", dpi=150)
    return files | {f"{name}.csv": _points(panels).encode()}


def _saved(figure: Any, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=kind, **options)
    return file.getvalue()


def _draw(axes: Any, panel: Panel, colour: Callable[[str], str]) -> None:
    if not panel.lines:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", va="center")
        axes.set(xticks=[], yticks=[])
        return
    for name, line in panel.lines.items():
        place = panel.numbers[name]
        shade, dashes = colour(SERIES[place % len(SERIES)]), DASHES[place % len(DASHES)]
        marker = "o" if len(line.times) == 1 else None
        axes.plot(
            line.times, line.mean, color=shade, linestyle=dashes, linewidth=1.9, label=panel.labels[name], marker=marker
        )
        axes.fill_between(line.times, line.mean - line.std, line.mean + line.std, color=shade, alpha=0.16, linewidth=0)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    between = "25" if high < 20 * low else ""  # where few powers of ten are in sight
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in between else ""))
    axes.set(xlabel=AGAINST[panel.against], ylabel=panel.axis)


def _points(panels: Sequence[Panel]) -> str:
    rows = (
        (panel.dataset, panel.measure, panel.against, name, *(f"{number:.6g}" for number in point))
        for panel in panels
        for name, line in panel.lines.items()
        for point in zip(*line, strict=True)
    )
    return csv_text(("dataset", "measure", "against", "method", "at", "mean", "std"), rows)
