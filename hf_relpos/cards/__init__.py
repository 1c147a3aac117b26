"""Model cards: written on save and push, and by :func:`write_model_card` with what only the user knows."""

from hf_relpos.cards.card import ModelCardError, write_model_card

__all__ = ["ModelCardError", "write_model_card"]
