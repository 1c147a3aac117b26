"""The format of the choices as JSON, in model folders and adapters: its number, and the way from earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transformers.utils import logging

from hf_relpos.errors import RelPosConfigError
from hf_relpos.names import FORMER_ENGINES
from hf_relpos.version import __version__

logger = logging.get_logger(__name__)

# Goes up by one when JSON that was written before is to be read otherwise than as it stands. The first format has no
# number in it: release 0.1.0 wrote none.
FORMAT = 2


def current_engine(name: Any) -> Any:
    """The engine that a name stands for: ``"auto"`` for one of release 0.1.0 that is gone, which the log says once."""
    if name not in FORMER_ENGINES:
        return name
    logger.warning_once(f"hf_relpos: the engine {name!r} of release 0.1.0 is gone; 'auto' is used in its place.")
    return "auto"


def _with_engines_of_today(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "engine": current_engine(values.get("engine", "auto"))}


# For each earlier format, what makes JSON of the next one of its JSON (without the number).
STEPS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _with_engines_of_today}


def migrate(values: Mapping[str, Any]) -> dict[str, Any]:
    """The choices as JSON of today's format, without its number.

    Args:
        values: JSON of any format up to today's.

    Raises:
        RelPosConfigError: for a format that this version does not know.
    """
    given = dict(values)
    number = given.pop("format", 1)
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= FORMAT:
        raise RelPosConfigError(
            f"RelPosConfig: `format` is {number!r}, but this is hf_relpos {__version__}, which reads the formats 1 to "
            f"{FORMAT}. It was written by hf_relpos {given.get('version', 'of an unknown version')}: read it with that "
            "version, or a later one."
        )
    for step in range(number, FORMAT):
        given = STEPS[step](given)
    return given
