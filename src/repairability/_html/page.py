"""A whole page of one run, without script: it opens anywhere and asks nothing of any network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from repairability._html.fragments import page_style

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def section(name: str, title: str, *pieces: str) -> str:
    return (
        f'<section id="{escape(name, quote=True)}" aria-labelledby="head-{escape(name, quote=True)}">'
        f'<h2 id="head-{escape(name, quote=True)}">{escape(title)}</h2>{"".join(pieces)}</section>'
    )


def document(title: str, eyebrow: str, cards: Sequence[tuple[str, str, str]], sections: Sequence[str]) -> str:
    """`cards`: a label, a number and a note each."""
    summary = "".join(
        f'<div class="card"><dt>{escape(label)}</dt><dd class="number">{escape(number)}</dd>'
        f'<dd class="note">{escape(note)}</dd></div>'
        for label, number, note in cards
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{page_style()}</style>
</head>
<body>
<header><p class="eyebrow">{escape(eyebrow)}</p><h1>{escape(title)}</h1></header>
<main id="main">
<section aria-label="Summary"><dl class="cards">{summary}</dl></section>
{"".join(sections)}
</main>
<footer><p>Made by repairability. This page holds all its data and asks nothing of the network.</p></footer>
</body>
</html>
"""
