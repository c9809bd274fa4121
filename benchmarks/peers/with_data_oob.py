"""Data-OOB (pyDVL) on the rows of an .npz file, in an environment of its own: python with_data_oob.py ROWS ANSWER.

The value of a row is the share of bagged trees that have not seen it and predict its label. Rows with less than half
are dropped; boosting is then fitted to the others and to the checked rows.
"""

import sys
import time
import warnings

warnings.simplefilter("ignore")

import numpy as np
from pydvl.valuation.dataset import Dataset
from pydvl.valuation.methods.data_oob import DataOOBValuation
from sklearn.ensemble import BaggingClassifier, HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.tree import DecisionTreeClassifier

BOOSTING = HistGradientBoostingClassifier(
    max_iter=80, learning_rate=0.06, max_leaf_nodes=8, min_samples_leaf=40, l2_regularization=5.0, early_stopping=False
)


def main(rows: str, answer: str) -> None:
    data = dict(np.load(rows))
    X, given = data["X"], data["given"]
    began = time.process_time()
    filled = SimpleImputer(keep_empty_features=True).fit_transform(X)  # its Dataset takes no gaps
    forest = BaggingClassifier(DecisionTreeClassifier(), n_estimators=100, random_state=0).fit(filled, given)
    quality = np.asarray(DataOOBValuation(forest).fit(Dataset(filled, given)).result.values)
    quality = np.nan_to_num(quality, nan=1.0)
    issues = quality < 0.5
    model = BOOSTING.fit(np.vstack([X[~issues], data["X_checked"]]), np.concatenate([given[~issues], data["right"]]))
    chances = np.zeros((len(data["X_test"]), int(data["classes"])))
    chances[:, model.classes_] = model.predict_proba(data["X_test"])
    np.savez(answer, quality=quality, issues=issues, test=chances, seconds=time.process_time() - began)


if __name__ == "__main__":
    main(*sys.argv[1:3])
