"""The error of what cannot be compared."""

from hf_relpos.errors import RelPosError


class ComparisonError(RelPosError, ValueError):
    """Position settings cannot be compared like this: says what was given, what is allowed, and what to do."""
