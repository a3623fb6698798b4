"""In a scikit-learn pipeline: which digits are new?

`km.KernelMixture` is a density estimator in the style of scikit-learn: it can follow a PCA in a
pipeline, be cloned and be tuned by grid search. Fitted to handwritten digits from 0 to 4, its
density is low for those from 5 to 9, which it has never seen.
"""

import os

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline

import kermix as km

quick = bool(os.environ.get("KERMIX_QUICK"))
digits = load_digits()
pictures, low = digits.images / 16, digits.target < 5
train, test, unseen = pictures[low][:700], pictures[low][700:], pictures[~low][:200]

options = {"steps": 10, "refine_steps": 10} if quick else {"steps": 300, "refine_steps": 300}
model = make_pipeline(
    PCA(16, random_state=0),
    km.KernelMixture(64, random_state=0, **options),
).fit(train.reshape(-1, 64))

ordinary = model.score_samples(test.reshape(-1, 64))
strange = model.score_samples(unseen.reshape(-1, 64))
scores = np.concatenate([ordinary, strange])
labels = np.repeat([0, 1], [len(ordinary), len(strange)])
area = roc_auc_score(labels, -scores)
print(f"area under the ROC curve: {area:.3f}")

figure = plt.figure(figsize=(8, 3), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1.2, 1])
ax = left.subplots()
bins = np.linspace(np.quantile(scores, 0.01), scores.max(), 40)
ax.hist(ordinary, bins, alpha=0.7, color="#0072B2", label="0 to 4, not used for the fit")
ax.hist(strange, bins, alpha=0.7, color="#D55E00", label="5 to 9")
ax.set(xlabel="log-density", title=f"area under the ROC curve {area:.3f}")
ax.legend(fontsize=7)
everything = np.concatenate([test, unseen])
for panel, index in zip(right.subplots(3, 5).flat, scores.argsort(), strict=False):
    panel.imshow(everything[index], cmap="gray_r")
    panel.axis("off")
right.suptitle("the least likely", fontsize=9)
figure.savefig("pipeline.png", dpi=110)
