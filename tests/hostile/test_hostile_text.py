"""Text is UTF-8, whatever the locale says; a document keeps all that is not a table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from repairability.experiments import Store
from repairability.experiments.study import StudyEntry
from test_cli_images import run
from test_experiments import with_tests

STUDY = """title = "Größe"
[base]
model = "networks:small_net"
data = "random:10"
repair = "cr"
rule = "erk"
count = 8
test_images = 8
"""
DOCUMENT = "# Größe ± 1 猫\n\n<!-- study größe -->\nold\n<!-- end -->\n"
SCRIPT = """
import sys, warnings
from repairability.cli import main
warnings.filterwarnings("error", category=EncodingWarning, module="repairability")
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
"""
VERBS = [
    ("sweep", "größe.toml", "--store", "runs"),
    ("report", "--store", "runs", "--out", "page", "--format", "html,md,csv,latex"),
    ("renew", "document.md", "--store", "runs"),
    ("archive", "--store", "runs", "--out", "kept"),
    ("allocate", "networks:small_net", "-s", "0.9", "--csv", "rows.csv"),
]


def test_no_verb_asks_the_locale(tmp_path: Path) -> None:
    """Python itself says where an encoding is left to the locale; under ISO-8859-1 such text would be another."""
    (tmp_path / "größe.toml").write_text(STUDY, encoding="utf-8")
    (tmp_path / "document.md").write_text(DOCUMENT, encoding="utf-8")
    for verb in VERBS:
        command = [sys.executable, "-X", "warn_default_encoding", "-X", "utf8=0", "-c", SCRIPT, *verb]
        settings = {**os.environ, "PYTHONPATH": with_tests(), "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, check=False)
        assert done.returncode == 0, (verb, done.stderr.decode())
    renewed = (tmp_path / "document.md").read_bytes().decode("utf-8")
    assert renewed.startswith("# Größe ± 1 猫\n\n<!-- study größe -->\n")
    assert "old" not in renewed


@pytest.mark.parametrize("text", ["# Größe\n", "\ufeff# BOM\n", "# a\r\n\r\nb\r\n", "no end", ""], ids=ascii)
def test_a_document_keeps_what_is_not_ours(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(tmp_path / "runs").write_study(StudyEntry("s", "s", ("accuracy",), "", ()))
    file, end = tmp_path / "d.md", "\r\n" if "\r\n" in text else "\n"
    marks = f"{end}<!-- studies -->{end}old{end}<!-- end -->{end}"
    file.write_bytes((text + marks).encode())
    assert run(capsys, "renew", str(file), "--store", str(tmp_path / "runs"))[0] == 0
    renewed = file.read_bytes().decode()
    assert renewed.startswith(text + end + "<!-- studies -->")
    assert "old" not in renewed
    assert renewed.count("\n") == renewed.count(end)
    assert run(capsys, "renew", str(file), "--store", str(tmp_path / "runs"), "--check")[0] == 0
