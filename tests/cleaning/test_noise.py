"""Noise models: what x means, and what holds for each of them."""

import pytest
import torch

import bilevel
from bilevel.cleaning import ClassPairs, RowWeights, Transition
from bilevel.cleaning.losses import Logistic, SmoothedHinge, Softmax
from bilevel.cleaning.noise import noise_of, sum_by_label

LABELS = torch.tensor([0, 2, 1, 2])


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_starts():
    x = RowWeights(weight=0.8).start(LABELS, 3, torch.float64)
    assert torch.allclose(RowWeights().weights(x), torch.full((4,), 0.8).double())
    for model in (ClassPairs(trust=0.7), Transition(trust=0.7)):
        expected = torch.full((3, 3), 0.15) + 0.55 * torch.eye(3)
        x = model.start(LABELS, 3, torch.float32)
        assert x.dtype == torch.float32
        assert torch.allclose(model.matrix(x), expected)


def test_full_weights_and_identity_matrices_are_the_plain_loss():
    s, sure = random(4, 3), 60.0
    plain = torch.nn.functional.cross_entropy(s, LABELS, reduction="none")
    identity = sure * torch.eye(3).double()
    for model, x in (
        (RowWeights(), torch.full((4,), sure).double()),
        (ClassPairs(), identity),
        (Transition(), identity),
    ):
        assert torch.allclose(model.value(Softmax(), x, s, LABELS), plain)


def test_a_transition_without_information_leaves_a_constant():
    """All rows of T alike: the label says nothing about the class."""
    x = torch.zeros(3, 3).double()
    assert torch.allclose(Transition().value(Softmax(), x, random(4, 3), LABELS), torch.tensor(3.0).double().log())
    assert torch.allclose(Transition().terms(Softmax(), x, random(4, 3), LABELS).residual, torch.zeros(4, 3).double())


def test_class_pairs_are_convex_in_the_scores_and_transitions_are_not():
    s, x, v = random(200, 3), 3 * torch.eye(3).double(), random(200, 3, seed=2)
    labels = torch.arange(200) % 3
    curvature = {
        model: (model.terms(Softmax(), x, s, labels).curvature(v) * v).sum(-1) for model in (ClassPairs(), Transition())
    }
    assert bool((curvature[ClassPairs()] >= 0).all())
    assert bool((curvature[Transition()] < -1e-3).any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_and_scores_stay_finite(dtype):
    labels = torch.arange(40) % 3
    s, v = (1e4 * random(40, 3)).to(dtype), random(40, 3, seed=2).to(dtype)
    matrix, rows = (1e3 * random(3, 3, seed=1)).to(dtype), (1e3 * random(40, seed=1)).to(dtype)
    for model, x in ((RowWeights(), rows), (ClassPairs(), matrix), (Transition(), matrix)):
        terms = model.terms(Softmax(), x, s, labels)
        results = [terms.residual, terms.curvature(v), terms.gradient_x(), terms.cross(v)]
        for result in (model.value(Softmax(), x, s, labels), *results):
            assert result.dtype == dtype
            assert bool(torch.isfinite(result).all())


def test_binary_transitions_agree_with_two_softmax_columns():
    labels, s, x, v = torch.tensor([0, 1, 1, 0]), random(4, 1), random(2, 2), random(4, 1, seed=3)
    pair, turn = (torch.cat([torch.zeros_like(u), u], -1) for u in (s, v))
    model = Transition()
    assert torch.allclose(model.value(Logistic(), x, s, labels), model.value(Softmax(), x, pair, labels))
    one, two = model.terms(Logistic(), x, s, labels), model.terms(Softmax(), x, pair, labels)
    assert torch.allclose(one.residual, two.residual[:, 1:])
    assert torch.allclose(one.curvature(v), two.curvature(turn)[:, 1:])
    assert torch.allclose(one.cross(v), two.cross(turn))


def test_sums_by_label():
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert sum_by_label(values, torch.tensor([1, 1, 0])).tolist() == [[5, 6], [4, 6]]


def test_names_and_refusals():
    assert [noise_of(name) for name in ("rows", "class-pairs", "transition")] == [
        RowWeights(), ClassPairs(), Transition(),
    ]  # fmt: skip
    assert noise_of(ClassPairs(trust=0.6)).trust == 0.6
    with pytest.raises(bilevel.InvalidInputError, match=r"noise must be one of .*'rows'.* got 'row'"):
        noise_of("row")
    with pytest.raises(bilevel.InvalidTypeError, match=r"noise must be one of .* got None"):
        noise_of(None)
    with pytest.raises(bilevel.InvalidInputError, match=r"trust must lie in \(0, 1\), got 1.0"):
        Transition(trust=1.0)
    with pytest.raises(bilevel.InvalidInputError, match=r"weight must lie in \(0, 1\), got 0"):
        RowWeights(weight=0)
    with pytest.raises(
        bilevel.IncompatibleError, match=r"Transition needs class probabilities, which SmoothedHinge\(\)"
    ):
        Transition().check(SmoothedHinge())
