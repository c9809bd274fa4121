"""The rows of the examples, with right labels and as people keep them: ids, dates, units, gaps."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).parent


def penguins(_: np.random.Generator) -> pd.DataFrame:
    """344 rows of palmerpenguins as they were collected."""
    return pd.read_csv(HERE / "penguins.csv.gz")


def digits(_: np.random.Generator) -> pd.DataFrame:
    """1,797 images from scikit-learn."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = pd.DataFrame(images.astype(int), columns=[f"pixel{i}" for i in range(64)])
    return pixels.assign(digit=labels)


def telco(generator: np.random.Generator, n: int = 1700) -> pd.DataFrame:
    """Invented customers; who leaves depends on contract, months, price and calls."""
    pick = generator.choice
    months = np.ceil(generator.gamma(1.2, 20, n)).clip(1, 72).astype(int)
    contract = pick(["Month-to-month", "One year", "Two year"], n, p=[0.55, 0.21, 0.24])
    internet = pick(["DSL", "Fiber optic", "none"], n, p=[0.35, 0.44, 0.21])
    payment = pick(["Electronic check", "Mailed check", "Bank transfer", "Credit card"], n, p=[0.34, 0.23, 0.22, 0.21])
    calls = generator.poisson(1.2, n)
    price = 20 + 25 * (internet == "DSL") + 50 * (internet == "Fiber optic") + generator.gamma(2, 6, n)
    score = 2.4 * (contract == "Month-to-month") - 2.0 * (contract == "Two year") + 1.6 * (internet == "Fiber optic")
    score += 1.1 * (payment == "Electronic check") + 0.9 * calls + 0.02 * (price - 65) - 0.09 * (months - 12)
    notes = np.array(tomllib.loads((HERE / "texts.toml").read_text(encoding="utf-8"))["notes"])
    since = np.datetime64("2026-06-30") - (30.4 * months).round().astype("timedelta64[D]")
    frame = pd.DataFrame(
        {
            "customer_id": [f"C-{number}" for number in 100_000 + pick(900_000, n, replace=False)],
            "signed_up": since.astype(str),
            "city": pick(["Fresno", "Oakland", "Sacramento", "San Diego", "San Jose"], n),
            "contract": contract,
            "internet": internet,
            "payment": payment,
            "monthly_charges": [f"$ {cost:,.2f}" for cost in price],
            "total_charges": [f"$ {cost:,.2f}" for cost in price * months],
            "support_calls": calls,
            "last_note": notes[np.minimum(calls, 2), generator.integers(len(notes[0]), size=n)],
        }
    )
    for column, gaps in {"total_charges": 0.05, "support_calls": 0.08, "payment": 0.04, "last_note": 0.3}.items():
        frame[column] = frame[column].mask(generator.random(n) < gaps)
    return frame.assign(churn=np.where(score + generator.logistic(0, 0.5, n) > 3.0, "Yes", "No"))


def tickets(generator: np.random.Generator, n: int = 900) -> pd.DataFrame:
    """Invented messages, some of which mention two things, and the team that answers them."""
    texts = tomllib.loads((HERE / "texts.toml").read_text(encoding="utf-8"))
    teams = sorted(texts["tickets"])
    team = generator.choice(teams, n)

    def message(own: str) -> str:
        parts = [generator.choice(texts["openings"]), *generator.choice(texts["tickets"][own], 2, replace=False)]
        if generator.random() < 0.3:
            parts.insert(2, generator.choice(texts["tickets"][generator.choice(teams)]))
        return " ".join([*parts, generator.choice(texts["closings"])])

    received = pd.to_datetime(np.sort(generator.integers(1_767_600_000, 1_775_400_000, n)), unit="s")
    return pd.DataFrame(
        {
            "ticket": [f"T-{number}" for number in range(20_001, 20_001 + n)],
            "received": received.strftime("%d/%m/%Y %H:%M"),
            "channel": generator.choice(["mail", "web form", "chat"], n),
            "message": [message(name) for name in team],
            "attachments": pd.Series(generator.poisson(0.4, n)).mask(generator.random(n) < 0.1),
            "team": team,
        }
    )
