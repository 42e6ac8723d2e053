"""`python -m repairability` and the command `repairability`: Ctrl-C ends them in order, also as they begin and end."""

from __future__ import annotations

from repairability import _interrupts


def main() -> None:
    """The command line as a program of its own."""
    code: object = 0
    try:
        try:
            _interrupts.listen()
            from repairability.cli import main as command_line

            command_line()
        except SystemExit as end:
            code = end.code
        finally:
            _interrupts.all_done()
    except KeyboardInterrupt:
        code = _interrupts.CODE
        _interrupts.all_done()
    except Exception:
        if not _interrupts.came():
            raise
        code = _interrupts.CODE
    raise SystemExit(code)


if __name__ == "__main__":
    main()
