"""The cards that are written without being asked for: when a model is saved, and when it is pushed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hf_relpos.cards import ownership
from hf_relpos.cards.card import is_hub_id, model_card

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def write_card(model: PreTrainedModel, directory: Path, carries_code: bool = False) -> None:
    """Write the card of a model that is saved, unless there is one that somebody has written, or the Trainer."""
    path = directory / "README.md"
    if not path.exists() or ownership.is_untouched(path.read_text(encoding="utf-8"), ownership.ON_SAVING):
        card = model_card(model, directory.resolve().name, standalone=carries_code)
        path.write_text(ownership.mark(str(card), ownership.ON_SAVING), encoding="utf-8")


def card_for_push(
    model: PreTrainedModel,
    text: str | None,
    repo_id: str,
    revision: str | None = None,
    token: bool | str | None = None,
    carries_code: bool = False,
) -> str:
    """The text of the card to push.

    Args:
        model: a patched model.
        text: the card about to be pushed, if there is one.
        repo_id: where to.
        revision: the branch it goes to.
        token: for the Hub.
        carries_code: whether the repo is to load without this package.

    Returns:
        The first of these that somebody has written, with the metadata it lacks: the given text, the one on the Hub.
        If nobody has, a new card with the metadata of the one on the Hub.
    """
    from huggingface_hub import ModelCard, ModelCardData

    there = _text_on_hub(repo_id, revision, token)
    written = [one for one in (text, there) if one is not None and not ownership.is_untouched(one, ownership.ON_SAVING)]
    there_data = {} if there is None else ModelCard(there).data.to_dict()
    base_model = there_data.get("base_model")
    known = base_model if isinstance(base_model, str) and is_hub_id(base_model) else None
    ours = model_card(model, repo_id, base_model=known, standalone=carries_code)
    if written:
        card = ModelCard(written[0])
        card.data = ModelCardData(**ownership.completed(card.data.to_dict(), ours.data.to_dict()))
        return str(card)
    ours.data = ModelCardData(**ownership.completed(ours.data.to_dict(), there_data))
    return ownership.mark(str(ours), ownership.ON_SAVING)


def _text_on_hub(repo_id: str, revision: str | None, token: bool | str | None) -> str | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, RevisionNotFoundError

    for place in dict.fromkeys((revision, None)):  # a branch that is not there yet starts from the main one
        try:
            return Path(hf_hub_download(repo_id, "README.md", revision=place, token=token)).read_text(encoding="utf-8")
        except RevisionNotFoundError:
            continue
        except EntryNotFoundError:
            return None
    return None
