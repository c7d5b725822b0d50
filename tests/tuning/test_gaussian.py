from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad
from sklearn.gaussian_process import GaussianProcessRegressor, kernels

from timonel.tuning.gaussian import Regression, _squared_differences


def model() -> Regression:
    rng = np.random.default_rng(0)
    features = rng.random((25, 3))
    losses = np.sin(5 * features[:, 0]) + features[:, 1] ** 2 + 0.01 * rng.standard_normal(25)
    return Regression(features, (losses - losses.mean()) / losses.std())


def test_gradient_of_the_posterior() -> None:
    regression = model()
    differences = _squared_differences(regression.features)
    theta = np.array([0.3, -0.5, 0.2, 1.0, -4.0])
    error = check_grad(
        lambda t: regression._objective(t, differences)[0],
        lambda t: regression._objective(t, differences)[1],
        theta,
    )
    assert error < 1e-4


def test_predicts_as_scikit_learn_with_the_same_hyperparameters() -> None:
    regression = model()
    theta = regression.optimize()
    regression.condition()
    kernel = kernels.ConstantKernel() * kernels.Matern(np.ones(3), nu=2.5) + kernels.WhiteKernel()
    peer = GaussianProcessRegressor(kernel.clone_with_theta(theta), optimizer=None, alpha=0.0)
    peer.fit(regression.features, regression.losses)
    points = np.random.default_rng(1).random((50, 3))
    mean, deviation = peer.predict(points, return_std=True)
    ours, our_deviation = regression.predict(points)
    assert ours == pytest.approx(mean, abs=1e-6)
    assert our_deviation == pytest.approx(
        np.sqrt(np.maximum(deviation**2 - np.exp(theta[-1]), 1e-12)), abs=1e-4
    )


def test_finds_the_relevant_features() -> None:
    lengths = model().optimize()[1:-1]
    assert lengths[0] < lengths[1] < lengths[2]


def test_added_points_keep_the_mean_and_reduce_the_deviation() -> None:
    regression = model()
    regression.optimize()
    regression.condition()
    point = np.array([[0.5, 0.99, 0.01]])
    mean, deviation = regression.predict(point)
    regression.add(point)
    again, smaller = regression.predict(point)
    assert again == pytest.approx(mean, abs=1e-3)
    assert smaller[0] < deviation[0]
