"""Reference hypergradients of hyper-cleaning by jaxopt 0.8.5, in float64, for tests/solvers/test_jaxopt_reference.py.

    python -m venv jaxopt-env
    jaxopt-env/bin/pip install "jax==0.4.38" "jaxlib==0.4.38" jaxopt==0.8.5
    jaxopt-env/bin/python tests/references/make_jaxopt_reference.py tests/references/jaxopt_hyper_cleaning.json

Lower level: mean_i sigmoid(x_i) log(1 + exp(-b_i a_i.y)) + c |y|^2 over an l1 ball or a box; upper level: the mean
logistic loss on trusted rows. jaxopt's ProjectedGradient ignores `implicit_diff_solve`; ProximalGradient with the
projection as its prox obeys it, here GMRES tightened to 1e-14. The file holds the data, y*, jaxopt's hypergradient,
that of ProjectedGradient at its defaults (to show what is avoided), and central differences of F with jaxopt's inner
solver, which know nothing of implicit differentiation.

How far off the defaults are depends on the instance: 0.7 to 0.9 % on the small one of the file. With `--pixels` instead
of a file name the script makes rows like images (784 sparse columns in [0, 1], l1 ball of radius 1, c = 1e-3) and
prints the error of ProjectedGradient at its defaults, and with the lower level solved to 1e-12, where its linear solve
alone is to blame: 211 % and 10 % at x = 0, 20 % and 14 % at a random x.
"""

import functools
import importlib.metadata
import json
import sys

import jax
import jax.numpy as jnp
import jaxopt
import numpy as np
from jaxopt import linear_solve, projection

jax.config.update("jax_enable_x64", True)

ROWS, TRUSTED, COLUMNS, RIDGE, RADIUS, BOUND = 40, 30, 12, 1e-3, 1.0, 0.2
WIDTH = 1e-5


