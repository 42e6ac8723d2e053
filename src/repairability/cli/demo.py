"""The verb demo."""

from __future__ import annotations

from pathlib import Path

from typer import Option

from repairability._files import check_folder, make_folder, write_atomically
from repairability.cli import options
from repairability.cli.output import Answer

NEXT = "\nnext, with a network of your own (a function build in my_model.py; images/train/CLASS/*.png):"


def verb(
    out: Path = Option(Path("demo"), metavar="FOLDER", help="Where the page and the record go."),
    seeds: int = Option(3, help="How many draws of calibration images."),
    seed: int = options.SEED,
    threads: int | None = options.THREADS,
) -> Answer:
    """The whole story on scikit-learn's digits, in under three minutes on two CPU threads.

    Trains a small ResNet (once; it is cached); prunes it by magnitude alone, by the paper's recipe and by the strong
    one, and says what that weighs and how fast it runs; diagnoses it, prunes it by seven rules over a sweep of
    sparsities, repairs, evaluates, and writes an HTML report and the record it was made from.

    Example: repairability demo --out demo
    """
    from repairability import demo, report
    from repairability.report.sheets import named_tables

    check_folder(out, "demo.json", "demo.html")
    draws = options.draws(seed, seeds)
    options.use_threads(threads)
    make_folder(out)
    record = demo.run_demo(seeds=draws)
    write_atomically(out / "demo.json", record.to_json())
    (page,) = report.write_report(record, out / "demo.html", ["html"])
    tables = [table for name, table in named_tables(record).items() if name != "diagnosis"]  # that one is in the page
    lines = [f"\nthe page: {page}   the record: {out / 'demo.json'}"]
    if demo.RUNTIME in record.provenance:
        lines.append(record.provenance[demo.RUNTIME])
    lines += [NEXT, *(f"  {command}" for command in demo.NEXT)]
    return Answer({**record.to_dict(), "page": page, "next": demo.NEXT}, [*tables, *lines])
