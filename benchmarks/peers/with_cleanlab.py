"""cleanlab on the rows of an .npz file, in an environment of its own: python with_cleanlab.py ROWS ANSWER.

5-fold cross-validated probabilities of the given labels, find_label_issues and label quality scores as they are by
default; then the same model fitted to the rows that are kept and to the checked rows.
"""

import sys
import time
import warnings

import numpy as np
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, VotingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

warnings.simplefilter("ignore")
BOOSTING = HistGradientBoostingClassifier(
    max_iter=80, learning_rate=0.06, max_leaf_nodes=8, min_samples_leaf=40, l2_regularization=5.0, early_stopping=False
)
LOGISTIC = LogisticRegression(C=0.1, max_iter=200)


def main(rows: str, answer: str) -> None:
    data = dict(np.load(rows))
    texts = "indptr" in data
    if texts:
        import scipy.sparse as sp

        def matrix(name: str):
            n = int(data[f"{name}_rows"])
            start = {"X": 0, "X_checked": int(data["X_rows"]), "X_test": int(data["X_rows"] + data["X_checked_rows"])}
            return everything[start[name] : start[name] + n]

        everything = sp.csr_matrix((data["values"], data["indices"], data["indptr"]), shape=tuple(data["shape"]))
        X, checked, test = matrix("X"), matrix("X_checked"), matrix("X_test")
        models = {"logistic": LogisticRegression(C=3.0, max_iter=200)}
    else:
        X, checked, test = data["X"], data["X_checked"], data["X_test"]
        models = {
            "logistic": make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler(), LOGISTIC),
            "boosting": BOOSTING,
        }
        trees = ExtraTreesClassifier(50, min_samples_leaf=5, max_features=0.3, random_state=0)
        filled = make_pipeline(SimpleImputer(keep_empty_features=True), trees)
        models["mixture"] = VotingClassifier([*models.items(), ("trees", filled)], voting="soft")
        if data["pictures"]:  # boosting of 784 columns and ten classes takes minutes
            models = {"logistic": LOGISTIC}
    given, right = data["given"], data["right"]
    result = {}
    for name, model in models.items():
        began = time.process_time()
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        P = cross_val_predict(model, X, given, cv=folds, method="predict_proba")
        issues, quality = find_label_issues(given, P), get_label_quality_scores(given, P)
        stacked = sp.vstack([X[~issues], checked]) if texts else np.vstack([X[~issues], checked])
        fitted = model.fit(stacked, np.concatenate([given[~issues], right]))
        chances = np.zeros((test.shape[0], int(data["classes"])))
        chances[:, fitted.classes_] = fitted.predict_proba(test)
        result |= {f"{name} quality": quality, f"{name} issues": issues, f"{name} test": chances}
        result[f"{name} seconds"] = time.process_time() - began
    np.savez(answer, **result)


if __name__ == "__main__":
    main(*sys.argv[1:3])
