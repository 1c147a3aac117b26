"""Families of other packages, made known to all that keeps a list of families."""

from __future__ import annotations

from hf_relpos.compat import peft
from hf_relpos.families import Family, add
from hf_relpos.modeling import configs


def register_family(family: Family) -> Family:
    """Have the models of a family patched, saved and loaded like those of the package's own families.

    To be called where the family's package is imported: whoever loads a saved model of the family has to import that
    package, as they have to import this one. Nothing of the family's modelling code is imported for it.

    Args:
        family: its spec; see ``docs/extending.md``.

    Returns:
        The spec; or the one that was registered before, if it is the same.

    Raises:
        FamilyError: (a ``ValueError``) if it is no spec, its config class does not fit, or a family of that name,
            modeling module or config is there already, with another spec.
    """
    known = add(family)
    configs.register()
    peft.introduce()
    return known
