"""The report as text: complete, one file, and every text of the user escaped."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from bilevel.cleaning import report as figures
from bilevel.cleaning.candidates import Advice
from bilevel.cleaning.measurement import Accuracy, Comparison, Measurement
from bilevel.cleaning.report import render_report


class Page(HTMLParser):
    """The elements of a page, its texts, the scripts it would run, and the data that they read."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.data = ""
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append("data" if dict(attrs).get("type") == "application/json" else tag)

    def handle_endtag(self, tag):
        if self._inside and self._inside[-1] in (tag, "data"):
            self._inside.pop()

    def handle_data(self, data):
        if "script" in self._inside:
            self.scripts.append(data)
        elif "data" in self._inside:
            self.data += data
        elif not self._inside:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def test_everything_is_on_the_page(make_result):
    result = make_result(settings={"solver": "dmlcbo"})
    page = Page(render_report(result))
    for part in (
        f"{result.issues} labels are suspected to be wrong",
        "(+25.0 ± 10.0 points)",
        "on the 20 trusted rows that were kept aside",
        "20 rows give a rough figure: --test FILE with at least 50 gives a better one.",
        "on which none of these models was trained",
        "their labels are assumed right",
        result.command,
        "torch 2.6.0",
        "scikit-learn 1.6.0",
        "Python 3.11.0",
        "2026-03-04T15:30:00+00:00",
        "the simplest model whose Brier score on held-out trusted rows is within one standard error of the best",
        "(rows: 0.5100, transition: 0.4000; a lower score is better)",
        "solver dmlcbo",
    ):
        assert part in page.text, part
    rows = json.loads(page.data)["rows"]
    assert [row[0] for row in rows] == result.rows.sort_values("label_quality")["row"].tolist()
    assert rows[0][6] == [f"{result.features.height[rows[0][0] - 1]:.6g}", "rough"]


