"""Reference derivatives of the SVM head by qpth and cvxpylayers, in float64 (tests/few_shot/test_head.py).

    python -m venv peers
    peers/bin/pip install torch "cvxpy>=1.9" clarabel cvxpylayers==1.2.0 diffcp==1.1.9
    peers/bin/pip install --no-deps qpth==0.0.18
    peers/bin/python tests/references/make_svm_head_reference.py tests/references/svm_head.json

(qpth is installed without its dependencies, which forbid NumPy 2.) Both differentiate the dual of each task by its KKT
conditions; features to G, and y to scores, are plain torch. cvxpylayers does so with mode="dense": its default, a few
iterations of LSQR, is off by 8e-3 on the second coding here. The file holds the features, labels and queries, and for
each coding the scores, the loss sum_j sin(j) score_j and its derivative in support and query features.
"""

import importlib.metadata
import json
import sys

import cvxpy
import numpy as np
import torch
from cvxpylayers.torch import CvxpyLayer
from qpth.qp import QPFunction

TASKS, WAYS, SHOTS, FEATURES, QUERIES, C, RIDGE = 2, 3, 3, 5, 4, 0.3, 0.05


def make_data(seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(WAYS * SHOTS) % WAYS
    centres = rng.normal(size=(TASKS, WAYS, FEATURES))
    support = np.round(centres[:, labels] + rng.normal(size=(TASKS, WAYS * SHOTS, FEATURES)), 4)
    query = np.round(rng.normal(size=(TASKS, QUERIES, FEATURES)), 4)
    return torch.tensor(support), torch.tensor(labels), torch.tensor(query)


def centred(support, labels):
    """G (t, n, n), b (t, n), and the map from y to the weight of each example in each score."""
    own = torch.nn.functional.one_hot(labels, WAYS).double()
    codes = torch.where(own > 0, 1.0, -1.0 / (WAYS - 1))
    G = (support @ support.mT) * (codes @ codes.T) + RIDGE * torch.eye(len(labels))
    return G, torch.ones(len(labels), dtype=torch.float64), lambda y: y[..., None] * codes


def crammer_singer(support, labels):
    """The same with one column per class: y is flat, example by example."""
    own = torch.nn.functional.one_hot(labels, WAYS).double()
    G = support @ support.mT + RIDGE * torch.eye(len(labels))
    G = torch.stack([torch.kron(one, torch.eye(WAYS, dtype=torch.float64)) for one in G])
    return G, own.flatten(), lambda y: y.reshape(len(y), -1, WAYS)


def constraints(coding, b):
    """Inequalities A y <= h, and equations E y = 0 (or None)."""
    n = len(b)
    if coding == "centred":
        eye = torch.eye(n, dtype=torch.float64)
        return torch.cat([eye, -eye]), torch.cat([C * b, 0 * b]), None
    sums = torch.kron(torch.eye(n // WAYS), torch.ones(1, WAYS)).double()
    return torch.eye(n, dtype=torch.float64), C * b, sums


def by_qpth(coding, G, b):
    A, h, E = constraints(coding, b)
    empty = torch.empty(0, dtype=torch.float64)
    equations = (empty, empty) if E is None else (E, torch.zeros(len(E), dtype=torch.float64))
    return QPFunction(verbose=-1, eps=1e-14, maxIter=60)(G, -b.expand(len(G), -1), A, h, *equations)


def by_cvxpylayers(coding, G, b):
    A, h, E = constraints(coding, b)
    n = len(b)
    root, y = cvxpy.Parameter((n, n)), cvxpy.Variable(n)
    held = [A.numpy() @ y <= h.numpy()] + ([] if E is None else [E.numpy() @ y == 0])
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(root @ y) / 2 - b.numpy() @ y), held)
    layer = CvxpyLayer(problem, parameters=[root], variables=[y])
    tight = {"solve_method": "Clarabel", "mode": "dense", "tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
    return layer(torch.linalg.cholesky(G).mT, solver_args=tight)[0]


def reference(solve, coding, support, labels, query):
    support, query = support.clone().requires_grad_(), query.clone().requires_grad_()
    G, b, alpha = {"centred": centred, "crammer-singer": crammer_singer}[coding](support, labels)
    scores = query @ (alpha(solve(coding, G, b)).mT @ support).mT
    loss = (scores.flatten() * torch.arange(scores.numel(), dtype=torch.float64).sin()).sum()
    loss.backward()
    return {
        "scores": scores.tolist(),
        "support_gradient": support.grad.tolist(),
        "query_gradient": query.grad.tolist(),
    }


if __name__ == "__main__":
    support, labels, query = make_data()
    peers = {"qpth": by_qpth, "cvxpylayers": by_cvxpylayers}
    found = {
        coding: {name: reference(solve, coding, support, labels, query) for name, solve in peers.items()}
        for coding in ("centred", "crammer-singer")
    }
    content = {
        "made_by": "tests/references/make_svm_head_reference.py",
        **{name: importlib.metadata.version(name) for name in ("qpth", "cvxpylayers", "diffcp", "torch")},
        "ways": WAYS, "C": C, "ridge": RIDGE,
        "support": support.tolist(), "labels": labels.tolist(), "query": query.tolist(),
        "codings": found,
    }  # fmt: skip
    with open(sys.argv[1], "w") as file:
        json.dump(content, file, indent=0)
        file.write("\n")
    for coding, part in found.items():
        one, other = (np.array(part[name]["support_gradient"]) for name in peers)
        sys.stdout.write(f"{coding}: the two differ by {np.linalg.norm(one - other) / np.linalg.norm(other):.1e}\n")
