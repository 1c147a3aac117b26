"""The errors of the package. Each is also a built-in error, so existing ``except`` clauses keep working."""


class RelPosError(Exception):
    """Base of every error this package raises on purpose."""


class UnsupportedModelError(RelPosError, TypeError):
    """The object given is not a model that can be patched."""


class PatchStateError(RelPosError, ValueError):
    """The model is patched already, not patched, or can no longer be brought back."""


class NothingPatchedError(RelPosError, ValueError):
    """The model has no layer the configuration applies to."""


class RelPosConfigError(RelPosError, ValueError):
    """A configuration value is wrong. Names the field, the value and what is allowed."""


def wrong_value(owner: str, field: str, value: object, allowed: str) -> RelPosConfigError:
    """The error for one wrong configuration value, in the one wording used everywhere."""
    return RelPosConfigError(f"{owner}: `{field}` is {value!r}, but must be {allowed}.")