def test_the_page_needs_nothing_else(make_result):
    page = Page(render_report(make_result()))
    addresses = [value for _, attributes in page.elements for name, value in attributes.items()
                 if name in ("src", "href", "xlink:href", "data", "action", "poster", "srcset")]  # fmt: skip
    assert addresses
    assert all(address.startswith(("data:", "#")) for address in addresses)
    (policy,) = [a["content"] for tag, a in page.elements if tag == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    digest = base64.b64encode(hashlib.sha256("".join(page.scripts).encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]


def test_hostile_texts_are_texts(hostile_result):
    page = Page(render_report(hostile_result))
    assert not any("hacked" in script for script in page.scripts)
    assert sum(tag == "script" and "type" not in attributes for tag, attributes in page.elements) == 1
    assert not any(tag == "img" for tag, _ in page.elements)  # rows are no pictures here
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "<" not in page.data
    cells = [row[6] for row in json.loads(page.data)["rows"]]
    assert {line[0] for line in cells} == {'"><img src=x onerror="window.hacked = 2">'}
    assert {line[1] for line in cells} == {"</script><script>window.hacked = 1; alert(1)</script>"}


def test_every_picture_says_what_it_shows(make_result):
    page = Page(render_report(make_result()))
    labels = [attributes["aria-label"] for tag, attributes in page.elements if tag == "svg"]
    assert len(labels) == 3
    assert any("Histogram of 300 rows" in label for label in labels)
    assert any("transition: from 1 to 0.125 in 8 steps" in label for label in labels)


def test_names_inside_pictures_are_unique_and_found(make_result):
    html = render_report(make_result())
    names = re.findall(r'\bid="([^"]+)"', html)
    assert len(names) == len(set(names))
    for target in re.findall(r'(?:href="#|url\(#)([^")]+)', html):
        assert target in names


def test_colours_follow_the_page(make_result):
    html = render_report(make_result())
    pictures = re.findall(r"<svg .*?</svg>", html, re.DOTALL)
    for picture in pictures:
        ElementTree.fromstring(picture.replace("xlink:href", "href"))  # well-formed
        assert "var(--" in picture
        assert not re.search(r"#[0-9a-f]{6}\b", picture), "a colour that is the same in light and dark"


def test_without_a_measurement_the_reason_is_given(make_result):
    text = Page(render_report(make_result(measurement=None, unmeasured="30 trusted rows are too few"))).text
    assert "Not measured: 30 trusted rows are too few." in text
    assert "Whether cleaning helps was not measured: 30 trusted rows are too few." in text


def compared(
    before: int, after: int, differing: int, relabelled: tuple[int, int] | None = None, **others
) -> Comparison:
    rows, plain = others.get("rows", 100), others.get("plain", "logistic regression")
    relabelled = relabelled or (before, 0)
    names = ("all rows as they are", "rows that are kept", "suggested labels")
    shares = [Accuracy(name, count, rows) for name, count in zip(names, (before, after, relabelled[0]), strict=True)]
    return Comparison(
        plain=plain, before=shares[0], after=shares[1], relabelled=shares[2],
        differing={"filter": differing, "relabel": relabelled[1]},
    )  # fmt: skip


def measured(*comparisons: Comparison, seen: int = 0) -> Measurement:
    cleaned = Accuracy("cleaned", 100, comparisons[0].before.rows)
    return Measurement(where="some rows", comparisons=comparisons, trusted_only=None, cleaned=cleaned, seen=seen)


@pytest.mark.parametrize(
    ("comparison", "verdict"),
    [
        (compared(60, 80, 30), ""),
        (compared(80, 60, 30), "Cleaning did not help: leaving the suspected rows out made the model worse"),
        (compared(70, 70, 0), "No difference between all rows and the rows that are kept could be measured"),
        (compared(70, 72, 10), "No difference between all rows and the rows that are kept could be measured"),
        (compared(70, 71, 1), "No difference between all rows and the rows that are kept could be measured"),
    ],
)
def test_whether_cleaning_helped_is_said_plainly(make_result, comparison, verdict):
    text = Page(render_report(make_result(measurement=measured(comparison)))).text
    assert comparison.verdict.startswith(verdict)
    assert comparison.verdict in text
    assert bool(comparison.verdict) is bool(verdict)
    assert ("No difference measured" in text) is verdict.startswith("No difference")
    assert ("it did not help" in text) is verdict.startswith("Cleaning did not help")
    assert "rough figure" not in text


@pytest.mark.parametrize(
    ("choice", "kept", "suggested", "headline"),
    [
        (
            "filter",
            (80, 30),
            (60, 0),
            "+20.0 points Accuracy of boosted trees on some rows: 60.0 % trained on all rows, 80.0 % without",
        ),
        ("relabel", (60, 10), (85, 30), "85.0 % with the suggested labels (+25.0 ± 4"),
        ("filter", (55, 30), (60, 2), "No difference measured Accuracy of boosted trees"),
        ("filter", (40, 30), (60, 2), "On these rows it did not help."),
        ("leave alone", (80, 30), (60, 2), "Do not filter Advice, by all checked rows: do not filter"),
    ],
)
def test_the_headline_is_what_the_advised_way_gains(make_result, choice, kept, suggested, headline):
    best = compared(60, *kept, relabelled=suggested, plain="boosted trees")
    worse = compared(60, 50, 20, relabelled=(50, 9), plain="a linear model")
    measurement = measured(best, worse)
    advice = Advice(choice, {"filter": 0.8, "relabel": 0.7, "leave alone": 0.6})
    text = Page(render_report(make_result(measurement=measurement, advice=advice))).text
    assert headline in text
    assert f"boosted trees 60.0 % {kept[0]}.0 %" in text
    assert "80.0 % of them rightly without the suspected rows" in text


def test_the_reliability_of_stated_probabilities(make_result):
    stated = np.linspace(0, 1, 100)
    result = make_result(noise="correction", reliability=np.stack([stated, stated > 0.5]))
    assert "100 verified rows in groups: stated 10%, right 0%; " in render_report(result)


def test_counts_and_confusion(make_result):
    result = make_result()
    labels, table = result.confusion()
    assert labels == ["ash", "fir", "oak"]
    assert table.sum() == len(result.rows)
    assert table.sum() - np.trace(table) == result.issues
    for place, (label, kept, suspected) in enumerate(result.counts()):
        assert label == labels[place]
        assert kept == table[place, place]
        assert kept + suspected == table[place].sum() == (result.rows["given_label"] == label).sum()


def test_the_error_of_the_gain_is_that_of_repeated_draws():
    """Two models on the same 400 rows: 10 % are right only before, 20 % only after."""
    counts = np.random.default_rng(0).multinomial(400, [0.1, 0.2, 0.7], 20_000)
    gains = (counts[:, 1] - counts[:, 0]) / 400
    gain, error = compared(240, 280, 120, rows=400).changes["filter"]
    assert gain == pytest.approx(gains.mean(), rel=0.01)
    assert error == pytest.approx(gains.std(), rel=0.03)


def test_rows_that_were_trained_on_are_not_denied(make_result):
    text = Page(render_report(make_result(measurement=measured(compared(60, 80, 30), seen=3)))).text
    assert "Measured on some rows; their labels are assumed right." in text
    assert "none of these models was trained" not in text


@pytest.mark.parametrize(
    ("noise", "axis", "caption"),
    [
        ("rows", "weight of a row in training", "How much each row counts in training, from 0 (left out) to 1."),
        ("class-pairs", "fraction of the given label that is correct", "its given label whose label is correct"),
        ("transition", "probability that the given label is correct", "probability that its given label is correct"),
    ],
)
def test_weights_mean_what_the_noise_model_says(make_result, noise, axis, caption):
    page = Page(render_report(make_result(noise=noise)))
    assert caption in page.text
    assert ("How much each row counts" in page.text) is (noise == "rows")
    assert any(f"Histogram of 300 rows by {axis}" in (a.get("aria-label") or "") for _, a in page.elements)


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ("interrupted", "Interrupted. Training was stopped with Ctrl-C after 12 seconds"),
        ("the next step would not be finite", "Training did not end as planned: the next step would not be finite."),
    ],
)
def test_an_unusual_end_is_said_first(make_result, status, shown):
    assert shown in Page(render_report(make_result(status=status))).text


