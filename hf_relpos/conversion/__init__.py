"""From a pretrained model to one with relative positions alone that says the same, and reads on where it ended.

The original is the teacher and its copy the student; unlabelled text is enough. ``hf_relpos.convert`` is the verb. (The
package has a name of its own since ``hf_relpos.convert`` is that function.)
"""

from hf_relpos.conversion.conversion import convert
from hf_relpos.conversion.errors import ConversionError
from hf_relpos.conversion.fidelity import FidelityReport, FidelityRow
from hf_relpos.conversion.matching import Matching

__all__ = ["ConversionError", "FidelityReport", "FidelityRow", "Matching", "convert"]
