"""Noisy rows that do not train but are evidence in the upper level, and columns that are centred without copies."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import bilevel
from bilevel.cleaning import CentredDesign, CleaningProblem, Design
from bilevel.cleaning.design import column_means
from bilevel.errors import InvalidInputError


def rows(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 5, generator=generator).double(), torch.randint(3, (count,), generator=generator)


def test_the_upper_level_hears_evidence_rows_only():
    noisy, trusted, evidence = rows(9, 0), rows(4, 1), rows(6, 2)
    options = {"noise": "transition", "classes": 3, "evidence_weight": 0.7, "evidence_rows": evidence}
    problem = CleaningProblem(*noisy, *trusted, **options)

    def likelihood(x, y, part):
        p = (part[0] @ y["weight"].T + y["bias"]).softmax(-1)
        return -(p * x.softmax(-1).T[part[1]]).sum(-1).log().mean()

    def ridge(y):
        return 1e-3 * y["weight"].square().sum() + 1e-6 * y["bias"].square().sum()

    plain = bilevel.Problem(
        lambda x, y: (
            cross_entropy(trusted[0] @ y["weight"].T + y["bias"], trusted[1]) + 0.7 * likelihood(x, y, evidence)
        ),
        lambda x, y: likelihood(x, y, noisy) + ridge(y),
    )
    x, generator = (
        torch.randn(3, 3, generator=torch.Generator().manual_seed(3)).double(),
        torch.Generator().manual_seed(4),
    )
    y = {
        "weight": torch.randn(3, 5, generator=generator).double(),
        "bias": torch.randn(3, generator=generator).double(),
    }
    ours, theirs = problem.linearize(x, y), plain.linearize(x, y)
    torch.testing.assert_close(ours.upper_value, theirs.upper_value)
    torch.testing.assert_close(ours.upper_grad_x, theirs.upper_grad_x)
    torch.testing.assert_close(ours.upper_grad_y, theirs.upper_grad_y)
    torch.testing.assert_close(ours.lower_grad_y, theirs.lower_grad_y)
    torch.testing.assert_close(ours.lower_cross(y), theirs.lower_cross(y))


def test_rows_with_weights_of_their_own_have_no_evidence_rows():
    with pytest.raises(InvalidInputError, match="without weights of rows"):
        CleaningProblem(*rows(9, 0), *rows(4, 1), noise="rows", evidence_weight=1.0, evidence_rows=rows(6, 2))


@pytest.mark.parametrize("batch", [None, torch.tensor([1, 4, 4])])
def test_centred_products_are_those_of_the_centred_matrix(batch):
    matrix = rows(20, 0)[0] + 100.0
    design = Design.of(matrix)
    centred = CentredDesign(design, column_means(design))
    by_hand = matrix - matrix.mean(0)
    if batch is not None:
        centred, by_hand = centred.rows(batch), by_hand[batch]
    generator = torch.Generator().manual_seed(1)
    V, R = torch.randn(5, 2, generator=generator).double(), torch.randn(len(by_hand), 2, generator=generator).double()
    torch.testing.assert_close(centred.matmul(V), by_hand @ V, atol=1e-11, rtol=0)
    torch.testing.assert_close(centred.rmatmul(R), by_hand.T @ R, atol=1e-11, rtol=0)


def test_centring_changes_the_intercept_and_nothing_else():
    """The same weight, in fewer steps."""
    matrix, labels = rows(60, 0)
    matrix = matrix + 10.0
    design = Design.of(matrix)
    means = column_means(design)
    plain, centred = (
        CleaningProblem(part, labels, part, labels, noise="class-pairs", radius=3.0, classes=3, intercept_ridge=0.0)
        for part in (design, CentredDesign(design, means))
    )
    one = bilevel.solve_lower(plain, plain.start(), tol=1e-7)
    other = bilevel.solve_lower(centred, centred.start(), tol=1e-7)
    torch.testing.assert_close(one.y["weight"], other.y["weight"], atol=1e-4, rtol=0)
    spread = one.y["bias"] - (other.y["bias"] - other.y["weight"] @ means)
    torch.testing.assert_close(
        spread, spread.mean().expand(3), atol=1e-3, rtol=0
    )  # softmax does not see a common shift
    assert other.steps < one.steps / 2