def make_data(seed=0):
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=COLUMNS) * (np.arange(COLUMNS) < 6)
    A, B = (np.round(rng.normal(size=(n, COLUMNS)), 4) for n in (ROWS, TRUSTED))
    a, b = (np.where(M @ direction + 0.3 * rng.normal(size=len(M)) > 0, 1.0, -1.0) for M in (A, B))
    a[rng.permutation(ROWS)[: ROWS * 3 // 10]] *= -1  # 30 % of the labels are flipped
    return A, a, B, b, np.round(rng.normal(size=ROWS), 4)


A, a, B, b, X = make_data()


def lower(y, x):
    return jnp.mean(jax.nn.sigmoid(x) * jnp.logaddexp(0.0, -a * (A @ y))) + RIDGE * jnp.sum(y**2)


def upper(y):
    return jnp.mean(jnp.logaddexp(0.0, -b * (B @ y)))


PROJECTIONS = {
    "l1 ball": lambda z: projection.projection_l1_ball(z, RADIUS),
    "box": lambda z: projection.projection_box(z, (-BOUND, BOUND)),
}


def reference(project):
    tight = functools.partial(linear_solve.solve_gmres, tol=1e-14, atol=0.0, restart=COLUMNS, maxiter=50)
    solver = jaxopt.ProximalGradient(
        lower, prox=lambda z, hyperparams, scaling: project(z), stepsize=1.0, tol=1e-15, maxiter=20_000,
        implicit_diff=True, implicit_diff_solve=tight, jit=True,
    )  # fmt: skip

    def solve(x):
        return solver.run(jnp.zeros(COLUMNS), None, x).params

    value = jax.jit(lambda x: upper(solve(x)))
    default = jaxopt.ProjectedGradient(lower, projection=lambda z, hyperparams: project(z))
    eye = np.eye(ROWS)
    return {
        "y": np.asarray(solve(X)).tolist(),
        "value": float(value(X)),
        "hypergradient": np.asarray(jax.grad(lambda x: upper(solve(x)))(X)).tolist(),
        "projected_gradient_defaults": np.asarray(
            jax.grad(lambda x: upper(default.run(jnp.zeros(COLUMNS), None, x).params))(X)
        ).tolist(),
        "central_differences": [float((value(X + WIDTH * e) - value(X - WIDTH * e)) / (2 * WIDTH)) for e in eye],
    }


def pixel_errors(rows=500, columns=784, seed=0):
    """Relative errors of ProjectedGradient's hypergradient on rows like images."""
    rng = np.random.default_rng(seed)
    templates = [np.clip(rng.normal(size=columns), 0, None) * (rng.random(columns) < 0.2) for _ in range(2)]

    def draw():
        classes = rng.integers(0, 2, rows)
        speckle = 0.15 * rng.random((rows, columns)) * (rng.random((rows, columns)) < 0.15)
        images = np.stack([templates[i] * rng.uniform(0.3, 1.0, columns) for i in classes]) + speckle
        return np.clip(images, 0, 1), np.where(classes == 1, 1.0, -1.0)

    (A, a), (B, b) = draw(), draw()
    a[rng.permutation(rows)[: rows * 3 // 10]] *= -1
    project = PROJECTIONS["l1 ball"]
    step = 1.0 / float(np.linalg.norm(A, 2) ** 2 / (8 * rows) + 2 * RIDGE)

    def lower(y, x):
        return jnp.mean(jax.nn.sigmoid(x) * jnp.logaddexp(0.0, -a * (A @ y))) + RIDGE * jnp.sum(y**2)

    def gradient(solver, x):
        return jax.grad(
            lambda v: jnp.mean(jnp.logaddexp(0.0, -b * (B @ solver.run(jnp.zeros(columns), None, v).params)))
        )(x)

    tight = functools.partial(linear_solve.solve_gmres, tol=1e-12, atol=0.0, restart=60, maxiter=60)
    exact = jaxopt.ProximalGradient(
        lower, prox=lambda z, hyperparams, scaling: project(z), stepsize=step, tol=1e-13, maxiter=100_000,
        implicit_diff_solve=tight,
    )  # fmt: skip
    default = jaxopt.ProjectedGradient(lower, projection=lambda z, hyperparams: project(z))
    solved = jaxopt.ProjectedGradient(
        lower, projection=lambda z, hyperparams: project(z), stepsize=step, tol=1e-12, maxiter=100_000
    )
    for name, x in (("x = 0", np.zeros(rows)), ("random x", rng.normal(size=rows))):
        truth = gradient(exact, x)
        off = [float(jnp.linalg.norm(gradient(s, x) - truth) / jnp.linalg.norm(truth)) for s in (default, solved)]
        sys.stdout.write(f"{name}: defaults {off[0]:.1%}, lower level solved to 1e-12 {off[1]:.1%}\n")


if __name__ == "__main__":
    if sys.argv[1] == "--pixels":
        pixel_errors()
        sys.exit()
    content = {
        "made_by": "tests/references/make_jaxopt_reference.py",
        "jaxopt": importlib.metadata.version("jaxopt"),
        "jax": jax.__version__,
        "ridge": RIDGE,
        "radius": RADIUS,
        "bound": BOUND,
        "rows": A.tolist(),
        "labels": a.tolist(),
        "trusted_rows": B.tolist(),
        "trusted_labels": b.tolist(),
        "x": X.tolist(),
        "sets": {name: reference(project) for name, project in PROJECTIONS.items()},
    }
    with open(sys.argv[1], "w") as file:
        json.dump(content, file, indent=0)
        file.write("\n")
    for name, part in content["sets"].items():
        h, differences, defaults = (
            np.array(part[key]) for key in ("hypergradient", "central_differences", "projected_gradient_defaults")
        )
        errors = [np.linalg.norm(h - other) / np.linalg.norm(h) for other in (differences, defaults)]
        sys.stdout.write(f"{name}: central differences {errors[0]:.1e}, ProjectedGradient defaults {errors[1]:.1e}\n")
