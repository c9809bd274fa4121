"""SVMHead: its derivative against central differences, peers and the library's other estimators; what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import bilevel
from bilevel.few_shot import SVMHead
from bilevel.few_shot.label_coding import CODINGS

from .support import tasks_of

REFERENCE = json.loads((Path(__file__).parents[1] / "references" / "svm_head.json").read_text())


def weighted(scores: torch.Tensor) -> torch.Tensor:
    """A loss without symmetries: sum_j sin(j) score_j."""
    return (scores.flatten() * torch.arange(scores.numel(), dtype=scores.dtype).sin()).sum()


def gradients(head: SVMHead, support, labels, query) -> tuple[torch.Tensor, ...]:
    point = support.clone().requires_grad_(), query.clone().requires_grad_()
    return torch.autograd.grad(weighted(head(point[0], labels, point[1])), point)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("C", [0.03, 0.3, 10.0])
def test_derivative_agrees_with_central_differences(coding, C):
    support, labels, query = tasks_of("clustered", 2, 3, 3, 5, queries=3)
    head = SVMHead(3, C=C, ridge=0.05, coding=coding, tol=1e-9)
    point = support.requires_grad_(), query.requires_grad_()
    found = torch.autograd.gradcheck(  # along random directions, all at once
        lambda a, q: weighted(head(a, labels, q)), point, eps=1e-6, rtol=1e-5, atol=1e-7, fast_mode=True
    )
    assert found


def test_estimators_that_draw_draw_anew():
    support, labels, query = tasks_of("clustered", 2, 3, 3, 5, queries=3)
    head = SVMHead(3, C=0.3, hypergradient=bilevel.Neumann(terms=10, truncation="random"))
    one, two = (gradients(head, support, labels, query)[0] for _ in range(2))
    assert not torch.equal(one, two)


@pytest.mark.parametrize("coding", CODINGS)
def test_what_counts_as_solved_does_not_depend_on_the_scale_of_the_features(coding):
    """Features s a, ridge s^2 and C / s^2 have the dual variables y / s^2, and the same scores."""
    support, labels, query = tasks_of("clustered", 3, 4, 3, 20, queries=3)
    expected = SVMHead(4, ridge=1e-3, C=10.0, coding=coding, tol=1e-10)(support, labels, query)
    for s in (1e-3, 1e2, 1e4):
        head = SVMHead(4, ridge=1e-3 * s**2, C=10.0 / s**2, coding=coding)
        torch.testing.assert_close(head(s * support, labels, s * query), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("peer", ["qpth", "cvxpylayers"])
def test_derivative_agrees_with_peers(coding, peer):
    support, labels, query = (torch.tensor(REFERENCE[name]) for name in ("support", "labels", "query"))
    support, query, labels = support.double(), query.double(), labels.expand(support.shape[:2])
    head = SVMHead(REFERENCE["ways"], C=REFERENCE["C"], ridge=REFERENCE["ridge"], coding=coding, scale=1.0)
    expected = {name: torch.tensor(value).double() for name, value in REFERENCE["codings"][coding][peer].items()}
    torch.testing.assert_close(head(support, labels, query), expected["scores"], rtol=1e-4, atol=1e-4)
    found = gradients(head, support, labels, query)
    for ours, theirs in zip(found, (expected["support_gradient"], expected["query_gradient"]), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-4


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize(
    "method",
    [
        bilevel.LinearSolve(tol=1e-12),
        bilevel.Neumann(terms=150, truncation="full", smoothing=bilevel.hypergradients.Exact()),
        bilevel.Unrolled(steps=150),
    ],
    ids=lambda method: type(method).__name__,
)
def test_estimators_of_the_library_agree_with_the_closed_form(coding, method):
    support, labels, query = tasks_of("clustered", 2, 3, 2, 4, queries=3)
    settings = {"C": 0.3, "ridge": 5.0, "coding": coding}  # well conditioned: the series converge
    exact = gradients(SVMHead(3, **settings), support, labels, query)
    found = gradients(SVMHead(3, hypergradient=method, **settings), support, labels, query)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-8)


def test_leading_dimensions_are_tasks():
    support, labels, query = tasks_of("random", 6, 3, 2, 5)
    head = SVMHead(3)
    scores = head(support.reshape(2, 3, 6, 5), labels.reshape(2, 3, 6), query.reshape(2, 3, 8, 5))
    assert scores.shape == (2, 3, 8, 3)
    torch.testing.assert_close(scores.reshape(6, 8, 3), head(support, labels, query))
    torch.testing.assert_close(scores[1, 2], head(support[5], labels[5], query[5]))


@pytest.mark.parametrize("coding", CODINGS)
def test_support_examples_reach_their_margin(coding):
    support, labels, _ = tasks_of("random", 4, 4, 3, 40)  # separable: n = 12 in 40 dimensions
    scores = SVMHead(4, C=1e3, ridge=1e-9, coding=coding, scale=1.0)(support, labels, support)
    own = scores.gather(-1, labels.unsqueeze(-1))
    others = scores.scatter(-1, labels.unsqueeze(-1), -torch.inf)
    if coding == "centred":  # V_i . f >= 1, where the codes of the other classes are -1/(k-1)
        margin = own.squeeze(-1) - (scores.sum(-1) - own.squeeze(-1)) / 3
        assert float(margin.min()) > 1 - 1e-6
    else:
        assert float((own - others).min()) > 1 - 1e-6


def test_scale_multiplies_the_scores():
    support, labels, query = tasks_of("random", 2, 3, 2, 5)
    torch.testing.assert_close(
        SVMHead(3, scale=7.0)(support, labels, query), 7 * SVMHead(3, scale=1.0)(support, labels, query)
    )


SUPPORT, LABELS, QUERY = tasks_of("random", 2, 3, 2, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"support": SUPPORT[..., :4]}, r"query of shape \(2, 8, 5\) does not fit support of shape \(2, 6, 4\)"),
        ({"support": SUPPORT.long()}, "support must be a floating-point tensor"),
        ({"support": SUPPORT.float()}, r"query is torch.float64 and support torch.float32.*query.to"),
        ({"support": torch.zeros(5)}, r"support must have the shape \(..., examples, features\)"),
        ({"support": SUPPORT.where(SUPPORT[1, 2, 3] != SUPPORT, torch.nan)}, r"support has NaN.* index \[1, 2\].*rate"),
        ({"query": QUERY / 0}, "query has NaN or infinite features in 16 examples"),
        ({"labels": LABELS[:, :5]}, r"labels of shape \(2, 5\) do not fit support.*\(2, 6\)"),
        ({"labels": LABELS.double()}, "labels must be an integer tensor, got torch.float64"),
        ({"labels": LABELS + 1}, r"labels has 3 at index \[0, 2\], but a 3-way head takes 0 to 2"),
        ({"labels": LABELS.clamp_max(1)}, "class 2 of task 0 has no support example"),
        ({"mask": torch.ones(2, 6)}, r"mask must be booleans of shape \(2, 6\)"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {"support": SUPPORT, "labels": LABELS, "query": QUERY, **change}
    with pytest.raises(bilevel.BilevelError, match=message):
        SVMHead(3)(**arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ways": 1}, "ways must be an integer of at least 2, got 1"),
        ({"ways": 3, "C": 0.0}, "C must be a positive number"),
        ({"ways": 3, "ridge": -1.0}, "ridge must be a positive number"),
        ({"ways": 3, "coding": "one-hot"}, "coding must be one of 'centred', 'crammer-singer', got 'one-hot'"),
        ({"ways": 3, "hypergradient": bilevel.LinearSolve}, "hypergradient must be an object such as LinearSolve"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(bilevel.BilevelError, match=message):
        SVMHead(**settings)
