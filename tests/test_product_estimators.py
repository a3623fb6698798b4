"""Classifier and regressor on tables: scikit-learn's contract, quality, early stopping."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_wine, make_friedman1
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import kermix as km

SMALL = {"n_terms": 16, "width": 8, "n_members": 1, "max_epochs": 40, "batch_size": 32,
         "learning_rate": 0.02, "random_state": 0}  # fmt: skip


@parametrize_with_checks([km.ProductClassifier(**SMALL), km.ProductRegressor(**SMALL)])
def test_contract(estimator, check):
    check(estimator)
