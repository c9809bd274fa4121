"""The tasks of `cleaning_real`: tables, news, named entities and pictures with wrong labels, and the truth."""

from __future__ import annotations

import csv
import json
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .environments import PEERS

NAMES = ("telco", "credit", "diamonds", "storms", "jobs", "penguins", "flights", "titanic", "chile")
OTHERS = ("subscribers", "colleges", "mortgages", "leaves", "biopsies", "countries", "developers", "crabs", "voters",
          "schools")  # fmt: skip
"""Tables by which nothing was chosen."""
DEVELOPMENT = ("attrition", "lending", "cells", "fgl", "pima", "aids2", "oj", "default", "carseats", "smarket",
               "mroz", "arrests", "beps", "salaries", "wvs", "womenlf", "brca", "olive", "spam", "hawks", "fishing",
               "nwtco", "mpg", "loans", "email", "sacramento", "taxi", "wage", "birds")  # fmt: skip
"""Tables by which the balanced decision was chosen, with seed 0."""
NOISES = ("uniform", "pairs", "confusable")
PICTURES = ("mnist", "fashion-mnist")
SCRIPTS = Path(__file__).resolve().parent / "peers"


@dataclass(frozen=True)
class Task:
    """Encoded rows with given labels, checked rows with right ones, test rows, and the truth to judge by."""

    X: Any
    given: np.ndarray
    truth: np.ndarray
    X_checked: Any
    right: np.ndarray
    X_test: Any
    y_test: np.ndarray
    classes: int
    groups: np.ndarray | None = None  # of the rows of X

    def first(self, rows: int) -> Task:
        """The same with at most so many noisy rows; they are in random order."""
        groups = None if self.groups is None else self.groups[:rows]
        return replace(self, X=self.X[:rows], given=self.given[:rows], truth=self.truth[:rows], groups=groups)


