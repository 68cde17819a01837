"""Errors that users meet: one class for each reaction of a handler.

Every error has a stable ``kind`` (the word that a log search or a retry policy matches) and an exit code, so that a
scheduler distinguishes *retry* from *fail* without reading logs. The message is ``where: what is wrong; what to do``,
where *where* is a file with its line, an object's URL or a key.
"""

from __future__ import annotations

import re
from typing import ClassVar

from pbg_tasks.redaction import redacted

ERROR_FILE = "PBG_ERROR_FILE"
"""Variable with the file that gets the last line of a command that fails, as ``/dev/termination-log`` of a pod."""
SHOWN = 2000
"""Longest message of an error, in characters; a longer one is shown without its middle."""
_BREAKS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")


def printable(text: str) -> str:
    """Return a text with escapes for control characters and line breaks."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def one_line(text: str) -> str:
    """Return a text as one printable line.

    Line breaks become spaces, control characters become escapes, and a text of more than ``SHOWN`` characters loses its
    middle. Libraries put paragraphs, and names from data, into their messages, while a log search and a terminal need
    one line.
    """
    line = printable(_BREAKS.sub(" ", text.strip()))
    if len(line) <= SHOWN:
        return line
    mark = f" [... {len(line) - SHOWN} characters left out ...] "
    return f"{line[: SHOWN * 3 // 4]}{mark}{line[-SHOWN // 4 :]}"


class PbgError(Exception):
    """Root of the errors that this package raises on purpose.

    The message is stored as one line without credentials.

    Attributes:
        kind: stable identifier of the category.
        exit_code: exit status of the ``pbg`` command.
        retryable: whether the same command may succeed later although nothing was changed.
    """

    kind: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(redacted(str(message))))


class ConfigError(PbgError):
    """Wrong spec, config, option or environment setting, to be edited."""

    kind = "config"
    exit_code = 2


class InputError(PbgError):
    """Missing or bad input, to be repaired by its producer."""

    kind = "input"
    exit_code = 3


class MissingSnapshotError(InputError):
    """Snapshot that is not there or not whole, and may come later."""


class FormatError(PbgError):
    """Damaged or foreign file, or one of an unknown version."""

    kind = "format"
    exit_code = 4


class ConflictError(PbgError):
    """Refused change of another writer's object, as the store decided."""

    kind = "conflict"
    exit_code = 5


class OvertakenError(ConflictError):
    """Conflict after which it is open whether the write took place.

    Another writer's object is there, and this write may have come before it and been replaced.
    """


class StorageError(PbgError):
    """Failure of the store, or of the way to it."""

    kind = "storage"
    exit_code = 6
    retryable = True


class UnsupportedError(StorageError):
    """Refused kind of request, which the store never carries out."""


class AccessError(StorageError):
    """Refused credentials or permission; a retry cannot help."""

    exit_code = 9
    kind = "access"
    retryable = False


class NotFoundError(StorageError):
    """Object that is missing in the store."""

    kind = "not_found"
    exit_code = 10
    retryable = False


class ResourceError(PbgError):
    """Lack of memory, disk or another resource of this machine.

    A retry on another machine may succeed.
    """

    kind = "resource"
    exit_code = 7
    retryable = True


class RankLostError(PbgError):
    """Loss of a rank, which died, fell silent or never came.

    Objects that the gang had stored stay, and a new gang resumes from them.
    """

    kind = "rank_lost"
    exit_code = 12
    retryable = True


class EvictedError(PbgError):
    """End of the process at SIGTERM.

    The work that it had done is stored, and a new process or gang resumes from it.
    """

    kind = "evicted"
    exit_code = 13
    retryable = True


class OutOfTurnError(PbgError):
    """Incomplete snapshot, or unfinished night that this one continues."""

    kind = "out_of_turn"
    exit_code = 14
    retryable = True


class QualityGateError(PbgError):
    """Result of finished work, not good enough to be published."""

    kind = "quality_gate"
    exit_code = 8


class UnusableError(QualityGateError):
    """Result without any use, which a person cannot approve either.

    Examples are vectors of an empty snapshot and vectors that are not finite.
    """

    kind = "unusable"
    exit_code = 15


class IncompatibleError(PbgError):
    """Vectors that do not fit those that a reader or channel has."""

    kind = "incompatible"
    exit_code = 16


class TrainingDivergedError(QualityGateError):
    """NaN or infinity in training; nothing of that epoch was committed."""

    kind = "diverged"
    exit_code = 11


BY_EXIT_CODE: dict[int, type[PbgError]] = {
    error.exit_code: error
    for error in (
        ConfigError,
        InputError,
        FormatError,
        ConflictError,
        StorageError,
        ResourceError,
        RankLostError,
        EvictedError,
        OutOfTurnError,
        QualityGateError,
        AccessError,
        NotFoundError,
        TrainingDivergedError,
        UnusableError,
        IncompatibleError,
        PbgError,
    )
}
"""Class of error for each exit status of the ``pbg`` command."""
BY_KIND = {error.kind: error for error in BY_EXIT_CODE.values()}
"""Class of error for each kind."""
