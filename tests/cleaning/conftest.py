"""A small forest, whose species follow from two measurements and the bark, with some labels changed; and results."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bilevel import cli
from bilevel.cleaning.measurement import Accuracy, Comparison, Measurement
from bilevel.cleaning.result import CleaningResult


@dataclass
class Forest:
    """Three tables in one folder, and the commands run there."""

    folder: Path
    frame: pd.DataFrame  # the training table
    wrong: np.ndarray  # which of its labels were changed
    trusted: pd.DataFrame
    test: pd.DataFrame

    def write(self, name: str, content: str | bytes | pd.DataFrame) -> Path:
        path = self.folder / name
        if isinstance(content, pd.DataFrame):
            content.to_csv(path, index=False)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def clean(self, *arguments: str, table: str = "train.csv", label: str = "species") -> int:
        trusted = [] if any(word.startswith("--trusted") for word in arguments) else ["--trusted", "trusted.csv"]
        return cli.main(["clean", table, "--label", label, *trusted, *arguments])

    def files(self) -> list[str]:
        return sorted(os.listdir(self.folder))


@pytest.fixture
def forest(tmp_path, monkeypatch) -> Forest:
    generator = np.random.default_rng(0)
    size, training, trusted = 420, 240, 80
    frame = pd.DataFrame(
        {
            "height": generator.normal(12, 4, size).round(2),
            "width": generator.normal(0, 1, size).round(3),
            "bark": generator.choice(["smooth", "rough", "scaly"], size),
        }
    )
    score = (frame.height - 12) / 4 + frame.width + 1.5 * (frame.bark == "rough")
    frame["species"] = np.where(score > 1.0, "oak", np.where(score < -0.3, "fir", "ash"))
    noisy = frame[:training].copy()
    wrong = np.zeros(training, dtype=bool)
    wrong[generator.choice(training, 60, replace=False)] = True
    others = {"oak": "fir", "fir": "ash", "ash": "oak"}
    noisy.loc[wrong, "species"] = noisy.species[wrong].map(others)
    rest = frame[training:].reset_index(drop=True)
    made = Forest(tmp_path, noisy, wrong, rest[:trusted], rest[trusted:].reset_index(drop=True))
    made.write("train.csv", made.frame)
    made.write("trusted.csv", made.trusted)
    made.write("test.csv", made.test)
    monkeypatch.chdir(tmp_path)
    return made


HOSTILE = "</script><script>window.hacked = 1; alert(1)</script>"
HOSTILE_IMAGE = '"><img src=x onerror="window.hacked = 2">'


@pytest.fixture
def make_result():
    """A function that makes a result to show, from given parts."""

    def make(*, classes: Any = ("ash", "fir", "oak"), features: pd.DataFrame | None = None, **changes: Any) -> Any:
        generator = np.random.default_rng(1)
        size, count = 300, len(classes)
        given = generator.integers(0, count, size)
        seen = np.where(generator.random(size) < 0.3, generator.integers(0, count, size), given)
        quality = np.where(seen == given, generator.beta(8, 2, size), generator.beta(1, 9, size))
        labels = np.array(classes, dtype=object)
        rows = pd.DataFrame(
            {
                "row": np.arange(1, size + 1),
                "given_label": labels[given],
                "predicted_label": labels[seen],
                "label_quality": quality,
                "is_label_issue": seen != given,
                "weight": np.clip(quality + 0.1, 0, 1),
            }
        )
        if features is None:
            features = pd.DataFrame({"height": generator.normal(size=size), "bark": ["rough"] * size})
        parts = {
            "table": "train.csv",
            "rows": rows,
            "checked": np.zeros(size, dtype=bool),
            "trusted_rows": 60,
            "trusted_from": "trusted.csv",
            "classes": list(classes),
            "measurement": Measurement(
                where="the 20 trusted rows that were kept aside",
                comparisons=(
                    Comparison(
                        plain="logistic regression",
                        before=Accuracy("all rows as they are", 12, 20),
                        after=Accuracy("rows that are kept", 17, 20),
                        relabelled=Accuracy("suggested labels", 16, 20),
                        differing={"filter": 5, "relabel": 6},
                    ),
                ),
                trusted_only=Accuracy("trusted rows only", 14, 20),
                cleaned=Accuracy("cleaned", 18, 20),
            ),
            "unmeasured": "",
            "noise": "transition",
            "selection": {"rows": 0.51, "transition": 0.4},
            "radius": 12.5,
            "transition": 0.7 * np.eye(count) + 0.3 * np.roll(np.eye(count), 1, axis=1),
            "history": [
                {"noise": name, "step": k, "seconds": 0.1, "held_out_loss": 1 / k}
                for name in ("rows", "transition")
                for k in range(1, 9)
            ],
            "status": "finished",
            "seconds": 12.3,
            "features": features,
            "pixels": None,
            "command": "bilevel clean train.csv --label species --trusted trusted.csv --report report.html",
            "versions": {"bilevel": "0.1.0", "torch": "2.6.0", "scikit-learn": "1.6.0", "Python": "3.11.0"},
            "date": datetime(2026, 3, 4, 15, 30, tzinfo=UTC),
        }
        return CleaningResult(**(parts | changes))

    return make


@pytest.fixture
def hostile_result(make_result):
    """Script and markup in every text of the user."""
    features = pd.DataFrame({HOSTILE: [HOSTILE_IMAGE] * 300, "$\\frac{": [HOSTILE] * 300, "<b>": np.arange(300.0)})
    return make_result(
        classes=("oak", HOSTILE, HOSTILE_IMAGE + "$\\bad{"),
        features=features,
        table=HOSTILE,
        trusted_from=HOSTILE_IMAGE,
        command=f"bilevel clean '{HOSTILE}'",
        notes=(HOSTILE, HOSTILE_IMAGE),
        status=f"diverged {HOSTILE}",
    )
