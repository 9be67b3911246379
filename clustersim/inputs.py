"""The one way to the files of users: regular files of a limited size; of all else an error says what it is.

A pipe would be waited for, a device never ends, and a small table may unfold to more than memory holds: all of that
is refused before anything is read. What cannot be recognised as what it should be is never quoted: whoever wrote a
scenario may name files that only its reader may read.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from clustersim.errors import InputError, Problem, nearest_file

MIB: Final = 2**20
DOCUMENT_BYTES: Final = 4 * MIB
"""Of what is written by hand, in YAML or JSON: 20 times a topology of 1,000 devices, link by link."""
CODE_BYTES: Final = MIB
TEXT_BYTES: Final = 128 * MIB
"""Of a trace, a table or a step graph as text: BurstGPT's 1,400,000 requests take 50 MiB."""
RECORD_BYTES: Final = 128 * MIB
"""Of JSON in a run directory."""
PARQUET_BYTES: Final = 2048 * MIB
UNFOLDED_BYTES: Final = 64 * MIB
"""What a Parquet table may always come to in memory …"""
UNFOLDED_TIMES: Final = 64
"""… and how many times its own size, where it is larger: what was measured somewhere unfolds to 3 to 30 times."""
RECORDED_BYTES: Final = 256 * MIB
"""The first of these in a run directory: 1,600,000 equal requests, whose record folds to a thousandth (measured)."""
LIMIT: Final = "CLUSTERSIM_INPUT_MIB"
"""Environment variable that raises all of these."""

