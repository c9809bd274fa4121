"""Find wrong labels: hyper-cleaning of real digits, written as a user of the library would write it.

1,000 training images of handwritten digits (scikit-learn's), of which 30 % carry a wrong label, and 50 images whose
labels are trusted, five per digit. The upper variable x holds one number per training image, sigmoid(x_i) its weight:

    lower level    y*(x) = argmin over |weight_k|_1 <= 15    mean_i sigmoid(x_i) loss_i(y) + 0.001 |y|^2
    upper level    min_x    mean loss of y*(x) on the trusted images

Images whose label misleads the model on the trusted ones lose their weight. The number of steps is small on purpose:
with one weight per image, after many steps the model would fit nothing but the 50 trusted images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import bilevel

from .errors import MissingExtraError
from .random import plain_generator

TRAINING, TRUSTED, FLIPPED = 1000, 50, 0.3  # rows, rows, share of the training rows with a wrong label
RADIUS, RIDGE = 15.0, 1e-3
STEPS = 250


# --- the problem ------------------------------------------------------------------------------------------------------


class Images(NamedTuple):
    """Images, shape (n, 64) with values in [0, 1], and their labels, shape (n,)."""

    images: Tensor
    labels: Tensor


class Digits(NamedTuple):
    """The rows of the demo; only `flipped`, shape (1000,), and the test rows are hidden from training."""

    noisy: Images
    trusted: Images
    test: Images
    flipped: Tensor


def load_digits(seed: int = 0) -> Digits:
    """Split scikit-learn's 1,797 digits, and flip labels: 0 is called 3, 1 is called 4, ..., 9 is called 2.

    A wrong label is the same for all images of a digit, as when one annotator mixes up two keys. Such errors are
    harder on a model than labels drawn at random, which largely cancel.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, names = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels / 16.0, dtype=torch.float32), torch.tensor(names)
    short = seed % (1 << 32)  # as scikit-learn takes them
    trusted, rest = train_test_split(range(len(labels)), train_size=TRUSTED, stratify=labels, random_state=short)
    noisy, test = train_test_split(rest, train_size=TRAINING, stratify=labels[rest], random_state=short)

    generator = plain_generator(seed)
    flipped = torch.zeros(TRAINING, dtype=torch.bool)
    flipped[torch.randperm(TRAINING, generator=generator)[: round(FLIPPED * TRAINING)]] = True
    given = torch.where(flipped, (labels[noisy] + 3) % 10, labels[noisy])
    known, hidden = (Images(images[rows], labels[rows]) for rows in (trusted, test))
    return Digits(Images(images[noisy], given), known, hidden, flipped)


def scores(y: Any, images: Tensor) -> Tensor:
    """A linear model of the ten digits, shape (n, 10)."""
    return images @ y["weight"].T + y["bias"]


def cleaning_problem(rows: Images, trusted: Images) -> bilevel.Problem:
    """Which weights of `rows` give the model that does best on `trusted`?"""

    def lower(x: Tensor, y: Any) -> Tensor:
        losses = cross_entropy(scores(y, rows.images), rows.labels, reduction="none")
        ridge = y["weight"].square().sum() + y["bias"].square().sum()
        return (torch.sigmoid(x) * losses).mean() + RIDGE * ridge

    def upper(x: Tensor, y: Any) -> Tensor:
        return cross_entropy(scores(y, trusted.images), trusted.labels)

    # One l1 ball per digit (sets act on the last dimension), and a bias that is free.
    balls = bilevel.sets.ProductSet({"weight": bilevel.sets.L1Ball(RADIUS), "bias": bilevel.sets.FreeSpace()})
    return bilevel.Problem(upper, lower, balls, y0={"weight": torch.zeros(10, 64), "bias": torch.zeros(10)})


def fit(problem: bilevel.Problem, x: Tensor) -> Any:
    """The model y*(x) for given weights sigmoid(x)."""
    return bilevel.solve_lower(problem, x, tol=1e-4).y


