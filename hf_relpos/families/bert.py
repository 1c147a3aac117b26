"""BERT: learned absolute positions, added to the word embeddings."""

from hf_relpos.families.base import Family
from hf_relpos.families.native import AbsoluteEmbedding
from hf_relpos.families.open_length import OpenLengthEmbeddings

BERT = Family(
    package="bert",
    config="BertConfig",
    attention="BertSelfAttention",  # cross-attention has a class of its own
    num_heads="num_attention_heads",
    head_dim="attention_head_size",
    causal="is_causal",
    natives=(AbsoluteEmbedding(owner="BertEmbeddings", table="position_embeddings"),),
    overrides={"BertEmbeddings": OpenLengthEmbeddings},
    mostly_trained_at=128,  # Devlin et al. 2019, appendix A.2
)
