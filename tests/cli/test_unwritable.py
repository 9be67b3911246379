"""Names that nothing can be written under are refused in one way by every command, before it does anything."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

from clustersim.cli import COMMANDS, main
from clustersim.errors import InputError
from clustersim.files import refuse_unwritable, written_whole

FILES: Final = {
    "run --vllm-json": "quickstart", "check --out": "quickstart --fix", "from-command --out": "x",
    "graph -o": "quickstart",
    "compare -o": "a b", "launch -o": "quickstart --for vllm", "trace -o": "a", "dashboard -o": "a",
    "calibrate engine -o": "a.json --scenario quickstart",
}  # fmt: skip
FOLDERS: Final = {
    "run --out": "quickstart", "sweep --out": "quickstart --vary seed=1", "why --out": "quickstart",
    "rate --out": "quickstart", "search --out": "quickstart --devices 1", "size --out": "quickstart", "accuracy -o": "",
}  # fmt: skip
"""Command and option → the arguments that it needs besides."""
BAD: Final = {
    "x" * 5000: ("File name too long", "File name too long"),
    f"{'x' * 300}/a": ("File name too long", "File name too long"),
    "/dev/full": ("it is a pipe or device; expected a file", "it is a pipe or device; expected a folder"),
    "-": ("it is no name, and standard output is not written to here",) * 2,
    "there": ("it is a folder; expected a file", None),
    "file": (None, "it is a file; expected a folder"),
    "file/a": ("there is no folder file", "Not a directory"),
    "nowhere/a": ("there is no folder nowhere", None),
    "dangling": ("there is no folder PLACE/nowhere", None),
    "/proc/a": ("No such file or directory", "No such file or directory"),
}
"""Name → why no file and no folder can have it; None where it can."""


def options(name: str, command: click.Command) -> Iterator[str]:
    """Yield each option that names something to write, with its command."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            assert inner is not None
            yield from options(f"{name} {each}", inner)
    for one in command.params:
        if isinstance(one, click.Option) and {"--out", "--output", "--vllm-json"} & {*one.opts}:
            yield f"{name} {one.opts[0]}"


def test_the_table_has_every_option_that_names_what_is_written() -> None:
    found: set[str] = set()
    for name, (place, _) in COMMANDS.items():
        module, _, function = place.partition(":")
        found |= {*options(name, getattr(importlib.import_module(f"clustersim.cli.commands.{module}"), function))}
    assert found == {*FILES, *FOLDERS}


@pytest.mark.parametrize("command", [*FILES, *FOLDERS])
def test_a_name_that_can_not_be_written_is_refused_before_anything_is_done(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere/a")
    before = {*tmp_path.rglob("*")}
    verb, _, option = command.rpartition(" ")
    for name, reasons in BAD.items():
        reason = reasons[command in FOLDERS]
        if reason is not None and (not name.startswith("/") or Path(name).parent.exists()):
            args = (FILES | FOLDERS)[command].split()
            result = CliRunner().invoke(main, [*verb.split(), *args, option, name])
            told = f"cannot be written ({reason.replace('PLACE', str(tmp_path))}"
            assert (result.exit_code, told in result.stderr) == (2, True), result.output
            assert (len(result.stderr) < 400, result.stdout) == (True, "")
            assert result.stderr.startswith("--")
    assert {*tmp_path.rglob("*")} == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    for kind in ("file", "folder", "replaced"):
        with pytest.raises(InputError, match="Permission denied"):
            refuse_unwritable(tmp_path / "a", "--out", kind)  # type: ignore[arg-type]


def test_a_null_byte_is_refused_where_a_program_gives_the_name(tmp_path: Path) -> None:
    name = tmp_path / "a\0b"
    with pytest.raises(InputError, match="null byte"):
        refuse_unwritable(name)
    with pytest.raises(InputError, match="null byte"), written_whole(name):
        raise AssertionError("never")
