"""What a script's arguments may be."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection


def one_of(known: Collection[str]) -> Callable[[str], str]:
    """A type for argparse, whose own `choices` refuse, on some versions of Python, that none is named."""

    def name(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}")
        return text

    return name
