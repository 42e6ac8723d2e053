"""The page in a real browser: it is quiet, it answers mouse and keyboard, and it fits a desk and a phone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import chromium, until
from conftest import PATIENCE
from repairability.report import write_report
from repairability.report.sheets import named_csv
from test_report import PROJECTION, TOTALS, result, synthetic

PLOTS = ["accuracy", "gap", "heatmap_rr", "damage", "share", "levels_90", "layerwise_90", "transition"]
RULES = ["global", "uniform", "raw", "residual", "rr", "erk", "lamp"]
DRAWN = "document.body.dataset.drawn === 'yes'"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


class Watched:
    """A page, and everything it complained of or asked for."""

    def __init__(self, page: Any, file: Path) -> None:
        self.page = page
        page.set_default_timeout(1000 * PATIENCE)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(file.as_uri())
        until(page, DRAWN)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (written,) = write_report(synthetic(), tmp_path_factory.mktemp("report") / "page.html")
    return written


@pytest.fixture(scope="module")
def watched(browser: Any, file: Path) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    watched = Watched(context.new_page(), file)
    yield watched
    outside = [url for url in watched.requests if not url.startswith((file.as_uri(), "data:", "blob:"))]
    assert watched.complaints == []
    assert outside == []
    context.close()


@pytest.fixture
def page(watched: Watched) -> Any:
    resize(watched.page, 1280, 900)
    return watched.page


def resize(page: Any, width: int, height: int) -> None:
    """And wait until it is drawn so: it hears of its size with its next frame."""
    until(page, DRAWN)
    size = {"width": width, "height": height}
    if page.viewport_size != size:
        page.evaluate("delete document.body.dataset.drawn")
        page.set_viewport_size(size)
        until(page, DRAWN)


def column(page: Any, table: str, index: int) -> list[str]:
    found: list[str] = page.locator(f"#table-{table} tbody tr").evaluate_all(
        f"rows => rows.map(row => row.cells[{index}].textContent.trim())"
    )
    return found


def sorted_how(page: Any, table: str) -> list[str]:
    found: list[str] = page.locator(f"#table-{table} thead th").evaluate_all(
        "heads => heads.map(head => head.getAttribute('aria-sort'))"
    )
    return found


def test_every_plot_is_drawn_and_described(page: Any) -> None:
    for name in PLOTS:
        assert page.locator(f"#plot-{name} svg.marks").count() == 1, name
        label = page.locator(f"#plot-{name}").get_attribute("aria-label")
        assert label is not None
        assert len(label) > 20
        assert page.locator(f"#words-{name}").inner_text().replace("\u00a0", " ") == label


def test_the_page_is_quiet(watched: Watched, file: Path) -> None:
    assert watched.complaints == []
    assert watched.requests[0] == file.as_uri()
    assert all(url.startswith(("data:", "blob:")) for url in watched.requests[1:])


def test_the_heat_map_answers_the_mouse(page: Any) -> None:
    page.locator("#plot-heatmap_rr .mark-rect.role-mark path").nth(
        2 * 4
    ).hover()  # the third layer at its first sparsity
    page.wait_for_selector("#vg-tooltip-element.visible")
    words = page.locator("#vg-tooltip-element").text_content()
    diagnosis = synthetic().diagnosis
    assert diagnosis is not None
    for part in (PROJECTION, "sparsity, %70", f"rr{diagnosis.rr[PROJECTION][0]:.4f}"):
        assert part in words
    page.mouse.move(0, 0)
    page.wait_for_selector("#vg-tooltip-element:not(.visible)", state="attached")


def test_a_point_answers_the_mouse(page: Any) -> None:
    point = page.locator("#plot-accuracy .mark-symbol.role-mark path").first
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2 + 7, box["y"] + box["height"] / 2)  # beside it: its rim is wide
    page.wait_for_selector("#vg-tooltip-element.visible")
    words = page.locator("#vg-tooltip-element").text_content()
    for part in ("rr", "90", "18.50", "seeds3"):  # 0.7 * (1.6 - 1.5 * 0.9) + 0.01
        assert part in words
    page.mouse.move(0, 0)


def opacities(page: Any) -> dict[str, float]:
    """How visible each rule's line is."""
    found: dict[str, float] = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#plot-accuracy .mark-line path')].map(line =>"
        " [line.__data__.datum.name, Number(line.getAttribute('opacity') ?? 1)]))"
    )
    return found


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
def test_the_legend_picks_lines(page: Any, by: str) -> None:
    label = page.locator("#plot-accuracy .role-legend-label text", has_text="erk")
    assert set(opacities(page).values()) == {1}
    if by == "mouse":
        label.click()
    else:
        label.focus()
        page.keyboard.press("Enter")
    until(page, "document.querySelector('#plot-accuracy .mark-line path').getAttribute('opacity') === '0.1'")
    assert {name for name, opacity in opacities(page).items() if opacity == 1} == {"erk"}
    label.click()  # again: let go
    until(page, "document.querySelector('#plot-accuracy .mark-line path').getAttribute('opacity') === '1'")
    assert set(opacities(page).values()) == {1}


