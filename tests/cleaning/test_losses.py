"""Row losses: definitions, probabilities, large scores and low precision."""

import warnings

import numpy as np
import pytest
import torch

import bilevel
from bilevel.cleaning import losses
from bilevel.cleaning.losses import Logistic, SmoothedHinge, Softmax, Squared, loss_of

EVERY = [(Logistic(), 2), (Softmax(), 2), (Softmax(), 4), (Squared(), 2), (Squared(), 3)]
EVERY += [(SmoothedHinge(), 2), (SmoothedHinge(), 3)]
NAMES = [f"{type(loss).__name__}-{classes}" for loss, classes in EVERY]


def scores(loss, classes, *, n=40, scale=1.5, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, loss.columns(classes), generator=generator, dtype=dtype)


@pytest.mark.parametrize(("loss", "classes"), EVERY, ids=NAMES)
def test_every_derivative_is_that_of_the_values(loss, classes):
    """Against autograd of sum_j q_j l_j(s)."""
    s = scores(loss, classes).requires_grad_()
    generator = torch.Generator().manual_seed(1)
    q, v = torch.rand(len(s), classes, generator=generator).double(), scores(loss, classes, seed=2)
    (gradient,) = torch.autograd.grad((q * loss.per_label(s)).sum(), s, create_graph=True)
    (bent,) = torch.autograd.grad(gradient, s, v)
    with torch.no_grad():
        assert torch.allclose(loss.gradient(s, q), gradient, atol=1e-12)
        assert torch.allclose(loss.curvature(s, q)(v), bent, atol=1e-12)
        jvp = loss.per_label_jvp(s, v)
    assert jvp.shape == (len(s), classes)
    assert torch.allclose((q * jvp).sum(-1), (gradient * v).sum(-1), atol=1e-12)


@pytest.mark.parametrize(("loss", "classes"), EVERY, ids=NAMES)
def test_rows_with_labels_are_those_that_count_once_as_their_class(loss, classes):
    s, v = scores(loss, classes), scores(loss, classes, seed=2)
    labels = torch.arange(len(s)) % classes
    slope, curvature = loss.of_label(s, labels)
    q = torch.eye(classes).double()[labels]
    assert torch.allclose(slope, loss.gradient(s, q), rtol=1e-14, atol=0)
    assert torch.allclose(curvature(v), loss.curvature(s, q)(v), rtol=1e-14, atol=0)


@pytest.mark.parametrize(("loss", "classes"), EVERY, ids=NAMES)
def test_row_losses_are_convex_and_not_negative(loss, classes):
    s, v = scores(loss, classes), scores(loss, classes, seed=2)
    assert bool((loss.per_label(s) >= 0).all())
    for j in range(classes):
        q = torch.zeros(len(s), classes).double()
        q[:, j] = 1.0
        assert bool(((loss.curvature(s, q)(v) * v).sum(-1) >= -1e-15).all())


@pytest.mark.parametrize(("loss", "classes"), EVERY, ids=NAMES)
def test_probabilities_add_up_to_one_and_follow_the_scores(loss, classes):
    s = scores(loss, classes)
    p = loss.probabilities(s)
    assert p.shape == (len(s), classes)
    assert bool((p >= 0).all())
    assert torch.allclose(p.sum(-1), torch.ones(len(s)).double())
    best = (s[:, 0] > 0).long() if s.shape[1] == 1 else s.argmax(-1)
    assert torch.allclose(p.gather(1, best[:, None]).squeeze(1), p.amax(-1))


@pytest.mark.parametrize("loss", [Logistic(), Squared(), SmoothedHinge()], ids=lambda loss: type(loss).__name__)
def test_the_probabilities_are_those_for_which_the_score_is_best(loss):
    """p_0 l_0'(s) + p_1 l_1'(s) = 0: a model that scores s says p."""
    s = torch.linspace(-0.95, 0.95, 39).double()[:, None]
    assert torch.allclose(loss.gradient(s, loss.probabilities(s)), torch.zeros_like(s), atol=1e-14)


