r"""
Few-shot learning on generated tasks
====================================

A network learns features with which a support vector machine recognises new classes from five examples each. The
support vector machine of a task is the lower level,

.. math:: y^*(x) = \operatorname*{argmin}_{0 \le y \le C} \tfrac12 y^\top G(x) y - \mathbf 1^\top y,

and the network's parameters are the upper variables. The images are generated pen strokes.
"""

import matplotlib.pyplot as plt
import torch

from bilevel.few_shot import ConvNet, Episodes, MetaLearner, SVMHead, generated_images

torch.manual_seed(0)

# %%
# 40 classes of strokes: 30 for training, and 10 that are not used for training.
images = generated_images(40, 20, size=16)
train = Episodes(images[:30], ways=5, shots=5, queries=5)
novel = Episodes(images[30:], ways=5, shots=5, queries=10)

figure, axes = plt.subplots(4, 6, figsize=(6.4, 4.6), layout="constrained")
for row, kind in zip(axes, (0, 1, 30, 31), strict=True):
    for axis, picture in zip(row, images[kind, :6, 0], strict=True):
        axis.imshow(picture, cmap="gray_r")
        axis.axis("off")
figure.suptitle("Two classes for training (above), two novel ones (below)")
plt.show()

# %%
# Train, and evaluate on novel classes from time to time.
learner = MetaLearner(ConvNet(image_size=16, width=16, normalise=True), SVMHead(ways=5), tasks_per_step=2)
curve = [(0, learner.evaluate(novel, count=60))]
for steps in (20, 40, 80, 120):
    learner.fit(train, steps=steps)
    curve.append((steps, learner.evaluate(novel, count=60)))
    print(steps, curve[-1][1])

# %%
# The band is the confidence interval of the mean over 60 tasks.
figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
steps, found = zip(*curve, strict=True)
axis.errorbar(steps, [a.mean for a in found], [a.interval for a in found], marker="o", capsize=3)
axis.axhline(0.2, color="0.7", linestyle="--", label="guessing")
axis.set(xlabel="training steps", ylabel="accuracy", title="five new classes from five examples each")
axis.legend(frameon=False)
plt.show()
