"""The tables of `cleaning_real`: means, differences to cleanlab, worst cells, ranks, counts, advice, calibration."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

REFERENCE, SAME, OURS = "cleanlab, boosting", "cleanlab, mixture", "correction"
FIGURES = ("auroc", "accuracy", "balanced", "log-loss")


def markdown(cells: list[dict]) -> str:
    """Means of every method over the tables of each noise and over the others; then what was promised of tables."""
    groups: dict[str, list[dict]] = defaultdict(list)
    tables = [cell for cell in cells if REFERENCE in cell["methods"]]
    several = len({cell["checked"] for cell in tables}) > 1
    for cell in cells:
        noise = "" if cell["noise"] == "real" else f", {cell['noise']}"
        name = f"tables{noise}" if REFERENCE in cell["methods"] else f"{cell['data']}{noise}, {cell['checked']} checked"
        groups[name + (f", {cell['checked']} checked" if several and REFERENCE in cell["methods"] else "")].append(cell)
    if tables:
        groups["tables, all"] = tables
    lines = ["| data | cells | method | AUROC | accuracy | balanced | log-loss | seconds |", "|" + " --- |" * 8]
    for name, members in groups.items():
        for method in members[-1]["methods"]:
            having = [cell for cell in members if method in cell["methods"]]
            figures = " | ".join(_beside_cleanlab(having, method, what) for what in FIGURES)
            lines.append(f"| {name} | {len(having)} | {method} | {figures} | {_mean(having, method, 'seconds'):.1f} |")
    if tables:
        lines += ["", *_worst(groups), "", *_ranks(tables), "", *_counts(tables)]
    if extras := [cell for cell in tables if cell.get("extras")]:
        lines += ["", *_advice(extras), "", *_calibration(extras)]
    return "\n".join(lines) + "\n"


def _mean(cells: list[dict], method: str, what: str) -> float:
    return float(np.mean([cell["methods"][method][what] for cell in cells]))


def _beside_cleanlab(cells: list[dict], method: str, what: str) -> str:
    """The mean, and of cleanlab's rivals the mean difference to it with its standard error over cells."""
    mean = f"{_mean(cells, method, what):.3f}"
    if method.startswith("cleanlab") or len(cells) < 2:
        return mean
    gaps = _gaps(cells, method, what)
    return f"{mean} ({gaps.mean():+.3f} ± {gaps.std(ddof=1) / len(gaps) ** 0.5:.3f})"


def _gaps(cells: list[dict], method: str, what: str) -> np.ndarray:
    """The figure of a method minus that of cleanlab, with boosting where it was run, in each cell."""
    others = [cell["methods"].get(REFERENCE) or cell["methods"]["cleanlab, logistic"] for cell in cells]
    return np.array([cell["methods"][method][what] - other[what] for cell, other in zip(cells, others, strict=True)])


def _worst(groups: dict[str, list[dict]]) -> list[str]:
    """Of the differences of the correction to cleanlab with boosting."""
    lines = [f"| {OURS} minus {REFERENCE} | worst cell | cells below by more than .02 |", "|" + " --- |" * 3]
    for name, cells in groups.items():
        for what in FIGURES[:3] if name.startswith("tables") else ():
            gaps = _gaps(cells, OURS, what)
            place = cells[int(gaps.argmin())]
            worst = f"{gaps.min():+.3f} ({place['data']}, {place['noise']})"
            lines.append(f"| {name}, {what} | {worst} | {int((gaps < -0.02).sum())} of {len(gaps)} |")
    return lines


def _ranks(cells: list[dict]) -> list[str]:
    """Mean ranks of the methods over the cells, 1 the best; the correction with its balanced decision."""
    from scipy.stats import rankdata

    methods = [name for name in cells[0]["methods"] if all(name in cell["methods"] for cell in cells)]
    methods.remove("correction, argmax")
    ranks = {
        what: np.mean(
            [
                rankdata([(1 if what == "log-loss" else -1) * cell["methods"][name][what] for name in methods])
                for cell in cells
            ],
            axis=0,
        )
        for what in FIGURES
    }
    lines = [
        "| mean rank | AUROC | accuracy | balanced | log-loss | mean of the four |",
        "|" + " --- |" * 6,
    ]
    total = np.mean(list(ranks.values()), axis=0)
    for i in np.argsort(total):
        figures = " | ".join(f"{ranks[what][i]:.2f}" for what in FIGURES)
        lines.append(f"| {methods[i]} | {figures} | {total[i]:.2f} |")
    return lines


def _counts(cells: list[dict]) -> list[str]:
    """Pooled over the tables: calibration of small probabilities, rare classes, time."""
    lines = ["| method | right among those below .05 | right rows of classes under 5 % kept | time / cleanlab's | "
             "time / cleanlab's with the same models |", "|" + " --- |" * 5]  # fmt: skip
    same = [cell for cell in cells if SAME in cell["methods"]]
    for method in (REFERENCE, OURS):
        total = {what: sum(cell["methods"][method][what] for cell in cells)
                 for what in ("below .05", "right below .05", "rare", "rare kept", "seconds")}  # fmt: skip
        share = total["right below .05"] / max(total["below .05"], 1)
        kept = total["rare kept"] / max(total["rare"], 1)
        ratio = total["seconds"] / sum(cell["methods"][REFERENCE]["seconds"] for cell in cells)
        alike = _mean(same, method, "seconds") / _mean(same, SAME, "seconds") if same else float("nan")
        counts = f"{share:.1%} of {total['below .05']:,} | {kept:.0%} of {total['rare']:,}"
        lines.append(f"| {method} | {counts} | {ratio:.2f} | {alike:.2f} |")
    return lines


def _advice(cells: list[dict]) -> list[str]:
    """Test accuracy of boosting by what is done with the suspected labels, and of what was advised."""
    found = [cell["extras"]["advice"] for cell in cells]
    ways = ("leave alone", "filter", "relabel")
    advised = np.array([each[each["choice"]] for each in found])
    lines = ["| boosting on test rows | mean accuracy | minus all rows as they are | worst cell |", "|" + " --- |" * 4]
    base = np.array([each["leave alone"] for each in found])
    for name, values in [*((way, np.array([each[way] for each in found])) for way in ways), ("as advised", advised)]:
        gaps = values - base
        lines.append(f"| {name} | {values.mean():.4f} | {gaps.mean():+.4f} | {gaps.min():+.3f} |")
    counts = ", ".join(f"{way} {sum(each['choice'] == way for each in found)}" for way in ways)
    return [*lines, "", f"Advice: {counts} of {len(found)} cells."]


def _calibration(cells: list[dict]) -> list[str]:
    """Mean stated probability that a label is right, with 150 verified rows and with other checked rows only."""
    lines = ["| mean stated probability minus truth | verified rows | largest | checked rows only | largest |",
             "|" + " --- |" * 5]  # fmt: skip
    for noise in (*dict.fromkeys(cell["noise"] for cell in cells), "all"):
        members = [cell for cell in cells if noise in ("all", cell["noise"])]
        gaps = np.array([_gap(cell["extras"]["verified"]) for cell in members])
        others = np.array([_gap(cell["methods"][OURS]) for cell in members])
        figures = [f"{each.mean():+.3f} | {np.abs(each).max():.3f}" for each in (gaps, others)]
        lines.append(f"| tables, {noise} | {figures[0]} | {figures[1]} |")
    return lines


def _gap(figures: dict) -> float:
    return figures["mean quality"] - figures["truth"]
