"""Estimators with the interface of scikit-learn: arrays in, fitted mixtures and product networks out."""
