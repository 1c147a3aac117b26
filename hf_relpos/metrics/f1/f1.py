"""The F1 score as a local `evaluate` module: the harmonic mean of precision and recall."""

from __future__ import annotations

import datasets
import evaluate
from sklearn.metrics import f1_score

_DESCRIPTION = "The harmonic mean of precision and recall: 2 * precision * recall / (precision + recall)."

_INPUTS = """
Args:
    predictions (list of int): predicted class ids.
    references (list of int): true class ids, as many as predictions.
    average (str or None): "binary" (default, two classes), "macro" (the plain mean over the classes),
        "micro", "weighted" (the mean weighted by class size), or None (one score per class).
    labels (list of int, optional): the classes to average over; by default all that occur.
    pos_label (int): the positive class when average is "binary".
    sample_weight (list of float, optional): one weight per prediction.
Returns:
    {"f1": float}, or {"f1": list of float} if average is None.
"""


class F1(evaluate.Metric):
    """F1 score of class ids, computed by scikit-learn."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")}),
            reference_urls=["https://scikit-learn.org/stable/modules/generated/sklearn.metrics.f1_score.html"],
        )

    def _compute(
        self,
        predictions: list[int],
        references: list[int],
        average: str | None = "binary",
        labels: list[int] | None = None,
        pos_label: int = 1,
        sample_weight: list[float] | None = None,
    ) -> dict[str, float | list[float]]:
        # A class that is neither predicted nor present has no precision or recall: it counts as 0.
        score = f1_score(
            references,
            predictions,
            labels=labels,
            pos_label=pos_label,
            average=average,
            sample_weight=sample_weight,
            zero_division=0.0,
        )
        return {"f1": score.tolist() if average is None else float(score)}


METRIC = F1
