"""Gaussian-process regression with a Matern 5/2 kernel, fast for few hundred points.

Its hyperparameters are one length scale per feature, the amplitude and the noise, all as logarithms
in one vector ``theta`` [amplitude, length scales..., noise]. Priors keep them sensible while the
data are few.

scikit-learn's regressor spends most of a proposal's time on inspecting kernel objects; with these
functions 1,000 proposals take about as long as those of a Parzen estimator.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
_BOUNDS = ((0.05, 20.0), (0.02, 50.0), (1e-6, 1.0))


class Regression:
    """Gaussian process on features [n, F] and losses [n] of mean 0 and deviation 1.

    Args:
        features: Features in [0, 1].
        theta: Hyperparameters of an earlier fit, None for those of the prior.
    """

    def __init__(self, features: Array, losses: Array, theta: Array | None = None) -> None:
        self.features = features
        self.losses = losses
        size = features.shape[1]
        # Length scales grow with the square root of the dimension, as distances do.
        length = math.log(0.5 * math.sqrt(size))
        self._prior_mean = np.array([0.0, *[length] * size, math.log(1e-3)])
        self._prior_deviation = np.array([1.0, *[1.0] * size, 2.0])
        self.theta = self._prior_mean if theta is None else theta

    def optimize(self) -> Array:
        """Fit the hyperparameters by maximum a posteriori and return them."""
        from scipy.optimize import (  # type: ignore[import-untyped]  # noqa: PLC0415 - loads on use
            minimize,
        )

        amplitude, length, noise = np.log(_BOUNDS)
        found = minimize(
            self._objective,
            self.theta,
            args=(_squared_differences(self.features),),
            jac=True,
            bounds=[amplitude, *[length] * self.features.shape[1], noise],
            method="L-BFGS-B",
            options={"maxiter": 30},
        )
        self.theta = np.asarray(found.x)
        return self.theta

    def condition(self) -> None:
        """Condition the process on the losses with the present hyperparameters."""
        from scipy.linalg import (  # type: ignore[import-untyped]  # noqa: PLC0415 - loads on use
            cho_solve,
            solve_triangular,
        )

        amplitude, noise = np.exp(self.theta[[0, -1]])
        kernel = self._kernel(self.features) + noise * np.eye(len(self.losses))
        factor = np.linalg.cholesky(kernel)
        self._weights = cho_solve((factor, True), self.losses, check_finite=False)
        identity = np.eye(len(factor))
        self._inverse = solve_triangular(factor, identity, lower=True, check_finite=False)
        self._amplitude = float(amplitude)

    def add(self, features: Array) -> None:
        """Add points as if the objective had returned the mean prediction."""
        mean, _ = self.predict(features)
        self.features = np.vstack([self.features, features])
        self.losses = np.concatenate([self.losses, mean])
        self.condition()

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Return the mean and the standard deviation of the objective without its noise."""
        kernel = self._kernel(features)
        explained = np.square(kernel @ self._inverse.T).sum(axis=1)
        variance = np.maximum(self._amplitude - explained, 1e-12)
        return kernel @ self._weights, np.sqrt(variance)

    def _kernel(self, features: Array) -> Array:
        """Covariances [m, n] of the objective at these features and at the model's."""
        lengths = np.exp(self.theta[1:-1])
        left, right = features / lengths, self.features / lengths
        squares = np.square(left).sum(axis=1)[:, None] + np.square(right).sum(axis=1)
        distances = np.sqrt(5 * np.maximum(squares - 2 * left @ right.T, 0.0))
        matern = (1 + distances + distances**2 / 3) * np.exp(-distances)
        return np.asarray(math.exp(self.theta[0]) * matern)

    def _objective(self, theta: Array, differences: Array) -> tuple[float, Array]:
        """Negative log posterior of the hyperparameters, and its gradient."""
        from scipy.linalg import cho_solve  # noqa: PLC0415 - loads on use

        amplitude, noise = np.exp(theta[[0, -1]])
        scales = np.exp(-2 * theta[1:-1])
        count = len(self.losses)
        distances = np.sqrt(5 * (scales @ differences)).reshape(count, count)
        decay = np.exp(-distances)
        signal = amplitude * (1 + distances + distances**2 / 3) * decay
        factor = np.linalg.cholesky(signal + noise * np.eye(count))
        weights = cho_solve((factor, True), self.losses, check_finite=False)
        inverse = cho_solve((factor, True), np.eye(count), check_finite=False)
        residual = inverse - np.outer(weights, weights)
        # The derivative of the kernel by the logarithm of a length scale.
        slope = residual * amplitude * (5 / 3) * (1 + distances) * decay
        gradient = 0.5 * np.array(
            [
                (residual * signal).sum(),
                *(scales * (differences @ slope.ravel())),
                noise * np.trace(residual),
            ]
        )
        offset = (theta - self._prior_mean) / self._prior_deviation
        value = 0.5 * self.losses @ weights + np.log(np.diag(factor)).sum() + 0.5 * offset @ offset
        return float(value), gradient + offset / self._prior_deviation


def _squared_differences(features: Array) -> Array:
    """Squared differences [F, n * n] of all pairs, one row per feature."""
    columns = features.T
    return np.square(columns[:, :, None] - columns[:, None, :]).reshape(len(columns), -1)
