"""RoBERTa: BERT's layers; its positions count the tokens that are no padding, from ``padding_idx + 1`` on."""

from hf_relpos.families.base import Family
from hf_relpos.families.native import AbsoluteEmbedding
from hf_relpos.families.open_length import OpenTokenTypes

ROBERTA = Family(
    package="roberta",
    config="RobertaConfig",
    attention="RobertaSelfAttention",  # cross-attention has a class of its own
    num_heads="num_attention_heads",
    head_dim="attention_head_size",
    causal="is_causal",
    natives=(
        AbsoluteEmbedding(
            owner="RobertaEmbeddings",
            table="position_embeddings",
            first=lambda table: table.padding_idx + 1,
            length=lambda config: config.max_position_embeddings - config.pad_token_id - 1,
        ),
    ),
    overrides={"RobertaEmbeddings": OpenTokenTypes},
)