def table_files(python: Path, name: str, noise: str, seed: int, checked: int | None) -> Path:
    """A folder with train.csv, checked.csv, test.csv and truth.csv, written once."""
    folder = PEERS / "tables" / f"{noise}-{seed}-{checked or 'default'}"
    if not (folder / name / "about.json").exists():
        options = [] if checked is None else ["--checked", str(checked)]
        command = [python, SCRIPTS / "real_tables.py", folder, name, "--seed", str(seed), "--noise", noise, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / name


def table_task(python: Path, name: str, noise: str, seed: int, checked: int | None) -> Task:
    """A table as `bilevel clean` sees it: columns are encoded by train and checked rows."""
    import pandas as pd

    from bilevel.cleaning.columns import ColumnEncoder

    folder = table_files(python, name, noise, seed, checked)
    label = json.loads((folder / "about.json").read_text())["label"]
    train, known, test = (pd.read_csv(folder / f"{stem}.csv") for stem in ("train", "checked", "test"))
    labels = [frame[label].astype(str) for frame in (train, pd.read_csv(folder / "truth.csv"), known, test)]
    names = sorted(set().union(*labels))
    given, truth, right, y_test = (np.searchsorted(names, each) for each in labels)
    both = pd.concat([train, known])
    encoder = ColumnEncoder().fit(both.drop(columns=label), both[label])
    X, X_checked, X_test = (encoder.transform(frame) for frame in (train, known, test))
    return Task(X, given, truth, X_checked, right, X_test, y_test, len(names))


def news_task(folder: Path, checked: int, seed: int) -> Task:
    """Headlines with labels by rules; some rows are drawn to be checked."""
    import pandas as pd

    from bilevel.cleaning.columns import ColumnEncoder

    def read(stem: str) -> pd.DataFrame:
        return pd.read_csv(folder / f"{stem}.tsv", sep="\t", quoting=csv.QUOTE_NONE)

    clean, noisy, test = read("train_clean"), read("train_clean_noisy_labels"), read("test")
    names = sorted(clean["label"].unique())
    truth, given, y_test = (np.searchsorted(names, each["label"]) for each in (clean, noisy, test))
    order = np.random.default_rng(seed).permutation(len(truth))
    known, rest = order[:checked], order[checked:]
    encoder = ColumnEncoder({"news_title": "text"}).fit(clean[["news_title"]])
    X = encoder.transform(clean)
    return Task(X[rest], given[rest], truth[rest], X[known], truth[known], encoder.transform(test), y_test, len(names))


def entity_task(folder: Path, checked: int, seed: int, tokens: int) -> Task:
    """Tokens of whole sentences with tags by word lists, and those of other sentences to be checked.

    A token has its word, its first and last letters, its shape and its neighbours; a tag has no B- or I-. Sentences
    are groups.
    """
    from sklearn.feature_extraction import DictVectorizer

    clean, noisy = (_sentences(folder / f"{stem}.tsv") for stem in ("train_clean", "train_clean_noisy_labels"))
    order = np.random.default_rng(seed).permutation(len(clean))
    total = np.cumsum([len(clean[i]) for i in order])
    known = order[: int(np.searchsorted(total, checked)) + 1]
    rest = order[len(known) : int(np.searchsorted(total, checked + tokens)) + 1]
    names = sorted({tag for sentence in clean for _, tag in sentence})

    def rows(sentences: list, chosen: Any) -> tuple[list[dict], np.ndarray]:
        tags = [tag for i in chosen for _, tag in sentences[i]]
        features = [feature for i in chosen for feature in _token_features([word for word, _ in sentences[i]])]
        return features, np.searchsorted(names, tags)

    test = _sentences(folder / "test.tsv")
    (train, truth), (seen, right) = rows(clean, rest), rows(clean, known)
    others, y_test = rows(test, range(len(test)))
    given = rows(noisy, rest)[1]
    encoder = DictVectorizer().fit([*train, *seen])
    X, X_checked, X_test = (encoder.transform(part).tocsr() for part in (train, seen[:checked], others))
    groups = np.repeat(rest, [len(clean[i]) for i in rest])
    return Task(X, given, truth, X_checked, right[:checked], X_test, y_test, len(names), groups)


def _sentences(path: Path) -> list[list[tuple[str, str]]]:
    """Words and tags; other tags than O, PER, LOC, ORG and DATE count as O."""
    sentences: list[list[tuple[str, str]]] = [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        word, _, tag = line.strip().rpartition("\t" if "\t" in line else " ")
        if not word:
            sentences.append([])
            continue
        kind = tag.split("-")[-1]
        sentences[-1].append((word, kind if kind in ("PER", "LOC", "ORG", "DATE") else "O"))
    return [sentence for sentence in sentences if sentence]


def _token_features(words: list[str]) -> list[dict[str, float]]:
    padded = ["", *words, ""]
    features = []
    for before, word, after in zip(padded, words, padded[2:], strict=False):
        low = word.lower()
        names = [
            f"word {low}",
            f"first {low[:3]}",
            f"last {low[-3:]}",
            f"before {before.lower()}",
            f"after {after.lower()}",
        ]
        number = any(letter.isdigit() for letter in word)
        shapes = {"capital": word[:1].isupper(), "number": number, "start": not before,
                  "capital before": before[:1].isupper(), "capital after": after[:1].isupper()}  # fmt: skip
        features.append({**dict.fromkeys(names, 1.0), **{name: 1.0 for name, holds in shapes.items() if holds}})
    return features


def picture_task(data: Path, name: str, noise: str, checked: int, seed: int) -> Task:
    """Pixels of ten classes with 40 % wrong labels."""
    from .paper_data import ten_classes

    task = ten_classes(data, name, noise, checked, seed)
    shift = (task.given - 3) % 10 if noise == "class-dependent" else None
    truth = np.where(task.wrong, shift, task.given) if shift is not None else np.where(task.wrong, -1, task.given)
    return Task(task.X, task.given, truth, task.trusted_X, task.trusted_y, task.test_X, task.test_y, 10)
