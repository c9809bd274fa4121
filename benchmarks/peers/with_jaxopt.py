"""jaxopt 0.8.5: ProjectedGradient at its defaults (line search, acceleration, implicit differentiation), warm starts,
the whole outer step compiled. With INNER, so many steps of fixed length without acceleration instead.
"""

import jax
import jax.numpy as jnp
import jaxopt
from jaxopt.projection import projection_l1_ball
from recorder import ADAM, INNER, RADIUS, RIDGE, arguments, record

jax.config.update("jax_enable_x64", True)
data, STEP = arguments()
A, a, B, b = (jnp.asarray(data[name]) for name in ("A", "a", "B", "b"))


def lower(y, x):
    return jnp.mean(jax.nn.sigmoid(x) * jax.nn.softplus(-a * (A @ y))) + RIDGE * jnp.sum(y**2)


L = float(jnp.linalg.norm(A, 2)) ** 2 / (4 * len(a)) + 2 * RIDGE
settings = {"stepsize": 1 / L, "acceleration": False, "maxiter": INNER, "tol": 0.0} if INNER else {}
solver = jaxopt.ProjectedGradient(fun=lower, projection=projection_l1_ball, **settings)


def upper(x, y):
    y = solver.run(y, hyperparams_proj=RADIUS, x=x).params
    return jnp.mean(jax.nn.softplus(-b * (B @ y))), y


@jax.jit
def outer(x, y, m, v, k):
    (_, y), h = jax.value_and_grad(upper, has_aux=True)(x, y)
    m, v = 0.9 * m + 0.1 * h, 0.999 * v + 0.001 * h**2
    direction = (m / (1 - 0.9**k)) / (jnp.sqrt(v / (1 - 0.999**k)) + 1e-12) if ADAM else h
    x = x - STEP * direction
    return x, y, m, v, k + 1


def make():
    x = jnp.asarray(data["x0"])
    state = [(x, jnp.zeros(A.shape[1]), jnp.zeros_like(x), jnp.zeros_like(x), jnp.asarray(1.0))]

    def step():
        state[0] = jax.block_until_ready(outer(*state[0]))

    return step, lambda: state[0][0]


record(make)