def test_the_switch_changes_the_heat_map(page: Any) -> None:
    assert page.locator("#plot-heatmap_rr").is_visible()
    page.locator("input[name=measure][value=rr]").focus()
    page.keyboard.press("ArrowRight")  # as a keyboard moves between radio buttons
    page.wait_for_selector("#plot-heatmap_raw svg.marks")
    assert not page.locator("#plot-heatmap_rr").is_visible()
    diagnosis = synthetic().diagnosis
    assert diagnosis is not None
    read = "name => views.get(name).data('source_0')[0].value"
    first = next(iter(TOTALS))
    shown = (page.evaluate(read, "heatmap_rr"), page.evaluate(read, "heatmap_raw"))
    assert shown == (diagnosis.rr[first][0], diagnosis.raw[first][0])
    assert "raw is least" in page.locator("#plot-heatmap_raw").get_attribute("aria-label")
    page.locator("input[name=measure][value=rr]").check()
    until(page, DRAWN)


def test_a_layer_can_be_chosen(page: Any) -> None:
    page.locator("#layer").select_option(label=f"{PROJECTION} (projection)")
    until(page, DRAWN)
    assert page.locator("#plot-share").get_attribute("aria-label").startswith(PROJECTION)
    lines = page.locator("#plot-share .mark-line path").evaluate_all("all => all.map(x => x.__data__.datum.layer)")
    assert lines[-1] == PROJECTION
    assert len(lines) == len(TOTALS) + 1  # the others behind it


def test_a_target_can_be_chosen(page: Any) -> None:
    assert page.locator("#table-allocations_90").is_visible()
    page.locator("input[name=target][value='95']").check()
    assert page.locator("#table-allocations_95").is_visible()
    assert not page.locator("#table-allocations_90").is_visible()
    page.wait_for_selector("#plot-levels_95 svg.marks")
    assert not page.locator("#plot-levels_90").is_visible()
    assert page.locator("#table-allocations_95 tr.projection").count() == 1


def test_tables_sort_by_click(page: Any) -> None:
    header = page.locator("#table-accuracy thead button").nth(3)
    header.click()
    values = [float(cell.split()[0]) for cell in column(page, "accuracy", 3)]
    assert values == sorted(values)
    assert sorted_how(page, "accuracy") == ["none", "none", "none", "ascending"]
    header.click()
    assert [float(cell.split()[0]) for cell in column(page, "accuracy", 3)] == sorted(values, reverse=True)
    assert sorted_how(page, "accuracy")[3] == "descending"
    page.locator("#table-accuracy thead button").first.click()
    assert column(page, "accuracy", 0) == sorted(column(page, "accuracy", 0))
    assert sorted_how(page, "accuracy") == ["ascending", "none", "none", "none"]


def test_tables_sort_by_keyboard(page: Any) -> None:
    page.locator("input[name=target][value='90']").check()
    page.locator("#table-allocations_90 thead button").nth(1).focus()  # total: 8,192 comes before 36,864
    page.keyboard.press("Enter")
    assert column(page, "allocations_90", 1) == [f"{total:,}" for total in sorted(TOTALS.values())]
    page.keyboard.press("Enter")
    assert column(page, "allocations_90", 1)[0] == "2,359,296"
    assert sorted_how(page, "allocations_90")[1] == "descending"


