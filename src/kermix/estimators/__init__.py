"""Estimators with the interface of scikit-learn: arrays in, fitted models out."""
