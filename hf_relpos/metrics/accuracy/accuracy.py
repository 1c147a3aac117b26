"""Accuracy as a local `evaluate` module: the share of predictions that equal their reference."""

from __future__ import annotations

import datasets
import evaluate
from sklearn.metrics import accuracy_score

_DESCRIPTION = "The share of predictions that are equal to the reference: correct / all."

_INPUTS = """
Args:
    predictions (list of int): predicted class ids.
    references (list of int): true class ids, as many as predictions.
    normalize (bool): the share of correct predictions if true (default), their number otherwise.
    sample_weight (list of float, optional): one weight per prediction.
Returns:
    {"accuracy": float}, between 0 and 1 when normalized.
"""


class Accuracy(evaluate.Metric):
    """Accuracy of class ids, computed by scikit-learn."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")}),
            reference_urls=["https://scikit-learn.org/stable/modules/generated/sklearn.metrics.accuracy_score.html"],
        )

    def _compute(
        self,
        predictions: list[int],
        references: list[int],
        normalize: bool = True,
        sample_weight: list[float] | None = None,
    ) -> dict[str, float]:
        score = accuracy_score(references, predictions, normalize=normalize, sample_weight=sample_weight)
        return {"accuracy": float(score)}


METRIC = Accuracy
