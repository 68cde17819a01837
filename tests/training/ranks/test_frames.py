from __future__ import annotations

import json
import random
import socket
import struct
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from pbg_tasks.errors import FormatError, ResourceError
from pbg_tasks.training.ranks.transport import frames
from tests.training.ranks.frames import mutated, sent

LIMIT = 1 << 20
DTYPES = (np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_)
SOME_ARRAYS = st.lists(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    ),
    max_size=4,
)
SOME_FIELDS = st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(), max_size=4)


def received(data, *, into=None):
    """Return the message of some bytes after which the stream ends."""
    here, there = socket.socketpair()
    with here, there:
        sender = threading.Thread(target=lambda: (here.sendall(data), here.shutdown(socket.SHUT_WR)))
        sender.start()
        try:
            return frames.receive(there, LIMIT, into)
        finally:
            there.close()
            sender.join()


def framed(header, rest=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("!4sI", b"PBG\x01", len(text)) + text + rest


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=10), SOME_FIELDS, SOME_ARRAYS)
def test_message_arrives_unchanged(kind, fields, arrays):
    message = received(sent(kind, fields, arrays))
    assert (message.kind, message.fields) == (kind, fields)
    assert [(one.dtype, one.shape) for one in message.arrays] == [(one.dtype, one.shape) for one in arrays]
    for one, other in zip(message.arrays, arrays, strict=True):
        np.testing.assert_array_equal(one, other)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_spoilt_bytes_give_message_or_own_error(data):
    frame = bytearray(sent("push", {"lease": 7}, [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(2, np.int64)]))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    frame = frame[: data.draw(st.integers(0, len(frame)))]
    try:
        message = received(bytes(frame))
    except (FormatError, EOFError):
        return
    assert sum(one.nbytes for one in message.arrays) <= LIMIT


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"[" * 100_000,
        b'{"kind": "a", "fields": {"x": NaN}, "arrays": []}',
        b'{"kind": "a", "fields": {"x": [-Infinity]}, "arrays": []}',
        b'{"kind": "a", "fields": {"x": 1e999}, "arrays": []}',
        b'{"kind": "a", "fields": {"x": 1, "x": 2}, "arrays": []}',
        b'{"kind": "a", "kind": "b", "fields": {}, "arrays": []}',
        b'{"kind": "a", "fields": {"x": "\xff"}, "arrays": []}',
        b'{"kind": "a", "fields": {"x": "\\ud800"}, "arrays": []}',
        b'{"kind": "a", "fields": {"x": "\xed\xa0\x80"}, "arrays": []}',
        *(
            '{"kind": "a", "fields": {}, "arrays": []}'.encode(encoding)
            for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
        ),
        b'{"kind": "a", "fields": {}, "arrays": [{"dtype": "<f4", "shape": [' + b"9" * 4000 + b"]}]}",
        b'{"kind": "a", "fields": {}, "arrays": [{"dtype": "<f4", "shape": [0, ' + b"9" * 4000 + b"]}]}",
        b'{"kind": "a", "fields": {}, "arrays": ' + b"9" * 5000 + b"}",
        [],
        {"kind": "a", "fields": {}},
        {"kind": "a", "fields": {}, "arrays": [], "more": 1},
        {"kind": 1, "fields": {}, "arrays": []},
        {"kind": "a", "fields": [], "arrays": []},
        {"kind": "a", "fields": {}, "arrays": [1]},
        {"kind": "a", "fields": {}, "arrays": [{"dtype": "|O", "shape": [1]}]},
        {"kind": "a", "fields": {}, "arrays": [{"dtype": ["<f4"], "shape": [1]}]},
        {"kind": "a", "fields": {}, "arrays": [{"dtype": "<f4", "shape": 1}]},
        {"kind": "a", "fields": {}, "arrays": [{"dtype": "<f4", "shape": [-1]}]},
        {"kind": "a", "fields": {}, "arrays": [{"dtype": "<f4", "shape": [True]}]},
        {"kind": "a", "fields": {}, "arrays": [{"dtype": "<f4", "shape": [1.0]}]},
        {"kind": "a", "fields": {}, "arrays": [{"dtype": "<f4", "shape": [1] * 5}]},
        {"kind": "a", "fields": {}, "arrays": [{"dtype": "<f4"}]},
        {"kind": "a", "fields": {}, "arrays": [{"dtype": "<f4", "shape": [1], "strides": [0]}]},
    ],
)
def test_invalid_header_is_refused(header):
    with pytest.raises(FormatError, match="a header that is none"):
        received(framed(header, bytes(100)))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), "\ud800"])
def test_message_without_json_fields_is_not_sent(number):
    with pytest.raises(FormatError, match="fields that are no JSON"):
        sent_directly("a", {"x": [number]}, [])


