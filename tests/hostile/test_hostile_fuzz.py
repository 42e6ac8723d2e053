"""Every reader given anything: bytes of no kind, files cut short, changed or saying otherwise: a value or one error."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readers import READERS, Reader

from repairability import InputError
from repairability._json import DEEPEST

EXAMPLES = 60
FUZZ = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=list(HealthCheck),
)


BY_NAME = pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])


def check(reader: Reader, content: bytes) -> None:
    """A value or one short sentence; anything else falls through and fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / reader.name
        path.write_bytes(content)
        said = ""
        try:
            reader.read(path)
        except InputError as error:
            said = str(error)
        assert len(said) < 2000, said[:300]


@BY_NAME
@pytest.mark.filterwarnings("ignore")
def test_the_good_ones_are_read(reader: Reader) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / reader.name
        path.write_bytes(reader.good())
        reader.read(path)
        if reader.content is not None:
            path.write_bytes(reader.file(reader.content()))
            reader.read(path)


@BY_NAME
@pytest.mark.filterwarnings("ignore")
def test_bytes_of_no_kind(reader: Reader) -> None:
    @FUZZ
    @given(st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
    def fuzz(content: bytes) -> None:
        check(reader, content)

    fuzz()


@BY_NAME
@pytest.mark.filterwarnings("ignore")
def test_cut_short(reader: Reader) -> None:
    good = reader.good()

    @FUZZ
    @given(st.integers(0, len(good) - 1))
    def fuzz(length: int) -> None:
        check(reader, good[:length])

    fuzz()


@BY_NAME
@pytest.mark.filterwarnings("ignore")
def test_changed_here_and_there(reader: Reader) -> None:
    good = reader.good()
    place = st.integers(0, len(good))
    flip = st.tuples(place, st.just(1), st.binary(min_size=1, max_size=1))
    edit = st.tuples(place, st.integers(0, 8), st.binary(max_size=8) | st.sampled_from(SNIPPETS))

    @FUZZ
    @given(st.lists(flip | edit, min_size=1, max_size=4))
    def fuzz(edits: list[tuple[int, int, bytes]]) -> None:
        content = good
        for at, length, new in edits:
            content = content[:at] + new + content[at + length :]
        check(reader, content)

    fuzz()


SNIPPETS = [b"\0", b"\xff", b"[", b"{", b'"', b",", b"\n", b"\r", b"nan", b"1e999", b"-1", b"'", b"null", b"9" * 5000]


def deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


JUNK: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**70, 10**400, 0.5, 1.5, -0.5, 1e300, float("nan"), float("inf")),
    *("", "x", "=1", "\0", "ü", "a\nb", "x" * 100_000, "0.5", "../..", "accuracy", "float32", "int8", "rice", "dense"),
    *([], {}, [0], [None], [[]], [0.9, 0.8], ["a", "a"], {"a": 1}, {"": {}}, deep(DEEPEST + 6), [0] * 5000),
]
GONE = object()


def places(content: Any) -> Iterator[tuple[Any, ...]]:
    """The way to every value of plain content."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for step, value in inner:
        yield (step,)
        yield from ((step, *rest) for rest in places(value))


STRUCTURED = [reader for reader in READERS if reader.content is not None]


@pytest.mark.parametrize("reader", STRUCTURED, ids=[reader.name for reader in STRUCTURED])
@pytest.mark.filterwarnings("ignore")
def test_said_otherwise(reader: Reader) -> None:
    """Every digest fits: whoever wrote it knew how."""
    assert reader.content is not None
    good = reader.content()
    ways = st.sampled_from([(), *places(good)])
    changes = st.lists(st.tuples(ways, st.sampled_from([*JUNK, GONE])), min_size=1, max_size=2)

    @settings(FUZZ, max_examples=2 * EXAMPLES)
    @given(changes)
    def fuzz(edits: list[tuple[tuple[Any, ...], Any]]) -> None:
        content = copy.deepcopy(good)
        for way, value in edits:
            content = changed(content, way, value)
        check(reader, reader.file(content))

    fuzz()


def changed(content: Any, way: tuple[Any, ...], value: Any) -> Any:
    """With this value at the end of the way, or without what was there; as it is where the way ends before."""
    if not way:
        return None if value is GONE else value
    step, *rest = way
    steps = content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    if step not in steps:
        return content
    new = copy.copy(content)
    if not rest and value is GONE:
        del new[step]
    else:
        new[step] = changed(content[step], tuple(rest), value)
    return new
