"""Numbers as Java writes them.

Known ones, those where Java differs from other languages, and a comparison with a real Java where one is installed.
"""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbg_tasks.formats.angel.java_digits import decimal_text, java_text
from pbg_tasks.formats.angel.numerals import numerals

# The output of Java 8 and 17; the shortest digits would differ in the last nine.
FLOATS = {
    0.1: "0.1",
    -0.0: "-0.0",
    1e10: "1.0E10",
    1e-5: "1.0E-5",
    9999999.0: "9999999.0",
    1e7: "1.0E7",
    0.001: "0.001",
    3.4028235e38: "3.4028235E38",
    float("nan"): "NaN",
    float("inf"): "Infinity",
    float("-inf"): "-Infinity",
    1.4e-45: "1.4E-45",
    1.17549435e-38: "1.17549435E-38",
    1.2345679e10: "1.23456788E10",
    6.486136698913523e25: "6.4861366E25",
    3.3554432e7: "3.3554432E7",
}
DOUBLES = {
    0.1: "0.1",
    1 / 3: "0.3333333333333333",
    2.2250738585072014e-308: "2.2250738585072014E-308",
    123456.789012345: "123456.789012345",
    1e21: "1.0E21",
    5e-324: "4.9E-324",
    2.0**-44: "5.6843418860808015E-14",
    2e-3: "0.002",
    2e23: "1.9999999999999998E23",
}
DECIMALS = {
    3.141592653589793: "3.141593",
    1e10: "10000000000",
    -0.0: "-0",
    1e-7: "0",
    -1e-7: "-0",
    0.1234565: "0.123456",
    0.5: "0.5",
    2.5e-6: "0.000003",
    123456.789012345: "123456.789012",
    1.5e22: "15000000000000000000000",
}


def texts(values):
    """Return the text of each number of a block."""
    return [text.decode() for text in numerals(values).to_pylist()]


@pytest.mark.parametrize(("value", "text"), FLOATS.items())
def test_floats(value, text):
    assert java_text(float(np.float32(value)), single=True) == text
    assert texts(np.float32([value])) == [text]


@pytest.mark.parametrize(("value", "text"), DOUBLES.items())
def test_doubles(value, text):
    assert java_text(value, single=False) == text
    assert texts(np.array([value])) == [text]


@pytest.mark.parametrize(("value", "text"), DECIMALS.items())
def test_six_decimals(value, text):
    assert decimal_text(value) == text


@given(st.integers(0, (1 << 32) - 1))
def test_a_floats_text_names_it(bits):
    value = np.array([bits], np.uint32).view(np.float32)[0]
    text = java_text(float(value), single=True)
    again = np.float32(text.replace("Infinity", "inf"))
    assert np.array_equal(again, value, equal_nan=True)


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=50), st.sampled_from([1, 1e3, 1e-3, 1e-30]))
def test_a_block_of_floats_is_what_each_is(bits, scale):
    with np.errstate(all="ignore"):
        values = np.array(bits, np.uint32).view(np.float32) * np.float32(scale)
    assert texts(values) == [java_text(float(v), single=True) for v in values]


@given(st.lists(st.integers(0, (1 << 64) - 1), max_size=50), st.sampled_from([None, 1e-3, 1.0, 1e6]))
def test_a_block_of_doubles_is_what_each_is(bits, scale):
    values = np.array(bits, np.uint64)
    values = values.view(np.float64) if scale is None else (values - np.float64(1 << 63)) / (1 << 63) * scale
    assert texts(values) == [java_text(v, single=False) for v in values.tolist()]


def test_many_ordinary_floats_are_what_each_is():
    rng = np.random.default_rng(0)
    short = [float(f"{digits}e{power}") for digits in range(1, 120) for power in range(-9, 8)]
    halves = rng.integers(-(1 << 24), 1 << 24, 3000) / 2.0 ** rng.integers(0, 24, 3000)
    values = np.concatenate([rng.normal(size=5000) * 10.0 ** rng.integers(-6, 9, 5000), short, halves]).astype(
        np.float32
    )
    assert texts(values) == [java_text(float(v), single=True) for v in values]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_integers(kind):
    limits = np.iinfo(kind)
    values = np.array([0, 7, -7, 10, 99999999, 100000000, -99999999, 12345678, 900, limits.max, limits.min], kind)
    assert texts(values) == [str(value) for value in values.tolist()]


JAVA = """
import java.nio.*; import java.nio.file.*;
public class Texts {
  public static void main(String[] names) throws Exception {
    ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(Paths.get(names[0])));
    StringBuilder out = new StringBuilder();
    java.text.DecimalFormat decimals = new java.text.DecimalFormat("#.######");
    while (bytes.hasRemaining()) {
      double value = bytes.getDouble();
      out.append((float) value).append(' ').append(value).append(' ').append(decimals.format(value)).append('\\n');
    }
    System.out.print(out);
  }
}
"""


def test_a_real_java_writes_the_same(tmp_path):
    javac, java = shutil.which("javac"), shutil.which("java")
    if not javac or not java:
        pytest.skip("there is no Java here to compare with")
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 64, 1500, dtype=np.uint64).view(np.float64)
    single = np.exp(rng.normal(size=1500) * 20).astype(np.float32).astype(np.float64)
    powers = np.ldexp(1.0, np.arange(-160, 140))
    whole = rng.integers(1 << 20, 1 << 60, 500).astype(np.float64)
    values = np.concatenate([bits, single, powers, whole, rng.normal(size=1500) * 100])
    values = values[np.isfinite(values) & (np.abs(values) < 1e38)]
    (tmp_path / "Texts.java").write_text(JAVA)
    values.astype(">f8").tofile(tmp_path / "values")
    version = subprocess.run([javac, "-version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    if int(version.split(".")[0]) > 18:
        pytest.skip("this Java is newer than any that Angel runs on, and writes other digits")
    subprocess.run([javac, "-d", str(tmp_path), str(tmp_path / "Texts.java")], check=True)
    command = [java, "-Duser.language=en", "-cp", str(tmp_path), "Texts", str(tmp_path / "values")]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    with np.errstate(over="ignore"):
        singles = values.astype(np.float32).tolist()
    ours = [
        f"{java_text(one, single=True)} {java_text(value, single=False)} {decimal_text(value)}"
        for one, value in zip(singles, values.tolist(), strict=True)
    ]
    assert ours == lines
