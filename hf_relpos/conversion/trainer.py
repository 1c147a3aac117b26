"""The Trainer of a conversion: its model learns to say what the original says."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from transformers import Trainer

from hf_relpos.conversion.batches import Batch
from hf_relpos.conversion.matching import Matching
from hf_relpos.conversion.reading import Pool, read, read_as_original
from hf_relpos.training import RelPosTrainerMixin

_SMOOTHING = 0.9  # of the agreement that is shown while training


class ConversionTrainer(RelPosTrainerMixin, Trainer):
    """A Trainer whose model learns from another one what to say of batches without labels.

    Attributes:
        agreement: the cosine of both models' embeddings, of batches before they were learned from, smoothed; None
            before the first.

    Args:
        *args: as for the Trainer.
        teacher: the original.
        pool: makes the embedding that is compared.
        matching: the loss.
        **kwargs: as for the Trainer.
    """

    def __init__(self, *args: Any, teacher: nn.Module, pool: Pool, matching: Matching, **kwargs: Any) -> None:
        super().__init__(*args, data_collator=_only_one, **kwargs)
        self.teacher = teacher
        self.pool = pool
        self.matching = matching
        self.agreement: float | None = None

    def compute_loss(self, model: Any, inputs: Batch, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of a batch.

        Both models run without dropout: the student would have to tell its noise from the original's words.
        """
        model.eval()
        theirs = read_as_original(self.teacher, inputs, self.pool)
        mine = read(model, inputs, self.pool)
        self._note_agreement(mine.embedding.detach(), theirs.embedding)
        return self.matching.loss(mine, theirs, inputs["weights"])

    def load_weights(self, checkpoint: str) -> None:
        """Take over the weights of a checkpoint."""
        self._load_from_checkpoint(checkpoint)

    def _note_agreement(self, mine: Tensor, theirs: Tensor) -> None:
        now = float(functional.cosine_similarity(mine.float(), theirs.float(), dim=-1).mean())
        before = now if self.agreement is None else self.agreement
        self.agreement = _SMOOTHING * before + (1 - _SMOOTHING) * now


def _only_one(batches: list[Batch]) -> Batch:
    """A batch comes as it is."""
    (batch,) = batches
    return batch
