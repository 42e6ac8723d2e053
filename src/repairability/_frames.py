"""The one import of pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repairability.errors import MissingExtraError


def frame_of(rows: Sequence[dict[str, object]]) -> Any:
    """Rows as a pandas DataFrame."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingExtraError("pandas", "report") from error
    return pandas.DataFrame(list(rows))
