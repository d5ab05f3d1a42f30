"""Plain values, JSON and MessagePack as msgspec structs, safely from any thread; lists that an installation keeps."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from llmb_common.base.errors import RecipeError, RecordError
from llmb_common.base.files import lock_within, read_json, remedy_for, write_json

if TYPE_CHECKING:
    import msgspec

T = TypeVar("T")

_one_at_a_time = threading.RLock()  # a plan converts a part of itself while it is converted


def from_plain(value: Any, kind: Any) -> Any:
    """Return plain data (dicts, lists, strings, numbers) as an instance of ``kind``, a msgspec struct or other type.

    Types must match exactly: the text "1" is no number. Unknown keys are ignored unless the struct forbids them. May be
    called from any thread, one conversion at a time: at the first use of a struct type, msgspec (0.22) builds its
    description of the type by running Python code, during which another thread may start to use the unfinished result.
    That crashes the process with SIGSEGV. The lock costs nothing: a conversion never blocks, and under the GIL threads
    do not convert in parallel anyway.

    Raises:
        msgspec.ValidationError: ``value`` does not fit ``kind``
    """
    import msgspec

    with _one_at_a_time:
        return msgspec.convert(value, kind, strict=True)


def from_json(content: bytes, kind: Any) -> Any:
    """Return JSON text as an instance of ``kind``, a msgspec struct or another type, decoded in one go.

    ``content`` is bytes; unknown keys are ignored unless the struct forbids them. NaN and infinity, which JSON does
    not have, count as malformed.

    Raises:
        msgspec.ValidationError: the content does not fit ``kind``
        msgspec.DecodeError: the content is not JSON, or is nested too deep
    """
    import msgspec

    with _one_at_a_time:
        try:
            return msgspec.json.decode(content, type=kind)
        except RecursionError as error:
            raise msgspec.DecodeError("it is nested too deep") from error


@functools.cache
def packed_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder that makes a ``kind``, a msgspec struct or another type, of MessagePack.

    Made once for each ``kind``, and that is where msgspec describes the type: the decoder takes no lock, and serves
    thousands of small contents. Its ``decode`` takes bytes, accepts NaN and infinity, ignores unknown keys, and raises
    ``msgspec.DecodeError`` where the content does not fit or is no MessagePack, RecursionError where it is nested too
    deep.
    """
    import msgspec

    with _one_at_a_time:
        return msgspec.msgpack.Decoder(kind)


def misfit_text(error: Exception, kind: Any, value: Any) -> str:
    """Return why ``value`` is not a ``kind``: ``plan.gpus is text ('many'), but a whole number is expected``.

    A clause without a period and without a remedy, which names the wrong value by its path in ``value``. ``error`` is
    what msgspec raised for the two; of any error but its ValidationError, the error's own text is returned as it is.
    ``value`` is the plain data, or the JSON text as bytes; a text that is no JSON just leaves the wrong value out.
    """
    import msgspec

    if not isinstance(error, msgspec.ValidationError):
        return str(error)
    from llmb_common.base.schema_errors import explain

    if isinstance(value, bytes):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None  # the message then lacks the wrong value
    _, message, _ = explain(str(error), kind, value)
    return message


