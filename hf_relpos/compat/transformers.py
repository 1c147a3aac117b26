"""Transformers: its private names, and what we change in it. A release that moves one of them is mended here."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import nn
from transformers.utils import output_capturing


def mark_initialized(module: nn.Module) -> None:
    """Mark a module, and all inside it, as one whose parameters have their values, as loading and constructing do.

    A model that is put into another one would else be given new start values when that one is constructed
    (``post_init``). Transformers looks at the mark of a module, which copies and pickles keep; where somebody asks for
    start values of a module that is marked, it looks at those of its parameters.
    """
    for inner in module.modules():
        inner._is_hf_initialized = True  # type: ignore[assignment]
        for parameter in inner.parameters(recurse=False):
            parameter._is_hf_initialized = True  # type: ignore[attr-defined]


def unmark_initialized(module: nn.Module) -> None:
    """Take that mark off a module's parameters, so that it can be asked for start values."""
    for parameter in module.parameters():
        vars(parameter).pop("_is_hf_initialized", None)


def weights_wanted() -> bool:
    """Whether the running forward pass records attention weights.

    The flag ``output_attentions`` does not reach the attention function in every model, and the config's never does;
    the collector that Transformers opens for the pass is the one reliable sign.
    """
    collected = output_capturing._active_collector.get()
    return collected is not None and any("attentions" in key for key in collected)


def record_outputs_of(model_class: Any) -> None:
    """Let instances of a class record attentions and hidden states, though its ``__init__`` never ran for them.

    Transformers keeps what a class can record by the class's name, and fills it in when a model is constructed; a
    model whose class was swapped would return None for ``output_attentions`` and ``output_hidden_states``.
    """
    # The registry is a dict whose own item assignment changed from the class's name to the model in 5.24.
    dict.__setitem__(output_capturing._CAN_RECORD_REGISTRY, str(model_class), model_class._can_record_outputs)


def dense_pattern(**mask_arguments: Any) -> Any:
    """The bool mask ``[batch, 1, queries, keys]`` for a mask function that only ``vmap`` can evaluate."""
    from transformers.masking_utils import sdpa_mask

    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(**{**mask_arguments, **skips})


class _MadeWhenAsked(dict[str, Any]):
    """Config classes by model type; what is no class is a function that makes one, called when it is looked up."""

    def __getitem__(self, model_type: str) -> Any:
        value = super().__getitem__(model_type)
        return value if isinstance(value, type) else value()

    def values(self) -> Any:
        return [self[model_type] for model_type in self]

    def items(self) -> Any:
        return [(model_type, self[model_type]) for model_type in self]


def register_config(model_type: str, make: Callable[[], type]) -> None:
    """Have ``AutoConfig`` know a config class, which is made when first looked up (again, harmlessly, if called twice).

    ``AutoConfig.register`` takes the class itself, for which the config of every family would have to be imported.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if not isinstance(CONFIG_MAPPING._extra_content, _MadeWhenAsked):
        CONFIG_MAPPING._extra_content = _MadeWhenAsked(CONFIG_MAPPING._extra_content)
    CONFIG_MAPPING._extra_content[model_type] = make


def auto_classes() -> Iterator[tuple[Any, Any]]:
    """Every Auto class for models, with its mapping from config classes to model classes."""
    from transformers.models.auto import modeling_auto

    for auto_class in vars(modeling_auto).values():
        mapping = getattr(auto_class, "_model_mapping", None)
        if isinstance(auto_class, type) and mapping is not None:
            yield auto_class, mapping


def auto_tokenizer_of(config_class: type) -> Any:
    """What ``AutoTokenizer`` uses for a config class: a tokenizer class, a pair of them, or None."""
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

    return TOKENIZER_MAPPING.get(config_class, None)


def head_names(model_type: str) -> set[str]:
    """The names of the classes that the Auto classes have for a model type; none of them is imported."""
    from transformers.models.auto import modeling_auto

    named = [names.get(model_type, ()) for names in _model_lists(modeling_auto)]
    return {name for names in named for name in ([names] if isinstance(names, str) else names) if name}


def _model_lists(modeling_auto: Any) -> Iterator[dict[str, Any]]:
    """Transformers' lists of model names by task: model type to a name, or several."""
    for list_name, names in vars(modeling_auto).items():
        if re.fullmatch(r"MODEL_\w*MAPPING_NAMES", list_name):
            yield names


def name_in_model_lists(base_type: str, model_type: str, patched_name: Callable[[str], str]) -> None:
    """Add the patched classes to Transformers' lists of model names by task.

    The Trainer's label smoothing decides by these names whether labels are to be shifted, and would compute a wrong
    loss for a causal language model that is not in them. The lists serve look-ups of built-in models too; those skip
    a type they have no built-in config for.
    """
    from transformers.models.auto import modeling_auto

    for names in _model_lists(modeling_auto):
        if base_type in names:
            named = names[base_type]
            names[model_type] = (
                patched_name(named) if isinstance(named, str) else tuple(patched_name(name) for name in named if name)
            )


def replace_trainer_card(
    applies: Callable[[Any], bool], write: Callable[[Any, Any, dict[str, Any]], None], more: Collection[str]
) -> None:
    """Have the Trainer's model card written by us, for some models; once, and if the Trainer is in use.

    There is no hook in ``Trainer.create_model_card``, so it is wrapped; for all other models it is what it was.

    Args:
        applies: whether to a model.
        write: called with the Trainer, the model, and the arguments that ``create_model_card`` was given.
        more: names of arguments that it takes for such models besides those it has.
    """
    module = sys.modules.get("transformers.trainer")
    if module is None or hasattr(module.Trainer.create_model_card, "relpos_wrapped"):
        return
    original = module.Trainer.create_model_card

    @functools.wraps(original)
    def create_model_card(trainer: Any, *args: Any, **kwargs: Any) -> None:
        model = trainer.accelerator.unwrap_model(trainer.model)
        if not applies(model):
            original(trainer, *args, **kwargs)
        elif trainer.is_world_process_zero():
            ours = {name: kwargs.pop(name) for name in more if name in kwargs}
            given = inspect.signature(original).bind(trainer, *args, **kwargs).arguments
            given.pop("self")
            write(trainer, model, {**given, **ours})

    create_model_card.relpos_wrapped = True  # type: ignore[attr-defined]
    module.Trainer.create_model_card = create_model_card
