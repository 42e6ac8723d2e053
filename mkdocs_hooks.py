"""What the site needs beyond docs/: pages that lie elsewhere, links between them, equations that any browser shows.

mkdocs calls the functions `on_...` (mkdocs.yml, `hooks`).
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path, PurePosixPath
from posixpath import relpath

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
OUTSIDE = (
    *("reproduction/README.md", "reproduction/pages/*.md", "reproduction/pages/figures/*.svg"),
    *("CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md"),
)
"""Pages and pictures that keep their place in the repository; on the site they have the same path below its root."""

_UP = re.compile(r"(\]\()\.\./(?=reproduction/|[A-Z]+\.md)")
_NAMED = re.compile(r"`(?:docs/)?((?:reproduction/)?(?:pages/)?\w+\.md)`(?!\])")
_MATH = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """docs/ is the site's root, so a link from there to its neighbours loses a step; a page that is named in backticks,
    as one does in a text file, becomes a link.
    """

    def linked(match: re.Match[str]) -> str:
        here = PurePosixPath(page.file.src_uri).parent
        near = ((here / match[1]).as_posix(), match[1])
        found = next((uri for uri in near if uri in files.src_uris and uri != page.file.src_uri), None)
        return match[0] if found is None else f"[{match[0]}]({relpath(found, here)})"

    return _NAMED.sub(linked, _UP.sub(r"\1", markdown) if "/" not in page.file.src_uri else markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Equations as MathML, which browsers show by themselves: no script, no font."""

    def rendered(match: re.Match[str]) -> str:
        latex = html.unescape(match[2])[2:-2].strip()  # without \( \) or \[ \]
        made = convert(latex, display="block" if match[1] == "div" else "inline")
        if "\\" in made:
            raise PluginError(f"{page.file.src_uri}: an equation has what latex2mathml does not know: {latex}")
        return f'<{match[1]} class="math">{made}</{match[1]}>'

    return _MATH.sub(rendered, content)


def on_post_build(config: MkDocsConfig) -> None:
    """The search's worker as a text, for pages that are opened from a disk (docs/assets/iframe-worker.js)."""
    site = Path(config.site_dir)
    (worker,) = site.glob("assets/javascripts/workers/search.*.min.js")
    text = worker.read_text(encoding="utf-8")
    (site / "search" / "worker.js").write_text(f"var __worker = {json.dumps(text)};\n", encoding="utf-8")
