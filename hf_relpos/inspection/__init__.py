"""What a patched model has learned about positions, and how much its attention goes by them."""

from hf_relpos.inspection.inspection import inspect_model
from hf_relpos.inspection.record import Inspection

__all__ = ["Inspection", "inspect_model"]
