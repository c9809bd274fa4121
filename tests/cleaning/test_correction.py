"""Correction of given labels by checked rows: folds, mixture, joint likelihood, comparison of candidates, decision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import approx_fprime, minimize_scalar
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from bilevel.cleaning import candidates, correction, label_likelihood, linear_candidates, out_of_fold
from bilevel.cleaning.correction import Evidence, correct, decide, expected_accuracy, final_model


def rows(seed: int, n: int = 400, classes: int = 3, columns: int = 5, distance: float = 1.6):
    """Gaussian classes, a third of the labels wrong: features, right labels, given labels."""
    rng = np.random.default_rng(seed)
    right = rng.integers(0, classes, n)
    X = rng.normal(size=(n, columns)) + distance * np.eye(classes, columns)[right]
    wrong = rng.random(n) < 0.33
    given = np.where(wrong, (right + 1) % classes, right)
    return X, right, given


def evidence_of(seed: int, checked: int = 80, *, verified: bool = False, **options) -> tuple[Evidence, np.ndarray]:
    X, right, given = rows(seed, **options)
    known = np.where(np.arange(len(right)) < checked, right, -1)
    given = given if verified else np.where(known >= 0, -1, given)
    return Evidence.of(X, given, known, int(right.max()) + 1), right


LINEAR = LogisticRegression(C=0.1)


class TestFolds:
    def test_equal_rows_and_groups_share_a_fold(self):
        rng = np.random.default_rng(0)
        X = rng.integers(0, 4, (300, 2)).astype(float)
        groups = rng.integers(0, 150, 300)
        fold = out_of_fold.folds_of(rng.integers(0, 3, 300), out_of_fold.tied_rows(X, groups), seed=0)
        for key in (groups, out_of_fold.row_numbers(X)):
            for value in np.unique(key):
                assert len(np.unique(fold[key == value])) == 1

    def test_gaps_are_equal_and_sparse_rows_are_compared_by_their_entries(self):
        X = np.array([[np.nan, 1.0], [np.nan, 1.0], [0.0, 2.0]])
        assert out_of_fold.row_numbers(X).tolist() == [0, 0, 1]
        assert out_of_fold.row_numbers(sp.csr_matrix(np.nan_to_num(X))).tolist() == [0, 0, 1]

    def test_every_label_is_in_every_fold(self):
        labels = np.repeat([0, 1, 2], [500, 40, 10])
        fold = out_of_fold.folds_of(labels, np.arange(550), seed=3)
        for label, size in zip(range(3), (100, 8, 2), strict=True):
            assert np.bincount(fold[labels == label]).tolist() == [size] * 5

    def test_no_row_is_predicted_by_a_model_that_has_seen_it(self):
        """Labels at random: in-sample trees would know them, out of fold nobody does."""
        rng = np.random.default_rng(0)
        X, labels = rng.normal(size=(400, 5)), rng.integers(0, 2, 400)
        fold = out_of_fold.folds_of(labels, np.arange(400), seed=0)
        P = out_of_fold.out_of_fold(out_of_fold.extra_trees(), X, labels, fold, 2)
        assert abs(roc_auc_score(labels, P[:, 1]) - 0.5) < 0.06


class TestMixture:
    def test_weights_maximise_the_likelihood(self):
        rng = np.random.default_rng(1)
        labels = rng.integers(0, 3, 500)
        P = [rng.dirichlet(np.ones(3), 500) + weight * np.eye(3)[labels] for weight in (0.6, 0.3)]
        P = [each / each.sum(1, keepdims=True) for each in P]
        own = [each[np.arange(500), labels] for each in P]
        best = minimize_scalar(lambda w: -np.log(w * own[0] + (1 - w) * own[1]).sum(), bounds=(0, 1), method="bounded")
        weights = out_of_fold.mixture_weights(P, labels)
        assert weights[0] == pytest.approx(best.x, abs=0.06)

    def test_classifiers_of_the_user_are_mixed_under_their_names(self):
        models = out_of_fold.models_of([LogisticRegression(), LogisticRegression(C=0.1)], np.zeros((2, 1)))
        assert list(models) == ["LogisticRegression 1", "LogisticRegression 2"]
        with pytest.raises(TypeError, match="predict_proba"):
            out_of_fold.models_of("logistic", np.zeros((2, 1)))


def label_model(classes: int = 4, seed: int = 0) -> label_likelihood.LabelModel:
    rng = np.random.default_rng(seed)
    return label_likelihood.LabelModel(
        np.ones(1), np.zeros(classes), -1.0, rng.normal(size=classes), 0.7, rng.normal(size=(classes, classes)), 0.4
    )


class TestLikelihood:
    def test_a_row_of_any_class_is_given_some_label(self):
        P = np.random.default_rng(0).dirichlet(np.ones(4), 50)
        total = sum(label_model().label_probabilities(P, np.full(50, label)) for label in range(4))
        np.testing.assert_allclose(total, 1.0, atol=1e-9)

    def test_posterior_is_bayes_rule(self):
        P = np.random.default_rng(0).dirichlet(np.ones(4), 50)
        given = np.random.default_rng(1).integers(-1, 4, 50)
        Q = label_model().posterior(P, given)
        np.testing.assert_allclose(Q.sum(1), 1.0)
        np.testing.assert_allclose(Q[given < 0], P[given < 0])
        row = int(np.flatnonzero(given == 2)[0])
        expected = P[row] * label_model().label_probabilities(P[[row]], np.array([2]))[0]
        np.testing.assert_allclose(Q[row], expected / expected.sum())

    def test_no_noise_and_labels_drawn_from_p_look_alike(self):
        """Why the level of noise is not identified without given labels of checked rows."""
        P = np.random.default_rng(0).dirichlet(np.ones(3), 20)
        for rho in (0.0, 0.4, 1.0):
            T = (1 - rho) * np.eye(3)[None] + rho * P[:, None, :]
            np.testing.assert_allclose(np.einsum("nc,ncg->ng", P, T), P)

    @pytest.mark.parametrize("classes", [2, 4])
    def test_recovers_the_noise_of_verified_rows(self, classes):
        """Data drawn from the model, given and right label known: the level and alpha come back."""
        rng = np.random.default_rng(0)
        F = rng.normal(size=(6000, classes)) * 2
        F -= F.mean(1, keepdims=True)
        P = np.exp(1.2 * F) / np.exp(1.2 * F).sum(1, keepdims=True)
        right = np.array([rng.choice(classes, p=each) for each in P])
        given = np.where(rng.random(6000) < 0.25, (right + rng.integers(1, classes, 6000)) % classes, right)
        fit = label_likelihood.fit_label_model([F], given, right, np.zeros(6000, bool), [1.0])
        assert fit.alpha[0] == pytest.approx(1.2, abs=0.1)
        kept = np.take_along_axis(fit.label_probabilities(P, right), right[:, None], 1)
        assert kept.mean() == pytest.approx(0.75, abs=0.02)

    def test_a_label_known_to_be_wrong_raises_the_level_of_noise(self):
        evidence, _ = evidence_of(0)
        features = [label_likelihood.centred_log(np.full((len(evidence.given), 3), 1 / 3))]
        wrong = evidence.given >= 0

        def level(wrong):
            return label_likelihood.fit_label_model(features, evidence.given, evidence.right, wrong, [1.0]).a

        assert level(wrong) > level(~wrong & False) + 1


class TestCorrection:
    def test_finds_wrong_labels_better_than_the_model_of_the_labels(self):
        evidence, right = evidence_of(0, n=800)
        found = correct(evidence, estimator=LINEAR)
        rest = evidence.unchecked
        is_right = evidence.given[rest] == right[rest]
        before = found.probabilities[rest, evidence.given[rest]]
        assert roc_auc_score(is_right, found.label_quality[rest]) > roc_auc_score(is_right, before) + 0.02
        assert (found.is_issue[rest] == ~is_right).mean() > 0.8

    def test_same_bits_again(self):
        evidence, _ = evidence_of(1, verified=True)
        first, second = correct(evidence), correct(evidence)
        np.testing.assert_array_equal(first.posterior, second.posterior)

    def test_verified_rows_calibrate_the_quality(self):
        """Labels redrawn from the class probabilities: only verified rows can tell how many are wrong."""
        X, right, _ = rows(3, n=1500, distance=1.0)
        rng = np.random.default_rng(0)
        P = LogisticRegression().fit(X, right).predict_proba(X)
        given = np.array([rng.choice(3, p=each) for each in P])
        known = np.where(np.arange(1500) < 200, right, -1)
        rest, truth = known < 0, (given == right)[known < 0].mean()
        quality = correct(Evidence.of(X, given, known, 3), estimator=LINEAR).label_quality[rest].mean()
        unmatched = Evidence.of(X, np.where(rest, given, -1), known, 3)
        blind = correct(unmatched, estimator=LINEAR).label_quality[rest].mean()
        assert abs(quality - truth) < 0.05 < abs(blind - truth)

    def test_checked_labels_are_certain_and_labels_known_to_be_wrong_impossible(self):
        evidence, right = evidence_of(0, verified=True)
        wrong = (evidence.right < 0) & (evidence.given != right) & (np.arange(400) < 150)
        found = correct(replace(evidence, wrong=wrong), estimator=LINEAR)
        assert (found.label_quality[wrong] == 0).all()
        np.testing.assert_array_equal(found.posterior[evidence.checked].argmax(1), evidence.right[evidence.checked])

    def test_without_checked_rows_the_mixture_decides(self):
        X, right, given = rows(0)
        found = correct(Evidence.of(X, given, np.full(400, -1), 3), estimator=LINEAR)
        assert found.label_model is None
        np.testing.assert_allclose(found.posterior, found.probabilities)
        assert (final_model(found).predict_proba(X).argmax(1) == right).mean() > 0.7

    def test_probabilities_of_the_user_need_no_features(self):
        _, right, given = rows(0)
        known = np.where(np.arange(400) < 80, right, -1)
        P = np.random.default_rng(0).dirichlet(np.ones(3), 400) + np.eye(3)[right]
        found = correct(Evidence.of(None, given, known, 3), pred_probs=P)
        rest = known < 0
        assert roc_auc_score((given == right)[rest], found.label_quality[rest]) > 0.9
        with pytest.raises(ValueError, match="pred_probs"):
            final_model(found)
        with pytest.raises(ValueError, match="needs features"):
            correct(Evidence.of(None, given, known, 3))

    def test_few_checked_rows_of_one_class(self):
        evidence, _ = evidence_of(0, checked=2)
        assert np.isfinite(correct(evidence, estimator=LINEAR).posterior).all()

    def test_a_column_that_is_almost_empty(self):
        """Some models see no value of it at all."""
        evidence, right = evidence_of(0)
        gaps = np.full(len(right), np.nan)
        gaps[-2:] = [1.0, 2.0]
        evidence = replace(evidence, X=np.column_stack([evidence.X, gaps, np.full(len(right), np.nan)]))
        found = correct(evidence, estimator=out_of_fold.boosting())
        assert (final_model(found).predict_proba(evidence.X).argmax(1) == right).mean() > 0.6

    def test_sparse_texts(self):
        rng = np.random.default_rng(0)
        right = rng.integers(0, 2, 200)
        X = sp.csr_matrix(rng.poisson(0.2 + 0.8 * (np.arange(30) % 2 == right[:, None])))
        given = np.where(rng.random(200) < 0.3, 1 - right, right)
        found = correct(Evidence.of(X.astype(float), given, np.where(np.arange(200) < 40, right, -1), 2))
        assert set(found.mixture.models) <= {"logistic", "naive Bayes"}
        assert (final_model(found).predict_proba(X).argmax(1) == right).mean() > 0.9


class TestCandidates:
    def test_labels_of_checked_rows_at_random_are_not_predicted(self):
        """Nothing can be learned: a comparison that leaked would show a held-out score below that of chance."""
        rng = np.random.default_rng(0)
        X, labels = rng.normal(size=(500, 20)), rng.integers(0, 2, 500)
        known = np.where(np.arange(500) < 100, rng.integers(0, 2, 500), -1)
        found = correct(Evidence.of(X, np.where(known < 0, labels, -1), known, 2), estimator=LINEAR)
        scores = candidates.compare(found).scores
        assert min(scores.values()) > 0.48  # a constant 1/2 has 0.5

    def test_the_best_is_chosen_where_it_is_clear(self):
        evidence, _ = evidence_of(0, n=800)
        comparison = candidates.compare(correct(evidence, estimator=LINEAR))
        assert comparison.choice in ("average", "correction", "gold loss correction")
        assert comparison.scores[comparison.choice] < comparison.scores["all labels"] - 0.02

    def test_labels_by_a_wrong_rule_do_not_pull_the_average_below_the_checked_rows(self):
        """Half of the labels are those of a rule that models of all labels learn to perfection."""
        X, right, _ = rows(0, n=900, distance=3.0)
        given = (X[:, 3] > 0) + (X[:, 4] > 0.5)  # columns that say nothing of the class
        known = np.where(np.arange(900) < 120, right, -1)
        found = correct(Evidence.of(X, np.where(known < 0, given, -1), known, 3), estimator=LINEAR)
        comparison = candidates.compare(found)
        accuracy = {}
        for choice in ("average", "checked only", "all labels"):
            model = candidates.chosen_model(found, replace(comparison, choice=choice))
            accuracy[choice] = (model.predict_proba(X[120:]).argmax(1) == right[120:]).mean()
        assert comparison.choice in ("average", "correction", "checked only")
        assert accuracy["all labels"] + 0.3 < accuracy["average"]
        assert accuracy["average"] > accuracy["checked only"] - 0.02

    def test_linear_noise_models_are_tried_where_rows_and_columns_are_few(self):
        evidence, _ = evidence_of(0, n=300)
        comparison = candidates.compare(correct(evidence, estimator=LINEAR))
        assert {"transition", "class-pairs", "rows"} < set(comparison.scores)
        wide = replace(evidence, X=np.hstack([evidence.X] * 6))
        assert "rows" not in candidates.compare(correct(wide, estimator=LINEAR)).scores

    def test_a_candidate_that_loses_a_class_is_avoided(self):
        scores = {"correction": np.array([0.3, 0.2, 0.4]), "filter": np.array([0.31, 0.22, 0.38])}
        assert candidates.most_stable(scores, {"correction": 0, "filter": 0}) == "correction"
        assert candidates.most_stable(scores, {"correction": 1, "filter": 0}) == "filter"
        clearly = {"correction": np.array([0.1, 0.1, 0.1]), "filter": np.array([0.8, 0.7, 0.9])}
        assert candidates.most_stable(clearly, {"correction": 1, "filter": 0}) == "correction"

    def test_advice_filters_where_labels_are_wrong_and_harms_nobody_where_they_are_right(self):
        evidence, right = evidence_of(0, n=800)
        advice = candidates.advise(correct(evidence, estimator=LINEAR))
        assert advice.choice in ("filter", "relabel")
        assert advice.accuracy[advice.choice] >= advice.accuracy["leave alone"]
        clean = replace(evidence, given=np.where(evidence.given >= 0, right, -1))
        advice = candidates.advise(correct(clean, estimator=LINEAR))
        assert advice.accuracy[advice.choice] > advice.accuracy["leave alone"] - 0.05

    @pytest.mark.parametrize("choice", ["average", "correction", "filter", "all labels", "checked only",
                                        "gold loss correction", "transition", "class-pairs", "rows"])  # fmt: skip
    def test_every_candidate_is_a_model_of_all_classes(self, choice):
        evidence, right = evidence_of(0)
        model = candidates.chosen_model(correct(evidence, estimator=LINEAR), candidates.Comparison(choice))
        P = model.predict_proba(evidence.X)
        np.testing.assert_allclose(P.sum(1), 1.0)
        assert (P.argmax(1) == right).mean() > 0.5

    def test_confident_learning_finds_what_it_expects(self):
        _, right, given = rows(0, n=2000)
        P = 0.1 + 0.7 * np.eye(3)[right]
        issues = candidates.confident_issues(P, given)
        np.testing.assert_array_equal(issues, given != right)


class TestGoldLossCorrection:
    def test_gradient_vanishes_at_the_optimum(self):
        X, right, given = rows(0)
        T = np.array([[0.7, 0.3, 0.0], [0.0, 0.7, 0.3], [0.3, 0.0, 0.7]])
        theta = linear_candidates.gold_loss_correction(X[80:], given[80:], X[:80], right[:80], T, max_iter=500)

        def loss(flat):
            W, b = flat.reshape(6, 3)[:-1], flat.reshape(6, 3)[-1]
            p = softmax(X @ W + b, axis=1)
            return (-np.log((p[80:] @ T)[np.arange(320), given[80:]]).sum() - np.log(p[np.arange(80), right[:80]]).sum()
                    + 0.5 / linear_candidates.STRENGTH * (W**2).sum())  # fmt: skip

        assert np.abs(approx_fprime(theta.ravel(), loss)).max() < 0.05
        assert (softmax(X @ theta[:-1] + theta[-1], axis=1).argmax(1) == right).mean() > 0.75

    def test_shares_are_means_of_the_checked_rows(self):
        P = np.array([[0.8, 0.2, 0.0], [0.6, 0.4, 0.0]])
        np.testing.assert_allclose(linear_candidates.transition_shares(P, np.array([0, 0])),
                                   [[0.7, 0.3, 0.0], [0, 1, 0], [0, 0, 1]])  # fmt: skip


class TestFinalModel:
    def test_a_class_that_lost_its_rows_is_still_possible(self):
        evidence, _ = evidence_of(0)
        found = correct(evidence, estimator=LINEAR)
        model = final_model(found)
        kept = LINEAR.fit(evidence.X[evidence.right != 2], np.maximum(evidence.right, 0)[evidence.right != 2])
        P = replace(model, others={"kept": kept}).predict_proba(evidence.X)
        np.testing.assert_allclose(P.sum(1), 1.0)
        assert P[:, 2].max() > 0.3

    def test_equal_weights_pool_to_the_geometric_mean(self):
        P, R = np.random.default_rng(0).dirichlet(np.full(3, 5.0), (2, 100))
        mean = np.sqrt((P + 1e-3) * (R + 1e-3))
        found = correction.pooled({"a": P, "b": R}, {"a": 0.5, "b": 0.5})
        np.testing.assert_allclose(found, mean / mean.sum(1, keepdims=True))

    def test_more_than_half_of_the_labels_wrong(self):
        """60 % wrong, always the next label: 100 verified rows say so."""
        X, right, _ = rows(0, n=900, distance=2.5)
        rng = np.random.default_rng(1)
        given = np.where(rng.random(900) < 0.6, (right + 1) % 3, right)
        known = np.where(np.arange(900) < 100, right, -1)
        found = correct(Evidence.of(X, given, known, 3), estimator=LINEAR)
        rest = np.arange(900) >= 100
        assert abs(found.label_quality[rest].mean() - (given == right)[rest].mean()) < 0.05
        assert (final_model(found).predict_proba(X).argmax(1) == right).mean() > 0.85


class TestDecision:
    rng = np.random.default_rng(0)
    P = rng.dirichlet([0.2, 2.0], 1000)
    prior = P.mean(0)

    def test_argmax_at_power_zero_and_a_cost_in_accuracy_of_at_most_the_gain(self):
        tau = correction.balancing_power(self.P, self.prior)
        assert tau > 0
        np.testing.assert_array_equal(correction.decide(self.P, self.prior, 0.0), self.P.argmax(1))
        plain, balanced = (expected_accuracy(self.P, decide(self.P, self.prior, power)) for power in (0.0, tau))
        assert plain[0] == pytest.approx(self.P.max(1).mean())
        assert 0 < plain[0] - balanced[0] <= balanced[1] - plain[1]

    @pytest.mark.parametrize("power", [0.0, 0.3, 1.0])
    def test_behind_a_rival_neither_in_accuracy_nor_in_balanced_accuracy(self, power):
        """The rival decides by worse probabilities."""
        worse = 0.5 * self.P + 0.5 * self.rng.permutation(self.P)
        rival = decide(worse, self.prior, power)
        tau = correction.balancing_power(self.P, self.prior, rival)
        ours, theirs = (expected_accuracy(self.P, each) for each in (decide(self.P, self.prior, tau), rival))
        assert ours[0] >= theirs[0]
        assert ours[1] >= theirs[1]

    def test_expected_accuracies_are_those_of_labels_drawn_from_the_probabilities(self):
        P = np.repeat(self.P, 50, axis=0)
        labels = (self.rng.random(len(P)) < P[:, 1]).astype(int)
        chosen = decide(P, self.prior, 0.7)
        right = [(chosen[labels == c] == c).mean() for c in (0, 1)]
        expected = expected_accuracy(self.P, decide(self.P, self.prior, 0.7))
        assert expected == pytest.approx(((chosen == labels).mean(), np.mean(right)), abs=0.01)
