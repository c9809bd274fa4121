"""Modes of torch around a call: the answer is the same, or the mode is refused by its name."""

import contextlib
import copy

import numpy as np
import pytest
import torch

import bilevel
from bilevel.few_shot import ConvNet, Episodes, generated_images


def problem(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(40, 6, dtype=dtype, generator=generator)
    b = torch.randn(40, dtype=dtype, generator=generator)
    return bilevel.Problem(
        lambda x, y: (A[:10] @ y - b[:10]).square().mean(),
        lambda x, y: (x.sigmoid() * (A[10:] @ y - b[10:]).square()).mean() + 1e-3 * y @ y,
        bilevel.sets.L1Ball(1.0),
        x0=torch.zeros(30, dtype=dtype),
        y0=torch.zeros(6, dtype=dtype),
    )


torch.manual_seed(0)
NETWORK = ConvNet(image_size=16, width=2)
EPISODES = Episodes(generated_images(10, 8, 16), ways=3, shots=2, queries=4)


def verdict(p):
    check = bilevel.check_hypergradient(p, p.x0, directions=1)
    numbers = [list(type(check.cause)).index(check.cause), check.error, check.lower_residual]
    return torch.tensor(numbers, dtype=torch.float64).nan_to_num(-1.0)


def projected(p):
    z = 3 * torch.randn(20, 6, generator=torch.Generator().manual_seed(1), dtype=p.y0.dtype)
    return torch.cat([p.constraint.project(z), p.constraint.jacobian(z).apply(z)])


def pulled_back(p):
    x = p.x0.clone().requires_grad_()
    with torch.enable_grad():
        bilevel.argmin(p, x).square().sum().backward()
    return x.grad


def constants(p):
    found = bilevel.diagnostics.estimate_constants(p, p.x0, samples=2)
    return torch.tensor([found.mu, found.smoothness, found.cross], dtype=torch.float64)


def cleaned(p):
    X = np.random.default_rng(0).normal(size=(60, 3))
    cleaner = bilevel.HyperCleaner(steps=2, random_state=0, noise="transition")
    return torch.from_numpy(cleaner.fit(X, X[:, 0] > 0, trusted=np.arange(60) < 20).predict_proba(X))


def learned(p):
    network, episodes = copy.deepcopy((NETWORK, EPISODES))
    learner = bilevel.MetaLearner(network, bilevel.SVMHead(ways=3), tasks_per_step=1)
    learner.fit(episodes, steps=1)
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])


def linearized(p):
    lin = p.linearize(p.x0, p.y0)
    products = [lin.lower_hvp(p.y0 + 1), lin.lower_cross(p.y0 + 1)]
    return torch.cat([lin.upper_grad_x, lin.upper_grad_y, lin.lower_grad_y, *products])


def estimated(p):
    smoothed = bilevel.Neumann(terms=3, eta=0.1, smoothing=bilevel.hypergradients.Perturbed(radius=0.1))
    lin, streams = p.linearize(p.x0, p.y0), bilevel.random.RandomStreams()
    return torch.cat([each.estimate(lin, streams).gradient for each in (bilevel.Unrolled(steps=3), smoothed)])


def resumed(p):
    return bilevel.minimize(p, resume=bilevel.minimize(p, steps=3, solver=bilevel.DMLCBO()), steps=3).x


def evaluated(p):
    learner = bilevel.MetaLearner(copy.deepcopy(NETWORK), bilevel.SVMHead(ways=3))
    return torch.tensor(learner.evaluate(EPISODES, count=3).mean, dtype=torch.float64)


CALLS = {
    "linearize": linearized,
    "estimate": estimated,
    "resume": resumed,
    "evaluate": evaluated,
    "solve_lower": lambda p: bilevel.solve_lower(p, p.x0).y,
    "upper_value": lambda p: bilevel.upper_value(p, p.x0),
    "lower_residual": lambda p: torch.as_tensor(bilevel.lower_residual(p, p.x0, p.y0), dtype=p.y0.dtype),
    "hypergradient": lambda p: bilevel.hypergradient(p, p.x0, p.y0),
    "argmin": lambda p: bilevel.argmin(p, p.x0),
    "argmin backward": pulled_back,
    "minimize": lambda p: bilevel.minimize(p, steps=2).x,
    "minimize DMLCBO": lambda p: bilevel.minimize(p, steps=5, solver=bilevel.DMLCBO()).x,
    "iterate": lambda p: next(iter(bilevel.iterate(p, p.x0, p.y0))).x,
    "compare": lambda p: bilevel.compare(p, [bilevel.DMLCBO()], bilevel.run.Budget(cost=30)).solutions["DMLCBO"].x,
    "check_hypergradient": verdict,
    "certificate": lambda p: torch.tensor(bilevel.certificate(p, p.x0, 0.1, samples=20).eps, dtype=torch.float64),
    "goldstein_measure": lambda p: torch.tensor(
        bilevel.diagnostics.goldstein_measure(p, p.x0, 0.1, samples=2).value, dtype=torch.float64
    ),
    "estimate_constants": constants,
    "project": projected,
    "HyperCleaner": cleaned,
    "MetaLearner": learned,
}
WITHOUT_DERIVATIVES = ["project", "HyperCleaner", "evaluate"]
"""What takes no derivatives by autograd is right under inference_mode too."""
OF_DATA = ("HyperCleaner", "MetaLearner", "evaluate")
"""Calls whose problem is made inside."""
ONE_POINT = ("project", "linearize", "estimate")
"""Products and sums at one point, in the precision of that point."""


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


