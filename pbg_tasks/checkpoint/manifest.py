"""Documents of a commit: the manifest of a version, and the head.

The head points to the manifest of the version that counts.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeVar

from pydantic import Field

from pbg_tasks.config.base import Frozen, Growing, canonical_json, parse
from pbg_tasks.config.results import check_format
from pbg_tasks.errors import FormatError, NotFoundError, PbgError

if TYPE_CHECKING:
    from pbg_tasks.storage import ObjectInfo, Store

Document = TypeVar("Document", bound=Frozen)
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
REQUIRES = "requires"
"""Key of a stored document that lists the keys which a reader must support."""


class ObjectRecord(Frozen):
    """Hash and size of an object as it was written.

    Readers verify both before they open the object.
    """

    sha256: Sha256
    size: Annotated[int, Field(ge=0)]


class Iteration(Frozen):
    """One pass over one chunk of one edge path in one epoch.

    It is PBG's iteration, with the number of epochs, edge paths and chunks. ``number`` (from 1) is the checkpoint
    version that its commit makes.
    """

    number: int
    epoch_idx: int
    num_epochs: int
    edge_path_idx: int
    num_edge_paths: int
    edge_chunk_idx: int
    num_edge_chunks: int

    def is_same(self, other: Iteration) -> bool:
        """Return whether both are one iteration, whatever the number of epochs."""
        return self.model_copy(update={"num_epochs": other.num_epochs}) == other


class BestVersion(Frozen):
    """An earlier version with a better figure than the newest.

    The figure is the MRR of the sample of valid edges.

    Attributes:
        version: its number.
        manifest_sha256: of its manifest.
    """

    version: Annotated[int, Field(ge=1)]
    manifest_sha256: Sha256


class Manifest(Growing):
    """Manifest of one committed version, with all its objects.

    Attributes:
        spec: hash of the run spec or config the version was trained with.
        writer_epoch: of the writer that committed it.
        parent: hash of the manifest before, None for the first.
        iteration: the one just finished; None for a version 0.
        edges: ledger: number of edges that each finished iteration trained.
        retrained: for each iteration, the number of edges that were, or may have been, trained twice: a rank was lost
            before it had stored its work on them. Empty where no iteration has any.
        valid: MRR of the sample of valid edges after each finished epoch; empty without early stopping.
        best: the version to release, where it is not this one.
        objects: by file name.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("valid", "best")

    format: Literal[1] = 1
    spec: str
    writer_epoch: int
    version: Annotated[int, Field(ge=0)]
    parent: Sha256 | None = None
    iteration: Iteration | None = None
    edges: tuple[int, ...] = ()
    retrained: tuple[int, ...] = ()
    valid: tuple[float, ...] = ()
    best: BestVersion | None = None
    objects: dict[str, ObjectRecord]

    @property
    def best_epoch(self) -> int | None:
        """The first epoch with the highest figure, from 1; None without figures."""
        return self.valid.index(max(self.valid)) + 1 if self.valid else None


class NamedRecord(Frozen):
    """A small object, by name and bytes."""

    name: str
    sha256: Sha256


class Stamped(Frozen):
    """Document that is replaced by compare-and-swap.

    So ``encode_unique`` stores it with a nonce. A writer of an earlier version that swaps it drops the keys that the
    version lacks.
    """


class Head(Stamped):
    """Head of a run, its one mutable object: writer and current version.

    Attributes:
        writer_epoch: of the last claim of the run.
        version: that counts.
        manifest_sha256: of its manifest.
        progress: record of the iteration after it, where a gang has begun one.
    """

    format: Literal[1] = 1
    writer_epoch: int
    version: Annotated[int, Field(ge=0)] = 0
    manifest_sha256: Sha256 | None = None
    progress: NamedRecord | None = None


def encode(document: Frozen) -> bytes:
    """Return the bytes as which a document is stored (canonical JSON)."""
    return canonical_json(document.model_dump(mode="json"))


def encode_unique(document: Stamped) -> bytes:
    """Return a document's bytes with a random nonce, for a swap.

    No two writes have equal bytes then. The tag that a swap expects may be a hash of the bytes, as in S3. Without the
    nonce, a document that was changed and changed back would pass for one that never changed.
    """
    return canonical_json({**document.model_dump(mode="json"), "nonce": secrets.token_hex(16)})


def decode(model: type[Document], data: bytes, *, source: str, ignore_unknown: bool = True) -> Document:
    """Read a stored document.

    Keys that the model lacks are left out, so that a later version may add some without locking this one out. A
    document in which such a key changes the meaning of the others names it in ``requires`` (docs/dev/stored-documents).

    Args:
        model: of the document.
        data: its bytes.
        source: its URL, for messages.
        ignore_unknown: False for a document in which every key affects what a task does, such as a run spec.

    Raises:
        FormatError: it is not JSON, not this document, of a format of a later version, or requires a key that this
            version lacks.
    """
    try:
        document = json.loads(data)
        check_format(document, source=source)
        _check_required(model, document, source=source)
        return parse(model, document, source=source, ignore_unknown=ignore_unknown, credentials_pass=ignore_unknown)
    except FormatError:
        raise
    except (ValueError, AttributeError, RecursionError) as error:
        raise FormatError(f"{source}: not valid JSON ({error}); it was damaged or edited by hand") from None
    except PbgError as error:
        later = "" if ignore_unknown else ", or is of a later version"
        raise FormatError(f"{error}; it was damaged or edited by hand{later}") from None


def find_document(model: type[Document], store: Store, key: str) -> tuple[Document, ObjectInfo] | None:
    """Read a stored document with its object; None without it.

    Raises:
        FormatError: as of ``decode``.
    """
    try:
        blob = store.get(key)
    except NotFoundError:
        return None
    return decode(model, blob.data, source=f"{store.url}/{key}"), blob.info


def _check_required(model: type[Frozen], document: object, *, source: str) -> None:
    """Refuse a document that requires a key which the model lacks."""
    required = document.get(REQUIRES, []) if isinstance(document, dict) else []
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise FormatError(f"{source}: {REQUIRES!r} takes a list of keys; it was damaged or edited by hand")
    if unknown := sorted(set(required) - model.model_fields.keys()):
        raise FormatError(
            f"{source}: requires {', '.join(map(repr, unknown))}, which this version does not know; read it with the "
            "version that wrote it"
        )


def sha256(data: bytes) -> str:
    """Return the hash of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()
