"""Pickled optimizer states of PBG."""

from __future__ import annotations

import io
import zipfile

import h5py
import numpy as np

from pbg_tasks.formats.embeddings import read_embeddings

ROWS = 5


def archive(entries, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, data in entries:
            file.writestr(name, data)
    return buffer.getvalue()


def around(data):
    """Build the archive torch would make around a pickle."""
    return archive([("archive/data.pkl", data), ("archive/version", "3\n"), ("archive/byteorder", "little")])


def read_sums(path, blob):
    """Read the sums of an embeddings file that has only this blob."""
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        file["embeddings"] = np.zeros((ROWS, 2), np.float32)
        file["optimizer/state_dict"] = np.frombuffer(blob, "V1")
    return read_embeddings(path)[1]
