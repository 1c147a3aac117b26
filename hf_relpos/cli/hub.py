"""Pushing what a command has made: a repo's name is checked first, and what goes wrong is one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hf_relpos.cards.card import is_hub_id
from hf_relpos.cli.errors import CommandError


def check_repo_id(repo_id: str) -> None:
    """Refuse what cannot be the name of a repo on the Hub.

    Raises:
        CommandError: If it cannot.
    """
    if not is_hub_id(repo_id):
        raise CommandError(
            f"--push-to-hub {repo_id}: that cannot be the id of a repo. Give one like me/my-model, of letters, digits, "
            "'-', '_' and '.'."
        )


def push(repo_id: str, folder_for: Callable[[str], Path], kept: Path | None) -> str:
    """Push a folder to a repo, which is made if it does not exist, in one commit.

    Args:
        repo_id: The repo, with or without its owner.
        folder_for: Gives the folder, told the repo's full id.
        kept: Where the result is, however the push ends; None if nowhere.

    Returns:
        The repo's full id.

    Raises:
        CommandError: If it cannot be pushed.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        repo: str = api.create_repo(repo_id, exist_ok=True).repo_id
        api.upload_folder(repo_id=repo, folder_path=folder_for(repo))
    except Exception as error:  # the client raises errors of its own, of the network, of the values given
        where = "nothing was pushed" if kept is None else f"the result is in {kept}, but could not be pushed"
        raise CommandError(f"--push-to-hub {repo_id}: {where}: {' '.join(str(error).split())}") from error
    print(f"pushed to {repo}")
    return repo
