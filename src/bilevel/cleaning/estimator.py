"""HyperCleaner: a scikit-learn classifier that finds wrong labels and is not misled by them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import assert_all_finite, check_random_state, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _num_samples,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from .._checks import check_choice, check_count
from ..errors import CheckpointWarning, InvalidInputError
from ..linearization import check_default_device
from ..ranks import Ranks
from ..run.checkpoint import Checkpoint
from ..run.engine import Run
from ..sets.base import ConvexSet
from ..solvers import Solver
from . import corrected_fit, inputs
from .candidates import Advice, advise
from .corrected_fit import CorrectedFit
from .design import Design, dtype_for
from .inputs import FitRows
from .learning import TrainingEvent
from .linear_settings import LINEAR, common_facts, settings_of
from .losses import Loss, loss_of, warn_of_wrong_derivatives
from .noise import NoiseModel
from .training import REMEDY, CleaningFit, Training

DTYPES: list[Any] = [np.float64, np.float32, np.float16, np.uint8, np.int8,
                     np.uint16, np.int16, np.uint32, np.int32, np.int64]  # fmt: skip
"""Dtypes that are used as they are; other numbers are converted to the first."""
CORRECTION_STAGES = {"models of the labels": 0.0, "correction": 0.6, "comparison": 0.65, "model": 0.85}
"""The approximate fraction of the work that is done when a stage begins."""


class HyperCleaner(ClassifierMixin, BaseEstimator):
    """A classifier that finds wrong labels and is not misled by them, with the help of a few trusted rows.

    Parameters
    ----------
    noise
        The noise model. "correction" fits models of any kind to all labels and corrects them by the trusted rows; it is
        best for tables and texts. The others train a linear model: "rows" learns a weight per row (as in the paper),
        "class-pairs" how strongly each given label counts for each class, and "transition" how often each class has
        each label (not convex, see `Transition`). "auto" means "correction", unless the rows are pixels, in a
        memory-mapped file or divided among ranks, or loss, radius, constraint, ridge, solver, steps, batch_size or a
        checkpoint is given. Then it tries "transition", "class-pairs" and "rows" and uses the first whose Brier score
        on held-out trusted rows is within one standard error of the best.
    estimator
        For noise="correction": the classifier of the given labels, or a list of classifiers to mix. Default: boosting,
        ridge logistic regression and extra trees; for sparse rows, such as texts, logistic regression and naive Bayes.
    decision
        For noise="correction": "argmax" predicts the most probable class; "balanced" divides the probabilities by a
        power of the class frequencies first, so that rare classes are predicted more often, and accuracy is given
        up for at least as much balanced accuracy.
    loss
        "logistic" (two classes), "softmax", "squared", "smoothed hinge", or "auto": logistic or softmax.
    radius
        Radius of the l1 ball of the coefficients of each class; "auto" learns it by gradient on the trusted rows.
    constraint
        Another convex set of `bilevel.sets` for the coefficients, instead of the ball.
    ridge
        The factor c of the term c |coef|^2, which is added to the mean loss.
    fit_intercept
        Whether to fit an intercept; the set does not constrain it.
    solver
        "auto", the name of a solver ("dmlcbo", "approx", "implicit", "vpbgd", "rmd-pcd", "projected-soba") or an
        object such as `bilevel.DMLCBO(upper_step=0.5)`.
    steps
        Upper-level steps per noise model; default 20, and 10 for "class-pairs".
    trusted_fraction
        The linear models trust this fraction of the rows unchecked, with a warning, if there are no trusted rows;
        noise="correction" needs no trusted rows.
    batch_size
        Noisy rows per step, for tables that do not fit into memory; default all of them.
    random_state
        The seed of the held-out rows and of the solver.
    verbose
        Show progress and the time left.
    callback
        A function of a `TrainingEvent` (stage, share of the work, loss), called after each step.

    Attributes
    ----------
    coef_, intercept_
        The cleaned model, as in a linear classifier of scikit-learn; not with noise="correction".
    correction_
        The result of noise="correction", a `CorrectedFit`; otherwise None.
    contradictions_
        With noise="correction": the positions of rows of X that are equal but have different labels, one array for each
        set of equal rows.
    columns_
        With a DataFrame and noise="correction": the kind of each column, and the reason.
    classes_
        The labels.
    sample_weight_
        The weight of each row, from 0 to 1: its learned weight, or the probability that its label is correct. Trusted
        rows have weight 1.
    noise_, selection_
        The noise model used, and the mean Brier score of each candidate on held-out trusted rows.
    transition_
        For noise "transition", row j has the probabilities of the given labels for class j; for "class-pairs", row b
        has the probabilities of the classes for the given label b; otherwise None.
    radius_
        The radius of the ball; None with another set.
    trusted_, separate_trusted_
        Which rows of X were trusted, and whether there were further trusted rows, X_trusted.
    history_
        One dictionary per step: noise, step, seconds, held_out_loss, and radius if it is learned. Empty in a cleaner
        that was loaded from a file.
    n_iter_, status_
        The number of steps of the selected x; "finished" or "interrupted".

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
        estimator: Any = None,
        decision: Literal["argmax", "balanced"] = "argmax",
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
        callback: Callable[[TrainingEvent], None] | None = None,
    ) -> None:
        self.noise = noise
        self.estimator = estimator
        self.decision = decision
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

    @torch.inference_mode(False)  # derivatives are needed, whatever mode the caller is in
    def fit(
        self,
        X: Any,
        y: Any,
        trusted: Any = None,
        *,
        X_trusted: Any = None,
        y_trusted: Any = None,
        verified: Any = None,
        wrong: Any = None,
        groups: Any = None,
        pred_probs: Any = None,
        kinds: Mapping[str, str] | None = None,
        checkpoint: str | Path | Checkpoint | None = None,
        resume: str | Path | None = None,
        ranks: Ranks | None = None,
    ) -> HyperCleaner:
        """Fit the model to all rows, some of which are trusted.

        Parameters
        ----------
        X, y
            The rows, dense (also memory-mapped) or SciPy sparse, and their labels.
        trusted
            One truth value per row of X: whether its label is known to be right.
        X_trusted, y_trusted
            Further trusted rows, in addition to X. In a Pipeline pass `trusted` instead, or let the pipeline transform
            them with `Pipeline(..., transform_input=["X_trusted"])`.
        verified
            For noise="correction": the right labels of verified rows, None or NaN for the others, one per row of X.
            They are the best evidence, because the given and the right label of the same row are known.
        wrong
            For noise="correction": one truth value per row, true if its label is known to be wrong while the right one
            is unknown.
        groups
            For noise="correction": rows of the same group (a patient, a storm) are never used to predict each other.
        pred_probs
            For noise="correction": out-of-fold class probabilities of the rows of X by another model (as for cleanlab),
            shape (n, classes), in the order of the sorted labels. X may then be None.
        kinds
            For noise="correction" and a DataFrame: the kinds of columns, such as {"zip": "category", "note": "text"}:
            "number", "category", "date", "text" or "ignore". Default: recognised from the cells, see `columns_`.
        checkpoint
            A file for the state of training, or `bilevel.Checkpoint(path, every=...)`. It is written atomically after
            every step, and the previous one is kept. An existing file is an error unless it is resumed.
        resume
            The checkpoint of an interrupted fit, to continue it with the same rows and settings. The result has the
            same bits as that of an uninterrupted fit. Pass it as `checkpoint` too to keep writing it.
        ranks
            The processes that divide the rows (`bilevel.distributed.connect`). Each of them calls `fit` with its own
            rows in X, y and `trusted`, and with the same X_trusted and y_trusted. All end with the same model;
            `sample_weight_` and `label_issues` refer to the rows of the rank. Rank 0 writes the checkpoint.
        """
        ranks = Ranks() if ranks is None else ranks
        only_here = {"verified": verified, "wrong": wrong, "groups": groups, "pred_probs": pred_probs, "kinds": kinds}
        alone = ranks.size == 1 and checkpoint is None and resume is None
        if self._corrects(X, alone=alone, required=any(value is not None for value in only_here.values())):
            if ranks.size > 1 or checkpoint is not None or resume is not None:
                raise InvalidInputError(
                    'noise="correction" trains ensembles in one process, in minutes: it takes no ranks and no '
                    "checkpoint; the other noise models do"
                )
            return self._fit_correction(X, y, trusted, X_trusted, y_trusted, **only_here)
        only_here |= {"estimator": self.estimator}
        if unused := [name for name, value in only_here.items() if value is not None]:
            raise InvalidInputError(f'{", ".join(unused)}: only noise="correction" uses this, got noise={self.noise!r}')
        self.correction_ = None
        original, index, drawn = (X, y, X_trusted, y_trusted), getattr(X, "index", None), seed_of(self.random_state)
        rows: Any = None
        earlier: Any = None
        with ranks.guard("looking at its rows"):
            for name, column in (("y", y), ("trusted", trusted)):
                inputs.refuse_other_order(X, column, name)
            X, y = self._checked(X, y, reset=True)
            check_classification_targets(y)
            earlier = None if resume is None else Checkpoint.of(resume).load()
            if earlier is not None and self.random_state is None:  # "any seed": that of the fit that was stopped
                before: Any = earlier.identity.get("random_state")
                drawn = before if isinstance(before, int) else 0
            inputs.refuse_half(X_trusted, y_trusted)
            if trusted is None and X_trusted is None:
                mask = inputs.taken_on_trust(y, self.trusted_fraction, drawn, ranks)
            else:
                mask = np.zeros(len(y), bool) if trusted is None else inputs.truth_values(trusted, len(y))
            if X_trusted is not None:
                X_trusted, y_trusted = self._checked(
                    X_trusted, y_trusted, reset=False, names=("X_trusted", "y_trusted")
                )
            rows = FitRows(X, y, mask, X_trusted, y_trusted, ranks)
        self.classes_ = rows.classes
        settings = settings_of(vars(self), len(rows.classes), ranks.gather(drawn)[0])
        noisy, known = rows.noisy_and_trusted()
        if ranks.size > 1:
            ranks.agree(common_facts(settings, known), "give every rank the same trusted rows, columns and settings")
        stored = checkpoint is not None or resume is not None
        run = Run(
            "HyperCleaner.fit", identity={**rows.identity(), **settings.identity} if stored else {}, ranks=ranks,
            checkpoint=checkpoint, resume=earlier, callbacks=() if self.callback is None else (self._tell,),
            progress=self.verbose,
        )  # fmt: skip
        warn_of_wrong_derivatives(settings.loss, settings.classes)  # once the loss is that of the run to be resumed
        with run:
            cleaned = Training(noisy, known, settings, run).fit()
        if run.interrupted and str(run):
            warnings.warn(f"the fit was interrupted. {run}", CheckpointWarning, stacklevel=2)
        if cleaned.poor:
            warnings.warn(f"the cleaned model is poor: {cleaned.poor}; {REMEDY}", ConvergenceWarning, stacklevel=2)
        self._keep(cleaned, rows)
        self._fitted_on, self._index = original, index
        return self

    def _corrects(self, X: Any, *, alone: bool, required: bool) -> bool:
        """Whether noise="correction" is used; otherwise a linear model is trained by a solver.

        For pixels it is used only if that is `required` by arguments that linear models do not support.
        """
        if not isinstance(self.noise, str) or self.noise not in ("auto", "correction"):
            return False
        default = all(getattr(self, name) == DEFAULTS[name] for name in LINEAR)
        required = required or self.estimator is not None or self.decision != "argmax"
        return self.noise == "correction" or (alone and default and (required or not inputs.of_pixels(X)))

    def _fit_correction(
        self, X: Any, y: Any, trusted: Any, X_trusted: Any, y_trusted: Any, **evidence: Any
    ) -> HyperCleaner:
        """`fit` with noise="correction"."""
        inputs.refuse_half(X_trusted, y_trusted)
        if X_trusted is not None and evidence["pred_probs"] is not None:
            raise InvalidInputError("pred_probs are of the rows of X: give trusted or verified, not X_trusted")
        check_choice("decision", self.decision, corrected_fit.DECISIONS)
        seed, original = seed_of(self.random_state), (X, y, X_trusted, y_trusted)
        for name, column in (("y", y), ("trusted", trusted), ("verified", evidence["verified"])):
            inputs.refuse_other_order(X, column, name)
        y, features, beside = self._correction_rows(X, y, X_trusted, y_trusted, evidence)
        self.classes_: np.ndarray = inputs.classes_of(y)
        P = corrected_fit.check_pred_probs(evidence["pred_probs"], len(y), len(self.classes_))
        known = corrected_fit.known_labels(
            features, y, self.classes_, trusted=trusted, X_trusted=beside, y_trusted=y_trusted,
            **{name: evidence[name] for name in ("verified", "wrong", "groups")},
        )  # fmt: skip
        fit = corrected_fit.fit_corrected(
            known, estimator=self.estimator, pred_probs=P, decision=self.decision, seed=seed, progress=self._stage
        )
        self.correction_, self.noise_, self.selection_ = fit, "correction", dict(fit.selection)
        self.trusted_, self.separate_trusted_ = known.right[: len(y)] >= 0, beside is not None
        self._issues = fit.issues(len(y))
        self.sample_weight_, self.radius_, self.transition_ = self._issues["label_quality"], None, None
        self.history_, self.n_iter_, self.status_ = [], 1, "finished"
        self.contradictions_ = corrected_fit.contradictions(features, np.searchsorted(self.classes_, y))
        self._fitted_on, self._index = original, getattr(X, "index", None)
        corrected_fit.warn_of_lost_classes(fit, self.classes_)
        return self

    def _stage(self, stage: str) -> None:
        if self.callback is not None:
            self.callback(TrainingEvent(stage, CORRECTION_STAGES.get(stage, 0.0), math.nan))

    def _correction_rows(
        self, X: Any, y: Any, X_trusted: Any, y_trusted: Any, evidence: dict[str, Any]
    ) -> tuple[np.ndarray, Any, Any]:
        """The labels and the features of the rows of X and of X_trusted; a DataFrame is encoded column by column."""
        inputs.refuse_missing_labels(y, "y")
        y = column_or_1d(inputs.plain_labels(y), warn=True)
        if y.dtype.kind == "f":
            assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        self._encoder = None
        if X is None:
            if evidence["pred_probs"] is None:
                raise InvalidInputError("X may be None only with pred_probs")
            return y, None, None
        if hasattr(X, "iloc"):
            check_consistent_length(X, y)
            labels = y if y_trusted is None else np.concatenate([y, np.asarray(y_trusted)])
            _check_feature_names(self, X, reset=True)
            _check_n_features(self, X, reset=True)
            self._encoder, frames = corrected_fit.encode_frames(X, [X_trusted], labels, evidence["kinds"])
            self.columns_ = self._encoder.decisions_
            features, *others = (self._encoder.transform(frame) for frame in frames)
            return y, features, others[0] if others else None
        if evidence["kinds"] is not None:
            raise InvalidInputError(f"kinds describe the columns of a DataFrame, got X of type {type(X).__name__}")
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False,
                             ensure_min_samples=2)  # fmt: skip
        inputs.refuse_gaps(X, "X", None, allow_nan=True)
        if X_trusted is not None:
            X_trusted = self._numbers(X_trusted, "X_trusted")
        return y, X, X_trusted

    def _numbers(self, X: Any, name: str) -> Any:
        """New rows as numbers; gaps are allowed."""
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False)
        inputs.refuse_gaps(X, name, None, allow_nan=True)
        return X

    def _tell(self, row: Any, event: TrainingEvent) -> None:
        self.callback(event)  # type: ignore[misc]

    def _checked(self, X: Any, *y: Any, reset: bool = False, names: tuple[str, str] = ("X", "y")) -> tuple[Any, ...]:
        """X, and y if it is given, as arrays of numbers without gaps."""
        columns = getattr(X, "columns", None)
        for labels in y:
            inputs.refuse_missing_labels(labels, names[1])
        inputs.refuse_texts(X, names[0])
        check_default_device()
        found = validate_data(
            self, X, *map(inputs.plain_labels, y), reset=reset, accept_sparse="csr", dtype=DTYPES,
            ensure_all_finite=False, ensure_min_samples=2 if reset else 1,
        )  # fmt: skip
        X, *labels = found if y else (found,)
        inputs.refuse_gaps(X, names[0], columns)
        return X, *labels

    def _keep(self, cleaned: CleaningFit, rows: FitRows) -> None:
        """Set the attributes of a fitted cleaner, and the table that `label_issues` returns."""
        self.coef_: np.ndarray = cleaned.model["weight"].numpy()
        bias = cleaned.model.get("bias")
        self.intercept_: np.ndarray = np.zeros(len(self.coef_), self.coef_.dtype) if bias is None else bias.numpy()
        self.trusted_, self.separate_trusted_ = rows.mask, rows.X_trusted is not None
        self.sample_weight_: np.ndarray = np.ones(len(rows.mask), self.coef_.dtype)
        self.sample_weight_[~rows.mask] = cleaned.weights.numpy()
        self.noise_, self.radius_, self.selection_ = cleaned.noise, cleaned.radius, cleaned.selection
        self.transition_: np.ndarray | None = None if cleaned.matrix is None else cleaned.matrix.numpy()
        self.history_, self.n_iter_, self.status_ = cleaned.history, cleaned.steps, cleaned.status
        scores = self._raw_scores(rows.X)
        chances = self._probabilities(scores)
        quality = np.take_along_axis(chances, rows.labels[:, None], axis=1)[:, 0]
        self._issues = {
            "is_label_issue": (quality < 0.5 * chances.max(1)) & ~rows.mask,
            "label_quality": quality,
            "given_label": rows.labels,
            "predicted_label": _best(scores),
        }

    # --- what it says ---------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> np.ndarray:
        """The scores: (n,) for two classes, (n, classes) for more."""
        check_is_fitted(self)
        if self.correction_ is not None:
            logs = np.log(self.predict_proba(X) + 1e-12)
            return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The label of each row."""
        check_is_fitted(self)
        if self.correction_ is not None:
            return self.classes_[self.correction_.predict(self.predict_proba(X))]
        scores = self._scores(X)
        return self.classes_[_best(scores)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy of `predict` on these rows and labels."""
        return super().score(X, y, sample_weight)

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, shape (n, classes)."""
        check_is_fitted(self)
        if self.correction_ is not None:
            return self._corrected_probabilities(X)
        return self._probabilities(self._scores(X))

    def _corrected_probabilities(self, X: Any) -> np.ndarray:
        fit: Any = self.correction_
        if fit.model is None:
            raise InvalidInputError(
                "this cleaner was fitted with pred_probs and cannot predict new rows; fit it without pred_probs"
            )
        if self._encoder is not None:
            import pandas as pd

            if not hasattr(X, "iloc"):
                raise InvalidInputError("this cleaner was fitted to a DataFrame: pass one with the same columns")
            return fit.model.predict_proba(self._encoder.transform(pd.DataFrame(X)))
        return fit.model.predict_proba(self._numbers(X, "X"))

    def next_to_check(self, count: int = 20) -> Any:
        """The rows whose check would help most, after noise="correction": row (position in X) and drawn_at_random.

        A third of them is drawn at random. Only those may be used to estimate how many labels are wrong, because
        suspicious rows are not representative. Pass the right labels as `fit(..., verified=labels)`.

        Returns
        -------
        A pandas DataFrame with the index of X.
        """
        check_is_fitted(self)
        if not isinstance(self.correction_, CorrectedFit):
            raise InvalidInputError(
                f'next_to_check needs a fit with noise="correction", not one from a file; got noise={self.noise_!r}'
            )
        import pandas as pd

        found, seed = self.correction_.correction, seed_of(self.random_state)
        rows, drawn = corrected_fit.next_rows(found, check_count("count", count), seed)
        index = rows if self._index is None else self._index[rows]
        return pd.DataFrame({"row": rows, "drawn_at_random": drawn}, index=index)

    def advice(self) -> Advice | None:
        """Advice whether to drop the suspected rows, relabel them or keep all rows before a model is trained.

        A plain model is trained each way and predicts checked rows whose labels were not used. None after the linear
        noise models, and with fewer than 20 checked rows.
        """
        check_is_fitted(self)
        if not isinstance(self.correction_, CorrectedFit):
            return None
        return advise(self.correction_.correction, seed_of(self.random_state))

    def wrong_issues(self, drawn_at_random: Any = None) -> tuple[int, int, int] | None:
        """A 95 % interval for the number of wrong labels among the unchecked label issues, and the number of these.

        Parameters
        ----------
        drawn_at_random
            One truth value per row of X: whether the row was drawn at random to be verified. Default: all verified rows
            were. Rows that were checked because they are suspicious are not representative.

        Returns
        -------
        (lowest, highest, all issues), or None if no verified row is suspected.
        """
        check_is_fitted(self)
        if not isinstance(self.correction_, CorrectedFit):
            return None
        fair = None
        if drawn_at_random is not None:
            fair = np.zeros(len(self.correction_.correction.evidence.given), bool)
            fair[: len(self.trusted_)] = inputs.truth_values(drawn_at_random, len(self.trusted_))
        return corrected_fit.wrong_among_suspected(self.correction_, fair)

    def label_issues(self) -> Any:
        """A table with one line per row of X: is_label_issue, label_quality, given_label, predicted_label.

        The quality of a label is its probability under the cleaned model. A label is an issue if its probability is
        less than half that of the best label. Trusted rows are never issues.

        Returns
        -------
        A pandas DataFrame with the index of X.
        """
        check_is_fitted(self)
        if not hasattr(self, "_issues"):
            raise InvalidInputError(
                "this cleaner was loaded from a file, which holds no rows: fit it to list label issues"
            )
        import pandas as pd

        numbers = [name for name in self._issues if name.endswith("_label")]
        labels = {name: self.classes_[self._issues[name]] for name in numbers}
        return pd.DataFrame({**self._issues, **labels}, index=self._index)

    def refit(
        self, estimator: Any, X: Any = None, y: Any = None, *, X_trusted: Any = None, y_trusted: Any = None
    ) -> Any:
        """Train a copy of any scikit-learn classifier on the trusted rows and on the rows whose label is no issue.

        Parameters
        ----------
        estimator
            Any classifier; it is cloned, then fitted.
        X, y, X_trusted, y_trusted
            The rows that were passed to `fit`; needed only if the cleaner was pickled or loaded, because files do not
            contain the rows.
        """
        check_is_fitted(self)
        if X is None or y is None:
            if not hasattr(self, "_fitted_on"):
                raise InvalidInputError(
                    "this cleaner does not contain its rows: call refit(estimator, X, y) with those of fit"
                )
            X, y = self._fitted_on[:2]
        if X_trusted is None and hasattr(self, "_fitted_on"):
            X_trusted, y_trusted = self._fitted_on[2:]
        if self.separate_trusted_ and X_trusted is None:
            raise InvalidInputError(
                "this cleaner was fitted with X_trusted and does not contain these rows: call refit(estimator, X, y, "
                "X_trusted=..., y_trusted=...) with those of fit"
            )
        kept = np.flatnonzero(~self._issues["is_label_issue"])
        if _num_samples(X) != len(self.trusted_):
            raise InvalidInputError(f"X has {_num_samples(X)} rows, but the cleaner was fitted to {len(self.trusted_)}")
        features, labels = inputs.take(X, kept), np.asarray(y)[kept]
        if X_trusted is not None:
            features, labels = inputs.joined(features, X_trusted), np.concatenate([labels, np.asarray(y_trusted)])
        model: Any = clone(estimator)
        return model.fit(features, labels)

    def gathered(self, ranks: Ranks) -> HyperCleaner:
        """On rank 0, a copy with the results for the rows of all ranks, for a file; all ranks must call it."""

        def whole(column: np.ndarray) -> np.ndarray:
            rows = ranks.concat(torch.tensor(column))
            return column if rows is None else rows.numpy()

        cleaner: Any = copy(self)
        cleaner.sample_weight_, cleaner.trusted_ = whole(self.sample_weight_), whole(self.trusted_)
        cleaner._issues = {name: whole(column) for name, column in self._issues.items()}
        return cleaner

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self._raw_scores(self._checked(X)[0])

    def _raw_scores(self, X: Any) -> np.ndarray:
        design = Design.of(X, dtype=dtype_for(X))
        return design.matmul(torch.from_numpy(self.coef_.T).to(design.dtype)).numpy() + self.intercept_

    def _probabilities(self, scores: np.ndarray) -> np.ndarray:
        loss = loss_of(self.loss, len(self.classes_))
        return loss.probabilities(torch.from_numpy(np.ascontiguousarray(scores))).numpy()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # type: ignore[arg-type]
        state.pop("_fitted_on", None)  # rows do not belong into a model
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        models = self.estimator if isinstance(self.estimator, list | tuple) else [self.estimator]
        takes_gaps = all(get_tags(model).input_tags.allow_nan for model in models if model is not None)
        tags.input_tags.allow_nan = takes_gaps and self._corrects(None, alone=True, required=True)
        return tags


DEFAULTS: dict[str, Any] = HyperCleaner().get_params(deep=False)


def seed_of(random_state: Any) -> int:
    """The seed of training that scikit-learn's `random_state` stands for."""
    return int(check_random_state(random_state).randint(2**31))


def _best(scores: np.ndarray) -> np.ndarray:
    return (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(1)
