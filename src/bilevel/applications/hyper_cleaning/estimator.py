"""HyperCleaner: find wrong labels, and a model that is not fooled by them, with the contract of scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import copy
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _num_samples, check_is_fitted, validate_data

from ... import solvers
from ...checkpoints import Checkpoint, CheckpointWarning
from ...errors import InvalidInput, InvalidType
from ...journal import Journal, digest, load_journal
from ...sets.base import ConvexSet
from ...solvers import Solver
from ...solvers.base import FIXED_SET, needs_of
from .design import Design, PickedDesign, dtype_for
from .inputs import (
    joined,
    plain_labels,
    refuse_gaps,
    refuse_missing_labels,
    refuse_other_order,
    refuse_texts,
    take,
)
from .losses import Loss, loss_of
from .noise import BY_NAME, NoiseModel
from .training import REMEDY, Cleaned, Moment, Rows, Settings, name_of, train

SOLVERS: dict[str, str] = {
    "dmlcbo": "DMLCBO", "approx": "Approx", "implicit": "Implicit", "vpbgd": "VPBGD", "rmd-pcd": "RMDPCD",
    "projected-soba": "ProjectedSOBA",
}  # fmt: skip
"""Solvers by the names that `HyperCleaner` and the command line know."""
DTYPES = [np.float64, np.float32, np.float16, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.int64]
"""Numbers that are taken as they are, those of a memory-mapped file block by block; others become the first."""


class TrustWarning(UserWarning):
    """No rows were said to be trusted, so some were taken on trust.

    Examples
    --------
    >>> import numpy as np, warnings
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     cleaner = HyperCleaner(noise="rows", steps=5, random_state=0).fit(X, X[:, 0] > 0)
    >>> caught[0].category.__name__
    'TrustWarning'
    """


class HyperCleaner(ClassifierMixin, BaseEstimator):
    """A linear classifier that learns from a few trusted rows which of the other labels to believe.

    Parameters
    ----------
    noise
        What is learned about the labels: "rows", a weight per row (the paper's); "class-pairs", how much each given
        label stands for each class; "transition", how often each class is given each label (the model is then
        trained through this matrix; not convex, see `Transition`); "auto" tries "transition", "class-pairs" and
        "rows" and keeps the first whose Brier score on trusted rows held out is within a standard error of the best.
    loss
        "logistic" (two classes), "softmax", "squared", "smoothed hinge", or "auto": logistic or softmax.
    radius
        Of the l1 ball that the weights of each class lie in; "auto" learns it by gradient on the trusted rows.
    constraint
        Another convex set of `bilevel.sets` for the coefficients, instead of the ball.
    ridge
        c of c |coef|^2, beside the mean loss.
    fit_intercept
        Whether there is an intercept; it lies outside of the set.
    solver
        "auto", the name of a solver ("dmlcbo", "approx", "implicit", "vpbgd", "rmd-pcd", "projected-soba") or an
        object such as `bilevel.DMLCBO(upper_step=0.5)`.
    steps
        Upper-level steps per noise model; default 20, and 10 for "class-pairs".
    trusted_fraction
        Without trusted rows, this share of the rows is taken on trust, with a warning.
    batch_size
        Noisy rows per step, for tables that do not fit into memory; default all of them.
    random_state
        Which rows are held out, and the seed of the solver.
    verbose
        Show progress and the time left.
    callback
        A function of a `Moment` (stage, share of the work, loss), called after each step.

    Attributes
    ----------
    coef_, intercept_
        The cleaned model, as of a scikit-learn linear classifier.
    classes_
        The labels.
    sample_weight_
        How far each row is believed, from 0 to 1: its learned weight, or the probability that its label is right.
        Trusted rows have 1.
    noise_, selection_
        The noise model used, and the mean Brier score of each one tried on trusted rows held out.
    transition_
        For noise "transition", row j says which labels rows of class j were given; for "class-pairs", row b says
        which classes the label b stands for; otherwise None.
    radius_
        The radius of the ball; None with another set.
    trusted_, separate_trusted_
        Which rows of X were trusted, and whether there were others, given as X_trusted.
    history_
        One dictionary per step: noise, step, seconds, held_out_loss, and radius if it is learned. Empty in a cleaner
        that was loaded from a file.
    n_iter_, status_
        Steps until the x that was kept; "finished" or "interrupted".

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(400, class_sep=2.0, random_state=0)
    >>> trusted = np.arange(400) < 40
    >>> given = np.where(~trusted & (np.arange(400) % 4 == 0), 1 - y, y)  # a quarter of the labels is wrong
    >>> cleaner = HyperCleaner(random_state=0).fit(X, given, trusted=trusted)
    >>> issues = cleaner.label_issues()["is_label_issue"]
    >>> bool((issues == (given != y)).mean() > 0.9)
    True
    """

    def __init__(
        self,
        *,
        noise: str | NoiseModel = "auto",
        loss: str | Loss = "auto",
        radius: float | Literal["auto"] = "auto",
        constraint: ConvexSet | None = None,
        ridge: float = 1e-3,
        fit_intercept: bool = True,
        solver: str | Solver = "auto",
        steps: int | None = None,
        trusted_fraction: float = 0.1,
        batch_size: int | None = None,
        random_state: Any = None,
        verbose: bool = False,
        callback: Callable[[Moment], None] | None = None,
    ) -> None:
        self.noise = noise
        self.loss = loss
        self.radius = radius
        self.constraint = constraint
        self.ridge = ridge
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.steps = steps
        self.trusted_fraction = trusted_fraction
        self.batch_size = batch_size
        self.random_state = random_state
        self.verbose = verbose
        self.callback = callback

    # --- fitting --------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        trusted: Any = None,
        *,
        X_trusted: Any = None,
        y_trusted: Any = None,
        checkpoint: str | Path | Checkpoint | None = None,
        resume: str | Path | None = None,
    ) -> HyperCleaner:
        """Learn from all rows, some of which are trusted.

        Parameters
        ----------
        X, y
            The rows, dense (also memory-mapped) or SciPy sparse, and their labels.
        trusted
            One truth value per row of X: whether its label is known to be right.
        X_trusted, y_trusted
            Trusted rows beside X, as a convenience. Inside a Pipeline give `trusted` instead, or let the pipeline
            transform them with `Pipeline(..., transform_input=["X_trusted"])`.
        checkpoint
            A file for the state of training, or `bilevel.Checkpoint(path, every=...)`: written after every step,
            complete or not at all; the one before it is kept. An existing file is refused unless it is resumed.
        resume
            The checkpoint of a fit that was stopped, to go on from with the same rows and settings. It ends with the
            bits of a fit that never stopped: no step that is in the file is repeated. Give it as `checkpoint`
            too, to keep on writing it.
        """
        index = getattr(X, "index", None)
        for name, column in (("y", y), ("trusted", trusted)):
            refuse_other_order(X, column, name)
        original = X, y, X_trusted, y_trusted
        X, y = self._checked(X, y, reset=True)
        check_classification_targets(y)
        earlier = None if resume is None else load_journal(resume)
        seed = seed_of(self.random_state)
        if earlier is not None and self.random_state is None:  # "any seed": that of the fit that was stopped
            drawn = earlier["identity"].get("random_state")
            seed = drawn if type(drawn) is int else seed
        mask = self._mask(trusted, X_trusted, y_trusted, y, seed)
        if X_trusted is not None:
            X_trusted, y_trusted = self._checked(X_trusted, y_trusted, reset=False, names=("X_trusted", "y_trusted"))
        self.classes_ = _classes(y, mask, y_trusted)
        settings = self._settings(seed)
        journal = Journal()
        if checkpoint is not None or resume is not None:
            identity = {**self._identity(X, y, mask, X_trusted, y_trusted), **settings.identity}
            journal = Journal(checkpoint, resume=resume, earlier=earlier, identity=identity, call="HyperCleaner.fit")
        noisy, known = self._rows(X, y, mask, X_trusted, y_trusted)
        with journal.rescued(), _progress(self.verbose, self.callback) as show:
            cleaned = train(noisy, known, settings, show, journal)
        if cleaned.status == "interrupted" and str(journal):
            warnings.warn(f"the fit was interrupted. {journal}", CheckpointWarning, stacklevel=2)
        if cleaned.poor:
            warnings.warn(f"the cleaned model is poor: {cleaned.poor}; {REMEDY}", ConvergenceWarning, stacklevel=2)
        self._keep(cleaned, mask)
        self.separate_trusted_ = X_trusted is not None
        self._fitted_on = (*original, index)
        self._describe(X, y)
        return self

    def _checked(self, X: Any, y: Any, *, reset: bool, names: tuple[str, str] = ("X", "y")) -> tuple[Any, np.ndarray]:
        columns = getattr(X, "columns", None)
        refuse_missing_labels(y, names[1])
        refuse_texts(X, names[0])
        X, y = validate_data(
            self, X, plain_labels(y), reset=reset, accept_sparse="csr", dtype=DTYPES, ensure_all_finite=False,
            y_numeric=False, ensure_min_samples=2 if reset else 1,
        )  # fmt: skip
        refuse_gaps(X, names[0], columns)
        return X, y

    def _mask(self, trusted: Any, X_trusted: Any, y_trusted: Any, y: np.ndarray, seed: int) -> np.ndarray:
        """Which rows of X are trusted."""
        count = len(y)
        if (X_trusted is None) != (y_trusted is None):
            raise InvalidInput("X_trusted and y_trusted go together: give both or neither")
        if trusted is None:
            return np.zeros(count, bool) if X_trusted is not None else self._taken_on_trust(y, seed)
        if hasattr(trusted, "isna") and trusted.isna().any():
            raise InvalidInput(
                f"trusted has {int(trusted.isna().sum())} missing values: say True or False for every row"
            )
        mask = np.asarray(trusted)
        if mask.shape != (count,):
            raise InvalidInput(f"trusted must have one truth value per row, shape ({count},), got shape {mask.shape}")
        if mask.dtype != bool:
            if not set(np.unique(mask).tolist()) <= {0, 1}:
                raise InvalidInput(
                    "trusted must hold truth values, one per row: True where the label is known to be right"
                )
            mask = mask.astype(bool)
        if not mask.any() and X_trusted is None:
            raise InvalidInput(
                "trusted marks no row: at least one label must be known to be right. In a search or a cross-validation "
                "every fold needs trusted rows: shuffle, for example cv=StratifiedKFold(shuffle=True)"
            )
        if mask.all():
            raise InvalidInput("trusted marks every row: there is nothing to clean")
        return mask

    def _taken_on_trust(self, y: np.ndarray, seed: int) -> np.ndarray:
        share = self.trusted_fraction
        if isinstance(share, bool) or not isinstance(share, Real) or not 0 < share < 1:
            raise InvalidInput(f"trusted_fraction must lie strictly between 0 and 1, got {share!r}")
        warnings.warn(
            f"no trusted rows were given, so {share:.0%} of the rows are held out and their labels are ASSUMED TO BE "
            "RIGHT; give fit(X, y, trusted=mask) to say which labels are known",
            TrustWarning,
            stacklevel=3,
        )
        count = round(share * len(y)) or 1
        if count >= len(y):
            raise InvalidInput(f"trusted_fraction={share} leaves none of the {len(y)} rows to be cleaned")
        labels = np.unique(y, return_inverse=True)[1]
        order = np.random.default_rng(seed).permutation(len(y))
        order = order[np.argsort(labels[order], kind="stable")]  # every class in its share
        mask = np.zeros(len(y), bool)
        mask[order[np.arange(count) * len(y) // count]] = True
        return mask

    def _settings(self, seed: int) -> Settings:
        count = len(self.classes_)
        loss = loss_of(("logistic" if count == 2 else "softmax") if self.loss == "auto" else self.loss)
        if isinstance(self.noise, str) and self.noise not in ("auto", *BY_NAME):
            raise InvalidInput(f'noise must be "auto" or one of {sorted(BY_NAME)}, got {self.noise!r}')
        if isinstance(self.noise, NoiseModel):
            name_of(self.noise)
        elif not isinstance(self.noise, str):
            raise InvalidType(f'noise must be "auto", one of {sorted(BY_NAME)} or a noise model, got {self.noise!r}')
        if self.steps is not None and (not isinstance(self.steps, Integral) or self.steps < 1):
            raise InvalidInput(f"steps must be an integer of at least 1, got {self.steps!r}")
        solver = solver_of(self.solver)
        if FIXED_SET in needs_of(solver) and self.radius == "auto" and self.constraint is None:
            raise InvalidInput(
                f"solver={self.solver!r} needs a set that stays as it is: give a radius, such as radius=1.0, not 'auto'"
            )
        return Settings(
            classes=count, noise=self.noise, loss=loss, radius=self.radius, constraint=self.constraint,
            ridge=self.ridge, intercept=self.fit_intercept, solver=solver,
            steps=None if self.steps is None else int(self.steps), batch_size=self.batch_size, seed=seed,
        )  # fmt: skip

    def _identity(self, X: Any, y: np.ndarray, mask: np.ndarray, X_trusted: Any, y_trusted: Any) -> dict[str, str]:
        """Digests of the rows: a fit that is resumed must have the same ones."""
        classes = self.classes_.tolist()
        known = None if y_trusted is None else np.searchsorted(self.classes_, y_trusted)
        return {
            "X": digest(X),
            "y": digest(classes, np.searchsorted(self.classes_, y)),
            "the choice of trusted rows": digest(mask, X_trusted, known),
        }

    def _rows(self, X: Any, y: np.ndarray, mask: np.ndarray, X_trusted: Any, y_trusted: Any) -> tuple[Rows, Rows]:
        """The noisy and the trusted rows, with labels numbered from 0."""
        dtype = dtype_for(X)

        def rows(features: Any, labels: np.ndarray) -> Rows:
            number = torch.from_numpy(np.searchsorted(self.classes_, labels))
            return Rows(Design.of(features, dtype=dtype), number)

        noisy, known = rows(X, y), []
        if mask.any():
            known, left = [rows(X[mask], y[mask])], torch.from_numpy(np.flatnonzero(~mask))
            noisy = Rows(PickedDesign(noisy.design, left), noisy.labels[left])
        if X_trusted is not None:
            known.append(rows(X_trusted, y_trusted))
        return noisy, known[0] if len(known) == 1 else _stacked(known)

    def _keep(self, cleaned: Cleaned, mask: np.ndarray) -> None:
        self.coef_ = cleaned.model["weight"].numpy()
        bias = cleaned.model.get("bias")
        self.intercept_ = np.zeros(len(self.coef_), self.coef_.dtype) if bias is None else bias.numpy()
        self.sample_weight_ = np.ones(len(mask), self.coef_.dtype)
        self.sample_weight_[~mask] = cleaned.weights.numpy()
        self.trusted_ = mask
        self.noise_, self.radius_, self.selection_ = cleaned.noise, cleaned.radius, cleaned.selection
        self.transition_ = None if cleaned.matrix is None else cleaned.matrix.numpy()
        self.history_, self.n_iter_, self.status_ = cleaned.history, cleaned.steps, cleaned.status

    # --- what it says ---------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> np.ndarray:
        """The scores: (n,) for two classes, (n, classes) for more."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The label of each row."""
        scores = self._scores(X)
        return self.classes_[_best(scores)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, shape (n, classes)."""
        return self._probabilities(self._scores(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of rows, or of `sample_weight`, whose label is predicted."""
        return super().score(X, y, sample_weight)

    def label_issues(self) -> Any:
        """One line for each row of X: is_label_issue, label_quality, given_label, predicted_label.

        The quality of a label is the probability that the cleaned model gives it. A label is an issue when that is
        less than half the probability of the best label. Trusted rows are never issues.

        Returns
        -------
        A pandas DataFrame with the index of X.
        """
        check_is_fitted(self)
        if not hasattr(self, "_issues"):
            raise InvalidInput("this cleaner was loaded from a file, which holds no rows: fit it to list label issues")
        import pandas as pd

        return pd.DataFrame(self._issues, index=self._index)

    def refit(
        self, estimator: Any, X: Any = None, y: Any = None, *, X_trusted: Any = None, y_trusted: Any = None
    ) -> Any:
        """Train a copy of any scikit-learn classifier on the rows whose label is believed, and on the trusted ones.

        Parameters
        ----------
        estimator
            Any classifier; it is cloned, then fitted.
        X, y, X_trusted, y_trusted
            The rows that were given to `fit`; needed only when the cleaner was pickled or loaded, for then it has
            left them behind.
        """
        check_is_fitted(self)
        if X is None or y is None:
            if not hasattr(self, "_fitted_on"):
                raise InvalidInput(
                    "this cleaner has left its rows behind: call refit(estimator, X, y) with those of fit"
                )
            X, y = self._fitted_on[:2]
        if X_trusted is None and hasattr(self, "_fitted_on"):
            X_trusted, y_trusted = self._fitted_on[2:4]
        if self.separate_trusted_ and X_trusted is None:
            raise InvalidInput(
                "this cleaner was fitted with X_trusted and has left these rows behind: call refit(estimator, X, y, "
                "X_trusted=..., y_trusted=...) with those of fit"
            )
        kept = np.flatnonzero(~self._issues["is_label_issue"])
        if _num_samples(X) != len(self.trusted_):
            raise InvalidInput(f"X has {_num_samples(X)} rows, but the cleaner was fitted to {len(self.trusted_)}")
        features, labels = take(X, kept), np.asarray(y)[kept]
        if X_trusted is not None:
            features, labels = joined(features, X_trusted), np.concatenate([labels, np.asarray(y_trusted)])
        model: Any = clone(estimator)
        return model.fit(features, labels)

    def _describe(self, X: Any, y: np.ndarray) -> None:
        """What `label_issues` says of the rows of X."""
        scores = self._raw_scores(X)
        chances = self._probabilities(scores)
        given = np.searchsorted(self.classes_, y)
        quality = chances[np.arange(len(y)), given]
        self._index = self._fitted_on[4]
        self._issues = {
            "is_label_issue": (quality < 0.5 * chances.max(1)) & ~self.trusted_,
            "label_quality": quality,
            "given_label": self.classes_[given],
            "predicted_label": self.classes_[_best(scores)],
        }

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        columns = getattr(X, "columns", None)
        refuse_texts(X, "X")
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=DTYPES, ensure_all_finite=False)
        refuse_gaps(X, "X", columns)
        return self._raw_scores(X)

    def _raw_scores(self, X: Any) -> np.ndarray:
        design = Design.of(X, dtype=dtype_for(X))
        return design.matmul(torch.from_numpy(self.coef_.T).to(design.dtype)).numpy() + self.intercept_

    def _probabilities(self, scores: np.ndarray) -> np.ndarray:
        count = len(self.classes_)
        loss = loss_of(("logistic" if count == 2 else "softmax") if self.loss == "auto" else self.loss)
        return loss.probabilities(torch.from_numpy(np.ascontiguousarray(scores))).numpy()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # type: ignore[arg-type]
        state.pop("_fitted_on", None)  # rows do not belong into a model
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def seed_of(random_state: Any) -> int:
    """The seed of training that scikit-learn's `random_state` stands for."""
    return int(check_random_state(random_state).randint(2**31))


def trained_elsewhere(cleaner: HyperCleaner, cleaned: Cleaned, classes: np.ndarray, X: Any, y: Any) -> HyperCleaner:
    """The cleaner as `fit` would leave it, given what training gave: X and y are rows that are not trusted."""
    cleaner.classes_, cleaner.n_features_in_, cleaner.separate_trusted_ = classes, X.shape[1], True  # type: ignore[attr-defined]
    cleaner._keep(cleaned, np.zeros(len(y), bool))
    cleaner._fitted_on = (X, y, None, None, None)
    cleaner._describe(X, y)
    return cleaner


def without_rows(cleaner: HyperCleaner) -> HyperCleaner:
    """A copy that predicts, and says nothing of the rows it was trained on."""
    light: Any = copy(cleaner)
    light.sample_weight_, light.trusted_ = cleaner.sample_weight_[:0], cleaner.trusted_[:0]
    light._issues = {name: column[:0] for name, column in cleaner._issues.items()}
    return light


def solver_of(solver: str | Solver) -> Solver | None:
    """The solver itself, also by its name; None for "auto"."""
    if isinstance(solver, str):
        if solver == "auto":
            return None
        if solver not in SOLVERS:
            raise InvalidInput(f'solver must be "auto", one of {sorted(SOLVERS)} or a solver object, got {solver!r}')
        return getattr(solvers, SOLVERS[solver])()
    if isinstance(solver, type) or not (hasattr(solver, "init") and hasattr(solver, "step")):
        raise InvalidType(f'solver must be "auto", one of {sorted(SOLVERS)} or a solver object, got {solver!r}')
    return solver


def _classes(y: np.ndarray, mask: np.ndarray, y_trusted: Any) -> np.ndarray:
    """The labels of the rows of X, which must hold all those of the trusted ones."""
    classes = np.unique(y)
    if len(classes) < 2:
        raise InvalidInput(
            f"Classifier can't train when only one class is present: every label is {classes.tolist()[0]!r}"
        )
    known = y[mask] if y_trusted is None else np.concatenate([y[mask], y_trusted]) if mask.any() else y_trusted
    unseen = [label for label in np.unique(known).tolist() if label not in set(classes.tolist())]
    if unseen:
        raise InvalidInput(f"trusted rows have labels that no row of X has: {unseen[:5]}; are they spelled alike?")
    return classes


def _best(scores: np.ndarray) -> np.ndarray:
    return (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(1)


def _stacked(parts: list[Rows]) -> Rows:
    """Trusted rows from two sources; they are few."""
    eye = [part.design.matmul(torch.eye(part.design.shape[1], dtype=part.design.dtype)) for part in parts]
    return Rows(Design.of(torch.cat(eye)), torch.cat([part.labels for part in parts]))


def _progress(verbose: bool, callback: Callable[[Moment], None] | None) -> Any:
    from .progress import shown

    return shown(verbose, callback)
