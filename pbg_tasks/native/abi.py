"""The structures of ``step.hpp``, ``rank.hpp`` and ``lines.hpp`` for ctypes.

Fields are 8 bytes wide; arrays are the caller's.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_char_p, c_double, c_int64, c_uint64, c_void_p

OPERATORS = ("none", "translation", "diagonal", "complex_diagonal", "linear", "affine")
COMPARATORS = ("dot", "cos", "l2", "squared_l2")
LOSSES = ("softmax", "ranking", "logistic")
NO_PENALTY, CUBE, SQUARE = range(3)
REGULARIZERS = {"N3": CUBE, "N3_edge": CUBE, "L2": SQUARE}

_COMPARED = 100


def compared_with_all(operator: str, edges: int, *, dynamic: bool) -> int:
    """Return the number of edges that ``all_negs`` compares at a time.

    With this number the scores stay in caches, and memory does not grow with the batch. It is the whole batch only
    where a matrix is applied to all entities, which costs about as much as comparing this many edges with them.
    """
    return edges if operator in ("linear", "affine") and not dynamic else min(_COMPARED, edges)


class Table(Structure):
    """Struct ``pbg_table``: embeddings of an entity type."""

    _fields_ = (
        ("rows", c_void_p),
        ("halves", c_void_p),
        ("sums", c_void_p),
        ("count", c_int64),
        ("trainable", c_int64),
        ("shared", c_void_p),  # `global` in step.hpp
        ("shared_sums", c_void_p),
    )


class Parameter(Structure):
    """Struct ``pbg_parameter``: a parameter of an operator, stacked over relations."""

    _fields_ = (("values", c_void_p), ("sums", c_void_p), ("relations", c_int64), ("size", c_int64))


class Step(Structure):
    """Struct ``pbg_step``: batches that are trained one after another, and their results."""

    _fields_ = (
        ("relation_operator", c_int64),
        ("comparator", c_int64),
        ("loss_fn", c_int64),
        ("regularizer", c_int64),
        ("dynamic", c_int64),
        ("bias", c_int64),
        ("half", c_int64),
        ("sampled", c_int64),
        ("key", c_uint64),
        ("sampled_variance", c_double),
        ("margin", c_double),
        ("max_norm", c_double),
        ("coefficient", c_double),
        ("lr", c_double),
        ("relation_lr", c_double),
        ("weights_of_sides", c_double * 2),
        ("times", c_double),
        ("dimension", c_int64),
        ("edges", c_int64),
        ("chunk", c_int64),
        ("own", c_int64),
        ("ends", c_void_p * 2),
        ("relations", c_void_p),
        ("weights", c_void_p),
        ("drawn", c_void_p * 2),
        ("drawn_per_chunk", c_int64 * 2),
        ("corrupted", c_int64 * 2),
        ("all", c_int64 * 2),
        ("selves", c_void_p),
        ("tables", POINTER(Table) * 2),
        ("parameters", (Parameter * 2) * 2),
        ("steps", c_int64),
        ("rates", c_void_p),
        ("keys", c_void_p),
        ("figures", c_void_p),
        ("loss", c_double),
        ("penalty", c_double),
        ("violators", c_int64 * 2),
        ("positive", c_void_p * 2),
        ("negative", c_void_p * 2),
    )


_HELD_OUT = (
    ("question", c_void_p),
    ("ties", c_void_p),
    ("wins", c_void_p),
    ("own", c_void_p),
    ("answer_start", c_void_p),
    ("answers", c_void_p),
    ("counts", c_void_p),
    ("close", c_void_p),
    ("capacity", c_int64),
)
"""Fields of the held-out edges that are ranked, and of what is found for them."""


class RankTile(Structure):
    """Struct ``pbg_rank_tile``: a tile of scores.

    It also has the held-out edges whose questions the tile answers.
    """

    _fields_ = (
        ("scores", c_void_p),
        ("columns", c_int64),
        ("edges", c_int64),
        *_HELD_OUT,
    )


class RankProducts(Structure):
    """Struct ``pbg_rank_products``: vectors whose inner products are scores.

    It also has the held-out edges that ask for them.
    """

    _fields_ = (
        ("queries", c_void_p),
        ("candidates", c_void_p),
        ("questions", c_int64),
        ("columns", c_int64),
        ("dimension", c_int64),
        ("edges", c_int64),
        *_HELD_OUT,
    )


class Lines(Structure):
    """Struct ``pbg_lines``: rows of numbers that become lines of text."""

    _fields_ = (
        ("heads", c_char_p),
        ("head_ends", c_void_p),
        ("numbers", c_void_p),
        ("rows", c_int64),
        ("columns", c_int64),
        ("out", c_void_p),
    )
