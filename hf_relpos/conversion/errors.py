"""What is raised where a model cannot be converted."""

from __future__ import annotations

from hf_relpos.errors import RelPosError


class ConversionError(RelPosError, ValueError):
    """A model cannot be converted as asked: says what was given, what is allowed, and what to do."""
