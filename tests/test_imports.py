from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from repairability import InputError, create_model
from repairability._imports import imported, imported_from_file, names_a_file
from repairability.cli import main


def test_a_callable_by_its_name() -> None:
    assert imported("pathlib:Path", "model") is Path
    assert imported("pathlib:Path.cwd", "section")() == Path.cwd()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pathlib", "a model of your own is named package.module:callable, not 'pathlib'"),
        (":Path", "a model of your own is named"),
        ("pathlib:", "a model of your own is named"),
        ("no_such_package:net", "cannot import 'no_such_package' for the model 'no_such_package:net'"),
        ("broken_module:net", "cannot import 'broken_module' for the model 'broken_module:net': ZeroDivisionError"),
        ("pathlib:Pth", "unknown name in pathlib 'Pth'; did you mean Path"),
        ("os:sep", "'os:sep' is not callable, so it is no model"),
        (".relative:net", "cannot import '.relative'"),
    ],
)
def test_clear_errors(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=message):
        imported(name, "model")


NET = """
from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from beside import WIDTH

made = nn.Linear(2, 2)
width = 3


@dataclass
class Settings:  # a dataclass looks for its module
    wide: int = WIDTH


class Net(nn.Sequential):
    def __init__(self, num_classes: int = 5) -> None:
        from late import KERNEL  # as the class is called

        super().__init__(nn.Conv2d(3, Settings().wide, KERNEL), nn.Conv2d(WIDTH, num_classes, 1))


def no_network():
    return [1]
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """A folder that is on nobody's path, with a network and what it imports."""
    folder = tmp_path / "a folder of mine"
    folder.mkdir()
    (folder / "my model.py").write_text(NET, encoding="utf-8")
    (folder / "beside.py").write_text("WIDTH = 8\n", encoding="utf-8")
    (folder / "late.py").write_text("KERNEL = 3\n", encoding="utf-8")
    yield folder
    for name in ("beside", "late"):
        sys.modules.pop(name, None)


def test_a_network_in_a_file(own: Path) -> None:
    before = list(sys.path)
    net = create_model(f"{own / 'my model.py'}:Net", num_classes=4)
    assert net.get_parameter("1.weight").shape == (4, 8, 1, 1)
    assert sys.modules[type(net).__module__].__file__ == str(own / "my model.py")
    assert sys.path == before
    assert not list(own.rglob("my*.pyc"))


def test_a_file_is_read_anew(own: Path) -> None:
    """Also within one second and at the same length, where bytecode would pass for fresh."""
    file = own / "growing.py"
    for wide in (2, 3):
        file.write_text(f"from torch import nn\n\ndef net():\n    return nn.Linear({wide}, 1)\n", encoding="utf-8")
        os.utime(file, (1, 1))
        assert create_model(f"{file}:net").get_parameter("weight").shape == (1, wide)


def test_on_the_command_line(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(own)
    with pytest.raises(SystemExit) as end:
        main(["layers", "my model.py:Net", "--json"])
    assert (end.value.code, '"prunable":' in capsys.readouterr().out.replace("\n", "")) == (0, True)


def test_what_names_a_file() -> None:
    names = ("net.py:build", "../x/net.py:Nets.small", "C:\\nets\\net.py:build", "net.py", "net.py:")
    assert all(map(names_a_file, names))
    assert not any(map(names_a_file, ("resnet18", "package.module:callable", "mypy:main", ".py:net")))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my model.py", "named path/to/file.py:callable, not 'my model.py'"),
        ("my model.py:", "named path/to/file.py:callable, not 'my model.py:'"),
        ("none.py:Net", "there is no file none.py for the model 'none.py:Net'"),
        ("folder.py:Net", "there is no file folder.py"),
        ("a\0.py:Net", "there is no file"),
        ("my model.py:Nat", "unknown name in my model.py 'Nat'; did you mean Net"),
        ("my model.py:width", "'my model.py:width' is not callable, so it is no model"),
        ("my model.py:made", "'my model.py:made' is a network, not what makes one"),
        ("my model.py:no_network", "returned list, not a torch.nn.Module"),
        ("broken.py:Net", "cannot import 'broken.py' for the model 'broken.py:Net': SyntaxError"),
        ("ending.py:Net", "cannot import 'ending.py' for the model 'ending.py:Net': SystemExit: 2"),
        (
            "lacking.py:Net",
            "cannot import 'lacking.py' for the model 'lacking.py:Net': No module named 'no_such_thing'",
        ),
    ],
)
def test_files_that_hold_no_network(name: str, message: str, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own)
    (own / "folder.py").mkdir()
    (own / "broken.py").write_text("def net(:\n", encoding="utf-8")
    (own / "ending.py").write_text("raise SystemExit(2)\n", encoding="utf-8")
    (own / "lacking.py").write_text("import no_such_thing\n", encoding="utf-8")
    before = list(sys.path)
    with pytest.raises(InputError, match=message):
        create_model(name)
    assert sys.path == before


def test_a_section_is_no_file(own: Path) -> None:
    """What a stranger's store names must not run a file that came with it."""
    (own / "section.py").write_text("raise AssertionError\n", encoding="utf-8")
    with pytest.raises(InputError, match="cannot import"):
        imported(f"{own / 'section.py'}:make", "section")


def test_the_callable_is_itself_to_look_at(own: Path) -> None:
    build = imported_from_file(f"{own / 'my model.py'}:Net", "model")
    assert build.__name__ == "Net"
    assert isinstance(build(), nn.Module)
