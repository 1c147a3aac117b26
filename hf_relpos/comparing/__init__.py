"""One task, several position settings, several seeds: fine-tuned alike, and compared."""

from hf_relpos.comparing.comparison import compare, sweep
from hf_relpos.comparing.errors import ComparisonError
from hf_relpos.comparing.record import Comparison

__all__ = ["Comparison", "ComparisonError", "compare", "sweep"]
