"""The errors a user can meet, one class for each thing a handler would do about it.

Every error has a stable ``kind`` (the word a log search or a retry policy matches) and an exit code, so that a
scheduler tells *retry* from *fail* without reading logs. The message names the file, line or key and what to do.
"""

from __future__ import annotations

import re
from typing import ClassVar

from pbg_tasks.redaction import redacted

SHOWN = 2000
"""Characters of an error's message that are shown; of a longer one the middle is left out."""
_BREAKS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")


def one_line(text: str) -> str:
    """Return a text as one printable line: breaks become spaces, control characters escapes, the middle is cut.

    Libraries put paragraphs, and names from data, into their messages; a log search and a terminal take one line.
    """
    line = _BREAKS.sub(" ", text.strip())
    if not line.isprintable():
        line = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)
    if len(line) <= SHOWN:
        return line
    mark = f" [... {len(line) - SHOWN} characters left out ...] "
    return f"{line[: SHOWN * 3 // 4]}{mark}{line[-SHOWN // 4 :]}"


class PbgError(Exception):
    """Root of every error this package raises on purpose; its message is one line without credentials.

    Attributes:
        kind: stable identifier of the category.
        exit_code: the process exit status the ``pbg`` command ends with.
        retryable: whether the same command may succeed later without anyone changing anything.
    """

    kind: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(redacted(str(message))))


class ConfigError(PbgError):
    """A spec, config, option or environment setting is wrong: someone has to edit it."""

    kind = "config"
    exit_code = 2


class InputError(PbgError):
    """A snapshot or other input is missing or holds bad data: its producer has to mend it."""

    kind = "input"
    exit_code = 3


class FormatError(PbgError):
    """A file of our own formats is damaged, foreign or of an unknown version."""

    kind = "format"
    exit_code = 4


class ConflictError(PbgError):
    """Another writer owns what this one wanted to change; the store decided."""

    kind = "conflict"
    exit_code = 5


class OvertakenError(ConflictError):
    """Another writer's object is there, and this write may have taken place before it and been replaced."""


class StorageError(PbgError):
    """The store could not be reached or failed."""

    kind = "storage"
    exit_code = 6
    retryable = True


class AccessError(StorageError):
    """The store refused the credentials or the permission: retrying cannot help."""

    exit_code = 9
    kind = "access"
    retryable = False


class NotFoundError(StorageError):
    """The object is not in the store."""

    kind = "not_found"
    exit_code = 10
    retryable = False


class ResourceError(PbgError):
    """Memory, disk or another resource of this machine ran out; a retry elsewhere may succeed."""

    kind = "resource"
    exit_code = 7
    retryable = True


class RankLostError(PbgError):
    """A rank of the gang died, fell silent or never came; what was stored stays, a new gang goes on from there."""

    kind = "rank_lost"
    exit_code = 12
    retryable = True


class EvictedError(PbgError):
    """This process was told to end (SIGTERM) and stored what it had; a new gang goes on from there."""

    kind = "evicted"
    exit_code = 13
    retryable = True


class OutOfTurnError(PbgError):
    """The snapshot is not whole yet, or the night before has not finished, and this one continues it."""

    kind = "out_of_turn"
    exit_code = 14
    retryable = True


class QualityGateError(PbgError):
    """The work succeeded, the result is not good enough to be published."""

    kind = "quality_gate"
    exit_code = 8


class UnusableError(QualityGateError):
    """The result is of no use to anybody, so nobody can approve it: of an empty snapshot, or not finite."""

    kind = "unusable"
    exit_code = 15


class TrainingDivergedError(QualityGateError):
    """Training produced NaN or infinity; nothing of that epoch was committed."""

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
        PbgError,
    )
}
"""What an exit status of the ``pbg`` command means."""