def read_generated(path: Path, kind: Any, *, remedy: str, what: str = "") -> Any:
    """Return the content of a generated JSON file of a recipe, at ``path``, as an instance of ``kind``.

    ``remedy`` says how to get the file back; ``what`` stands before its path in the message (``cannot read WHATPATH``)
    and ends with a blank, unless it is empty.

    Raises:
        RecipeError: the file is missing, cannot be read, is not JSON or does not fit ``kind``
    """
    import msgspec

    try:
        return from_json(path.read_bytes(), kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise RecipeError(f"cannot read {what}{path}: {error}", remedy=remedy) from error


SCHEMA = 1


def read_list(file: Path, name: str, kind: type[T], what: str) -> list[T]:
    """Return the items of type ``kind`` in the list ``name`` of the JSON file ``file``, in its order.

    Empty where there is no file. ``name`` is a key of the file's object, which must be there, as must its key
    ``schema`` with the version of such files; further keys are ignored. No lock is needed. ``what`` is what messages
    call such a file, as "a list of nodes" in "is not a list of nodes".

    Raises:
        RecordError: the file cannot be read, is not JSON, lacks ``name`` or ``schema``, has an item that is no
            ``kind``, or is of another version of LLMB
    """
    import msgspec

    try:
        value = read_json(file)
    except RecordError as error:
        if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
            return []
        raise
    try:
        if value["schema"] != SCHEMA:
            raise RecordError(
                f"{file} is of another version of LLMB: it has schema {value['schema']}, this one reads {SCHEMA}",
                remedy="use that version, or move the file away to begin an empty one",
            )
        found: list[T] = from_plain(value[name], list[kind])  # type: ignore[valid-type]
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        items = value.get(name) if isinstance(value, dict) else None
        why = misfit_text(error, list[kind], items)  # type: ignore[valid-type]
        raise RecordError(f"{file} is not {what}: {why}", remedy="correct or remove the file") from error
    return found


def change_list(file: Path, name: str, kind: type[T], what: str, change: Callable[[list[T]], Iterable[T]]) -> None:
    """Replace the list ``name`` in the JSON file ``file`` by what ``change`` returns for its present items.

    ``change`` gets a new list of them, which it may alter, and returns all items that are to stay. A missing file
    counts as an empty list; it is created, and so is its folder, but not a folder above that. Under a lock from reading
    to writing, so that processes do not overwrite each other's changes. Written also where nothing has changed; where
    ``change`` raises, nothing is. ``kind`` is the items' type, and ``what`` is what messages call such a file, such as
    "a list of nodes".

    Raises:
        RecordError: the file cannot be read or written, is damaged or of another version, or is locked for 20 s; or
            its folder cannot be created
        OSError: locking fails for another reason
    """
    import msgspec

    try:
        file.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise RecordError(
            f"cannot create {file.parent}: {error.strerror or error}", remedy=remedy_for(error)
        ) from error
    with locked(file):
        items = change(read_list(file, name, kind, what))
        write_json(file, {"schema": SCHEMA, name: [msgspec.to_builtins(item) for item in items]})


_PATIENCE_SECONDS = 20.0
"""For another process's change, which takes milliseconds; one that was stopped may never go on."""


@contextlib.contextmanager
def locked(file: Path, patience: float | None = None) -> Iterator[None]:
    """Return a context that holds the lock of ``file``, for which it waits ``patience`` seconds; None: 20.

    The lock is a file beside it, ``.NAME.lock``, created if it is missing, and stays: ``file`` itself is replaced with
    each change, and need not exist, unlike its folder. Within the context the same lock cannot be taken again, not
    even by this process. On a file system without locks nothing is locked.

    Raises:
        RecordError: the lock file cannot be opened; code ``busy`` if another process holds the lock for too long
        OSError: locking fails for another reason
    """
    lock = file.with_name(f".{file.name}.lock")
    try:
        descriptor = _open_lock(lock)
    except OSError as error:
        raise RecordError(
            f"cannot open {lock}: {error.strerror or error}", remedy="check the folder's permissions and free space"
        ) from error
    try:
        patience = _PATIENCE_SECONDS if patience is None else patience
        if not lock_within(descriptor, patience):
            raise RecordError(
                f"another process has been changing {file} for {patience:.0f} s",
                remedy=f"fuser {lock} shows it; run the same command again when it has ended",
                code="busy",
            )
        yield
    finally:
        os.close(descriptor)


def _open_lock(lock: Path) -> int:
    """Open the lock file ``lock``, created if it is missing, and return its descriptor, which the caller closes.

    Opened for writing, or only for reading where it belongs to another user. A new one may be written by owner and
    group, as far as the umask lets them. Nothing is locked yet.

    Raises:
        OSError: the file cannot be opened, or is a symbolic link
    """
    flags = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        # To lock a file on NFS, it must be open for writing.
        return os.open(lock, flags | os.O_RDWR, 0o664)
    except PermissionError:  # another user's, who shares the folder
        return os.open(lock, flags | os.O_RDONLY)