def test_mutated_frames_neither_crash_nor_hang_reader():
    """Each of 10,000 gives a message or an expected error.

    All of them take seconds.
    """
    generator = random.Random(7)
    frames_ = [
        sent("push", {"lease": 7, "text": "é", "x": 0.5}, [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(2)]),
        sent("error", {"status": 3, "text": "why"}, []),
        sent("lease", {"sources": {"a.h5": {"generation": 1, "stored": None}}, "last": ["a.h5"]}, []),
    ]
    outcomes = Counter()
    for _ in range(10_000):
        here, there = socket.socketpair()
        with here, there:
            here.sendall(mutated(generator.choice(frames_), generator))
            here.shutdown(socket.SHUT_WR)
            there.settimeout(5)
            try:
                message = frames.receive(there, LIMIT)
            except (FormatError, ResourceError, EOFError) as error:
                outcomes[type(error)] += 1
            else:
                outcomes[type(message)] += 1
                sent_directly(message.kind, message.fields, [])  # every accepted message could be sent
    assert outcomes[FormatError] > 1000
    assert outcomes[EOFError] > 100
    assert outcomes[frames.Message] > 100


@pytest.mark.parametrize("shape", [[1 << 61], [1 << 40, 1 << 40], [LIMIT // 4 + 1]])
def test_too_large_header_is_refused_before_allocation(shape):
    header = {"kind": "a", "fields": {}, "arrays": [{"dtype": "<f4", "shape": shape}]}
    with pytest.raises(FormatError, match=f"bytes of arrays, {LIMIT} are allowed"):
        received(framed(header), into=lambda *_: pytest.fail("asked for memory"))


def test_many_small_arrays_count_together():
    header = {"kind": "a", "fields": {}, "arrays": [{"dtype": "|u1", "shape": [LIMIT // 2]}] * 3}
    with pytest.raises(FormatError, match="are allowed"):
        received(framed(header))


def test_header_of_more_than_a_mebibyte_is_refused():
    with pytest.raises(FormatError, match="promises a header of 1048577 bytes"):
        received(struct.pack("!4sI", b"PBG\x01", (1 << 20) + 1))
    with pytest.raises(FormatError, match="has a header of"):
        sent_directly("a", {"text": "x" * (1 << 20)}, [])


@pytest.mark.parametrize("start", [b"PBG\x02", b"GET "])
def test_other_first_bytes_are_refused(start):
    with pytest.raises(FormatError, match="begins with"):
        received(start + bytes(100))


@pytest.mark.parametrize(
    "array", [np.zeros(1, np.float16), np.zeros(1, ">f4"), np.array(["a"]), np.array([None]), np.zeros((1,) * 5)]
)
def test_array_of_forbidden_type_is_not_sent(array):
    with pytest.raises(FormatError, match="cannot hold"):
        sent_directly("a", {}, [array])


def sent_directly(*message):
    here, there = socket.socketpair()
    with here, there:
        frames.send(here, *message)


def test_arrays_that_are_not_contiguous_are_sent():
    array = np.arange(24, dtype=np.int32).reshape(4, 6)[::2, ::-1].T
    np.testing.assert_array_equal(received(sent("a", {}, [array])).arrays[0], array)


def test_more_arrays_than_one_system_call_takes():
    arrays = [np.full(3, number) for number in range(1100)]
    np.testing.assert_array_equal(received(sent("a", {}, arrays)).arrays, arrays)


class TestInto:
    frame = staticmethod(lambda: sent("a", {}, [np.arange(6, dtype=np.float32).reshape(2, 3)]))

    def test_given_arrays_are_filled(self):
        place = np.zeros((2, 3), np.float32)
        assert received(self.frame(), into=[place]).arrays[0] is place
        np.testing.assert_array_equal(place, [[0, 1, 2], [3, 4, 5]])

    def test_place_for_arrays_is_requested(self):
        big = np.zeros((5, 3), np.float32)
        received(self.frame(), into=lambda _index, _dtype, shape: big[1 : 1 + shape[0]])
        np.testing.assert_array_equal(big.sum(axis=1), [0, 3, 12, 0, 0])

    @pytest.mark.parametrize(
        "place",
        [
            np.zeros((3, 2), np.float32),
            np.zeros((2, 3), np.float64),
            np.zeros((3, 2), np.float32).T,
            np.zeros((1, 3), np.float32),
        ],
    )
    def test_array_that_does_not_fit_is_refused(self, place):
        with pytest.raises(FormatError, match="there is place for"):
            received(self.frame(), into=[place])
        assert not place.any()

    def test_other_number_of_arrays_is_refused(self):
        with pytest.raises(FormatError, match="1 arrays instead of 2"):
            received(self.frame(), into=[np.zeros(1), np.zeros(1)])

    def test_error_of_place_is_raised(self):
        message = received(sent("error", {"status": 3, "text": "why"}, []), into=[np.zeros(1)])
        assert message == ("error", {"status": 3, "text": "why"}, ())
