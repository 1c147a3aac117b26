"""Model folders and Hub repos that load without this package, by the code they carry.

Such a folder has the package's sources beside its weights (:mod:`hf_relpos.checkpoints.bundle`) and a config that
names the classes in them for every Auto class, so that ``trust_remote_code=True`` is all a reader of it needs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hf_relpos.cards.saving import card_for_push, write_card
from hf_relpos.checkpoints.bundle import LICENCE, PACKAGE, PREFIX, bundled_files, file_of, is_bundled, is_carried
from hf_relpos.compat import transformers as compat
from hf_relpos.errors import PatchStateError
from hf_relpos.installing import HOW_TO_INSTALL, WITHOUT_INSTALLING
from hf_relpos.modeling.state import check_config, is_patched_model
from hf_relpos.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# The file that a saved config names, whether it imports the package or the files beside it.
ENTRY = "modeling_hf_relpos"
ENTRY_FILE = f"{ENTRY}.py"

# The import stands in a `try`: Transformers would take another for the name of a package to install from an index.
_ENTRY_OF_PACKAGE = '''\
"""The code of this model is the Python package hf_relpos."""

try:
    from hf_relpos import {config}
except ModuleNotFoundError as error:
    if error.name != "hf_relpos":
        raise
    raise ModuleNotFoundError(
        "The code of this model is the Python package hf_relpos, which is not installed. "
        "{how_to_install} "
        "{without_installing}",
        name="hf_relpos",
    ) from None

__all__ = ["{config}"]
'''

_ENTRY_OF_BUNDLE = '''\
"""The entry to the code of this model: hf_relpos {version}, in the relpos_*.py files beside this one.

