"""GPT-2: learned absolute positions, added to the word embeddings."""

from hf_relpos.families.base import Family
from hf_relpos.families.native import AbsoluteEmbedding

GPT2 = Family(
    package="gpt2",
    config="GPT2Config",
    attention="GPT2Attention",
    num_heads="num_heads",
    head_dim="head_dim",
    causal="is_causal",
    natives=(AbsoluteEmbedding(owner="GPT2Model", table="wpe"),),
    is_cross_attention=lambda path, attention: bool(attention.is_cross_attention),
)