MODES = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "deterministic": deterministic,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "float32": lambda: default_dtype(torch.float32),
}
DEFAULT_DTYPES = {
    "float16": lambda: default_dtype(torch.float16),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
}
REFUSED = {
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_the_answer_is_that_without_the_mode(call, dtype):
    """A default dtype is tried with tensors of another one."""
    expected = CALLS[call](problem(dtype)).detach()
    for mode in MODES if dtype is torch.float64 else DEFAULT_DTYPES:
        with {**MODES, **DEFAULT_DTYPES}[mode]():
            found = CALLS[call](problem(dtype)).detach()
        assert found.dtype == expected.dtype, mode
        if mode == "anomaly":  # torch has no batched products there: the same sums in another order
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
        else:
            assert torch.equal(found, expected), mode


@pytest.mark.parametrize("call", [call for call in CALLS if call not in WITHOUT_DERIVATIVES])
@pytest.mark.parametrize("mode", REFUSED)
def test_a_mode_without_derivatives_or_precision_is_refused(call, mode):
    given = problem(torch.float32)
    with REFUSED[mode](), pytest.raises(bilevel.IncompatibleError, match=f"torch.{mode}"):
        CALLS[call](given)


@pytest.mark.parametrize("call", WITHOUT_DERIVATIVES)
@pytest.mark.parametrize("mode", REFUSED)
def test_what_takes_no_derivatives_is_right_there_too(call, mode):
    given = problem(torch.float32)
    expected = CALLS[call](given)
    with REFUSED[mode]():
        assert torch.equal(CALLS[call](given), expected)


@pytest.mark.parametrize("call", [call for call in CALLS if call not in OF_DATA])
def test_points_made_under_inference_mode_are_taken(call):
    given, expected = problem(), CALLS[call](problem())
    with torch.inference_mode():
        given.x0, given.y0 = given.x0.clone(), given.y0.clone()
    assert torch.equal(CALLS[call](given), expected)


@pytest.mark.parametrize("call", [call for call in CALLS if call not in (*ONE_POINT, "MetaLearner", "evaluate")])
def test_another_default_device_is_refused(call):
    """Random numbers are drawn on the CPU, where the points are."""
    given = problem()
    torch.set_default_device("meta")
    try:
        with pytest.raises(bilevel.IncompatibleError, match="the default device of torch is meta"):
            CALLS[call](given)
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("call", [call for call in CALLS if call not in (*ONE_POINT, *OF_DATA)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_points_of_half_precision_are_refused(call, dtype):
    with pytest.raises(bilevel.InvalidTypeError, match="use float32 or float64"):
        CALLS[call](problem(dtype))


@pytest.mark.parametrize("derivative", ["hessian", "hvp", "jvp"])
def test_second_derivatives_of_argmin_are_refused(derivative):
    """They are not zero, which is what torch.autograd.functional takes missing ones for."""

    def squared(x):
        return bilevel.argmin(problem(), x).square().sum()

    x, v = (problem().x0, torch.ones(30).double())
    arguments = [] if derivative == "hessian" else [v]
    with pytest.raises(bilevel.IncompatibleError, match="argmin has first derivatives only"):
        getattr(torch.autograd.functional, derivative)(squared, x, *arguments)


@pytest.mark.parametrize("level", ["upper", "lower"])
@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("way", ["torch", "data", "NumPy"])
def test_functions_that_change_their_arguments_are_refused(level, name, way):
    def changing(x, y):
        with torch.no_grad():
            changed = {"x": x, "y": y}[name]
            {"torch": changed, "data": changed.data, "NumPy": changed.detach().numpy()}[way][:1] *= 0.5
        return (y - x).square().sum()

    functions = {"upper": lambda x, y: y.square().sum(), "lower": lambda x, y: (y - x).square().sum()} | {
        level: changing
    }
    given = bilevel.Problem(**functions, x0=torch.ones(3), y0=torch.ones(3))
    with pytest.raises(bilevel.InvalidInputError, match=rf"{level} changes {name} in place"):
        bilevel.minimize(given, steps=3, solver=bilevel.DMLCBO())