def test_no_transition_no_history_no_suspicion(make_result):
    result = make_result(transition=None, history=[], noise="rows", selection={})
    result.rows["is_label_issue"] = False
    page = Page(render_report(result))
    assert "Which labels are mixed up" not in page.text
    assert "Convergence" not in page.text
    assert "Most frequent suspicions" not in page.text
    assert "Label noise was modelled by one weight for each row." in page.text


def test_class_pairs_are_read_the_other_way_round(make_result):
    page = Page(render_report(make_result(noise="class-pairs")))
    assert "of 100 rows with the given label of a line" in page.text
    assert "given \\ true ash fir oak ash 70 30 ·" in page.text


def test_many_classes_have_no_table_of_pairs(make_result):
    assert "Which labels are mixed up" not in Page(render_report(make_result(classes=range(40)))).text


def test_pictures_of_rows(make_result):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 17, (300, 64))
    names = [f"pixel{i}" for i in range(64)]
    result = make_result(features=pd.DataFrame(pixels, columns=names), pixels=(names, (8, 8)))
    page = Page(render_report(result))
    images = [attributes for tag, attributes in page.elements if tag == "img"]
    worst = int(result.rows.label_quality.argmin())
    first = images[0]
    assert first["alt"] == f"Row {worst + 1}"
    image = Image.open(io.BytesIO(base64.b64decode(first["src"].split(",")[1])))
    np.testing.assert_array_equal(np.asarray(image), (255 * pixels[worst].reshape(8, 8) / 16).astype(np.uint8))


def test_colour_pictures():
    from PIL import Image

    pixels = np.arange(48.0)
    address = figures.row_picture(pixels, (4, 4, 3), 47.0)
    image = Image.open(io.BytesIO(base64.b64decode(address.split(",")[1])))
    assert image.mode == "RGB"
    assert image.size == (4, 4)


def test_checked_rows_are_not_among_the_suspects(make_result):
    result = make_result()
    worst = int(result.rows.label_quality.argmin())
    checked = np.zeros(300, dtype=bool)
    checked[worst] = True
    suspects = make_result(checked=checked).suspects(10)
    assert worst + 1 not in suspects.row.tolist()
    assert suspects.label_quality.is_monotonic_increasing


def test_the_standard_error_is_that_of_repeated_draws():
    generator = np.random.default_rng(0)
    shares = generator.binomial(200, 0.8, 20_000) / 200
    assert Accuracy("any", 160, 200).standard_error == pytest.approx(shares.std(), rel=0.03)


def test_json_has_no_numpy_and_no_nan(make_result):
    document = make_result(radius=np.float32(2), selection={"rows": float("nan")}, classes=np.arange(3)).to_json()
    text = json.dumps(document, allow_nan=False)
    assert json.loads(text)["selection"] == {"rows": None}
    assert json.loads(text)["classes"] == [0, 1, 2]
    accuracy = json.loads(text)["accuracy"]
    assert accuracy["cleaned"] == 0.9
    assert accuracy["gain"] == pytest.approx(accuracy["rows that are kept"] - accuracy["all rows as they are"])
    assert 0 < accuracy["gain_standard_error"] < accuracy["gain"]
