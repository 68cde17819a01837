"""Text of Angel's LINE and word2vec: lines ``node:v v ...``.

Each type has a folder ``{type}/CP_1/embedding``. Nodes are numbered from 0, and ``{type}/mapping`` has a line
``node:name`` for each. Angel's LINE starts from the same folder (``extraInputEmbeddingPath``).
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.angel import read_line, write_line
from pbg_tasks.publish.exchange.angel import columns, write_names
from pbg_tasks.publish.exchange.angel_folders import MAPPING, InboxFolder, by_type, named_blocks, of_type
from pbg_tasks.publish.exchange.vectors import Vectors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import JsonValue

    from pbg_tasks.config.exports import AngelLineOptions
    from pbg_tasks.publish.exchange.contents import Contents
    from pbg_tasks.publish.exchange.inbox import Inbox
    from pbg_tasks.publish.exchange.outbox import Outbox
    from pbg_tasks.publish.exchange.vectors import ReadOptions

CHECKPOINT = "CP_1/embedding"
# The folder of an epoch's embeddings, and the folder above it; or text without such folders.
_EMBEDDING = re.compile(r"(?:(?P<output>.*?)/?)CP_(?P<epoch>[0-9]{1,9})/(?:inputEmbedding/)?embedding")
_DATA = re.compile(r"[0-9]+|part-.*")


def write(contents: Contents, outbox: Outbox, options: AngelLineOptions) -> dict[str, JsonValue]:
    """Write the lines and the mapping of each type.

    Raises:
        ConfigError: Angel cannot read the separators.
        FormatError: an embedding is damaged, or a name holds a line break.
    """
    for rows in contents.entities.values():
        write_line(
            outbox.root / rows.entity / CHECKPOINT,
            columns(rows),
            key_separator=options.key_separator,
            feature_separator=options.feature_separator,
        )
        write_names(rows, outbox, f"{rows.entity}/{MAPPING}", options, form="angel-line")
        outbox.record(rows, *outbox.adopt(rows.entity))
    return {}


def read(inbox: Inbox, options: ReadOptions) -> Iterator[Vectors]:
    """Yield the vectors of each output of LINE or word2vec.

    They are those of its last epoch. A folder of such lines is an output, too.

    Raises:
        FormatError: a line is wrong.
    """
    for entity, folder in of_type(inbox, options.entity, _outputs(inbox)).items():
        output = match["output"] if (match := _EMBEDDING.fullmatch(folder)) else folder
        with InboxFolder(inbox, folder, lines=True) as files:
            blocks = read_line(files, key_separator=options.key_separator, feature_separator=options.feature_separator)
            first = next(blocks, None)
            if first is None:
                raise FormatError(f"{files.where}: holds no vectors")
            named = named_blocks(inbox, chain([first], blocks), (f"{output}/{MAPPING}".lstrip("/"),))
            yield Vectors(entity, first[1].shape[1], files.where, named)


def _outputs(inbox: Inbox) -> dict[str, str]:
    """Return the folder of each output's last epoch, by type."""
    parted = [name.rpartition("/") for name in inbox.names]
    folders = {folder for folder, _, file in parted if _DATA.fullmatch(file)}
    epochs: dict[str, tuple[int, str]] = {}
    for match in filter(None, map(_EMBEDDING.fullmatch, sorted(folders))):
        output, found = match["output"], (int(match["epoch"]), match[0])
        epochs[output] = max(epochs.get(output, found), found)
    if epochs:
        return by_type(((output.rpartition("/")[2], folder) for output, (_, folder) in epochs.items()), inbox)
    return {"": ""} if "" in folders else {}