Where the package hf_relpos is installed, the package is used instead: it also has a compiled kernel, which is faster.
"""

try:
    from hf_relpos import (
        {names},
    )
except ModuleNotFoundError as error:
    if error.name != "hf_relpos":
        raise
    from .{configuration} import {config}
    from .{models} import (
        {models_names},
    )

    # When the model is saved again, the file that defines its config's class goes along, and all that it imports.
    {config}.__module__ = __name__

__all__ = [
    {quoted},
]
'''


def save_standalone(
    model: PreTrainedModel,
    directory: str | os.PathLike[str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **options: Any,
) -> Path:
    """Save a patched model so that it also loads without this package, with ``trust_remote_code=True``.

    What it computes is the same, up to rounding: the folder carries the engines in Python, and the compiled one stays
    with the package. Where the package is installed, the package's code is used.

    Args:
        model: a patched model.
        directory: the folder to save it in; made if it does not exist.
        tokenizer: saved beside it.
        **options: for ``model.save_pretrained``, for example ``max_shard_size``.

    Returns:
        The folder.

    Raises:
        PatchStateError: if the model is not patched, or has a scheme or a family that another package has registered.
    """
    _check(model)
    directory = Path(directory)
    model.save_pretrained(directory, **options)
    if tokenizer is not None:
        tokenizer.save_pretrained(directory)
    for name, text in bundled_files().items():
        (directory / name).write_text(text, encoding="utf-8")
    (directory / ENTRY_FILE).write_text(entry_of_bundle(model), encoding="utf-8")
    config = directory / "config.json"
    values = {**json.loads(config.read_text(encoding="utf-8")), "auto_map": auto_map(model)}
    config.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    write_card(model, directory, carries_code=True)
    return directory


def push_to_hub_standalone(
    model: PreTrainedModel,
    repo_id: str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    commit_message: str = "Upload model with its code",
    private: bool | None = None,
    token: bool | str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    **options: Any,
) -> Any:
    """Push a patched model to a Hub repo that also loads without this package; see :func:`save_standalone`.

    Args:
        model: a patched model.
        repo_id: the repo, made if it does not exist.
        tokenizer: pushed with it.
        commit_message: of the commit.
        private: whether a repo that is made is private.
        token: for the Hub; that of the login by default.
        revision: the branch to push to, made if it does not exist.
        create_pr: whether to open a pull request instead.
        **options: for ``model.save_pretrained``, for example ``max_shard_size``.

    Returns:
        What ``huggingface_hub`` returns of the commit, among it ``oid`` and ``commit_url``.

    Raises:
        PatchStateError: if the model is not patched, or has a scheme or a family that another package has registered.
    """
    from huggingface_hub import HfApi

    _check(model)
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    if revision is not None and not create_pr:
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    with TemporaryDirectory() as folder:
        directory = save_standalone(model, folder, tokenizer=tokenizer, **options)
        card = directory / "README.md"
        text = card_for_push(model, card.read_text(encoding="utf-8"), repo_id, revision, token, carries_code=True)
        card.write_text(text, encoding="utf-8")
        return api.upload_folder(
            repo_id=repo_id,
            folder_path=directory,
            commit_message=commit_message,
            revision=revision,
            create_pr=create_pr,
        )


def remove_bundle(directory: Path) -> None:
    """Remove the package's sources from a folder whose config no longer names them, or names those of another version.

    Only files that say themselves that they were generated go.
    """
    for path in directory.glob(f"{PREFIX}*.py"):
        if path.is_file() and is_bundled(path.read_text(encoding="utf-8", errors="replace")):
            path.unlink()


def auto_map(model: Any) -> dict[str, str]:
    """What a standalone folder's config says: for each Auto class that knows the model's family, its class."""
    return {
        name: f"{ENTRY}.{cls}" for name, cls in {"AutoConfig": type(model.config).__name__, **_heads(model)}.items()
    }


def entry_of_package(model: Any) -> str:
    """The text of the file that imports this package, for a plain save."""
    return _generated(
        _ENTRY_OF_PACKAGE.format(
            config=type(model.config).__name__,
            how_to_install=HOW_TO_INSTALL,
            without_installing=WITHOUT_INSTALLING,
        )
    )


def entry_of_bundle(model: Any) -> str:
    """The text of the file that imports this package, or else the files beside it, for a standalone folder."""
    config = type(model.config).__name__
    models = sorted({*_heads(model).values(), type(model).__name__})
    names = [config, *models]
    return _generated(
        _ENTRY_OF_BUNDLE.format(
            version=__version__,
            config=config,
            configuration=file_of("hf_relpos.modeling.configs"),
            models=file_of("hf_relpos.models"),
            names=",\n        ".join(names),
            models_names=",\n        ".join(models),
            quoted=",\n    ".join(f'"{name}"' for name in names),
        )
    )


def _heads(model: Any) -> dict[str, str]:
    """For each Auto class that knows the model's family, the name of its class in this package."""
    found = {
        auto_class.__name__: mapping.get(type(model.config), None) for auto_class, mapping in compat.auto_classes()
    }
    return {name: cls.__name__ for name, cls in found.items() if cls is not None}


def _generated(text: str) -> str:
    return f"{LICENCE}# Generated by {PACKAGE} {__version__}.\n{text}"


def _check(model: Any) -> None:
    """Refuse a model whose code is not all in this package, before anything is written."""
    if not is_patched_model(model):
        raise PatchStateError(f"{type(model).__name__} is not patched: there is no code of this package in it to save.")
    foreign = [
        f"the scheme {scheme.name!r} (of {type(scheme).__module__})"
        for scheme in check_config(model).scheme_configs
        if not is_carried(type(scheme))
    ]
    family = model.relpos_family
    if not is_carried(family):
        foreign.append(f"the family {family.package!r}")
    if foreign:
        raise PatchStateError(
            f"{type(model).__name__} cannot be saved standalone: {' and '.join(foreign)} was registered by another "
            f"package, whose code such a folder cannot carry. Save it with save_pretrained, and import that package "
            "before loading it."
        )
