"""The errors of the package. Each is also a built-in error, so existing ``except`` clauses keep working."""

from collections.abc import Iterable


class RelPosError(Exception):
    """Base of every error this package raises on purpose."""


class UnsupportedModelError(RelPosError, TypeError):
    """The object given is not a model that can be patched."""


class PatchStateError(RelPosError, ValueError):
    """The model is patched already, not patched, or can no longer be brought back."""


class NothingPatchedError(RelPosError, ValueError):
    """The model has no layer the configuration applies to."""


class FamilyError(RelPosError, ValueError):
    """A family's spec does not fit the models it is about, or the families there are."""


class TextsError(RelPosError, ValueError):
    """Texts cannot be read. Names the source, and what it should be."""


class RelPosConfigError(RelPosError, ValueError):
    """A configuration value is wrong. Names the field, the value and what is allowed."""


class UnknownFieldError(RelPosConfigError, TypeError):
    """A choice was given to what does not have it. Names it, and where the choices are."""


def refuse_unknown(owner: str, given: Iterable[str], known: Iterable[str], more: str = "") -> None:
    """Raise the error for fields that a config class does not have, if there are any.

    Args:
        owner: the class.
        given: the fields given.
        known: the fields it has.
        more: what else there is to say.
    """
    known = list(known)
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UnknownFieldError(
            f"{owner} has no field {', '.join(map(repr, unknown))}; it has {', '.join(map(repr, known))}{more}."
        )


def wrong_value(owner: str, field: str, value: object, allowed: str) -> RelPosConfigError:
    """The error for one wrong configuration value, in the one wording used everywhere."""
    return RelPosConfigError(f"{owner}: `{field}` is {value!r}, but must be {allowed}.")
