"""Formats by name: Angel's, the layers' settings, and those that packages add."""

from __future__ import annotations

import numpy as np
import pytest

from pbg_tasks import plugins
from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.formats.angel import FORMATS, LocalFolder, MatrixLayout, RowType, formats, open_matrix, write_matrix
from pbg_tasks.formats.angel.row_types import row_type
from tests.formats.angel.samples import vectors
from tests.model.plugins import documented, package_folder

PACKAGE = "com.tencent.angel.model.output.format."


@pytest.fixture
def package(tmp_path):
    """Write a package with formats; known packages are forgotten before and after."""
    with package_folder(tmp_path / "site") as write:

        def install(name, source, groups):
            write(name, source, groups)
            forget()

        yield install
    forget()


def forget():
    formats._installed.cache_clear()
    plugins._installed.cache_clear()


def test_names_with_and_without_the_package():
    for name, form in FORMATS.items():
        assert formats.output_format(name) is formats.output_format(PACKAGE + name) is form
        assert formats.class_name(name) == formats.class_name(PACKAGE + name) == PACKAGE + name


@pytest.mark.parametrize(
    ("layer", "default"),
    [
        ("simpleinputlayer", "ColIdValueTextRowFormat"),
        ("embedding", "TextColumnFormat"),
        ("fclayer", "RowIdColIdValueTextRowFormat"),
    ],
)
def test_layers(layer, default):
    assert formats.layer_format({}, layer) == PACKAGE + default
    key = f"ml.{layer}.matrix.output.format"
    assert formats.layer_format({key: PACKAGE + "BinaryColumnFormat"}, layer) == PACKAGE + "BinaryColumnFormat"
    with pytest.raises(ConfigError, match=r"no Angel output format is named 'x\.Y' here"):
        formats.layer_format({key: "x.Y"}, layer)


def test_a_layer_without_a_setting():
    with pytest.raises(ConfigError, match="layer 'conv' has no format of its own; those that have: simpleinputlayer"):
        formats.layer_format({}, "conv")


def test_the_documented_format_of_a_package(package, tmp_path):
    package(*documented("angel.md", "(import .*?class .*?)"))
    layout = MatrixLayout(name="m", rows=2, end_col=3, format="org.example.HexFormat")
    table = np.array([[0.5, 1], [-2, 3], [4, 5]], np.float32)
    write_matrix(tmp_path, layout, [(np.arange(3), table)])
    assert (tmp_path / "m" / "0").read_bytes().splitlines()[0] == b"0 3f000000"
    matrix = open_matrix(LocalFolder(tmp_path / "m"))
    assert matrix.meta.format_class_name == "org.example.HexFormat"
    assert vectors(matrix) == dict(enumerate(table.tolist()))


@pytest.mark.parametrize(
    ("source", "message"),
    [("Mine = 3", "is 3, not a subclass or an instance of .*Format"), ("raise KeyError('x')", "failed: KeyError: 'x'")],
)
def test_a_package_at_fault_is_named(package, source, message):
    package("mine", source, {"pbg_tasks.angel_formats": {"org.example.Mine": "mine:Mine"}})
    with pytest.raises(
        ConfigError, match=f"'org.example.Mine', entry point mine:Mine of the package mine 1.0, {message}"
    ):
        formats.output_format("org.example.Mine")


def test_row_types_by_their_numbers():
    assert [kind.name for kind in (RowType(3), RowType(7), RowType(12), RowType(19), RowType(26))] == [
        "T_DOUBLE_SPARSE",
        "T_FLOAT_DENSE",
        "T_FLOAT_SPARSE_LONGKEY",
        "T_LONG_SPARSE_LONGKEY",
        "T_INT_SPARSE_LONGKEY",
    ]
    kinds = {kind: (kind.value_type.name, kind.key_type.name, kind.dense) for kind in RowType if kind.numeric}
    for number in range(28):
        name = RowType(number).name
        value = {"DOUBLE": "float64", "FLOAT": "float32", "LONG": "int64", "INT": "int32"}[name.split("_")[1]]
        assert kinds[number] == (value, "int64" if "LONGKEY" in name else "int32", "DENSE" in name)
        if name.endswith("COMPONENT"):
            with pytest.raises(FormatError, match="no server can hold"):
                row_type(number, "here")
