from __future__ import annotations

from io import StringIO

from rich.console import Console

from repairability.tables import Table, csv_text, percent


def test_plain_text_aligns() -> None:
    table = Table(("layer", "n"), [("a", "1"), ("longer", "10")], title="T", caption="done")
    assert str(table) == "T\nlayer    n\n------  --\na        1\nlonger  10\ndone"


def test_rich_shows_names_as_they_are() -> None:
    out = StringIO()
    Console(file=out, width=60).print(Table(("layer", "n"), [("[red]x[/red]", "1")]).rich())
    assert "[red]x[/red]" in out.getvalue()


def test_csv_keeps_every_bit_of_a_float() -> None:
    assert csv_text([{"name": "a,b", "value": 0.1 + 0.2}]) == 'name,value\n"a,b",0.30000000000000004\n'


def test_percent() -> None:
    assert percent(0.97416) == "97.42 %"
