"""A checksum behind the end of a netCDF-4 file: libraries do not look there, and may never end
inside a file of which a bit is another.

Programs that change a file through HDF5 cut off what is behind its end, and so the checksum.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import BinaryIO

from perfmodel.base.errors import DataError

MARK = b"\nperfmodel: CRC-32 of all before "
LENGTH = len(MARK) + 9
LARGEST = 2**28
"""Files of more bytes are not read whole before they are opened."""
AT_ONCE = 2**22
_known: dict[str, tuple[int, int]] = {}
"""Size and time of the last change of files that were found sound, by path."""
MOST_KNOWN = 1000


def seal(path: Path) -> None:
    """Write the checksum of a file behind its end, where `check_seal` would look at it."""
    if path.stat().st_size > LARGEST:
        return
    with path.open("r+b") as file:
        found = _checksum(file, path.stat().st_size)
        file.seek(0, 2)
        file.write(MARK + b"%08x\n" % found)


def check_seal(path: Path) -> None:
    """Refuse a file whose content is not what its checksum is of; one without passes.

    Raises
    ------
    DataError
        A bit of it is another.
    OSError
        It cannot be read.
    """
    about = path.stat()
    state = about.st_size, about.st_mtime_ns
    if _known.get(str(path)) == state or not LENGTH < about.st_size <= LARGEST:
        return
    with path.open("rb") as file:
        file.seek(-LENGTH, 2)
        end = file.read()
        file.seek(0)
        if end.startswith(MARK) and end[len(MARK) :] != b"%08x\n" % _checksum(
            file, about.st_size - LENGTH
        ):
            raise DataError(f"'{path}' is damaged: it is not what was written (its checksum)")
    while len(_known) >= MOST_KNOWN:
        _known.pop(next(iter(_known)))
    _known[str(path)] = state


def _checksum(file: BinaryIO, size: int) -> int:
    found, left = 0, size
    while left:
        part = file.read(min(left, AT_ONCE))
        if not part:
            break
        found, left = zlib.crc32(part, found), left - len(part)
    return found
