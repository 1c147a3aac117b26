"""Which relative positions to take for a model, a task and texts, and what has been published on it."""

from hf_relpos.advice.recommendation import Recommendation, recommend

__all__ = ["Recommendation", "recommend"]
