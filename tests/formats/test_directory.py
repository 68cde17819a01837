"""Version, config and statistics of a checkpoint directory."""

from __future__ import annotations

import json
from functools import partial

import pytest

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.directory import (
    BucketStats,
    EvalStats,
    IoStats,
    IterationLine,
    StatsLine,
    checkpoint_version_bytes,
    config_bytes,
    io_line,
    iteration_line,
    parse_iteration_line,
    parse_stats_line,
    read_checkpoint_version,
    read_config,
    split_line,
    stats_line,
)


@pytest.mark.parametrize(("data", "version"), [(None, 0), (b"", 0), (b"\n", 0), (b"0\n", 0), (b"12\n", 12), (b"7", 7)])
def test_versions(data, version):
    assert read_checkpoint_version(data, source="x") == version
    assert read_checkpoint_version(checkpoint_version_bytes(version), source="x") == version
    assert checkpoint_version_bytes(12) == b"12\n"


@pytest.mark.parametrize("data", [b"-1\n", b"one", b"1 2", b"\xff\xfe", b"9" * 5000, b"1.0"])
def test_garbage_is_no_version(data):
    with pytest.raises(FormatError, match=r"here\.txt: expected a whole number"):
        read_checkpoint_version(data, source="here.txt")


def test_config_round_trip(config):
    data = config_bytes(config)
    assert data == json.dumps(json.loads(data), indent=4).encode()
    assert json.loads(data)["bucket_order"] == "inside_out"
    assert read_config(data, source="config.json") == config


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "config.json: not readable JSON"),
        (b"\xff", "config.json: not readable JSON"),
        (b"[" * 100_000, "config.json: not readable JSON"),
        (b"[]", "config.json: "),
        (b'{"entities": {}}', "config.json: .*key 'dimension' is missing"),
        (b'{"dimensoin": 1}', "did you mean 'dimension'"),
    ],
)
def test_damaged_configs_are_named(data, message):
    with pytest.raises(FormatError, match=message):
        read_config(data, source="config.json")


def test_a_bucket_has_pbgs_line(iteration):
    stats = BucketStats(count=10, loss=1.5, reg=0.25, violators_lhs=2.0, violators_rhs=3.0, seconds=9.0)
    line = stats_line(stats, 1, 0, 17, iteration)
    assert line == (
        '{"lhs_partition": 1, "rhs_partition": 0, "index": 17, "stats": {"count": 10, "metrics": {"loss": 1.5, '
        '"reg": 0.25, "violators_lhs": 2.0, "violators_rhs": 3.0}}, "epoch_idx": 2, "edge_path_idx": 0, '
        '"edge_chunk_idx": 1}'
    )
    assert parse_stats_line(line, source="x") == StatsLine(1, 0, 17, stats, 2, 0, 1)


IO = IoStats(seconds=8.0, waited=0.5)
HELD_OUT = EvalStats(7, 1.5, 3.0, 0.25, 0.125, 0.5, 0.75, 0.875)
IO_LINE = (
    '{"epoch_idx": 2, "edge_path_idx": 0, "edge_chunk_idx": 1, "io": {"seconds": 8.0, "waited": 0.5, "share": 0.0625}}'
)


def old_line(held_out, iteration):
    """Return an iteration's line from the time when it contained ``io``."""
    entry = {key: getattr(iteration, key) for key in ("epoch_idx", "edge_path_idx", "edge_chunk_idx")}
    entry |= {"index": 17, "stats": {"count": 0, "metrics": {}}}
    entry |= {} if held_out is None else {"eval_stats_chunk_avg": held_out.to_json()}
    return json.dumps(entry | {"io": IO.to_json()})


def test_line_that_ends_iteration_is_no_bucket_line(iteration):
    line = iteration_line(HELD_OUT, 17, iteration)
    assert line == (
        '{"epoch_idx": 2, "edge_path_idx": 0, "edge_chunk_idx": 1, "index": 17, "stats": {"count": 0, "metrics": {}}, '
        '"eval_stats_chunk_avg": {"count": 7, "metrics": {"loss": 1.5, "pos_rank": 3.0, "mrr": 0.25, "r1": 0.125, '
        '"r10": 0.5, "r50": 0.75, "auc": 0.875}}}'
    )
    assert parse_stats_line(line, source="x") is None
    assert io_line(IO, iteration) == IO_LINE
    assert parse_stats_line(IO_LINE, source="x") is None


def test_the_end_of_an_iteration_is_read_again(iteration):
    end = partial(IterationLine, place=(2, 0, 1))
    assert parse_iteration_line(iteration_line(HELD_OUT, 17, iteration)) == end(io=None, held_out=HELD_OUT)
    assert parse_iteration_line(io_line(IO, iteration)) == end(io=IO, held_out=None)
    for held_out in (None, HELD_OUT):
        assert parse_iteration_line(old_line(held_out, iteration)) == end(io=IO, held_out=held_out)
    assert parse_iteration_line(stats_line(BucketStats(1, 1.0, 0.0, 1.0, 1.0), 0, 0, 0, iteration)) is None
    assert parse_iteration_line("cut off") is None


def test_old_iteration_line_is_split_by_file(iteration):
    assert split_line(old_line(None, iteration)) == (None, IO_LINE)
    assert split_line(old_line(HELD_OUT, iteration)) == (iteration_line(HELD_OUT, 17, iteration), IO_LINE)
    assert split_line(IO_LINE) == (None, IO_LINE)
    assert split_line(iteration_line(HELD_OUT, 17, iteration)) == (iteration_line(HELD_OUT, 17, iteration), None)


def test_pbgs_other_lines():
    per_iteration = '{"epoch_idx": 0, "edge_path_idx": 0, "edge_chunk_idx": 0, "index": 3, "eval_stats_chunk_avg": {}}'
    assert parse_stats_line(per_iteration, source="x") is None
    without_regularizer = (
        '{"lhs_partition": 0, "rhs_partition": 0, "index": 0, "stats": {"count": 1, "metrics": {"loss": 1, '
        '"violators_lhs": 1, "violators_rhs": 1}}, "epoch_idx": 0, "edge_path_idx": 0, "edge_chunk_idx": 0}'
    )
    found = parse_stats_line(without_regularizer, source="x")
    assert found is not None
    assert found.stats == BucketStats(1, 1.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize("line", ["", "{", "[]", "1", '{"stats": 1}', '{"stats": {"metrics": {}, "count": "x"}}'])
def test_damaged_lines_are_named(line):
    with pytest.raises(FormatError, match=r"stats\.json:3: not a line of training statistics"):
        parse_stats_line(line, source="stats.json:3")


def test_infinite_figure_is_never_written(iteration):
    with pytest.raises(ValueError, match="JSON"):
        stats_line(BucketStats(1, float("nan"), 0, 0, 0), 0, 0, 0, iteration)