def learn_weights(
    data: Digits,
    *,
    steps: int = STEPS,
    seed: int = 0,
    progress: bool = True,
    checkpoint: Path | None = None,
    resume: Path | None = None,
) -> tuple[Tensor, Any]:
    """The learned weight of each noisy row, shape (n,), and the model they give."""
    problem = cleaning_problem(data.noisy, data.trusted)
    start = torch.zeros(len(data.noisy.labels))  # every row begins with the weight 1/2
    solution = bilevel.minimize(
        problem,
        None if resume else start,
        None if resume else fit(problem, start),
        solver=bilevel.DMLCBO(upper_step=0.2),
        steps=None if resume else steps,
        seed=seed,
        evaluate_every=10,
        progress=progress,
        checkpoint=bilevel.Checkpoint(checkpoint, about={"command": "demo", "seed": seed}) if checkpoint else None,
        resume=resume,
    )
    if solution.status is bilevel.Status.INTERRUPTED:
        raise KeyboardInterrupt(solution.message)
    return torch.sigmoid(solution.x), fit(problem, solution.x)  # type: ignore[arg-type]


# --- the three models -------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """The result of one model. A label is suspected if the model predicts another digit."""

    name: str
    accuracy: float  # on the test rows
    found: int  # flipped rows suspected
    blamed: int  # rows with a right label suspected


class Result(NamedTuple):
    """The results that the demo shows."""

    data: Digits
    outcomes: list[Outcome]  # noisy rows, trusted rows only, learned weights
    weights: Tensor  # of the noisy rows
    model: Any  # with learned weights


def compare(seed: int = 0, *, steps: int = STEPS, progress: bool = True, **files: Path | None) -> Result:
    """Train the same model three times: on the noisy rows, on the trusted ones, with learned weights.

    `checkpoint` and `resume` are those of `minimize`.
    """
    data = load_digits(seed)
    weights, learned = learn_weights(data, steps=steps, seed=seed, progress=progress, **files)
    every_row_counts = 30.0  # sigmoid(30) is 1 in float32
    models = {
        name: fit(cleaning_problem(rows, data.trusted), torch.full((len(rows.labels),), every_row_counts))
        for name, rows in (("noisy rows", data.noisy), ("trusted rows only", data.trusted))
    }
    models["learned weights"] = learned
    outcomes = []
    for name, model in models.items():
        right = scores(model, data.test.images).argmax(-1) == data.test.labels
        suspected = scores(model, data.noisy.images).argmax(-1) != data.noisy.labels
        found, blamed = ((suspected & rows).sum().item() for rows in (data.flipped, ~data.flipped))
        outcomes.append(Outcome(name, right.double().mean().item(), int(found), int(blamed)))
    return Result(data, outcomes, weights, learned)


# --- what people see --------------------------------------------------------------------------------------------------


def run(
    *,
    seed: int = 0,
    steps: int = STEPS,
    checkpoint: Path | None = None,
    resume: Path | None = None,
) -> None:
    """The whole demo: train and print the table."""
    try:
        import sklearn  # noqa: F401
        from rich.console import Console
    except ImportError:
        raise MissingExtraError("The demo", "apps") from None
    console = Console()
    bilevel.Seeds.from_seed(seed)  # refuses what is not a seed
    console.print(
        f"[bold]Which labels are wrong?[/bold] {TRAINING:,} handwritten digits, {FLIPPED:.0%} of them with a wrong "
        f"label, and {TRUSTED} digits with trusted labels.\n"
        "Learning one weight per digit, such that the model trained with these weights is accurate on the trusted ones."
    )
    result = compare(seed, steps=steps, checkpoint=checkpoint, resume=resume)
    console.print(table(result))
    best = max(outcome.accuracy for outcome in result.outcomes[:2])
    gain = round(100 * result.outcomes[2].accuracy, 1) - round(100 * best, 1)  # of the numbers in the table
    console.print(f"Learned weights: {gain:+.1f} points of test accuracy compared with the better of the others.")


def table(result: Result) -> Any:
    """The three models side by side, a rich table."""
    from rich import box
    from rich.table import Table

    wrong = int(result.data.flipped.sum())
    caption = "A label is suspected if the model predicts another digit."
    grid = Table("trained on", box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    for heading in ("test accuracy", "wrong labels found", "right labels blamed"):
        grid.add_column(heading, justify="right")
    for name, accuracy, found, blamed in result.outcomes:
        style = "bold green" if name == "learned weights" else None
        grid.add_row(name, f"{accuracy:.1%}", f"{found} of {wrong}", f"{blamed} of {TRAINING - wrong}", style=style)
    return grid
