"""What a patched model does beside storing weights when it is saved or pushed.

Its model card is written, and a card that somebody wrote is left alone. And the saved config points at one small file
that imports this package. Transformers runs it only if it does not know the model's type and is told
`trust_remote_code=True`; then it loads the model, or says how to install the package, where it would otherwise advise
to update Transformers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

from hf_relpos.cards import saving, trainer
from hf_relpos.checkpoints import standalone

_Base: Any = PreTrainedModel if TYPE_CHECKING else object


class HubMixin(_Base):
    """Saving and pushing with a model card, and with the line that says what to install."""

    def post_init(self) -> None:
        """Forget which code the folder had that the model was loaded from: it is this package's now."""
        self.config.__dict__.pop("auto_map", None)
        super().post_init()

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], is_main_process: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        """Save the model as every model is saved, with its card and a file that imports this package.

        The code that ``save_standalone`` once put into the folder goes: nothing would read it any more.
        """
        trainer.write_from_trainer()
        directory = Path(save_directory)
        writes = is_main_process and not directory.is_file()
        if writes:
            directory.mkdir(parents=True, exist_ok=True)
            saving.write_card(self, directory)
            (directory / standalone.ENTRY_FILE).write_text(standalone.entry_of_package(self), encoding="utf-8")
        with _pointing_to_package(self.config):
            super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        if writes:
            standalone.remove_bundle(directory)

    def _upload_modified_files(
        self, working_dir: str | os.PathLike[str], repo_id: str, *args: Any, **kwargs: Any
    ) -> Any:
        """The last step of a push, where Transformers has replaced our card by a stub, or by the one on the Hub."""
        path = Path(working_dir) / "README.md"
        revision, token = kwargs.get("revision"), kwargs.get("token")
        text = path.read_text(encoding="utf-8") if path.exists() else None
        path.write_text(saving.card_for_push(self, text, repo_id, revision, token), encoding="utf-8")
        return super()._upload_modified_files(working_dir, repo_id, *args, **kwargs)


@contextmanager
def _pointing_to_package(config: Any) -> Iterator[None]:
    """While a config is saved, let it name the file that imports this package."""
    # A class that was loaded through such a file is marked, and Transformers would copy this package's files as well.
    type(config)._auto_class = None
    config.auto_map = {"AutoConfig": f"{standalone.ENTRY}.{type(config).__name__}"}
    try:
        yield
    finally:
        del config.auto_map
