"""Names that what is saved contains, so that they never change: of what Transformers is told of, and of engines."""

# Under this name our attention and our masks are in Transformers' registries.
ATTENTION_NAME = "relpos"

# How the class of a patched model, and its `model_type`, differ from those it had before.
CLASS_PREFIX = "RelPos"
TYPE_PREFIX = "relpos-"

# The attribute of an attention module, or of a stack whose layers share them, that has the relative positions; and the
# one of a native table that has its gate. Every parameter that a patch adds is in one of these.
LAYER = "relpos"
NATIVE_GATE = "relpos_gate"

# The ways to compute attention that users choose among (`hf_relpos.engines` has them), and those of release 0.1.0 that
# are gone.
ENGINE_NAMES = ("auto", "fused", "eager", "blockwise")
FORMER_ENGINES = ("dense", "banded", "toeplitz")