def test_softmax_and_logistic_agree_on_two_classes():
    s = scores(Logistic(), 2)
    pair = torch.cat([torch.zeros_like(s), s], -1)
    assert torch.allclose(Logistic().per_label(s), Softmax().per_label(pair))
    assert torch.allclose(Logistic().probabilities(s), Softmax().probabilities(pair))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("loss", "classes"), EVERY, ids=NAMES)
def test_large_scores_stay_finite(loss, classes, dtype):
    s = scores(loss, classes, scale=1e4, dtype=dtype)
    q = torch.full((len(s), classes), 1.0 / classes, dtype=dtype)
    for result in (loss.per_label(s), loss.gradient(s, q), loss.curvature(s, q)(s), loss.probabilities(s)):
        assert bool(torch.isfinite(result).all())


def test_small_slopes_of_the_logistic_loss_are_not_lost():
    """At a margin of 30 the slope is -exp(-30), far below the rounding of 1 in float32."""
    s = torch.tensor([[30.0], [-30.0]])
    q = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    expected = torch.tensor([[-1.0], [1.0]]) * torch.exp(torch.tensor(-30.0))
    assert torch.allclose(Logistic().gradient(s, q), expected, rtol=1e-5, atol=0)
    assert torch.allclose(Logistic().of_label(s, torch.tensor([1, 0]))[0], expected, rtol=1e-5, atol=0)
    assert torch.allclose(Logistic().per_label(s).amin(-1), torch.exp(torch.tensor([-30.0, -30.0])), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("loss", "classes"), EVERY, ids=NAMES)
def test_single_precision_is_double_precision_rounded(loss, classes):
    s, v = scores(loss, classes, scale=3.0), scores(loss, classes, seed=2)
    q = torch.rand(len(s), classes, generator=torch.Generator().manual_seed(1)).double()
    for name in ("gradient", "per_label", "curvature"):
        arguments = (s,) if name == "per_label" else (s, q)
        double, single = getattr(loss, name)(*arguments), getattr(loss, name)(*(u.float() for u in arguments))
        if name == "curvature":
            double, single = double(v), single(v.float())
        assert single.dtype == torch.float32
        assert torch.allclose(single.double(), double, rtol=1e-5, atol=1e-5)


def test_names_and_refusals():
    assert [loss_of(name) for name in ("logistic", "softmax", "squared", "smoothed hinge")] == [
        Logistic(), Softmax(), Squared(), SmoothedHinge(),
    ]  # fmt: skip
    assert loss_of(Squared()) == losses.Squared()
    with pytest.raises(bilevel.InvalidInputError, match=r"loss must be one of .*'softmax'.* got 'hinge'"):
        loss_of("hinge")
    with pytest.raises(bilevel.InvalidTypeError, match=r"loss must be one of .* got 3"):
        loss_of(3)
    with pytest.raises(
        bilevel.IncompatibleError, match="the logistic loss takes 2 classes, got 3: use the softmax loss"
    ):
        Logistic().columns(3)


class Halved(Softmax):
    """A loss of a user with one derivative that is half of what it should be."""

    def __init__(self, wrong):
        self.wrong = wrong

    def part(self, name):
        return 0.5 if name == self.wrong else 1.0

    def per_label_jvp(self, s, v):
        return self.part("per_label_jvp") * super().per_label_jvp(s, v)

    def gradient(self, s, q):
        return self.part("gradient") * super().gradient(s, q)

    def curvature(self, s, q):
        return lambda v: self.part("curvature") * super(Halved, self).curvature(s, q)(v)


@pytest.mark.parametrize("wrong", ["per_label_jvp", "gradient", "curvature", "nothing"])
def test_a_loss_with_a_wrong_derivative_is_named_when_it_is_fitted(wrong):
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(40, 2)), np.arange(40) % 3
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        bilevel.HyperCleaner(loss=Halved(wrong), noise="rows", steps=1).fit(X, y, trusted=np.arange(40) < 12)
    named = [str(each.message) for each in heard if issubclass(each.category, bilevel.errors.ProblemWarning)]
    assert len(named) == (wrong != "nothing")
    assert all(f"{wrong} of Halved differs by 50%" in text for text in named)
