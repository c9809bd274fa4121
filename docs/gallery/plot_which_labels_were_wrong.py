"""
Which labels were wrong?
========================

Some images of a data set have wrong labels, and 150 labels have been checked. ``HyperCleaner`` ranks the others by the
quality of their labels, so that a person can review the most suspicious ones first.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from bilevel import HyperCleaner

# %%
# 1,000 digits, of which the first 150 are checked. A fifth of the others have a wrong label: 0 is called 3, and so on.
images, digits = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(digits))[:1000]
images, digits = images[order] / 16, digits[order]
trusted = np.arange(1000) < 150
wrong = ~trusted & (np.random.default_rng(1).random(1000) < 0.2)
given = np.where(wrong, (digits + 3) % 10, digits)

# %%
# The interface is that of a scikit-learn classifier, with one additional argument.
cleaner = HyperCleaner(random_state=0).fit(images, given, trusted=trusted)
issues = cleaner.label_issues()
found = issues.is_label_issue.to_numpy()
print(f"{(found & wrong).sum()} of {wrong.sum()} wrong labels found, {(found & ~wrong).sum()} correct ones suspected")
print(f"noise model: {cleaner.noise_}")

# %%
# The 15 labels with the lowest quality. Below each image are its given label and the prediction of the cleaned model;
# labels in orange are correct.
worst = issues.label_quality.to_numpy().argsort()[:15]
figure, axes = plt.subplots(3, 5, figsize=(6.4, 4.6), layout="constrained")
for axis, row in zip(axes.flat, worst, strict=True):
    axis.imshow(images[row].reshape(8, 8), cmap="gray_r")
    colour = "tab:blue" if wrong[row] else "tab:orange"
    axis.set_title(f"{given[row]}? {issues.predicted_label.iloc[row]}", fontsize=16, color=colour)
    axis.axis("off")
figure.suptitle("The most suspicious labels: given label? prediction")
plt.show()

# %%
# The distribution of label quality. Labels between the two peaks should be reviewed by a person.
figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
bins = np.linspace(0, 1, 31)
axis.hist(issues.label_quality[~wrong], bins=bins, alpha=0.7, label="correct label")
axis.hist(issues.label_quality[wrong], bins=bins, alpha=0.7, label="wrong label")
axis.set(xlabel="label quality", ylabel="rows", yscale="log", title="quality of correct and wrong labels")
axis.legend(frameon=False)
plt.show()