_WORDS: Final = (
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


def read_bytes(path: Path, *, most: int, name: str | None = None, missing: str | None = None) -> bytes:
    """Read a file of a user.

    Parameters
    ----------
    path : Path
    most : int
        More bytes are refused.
    name : str, optional
        What errors call the file.
    missing : str, optional
        What is said when there is none; else that, and the nearest name in its folder.

    Raises
    ------
    InputError
        When it is no regular file, is too large or can't be read.
    """
    name, most = name or str(path), raised(most)
    try:
        with _opened(path, name, missing) as file:
            size = os.fstat(file.fileno()).st_size
            found = b"" if size > most else file.read(most + 1)  # what /proc calls empty is not
            if found is None:  # it would wait for more, as the log of a kernel does
                raise InputError(Problem(file=name, message="cannot be read: it has no end"))
    except OSError as error:
        raise InputError(Problem(file=name, message=f"cannot be read: {error.strerror or error}")) from None
    if max(size, len(found)) > most:
        raise InputError(Problem(file=name, message=_too_large(max(size, len(found)), most)))
    return found


def read_text(path: Path, *, most: int, name: str | None = None, missing: str | None = None) -> str:
    """Read a file of a user as UTF-8, without a byte order mark; see :func:`read_bytes`.

    Raises
    ------
    InputError
        Also with line and column of the first byte that is no UTF-8.
    """
    raw = read_bytes(path, most=most, name=name, missing=missing)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        hint = "it is compressed with gzip: unpack it first" if raw[:2] == b"\x1f\x8b" else "save the file as UTF-8"
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8 text; {hint}"
        problem = Problem(file=name or str(path), line=line, column=column, message=message, quotes=False)
        raise InputError(problem) from None


def read_parquet(
    path: Path, *, name: str | None = None, missing: str | None = None, wanted: str = "", least: int = UNFOLDED_BYTES
) -> Any:
    """Read a Parquet file as a table of pyarrow, once its metadata say that memory holds it.

    Parameters
    ----------
    path, name, missing
        As of :func:`read_bytes`.
    wanted : str
        What errors add of what was expected.
    least : int
        What it may come to in memory, however small it is.

    Raises
    ------
    InputError
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name, most = name or str(path), raised(PARQUET_BYTES)
    try:
        with _opened(path, name, missing) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise InputError(Problem(file=name, message=_too_large(size, most)))
            told = pq.ParquetFile(file)
            room = raised(max(least, UNFOLDED_TIMES * size))
            unfolded = _unfolded_bytes(told.metadata)
            if unfolded > room:
                rows = f"{told.metadata.num_rows:,} rows in {told.metadata.num_columns:,} columns"
                message = (
                    f"{rows} unfold to {_in_mib(unfolded)}; at most {_in_mib(room)} are read ({LIMIT} raises that)"
                )
                raise InputError(Problem(file=name, message=message))
            texts = [field.name for field in told.schema_arrow if _is_text(field.type)]
            return _spelled_out(pq.ParquetFile(file, read_dictionary=texts).read(), name, room)
    except (OSError, ValueError, KeyError, NotImplementedError, pa.ArrowException) as error:
        said = error.strerror if isinstance(error, OSError) else None
        words = said or (str(error).splitlines() or [type(error).__name__])[0]
        message = f"cannot be read as Parquet ({words:.200})" + (f"; {wanted}" if wanted else "")
        raise InputError(Problem(file=name, message=message)) from None


def line_of(path: str, number: int) -> str | None:
    """Return a line of a file that was read before, for a message; None where it can't be read any more."""
    try:
        with io.TextIOWrapper(_opened(Path(path), path, None), encoding="utf-8-sig") as file:
            return next(islice(file, number - 1, None), None)
    except (InputError, OSError, UnicodeDecodeError):
        return None


def is_file(path: Path) -> bool:
    """Whether there is a regular file; a link to itself is none, and what may not be looked at is none."""
    try:
        return path.is_file()
    except (OSError, RuntimeError, ValueError):
        return False


def resolved(path: Path) -> Path:
    """Return the absolute path without links; of a link to itself that of the link."""
    return Path(os.path.realpath(path))


def raised(most: int) -> int:
    """Return a limit in bytes, or what the environment raises it to."""
    told = os.environ.get(LIMIT, "")
    return max(most, int(told) * MIB) if told.isascii() and told.isdecimal() and len(told) < 10 else most


def number_of(cell: object) -> float | None:
    """Return the number that a cell of a table or of JSON says in digits from 0 to 9; None where it says none."""
    try:
        return float(cell) if str(cell).isascii() else None  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def recognised(keys: Collection[str], known: Collection[str]) -> bool:
    """Whether what was found in a file is meant as what it should be: it has one of the names that this has."""
    return any(key in known for key in keys)


def _opened(path: Path, name: str, missing_words: str | None) -> BinaryIO:
    """Open a regular file; nothing is waited for."""
    try:
        _refuse_other(os.stat(path).st_mode, name)
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(Problem(file=name, message=missing_words or missing(path))) from None
    except ValueError:  # a zero byte, or half of a pair of UTF-16
        raise InputError(Problem(file=ascii(name)[1:-1], message="no file can have such a name")) from None
    file = os.fdopen(number, "rb")
    try:
        _refuse_other(os.fstat(number).st_mode, name)  # it may be another one by now
    except InputError:
        file.close()
        raise
    return file


def _refuse_other(mode: int, name: str) -> None:
    if not stat.S_ISREG(mode):
        word = next((word for fits, word in _WORDS if fits(mode)), "special file")
        raise InputError(Problem(file=name, message=f"is a {word}; expected a file"))


def missing(path: Path, kind: str = "file") -> str:
    """Say that there is no such file or folder, with the nearest name."""
    try:
        entries = sorted(path.parent.iterdir())
    except OSError:
        return f"no such {kind}: the folder {str(path.parent)!r} does not exist"
    if path in entries:
        return f"no such {kind}: it is a link to nothing"
    folder = kind.endswith("directory")
    guess = nearest_file(path.name, [entry.name for entry in entries if not folder or entry.is_dir()])
    return f"no such {kind}; did you mean {guess!r}?" if guess else f"no such {kind}"


def _too_large(size: int, most: int) -> str:
    found = "is longer than" if size == most + 1 else f"has {_in_mib(size)}, more than"
    return f"{found} {_in_mib(most)}, and nothing of this kind is that long; {LIMIT} raises the limit"


def _too_much(size: int, room: int) -> str:
    return f"unfold to {_in_mib(size)} in memory; at most {_in_mib(room)} are read, and {LIMIT} raises that"


def _in_mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB" if size >= MIB else f"{size:,} bytes"


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return any(of(kind) for of in (pa.types.is_string, pa.types.is_large_string))


def _unfolded_bytes(metadata: Any) -> int:
    """Return what the values of a table come to, each as one of 8 bytes, and text and lists as they are packed."""
    total = metadata.num_rows * metadata.num_columns * 8
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        for column in range(group.num_columns):
            chunk = group.column(column)
            total += max(0, 8 * (chunk.num_values - group.num_rows), chunk.total_uncompressed_size - 8 * group.num_rows)
    return int(total)


def _spelled_out(table: Any, name: str, room: int) -> Any:
    """Return a table whose texts were read as dictionaries with each one written out, if that fits."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, column in enumerate(table.columns):
        if not pa.types.is_dictionary(column.type):
            continue
        length = 0
        for chunk in column.chunks:
            lengths = pc.binary_length(chunk.dictionary)
            length += pc.sum(pc.take(lengths, chunk.indices)).as_py() or 0
        if length > room:
            message = f"its texts {_too_much(length, room)}"
            raise InputError(Problem(file=name, path=table.column_names[place], message=message))
        table = table.set_column(place, table.column_names[place], column.cast(column.type.value_type))
    return table
