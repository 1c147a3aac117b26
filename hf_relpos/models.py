"""The classes of patched models, made from the family specs when first asked for, and their Auto registration.

``RelPosBertForMaskedLM`` and the like are looked up here by name, also by pickle.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel

from hf_relpos.checkpoints.saving import HubMixin
from hf_relpos.compat import transformers as compat
from hf_relpos.families import FAMILIES, Family, family_of
from hf_relpos.modeling import attention
from hf_relpos.modeling.classes import RelPosModelMixin
from hf_relpos.modeling.configs import config_class_of, config_name_of
from hf_relpos.modeling.finding import is_model_class
from hf_relpos.names import CLASS_PREFIX


def patched_class(base: type) -> type | None:
    """The class that modules of a class have in a patched model; None if they keep theirs."""
    family = family_of(base)
    return None if family is None else _classes_of(family).get(base)


def register(family: Family) -> None:
    """Make the attention, and a family's models, known to Transformers (again, harmlessly, if called twice)."""
    _classes_of(family)


def __getattr__(name: str) -> Any:
    families = _families_of_name(name)
    for family in families:
        _classes_of(family)
        if name in globals():
            return globals()[name]
    raise AttributeError(_not_there(name, families))


def _families_of_name(name: str) -> list[Family]:
    """The families that a class can be of, by how its name begins; the likeliest first."""
    families = [family for family in FAMILIES.values() if name.startswith(CLASS_PREFIX + family.prefix)]
    return sorted(families, key=lambda family: len(family.prefix), reverse=True)


def _not_there(name: str, families: list[Family]) -> str:
    """What to say of a class that there is not: which ones its family has, or which families there are."""
    if families:
        family = families[0]
        models = [made.__name__ for made in _classes_of(family).values() if issubclass(made, PreTrainedModel)]
        return (
            f"hf_relpos has no {name!r}. Of this family there are the models that Transformers has: "
            f"{', '.join(sorted(models))}, and {config_name_of(family)}."
        )
    prefixes = ", ".join(f"{CLASS_PREFIX}{family.prefix}..." for family in FAMILIES.values())
    return (
        f"hf_relpos has no {name!r}. Its classes are named after those of Transformers, for the supported families: "
        f"{prefixes}."
    )


def __dir__() -> list[str]:
    # Those that an Auto class has, and those that were made: the others would have to be made to be known.
    heads = {family.patched_name(head) for family in FAMILIES.values() for head in compat.head_names(family.package)}
    return sorted(heads | set(globals()))


@cache
def _classes_of(family: Family) -> dict[type, Any]:
    """Every class of a family that changes when a model is patched, with the class it changes to."""
    modeling = vars(family.modeling)
    overridden = {modeling[name]: mixin for name, mixin in family.overrides.items()}
    bases = {base: mixin for base, mixin in overridden.items() if issubclass(base, PreTrainedModel)}
    classes = {base: _subclass(family, base, mixin) for base, mixin in overridden.items() if base not in bases}
    config_class = config_class_of(family)
    for base in list(modeling.values()):
        if isinstance(base, type) and base.__module__ == family.modeling_name and is_model_class(base):
            unsplit: list[str] = getattr(base, "_no_split_modules", None) or []
            made = _subclass(
                family,
                base,
                RelPosModelMixin,
                HubMixin,
                *(mixin for shared, mixin in bases.items() if issubclass(base, shared)),
                config_class=config_class,
                relpos_family=family,
                relpos_class_of=staticmethod(patched_class),
                _no_split_modules=[family.patched_name(name) if name in family.overrides else name for name in unsplit],
            )
            compat.record_outputs_of(made)
            classes[base] = made
    _introduce(family, config_class, classes)
    return classes


def _subclass(family: Family, base: type, *mixins: type, **attributes: Any) -> type:
    """The patched class for a class of a family. Lives in this module under its name, so that it can be pickled."""
    name = family.patched_name(base.__name__)
    namespace = {
        "__module__": __name__,
        "__qualname__": name,
        "__doc__": f"``{base.__name__}`` with relative positions.",
        "relpos_original": base,
        **attributes,
    }
    made = type(name, (*mixins, base), namespace)
    globals()[name] = made
    return made


def _introduce(family: Family, config_class: Any, classes: dict[type, Any]) -> None:
    """Make the attention, and a family's models, known to Transformers."""
    attention.register()
    for auto_class, mapping in list(compat.auto_classes()):
        heads = mapping.get(family.config_class, None)
        for head in heads if isinstance(heads, (tuple, list)) else (heads,):
            if head in classes:
                auto_class.register(config_class, classes[head], exist_ok=True)
    compat.name_in_model_lists(family.package, config_class.model_type, family.patched_name)
    tokenizer = compat.auto_tokenizer_of(family.config_class)
    if tokenizer is not None:
        AutoTokenizer.register(config_class, tokenizer, exist_ok=True)