def test_empty_cells_stay_last(page: Any) -> None:
    header = page.locator("#table-transition thead button").nth(1)
    for _ in range(2):
        header.click()
        assert column(page, "transition", 1)[-1] == ""


def test_tables_download_as_csv(page: Any) -> None:
    for name in ("accuracy", "allocations_90", "provenance"):
        with page.expect_download() as waiting:
            page.locator(f"[data-csv='{name}']").click()
        assert waiting.value.suggested_filename == f"{name}.csv"
        text = Path(waiting.value.path()).read_text(encoding="utf-8")
        assert text == named_csv(synthetic())[name]
        assert len(list(csv.DictReader(io.StringIO(text)))) > 1


def test_focus_is_visible(page: Any) -> None:
    page.locator("[data-csv='accuracy']").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


SHOWN = "[...document.querySelectorAll('.chart')].filter(p => p.querySelector('svg') && p.offsetParent)"


def cut_legends(page: Any) -> list[str]:
    """The charts whose legend does not fit into them."""
    cut = """p => {
        const whole = p.querySelector('svg').getBoundingClientRect();
        const legends = [...p.querySelectorAll('.role-legend')].map(legend => legend.getBoundingClientRect());
        return legends.some(legend => legend.bottom > whole.bottom + 1 || legend.right > whole.right + 1);
    }"""
    found: list[str] = page.evaluate(f"{SHOWN}.filter({cut}).map(p => p.id)")
    return found


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_overflows(page: Any, width: int) -> None:
    resize(page, width, 844)
    page.evaluate("document.querySelector('details').open = true")
    inside = "p.clientWidth + 1 > p.querySelector('svg').clientWidth"
    assert page.evaluate(f"{SHOWN}.every(p => {inside})")
    assert cut_legends(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("innerWidth") == width


def test_both_colour_schemes(page: Any) -> None:
    def colours() -> list[str]:
        found: list[str] = page.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor,"
            " ...[...document.querySelectorAll('.chart svg')].map(p =>"
            " getComputedStyle(p.querySelector('.role-axis-label text')).fill)]"
        )
        return found

    light = colours()
    page.emulate_media(color_scheme="dark")
    dark = colours()
    assert len(light) == len(dark) >= 2 + len(PLOTS)
    assert all(a != b for a, b in zip(light, dark, strict=True))
    page.emulate_media(color_scheme="light")


def test_several_repairs_can_be_told_apart(browser: Any, tmp_path: Path) -> None:
    runs = [
        result(rule, s, 0, 0.3, repair=repair)
        for rule in RULES
        for repair in ("none", "reconstruct-all")
        for s in (0.9, 0.95)
    ]
    data = synthetic(results=runs, allocations=(), transition=None, diagnosis=None)
    (file,) = write_report(data, tmp_path / "page.html")
    context = browser.new_context()
    watched = Watched(context.new_page(), file)

    def lines() -> list[str]:
        until(watched.page, DRAWN)
        names: list[str] = watched.page.locator("#plot-accuracy .mark-line path").evaluate_all(
            "all => all.map(line => `${line.__data__.datum.name}, ${line.__data__.datum.repair}`)"
        )
        return names

    assert lines() == [f"{rule}, none" for rule in RULES]
    watched.page.locator("input[name=repair]").nth(1).check()
    assert lines() == [f"{rule}, reconstruct-all" for rule in RULES]
    watched.page.locator("input[name=repair][value=all]").check()
    assert len(lines()) == 14
    resize(watched.page, 390, 844)
    assert cut_legends(watched.page) == []
    assert watched.complaints == []
    context.close()


def test_a_page_of_one_part_and_hostile_names(browser: Any, tmp_path: Path) -> None:
    bad = "</script><img src=x onerror=alert(1)>"
    data = synthetic(totals={bad: 100, "b": 50}, title=bad, results=(), transition=None, allocations=())
    (file,) = write_report(data, tmp_path / "page.html")
    context = browser.new_context(color_scheme="dark")
    watched = Watched(context.new_page(), file)
    assert watched.complaints == []
    assert len(watched.requests) == 1
    assert watched.page.locator("section[id]").evaluate_all("all => all.map(each => each.id)") == [
        "diagnosis",
        "provenance",
    ]
    assert watched.page.locator("img").count() == 0
    assert watched.page.title() == bad
    context.close()
