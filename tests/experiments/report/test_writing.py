"""The files of a report: all there, complete, without network, and none of them half."""

from __future__ import annotations

import csv
import itertools
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bilevel.errors import InvalidInputError
from bilevel.experiments.report import write_report
from bilevel.experiments.report.figures import make_panels, page_pictures
from bilevel.experiments.report.provenance import core_hours
from bilevel.experiments.report.writing import render_provenance

from .conftest import record

COMMAND = "bilevel reproduce all --seeds 3"


@pytest.fixture(scope="module")
def report(full_sweep, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "report"
    paths = write_report(full_sweep, folder, command=COMMAND, notes=["This is a <quick> look."])
    assert sorted(paths) == sorted(folder.iterdir())
    return folder


class Page(HTMLParser):
    """Elements and text of a page; every element that is opened must be closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


def test_all_files_are_there(report):
    expected = {"index.html", "runs.csv", "provenance.md"}
    expected |= {f"table-{n}.{kind}" for n in (2, 3, 4, 5) for kind in ("md", "html")}
    expected |= {f"figure-{n}.{kind}" for n in (1, 2) for kind in ("svg", "png", "csv")}
    assert {path.name for path in report.iterdir()} == expected
    assert (report / "figure-1.png").read_bytes().startswith(b"\x89PNG")


def test_the_provenance_has_command_cost_and_trouble(full_sweep):
    text = render_provenance(full_sweep, command="bilevel reproduce all", notes=["a note"])
    assert text.startswith("> a note\n\n    bilevel reproduce all\n")
    assert f"| core-hours | {core_hours(full_sweep):.2f} |" in text
    broken = [run for run in full_sweep if run.role == "final" and run.status == "diverged"]
    assert broken
    assert all(f"{run.experiment}, {run.dataset}, {run.method}, seeds" in text for run in broken)


@pytest.mark.parametrize(("name", "measures"), [("figure-1", 2), ("figure-2", 1)])
def test_figures_have_all_methods_and_datasets(report, name, measures):
    words = [element.text for element in ElementTree.parse(report / f"{name}.svg").iter() if element.text]
    titles = {
        "figure-1": ("CodRNA", "MNIST 6vs9", "Madelon", "FashionMNIST 1vs7"),
        "figure-2": (
            "Omniglot, 5 way 5 shot",
            "Omniglot, 10 way 5 shot",
            "FC100, 5 way 5 shot",
            "FC100, 10 way 5 shot",
        ),
    }[name]
    for title in titles:
        assert words.count(title) == measures
    for method in ("DMLCBO", "V-PBGD", "Approx", "RMD-PCD", *(["implicit"] if name == "figure-1" else [])):
        assert words.count(method) == 1  # one legend for all
    with (report / f"{name}.csv").open() as file:
        drawn = {(row["dataset"], row["measure"], row["method"]) for row in csv.DictReader(file)}
    # Madelon has no runs of Approx, and only MNIST has some of the implicit method.
    assert len(drawn) == (2 * (4 * 4 - 1 + 1) if name == "figure-1" else 4 * 4)


def test_each_line_has_its_own_colour_and_dashes(full_sweep):
    pictures = page_pictures(make_panels(full_sweep, "table-2"))
    assert len(pictures) == 8
    assert len({picture.title for picture in pictures}) == 8
    mnist = next(picture for picture in pictures if picture.title.startswith("MNIST 6vs9: test accuracy"))
    for place in range(1, 6):
        assert f"var(--series-{place})" in mnist.content
    assert mnist.content.count("stroke-dasharray") >= 4
    assert "DMLCBO ends at 94.24 after 5 s" in mnist.description
    madelon = next(picture for picture in pictures if picture.title.startswith("Madelon: test accuracy"))
    assert "Not run: Approx." in madelon.description


def seen_by(kind: str, colour: str) -> list[float]:
    """Linear RGB as seen without one sort of cones (Machado, Oliveira and Fernandes 2009, severity 1)."""
    matrix = {
        "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
        "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
        "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
        "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    }[kind]
    levels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]
    return [sum(factor * level for factor, level in zip(row, linear, strict=True)) for row in matrix]


def lab(linear: list[float]) -> list[float]:
    """CIE L*a*b* of linear RGB (D65)."""
    r, g, b = (min(max(level, 0.0), 1.0) for level in linear)
    x, y, z = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return [116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)]


def page_colours(report: Path) -> dict[str, dict[str, str]]:
    """The variables of the page's style, light and dark."""
    light, dark = (report / "index.html").read_text(encoding="utf-8").split("prefers-color-scheme: dark")[:2]
    return {
        scheme: dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", text))
        for scheme, text in (("light", light), ("dark", dark))
    }


@pytest.mark.parametrize("kind", ["all cones", "protan", "deutan", "tritan"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colour_blind_eyes_tell_the_methods_apart(report, kind, scheme):
    """In L*a*b* 2 is just noticeable: six lines differ by more than 20, and eight by more than 10."""
    colours = [page_colours(report)[scheme][f"--series-{place}"] for place in range(1, 9)]
    seen = [lab(seen_by(kind, colour)) for colour in colours]
    for i, j in itertools.combinations(range(8), 2):
        assert math.dist(seen[i], seen[j]) > (20 if max(i, j) < 6 else 10), (colours[i], colours[j])


def test_files_have_the_colours_of_a_light_page(report):
    light = page_colours(report)["light"]
    drawn = set(re.findall("#[0-9a-f]{6}", (report / "figure-1.svg").read_text(encoding="utf-8")))
    assert drawn <= {*light.values(), "#ffffff"}
    assert drawn >= {light[f"--series-{place}"] for place in range(1, 6)}


def test_the_page_has_everything(report):
    page = Page(report / "index.html")
    for part in (
        "The paper's tables and figures, repeated",
        "This is a <quick> look.",
        COMMAND,
        "Table 2: Data hyper-cleaning",
        "Table 5 over time",
        "Figure 2",
        "80.42 ± 0.05",
        "3 of 5, 1 diverged, 1 failed",
        "x is <not> finite | at step 7",
        "out of memory",
        "2.6.0",
        "cod-rna: hash of cod-rna",
        "core-hours",
        "not run",
    ):
        assert part in page.text, part
    links = {attributes.get("href") for tag, attributes in page.elements if tag == "a"}
    assert {"runs.csv", "figure-1.svg", "figure-1.csv", "table-2.md", "#table-2", "#figure-1", "#made"} <= links
    identities = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identities) == len(set(identities))
    for link in links:
        assert link is not None
        assert link[1:] in identities if link.startswith("#") else (report / link).is_file()


def test_pictures_are_inside_and_say_what_they_show(report):
    page = Page(report / "index.html")
    pictures = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert len(pictures) == 12  # figure 1: four datasets in two measures; figure 2: four
    assert all(len(attributes["aria-label"] or "") > 60 for attributes in pictures)
    assert not any(tag in ("img", "iframe", "object") for tag, _ in page.elements)
    html = (report / "index.html").read_text(encoding="utf-8")
    addresses = set(re.findall(r"""(?:src|href)\s*=\s*["'](https?:[^"']+)""", html))
    assert addresses == set()


def test_tables_have_pages_of_their_own(report):
    page = Page(report / "table-4.html")
    assert "Table 4: Data hyper-cleaning: test accuracy (%) of DMLCBO with different Q" in page.text
    assert "Q = 7" in page.text
    assert "This is a <quick> look." in page.text
    assert (report / "table-4.md").read_text(encoding="utf-8").startswith("> This is a \\<quick> look.\n\n**Table 4")


def test_the_same_runs_give_the_same_bytes(full_sweep, tmp_path):
    runs = [run for run in full_sweep if (run.experiment, run.dataset) == ("table-3", "fc100-5way")]
    paths = write_report(runs, tmp_path / "first", command=COMMAND)
    for path in write_report(runs[::-1], tmp_path / "second", command=COMMAND):
        assert path.read_bytes() == (tmp_path / "first" / path.name).read_bytes(), path.name
    assert {path.suffix for path in paths} == {".html", ".md", ".svg", ".png", ".csv"}


def test_one_table_alone(tmp_path):
    paths = write_report([record(seed=seed) for seed in range(2)], tmp_path / "new" / "folder", command="c")
    assert paths[0].name == "index.html"
    assert "table-3.md" not in {path.name for path in paths}
    text = Page(tmp_path / "new" / "folder" / "index.html").text
    assert "Not run: Table 3, Table 4, Table 5." in text
    assert "None of the runs of the tables." in text


def test_seeds_that_were_asked_for_are_those_of_each_table(tmp_path):
    runs = [record(), record(experiment="table-3", dataset="fc100-5way", accuracy=0.5)]
    write_report(runs, tmp_path, command="c", seeds={"table-2": 10, "table-3": 1})
    assert "| 1 of 10 |" in (tmp_path / "table-2.md").read_text(encoding="utf-8")
    assert "| 50.00 | 1 |" in (tmp_path / "table-3.md").read_text(encoding="utf-8")


def test_a_sweep_where_everything_broke_is_reported(tmp_path):
    write_report([record(status="failed", reason="no memory", curve={})], tmp_path, command="c")
    assert "no memory" in Page(tmp_path / "index.html").text
    assert "no run ended" in (tmp_path / "table-2.md").read_text(encoding="utf-8")


def test_an_experiment_that_is_not_in_the_paper(tmp_path):
    runs = [record(experiment="my own/sweep", dataset="adult", method="mine", seed=seed) for seed in range(2)]
    names = {path.name for path in write_report(runs, tmp_path, command="c")}
    assert names == {"index.html", "my-own-sweep.md", "my-own-sweep.html", "runs.csv", "provenance.md"}
    text = (tmp_path / "my-own-sweep.md").read_text(encoding="utf-8")
    assert "| adult | mine | not printed | 94.00 ± 0.00 | 2 | not printed | 0.5300 ± 0.0000 |" in text
    assert "accuracy.after.5s" in (tmp_path / "runs.csv").read_text(encoding="utf-8")


def test_nothing_to_report_is_an_error_and_writes_nothing(tmp_path):
    with pytest.raises(InvalidInputError, match="none of the 1 runs is a final one, .* run `bilevel reproduce`"):
        write_report([record(role="grid")], tmp_path / "report", command="c")
    assert list(tmp_path.iterdir()) == []
