"""
Which labels were wrong?
========================

A data set of pictures, some with wrong labels, 150 of them checked: ``HyperCleaner`` ranks the others by how little it
believes their label. The most suspicious ones are for a person to look at.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from bilevel import HyperCleaner

# %%
# 1,000 digits, the first 150 of them checked. Of the others a fifth carry a wrong label: 0 is called 3, and so on.
images, digits = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(digits))[:1000]
images, digits = images[order] / 16, digits[order]
trusted = np.arange(1000) < 150
wrong = ~trusted & (np.random.default_rng(1).random(1000) < 0.2)
given = np.where(wrong, (digits + 3) % 10, digits)

# %%
# A classifier as scikit-learn has them, with one more argument.
cleaner = HyperCleaner(random_state=0).fit(images, given, trusted=trusted)
issues = cleaner.label_issues()
found = issues.is_label_issue.to_numpy()
print(f"{(found & wrong).sum()} of {wrong.sum()} wrong labels found, {(found & ~wrong).sum()} right ones blamed")
print(f"noise model: {cleaner.noise_}")

# %%
# The 24 labels that are believed least. Under each picture the label it came with, and what the cleaned model says;
# orange ones are right after all.
worst = issues.label_quality.to_numpy().argsort()[:24]
figure, axes = plt.subplots(3, 8, figsize=(10, 4.6), layout="constrained")
for axis, row in zip(axes.flat, worst, strict=True):
    axis.imshow(images[row].reshape(8, 8), cmap="gray_r")
    colour = "tab:blue" if wrong[row] else "tab:orange"
    axis.set_title(f"{given[row]}? {issues.predicted_label.iloc[row]}", fontsize=10, color=colour)
    axis.axis("off")
figure.suptitle("The most suspicious labels: the label as given, and what the cleaned model says")
plt.show()

# %%
# How far is each label believed? Between the two heaps a person has to look.
figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
bins = np.linspace(0, 1, 31)
axis.hist(issues.label_quality[~wrong], bins=bins, alpha=0.7, label="right label")
axis.hist(issues.label_quality[wrong], bins=bins, alpha=0.7, label="wrong label")
axis.set(xlabel="label quality", ylabel="rows", yscale="log", title="quality of right and wrong labels")
axis.legend(frameon=False)
plt.show()
