"""Losses of scikit-learn models for each combination of their hyperparameters.

usage: _tables.py    recompute the tables of benchmarks/data, which takes some minutes
"""

from __future__ import annotations

import csv
import itertools
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timonel.tuning.space import Parameter, SearchSpace

Values = Mapping[str, Any]
DATA = Path(__file__).parent / "data"

SVM = SearchSpace((
    Parameter("C", "discrete", values=tuple(10.0**i for i in range(-3, 7)), scale="log"),
    Parameter("gamma", "discrete", values=tuple(10.0 ** (i / 2) for i in range(-10, 3)),
              scale="log"),
    Parameter("scaling", "categorical", values=("none", "standard")),
))  # fmt: skip
MLP = SearchSpace((
    Parameter("units", "discrete", values=(4, 8, 16, 32, 64, 128), scale="log"),
    Parameter("lr", "discrete", values=tuple(10.0 ** (i / 2) for i in range(-8, 0)), scale="log"),
    Parameter("alpha", "discrete", values=(1e-4, 1e-2, 1.0), scale="log"),
    Parameter("activation", "categorical", values=("relu", "tanh")),
    Parameter("batch", "discrete", values=(16, 64), scale="log"),
))  # fmt: skip


def read_table(name: str) -> dict[tuple[str, ...], float]:
    """Return the loss of each point, by the texts of its values."""
    with (DATA / f"{name}.csv").open() as file:
        rows = list(csv.reader(file))[1:]
    return {tuple(values): float(loss) for *values, loss in rows}


def write_tables() -> None:
    """Recompute the tables: the losses of scikit-learn models in 3-fold cross-validation."""
    from sklearn import datasets

    DATA.mkdir(exist_ok=True)
    for name, space, data, loss in (
        ("digits", SVM, datasets.load_digits(), svm_error),
        ("breast_cancer", MLP, datasets.load_breast_cancer(), mlp_loss),
    ):
        names = [parameter.name for parameter in space.parameters]
        with (DATA / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*names, "loss"])
            for row in itertools.product(*(p.values for p in space.parameters)):
                found = loss(data, dict(zip(names, row, strict=True)))
                writer.writerow([*row, f"{found:.5f}"])


def svm_error(data: Any, values: Values) -> float:
    """Return the error of a support-vector machine with radial basis functions."""
    from sklearn import model_selection, pipeline, preprocessing, svm

    scaler = {
        "none": "passthrough",
        "standard": preprocessing.StandardScaler(),
    }[values["scaling"]]
    model = pipeline.make_pipeline(scaler, svm.SVC(C=values["C"], gamma=values["gamma"]))
    return 1 - model_selection.cross_val_score(model, data.data, data.target, cv=3).mean()


def mlp_loss(data: Any, values: Values) -> float:
    """Return the cross entropy of a network with one hidden layer after 20 epochs."""
    from sklearn import model_selection, neural_network, pipeline, preprocessing

    network = neural_network.MLPClassifier(
        (values["units"],),
        activation=values["activation"],
        learning_rate_init=values["lr"],
        alpha=values["alpha"],
        batch_size=values["batch"],
        max_iter=20,
        random_state=0,
    )
    model = pipeline.make_pipeline(preprocessing.StandardScaler(), network)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training does not converge in 20 epochs
        scores = model_selection.cross_val_score(
            model, data.data, data.target, scoring="neg_log_loss", cv=3
        )
    return -scores.mean()


if __name__ == "__main__":
    write_tables()
