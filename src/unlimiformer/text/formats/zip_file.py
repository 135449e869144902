"""ZIP archives of documents: only what is named is read, and no more than a bound."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import InputError

_MOST_BYTES = 512 << 20  # of all files together, unpacked
_MOST_RATIO = 200  # unpacked to packed; text is packed to a third, and hardly ever to a hundredth
_SMALL = 16 << 20  # below this size, the ratio does not matter


@contextmanager
def open_zip(data: bytes, name: str, kind: str) -> Iterator[zipfile.ZipFile]:
    """Open an archive whose files are not too large together; errors of reading become messages.

    Parameters
    ----------
    name, kind : what messages call the file, and its format.
    """
    damaged = f"{name} is {kind}, but damaged; get it again, or open it in another program and save it"
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > _MOST_BYTES or (size > _SMALL and size > _MOST_RATIO * max(1, len(data))):
                raise InputError(
                    f"{name} would unpack to {size:,} bytes from {len(data):,}; expected at most {_MOST_BYTES:,} and "
                    f"{_MOST_RATIO} times its size: it is not a document"
                )
            yield archive
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, OSError, ValueError) as error:
        raise InputError(f"{damaged} ({error or type(error).__name__})") from None
    except RuntimeError as error:  # an encrypted archive
        raise InputError(f"{name} is {kind} with a password ({error}); save it without one") from None
