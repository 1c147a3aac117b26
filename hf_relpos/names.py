"""Names that the package and Transformers share. What is saved contains them, so they never change."""

# Under this name our attention and our masks are in Transformers' registries.
ATTENTION_NAME = "relpos"

# How the class of a patched model, and its `model_type`, differ from those it had before.
CLASS_PREFIX = "RelPos"
TYPE_PREFIX = "relpos-"

# The attribute of an attention module, or of a stack whose layers share them, that has the relative positions; and the
# one of a native table that has its gate. Every parameter that a patch adds is in one of these.
LAYER = "relpos"
NATIVE_GATE = "relpos_gate"
