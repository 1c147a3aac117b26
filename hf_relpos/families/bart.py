"""BART: learned absolute positions in the encoder and in the decoder, in tables that begin with two unused rows."""

from hf_relpos.families.base import Family
from hf_relpos.families.native import AbsoluteEmbedding

BART = Family(
    package="bart",
    config="BartConfig",
    attention="BartAttention",
    num_heads="num_heads",
    head_dim="head_dim",
    causal="is_causal",
    natives=(
        AbsoluteEmbedding(owner="BartEncoder", table="embed_positions", first="offset"),
        AbsoluteEmbedding(owner="BartDecoder", table="embed_positions", first="offset"),
    ),
    is_cross_attention=lambda path, attention: path.endswith("encoder_attn"),
)
