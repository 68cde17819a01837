"""The experiments: config, data set, targets, and published figures.

The config is one that ships with this repository.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmarks.quality.data import (
    BLOGCATALOG,
    CODEX_M,
    CODEX_S,
    FB15K,
    FB15K_237,
    ICEWS14,
    UMLS,
    WN18RR,
    DataSet,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["links", "dated links", "labels", "init"]

CONFIGS = Path("examples/configs")
PRESETS = Path("pbg_tasks/config/presets.py")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Published:
    """A row of figures that others published.

    Attributes:
        system: that reached them, and their source.
        figures: by the names this benchmark uses.
    """

    system: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Experiment:
    """One config on one data set.

    Attributes:
        name: on the command line.
        title: in the document.
        kind: of its evaluation.
        config: a file of this repository, used as it is; of kind ``init`` the presets that ``pbg init`` writes.
        data: that it is trained on.
        targets: lower bound of each figure, on the mean of all seeds.
        aims: more ambitious bounds.
        interval: epochs between two points of the quality curve.
        published: rows for comparison.
        notes: sentences for the document.
        tuned: of kind ``init``, the experiment whose config was tuned for the same data.
    """

    name: str
    title: str
    kind: Kind
    config: Path
    data: DataSet
    targets: Mapping[str, float]
    interval: int
    aims: Mapping[str, float] = field(default_factory=dict)
    published: tuple[Published, ...] = ()
    notes: str = ""
    tuned: str = ""


def _init(name: str, data: DataSet) -> Experiment:
    """Return an experiment with the config that ``pbg init`` writes."""
    title = f"{data.name} by `pbg init`"
    return Experiment(f"init_{name}", title, "init", PRESETS, data, targets={}, interval=1000, tuned=name)


def _ranking(system: str, mrr: float, hits1: float | None = None, hits10: float | None = None) -> Published:
    listed = {"mrr": mrr, "hits1": hits1, "hits10": hits10}
    return Published(system, {name: value for name, value in listed.items() if value is not None})


def _micro(system: str, *percent: float) -> Published:
    return Published(system, dict(zip(("micro_f1_10%", "micro_f1_50%", "micro_f1_90%"), percent, strict=True)))


_ON_FB15K = (
    _ranking("PBG README, ComplEx d400, 50 epochs", 0.790, 0.739, 0.877),
    _ranking("PBG paper, ComplEx", 0.790, None, 0.872),
    _ranking("Marius paper, ComplEx d400 (same for PBG)", 0.795, 0.736, 0.888),
    _ranking("DGL-KE documentation, ComplEx", 0.694, 0.590, 0.863),
    _ranking("LibKGE, ComplEx, long search, reciprocal relations", 0.838, 0.807, 0.893),
    _ranking("kbc, ComplEx-N3, rank 100 / reciprocal", 0.83, 0.79, 0.89),
    _ranking("kbc, ComplEx-N3, rank 2000 / reciprocal", 0.86, 0.83, 0.91),
)

EXPERIMENTS = (
    Experiment(
        "fb15k_pbg",
        "FB15k, PBG's own config",
        "links",
        CONFIGS / "fb15k_pbg.py",
        FB15K,
        targets={"mrr": 0.795, "hits1": 0.735, "hits10": 0.890},
        interval=5,
        published=_ON_FB15K,
        notes="Every value of the config is PBG's; 77.6 % of the test edges have their inverse in training.",
    ),
    Experiment(
        "fb15k",
        "FB15k, our config",
        "links",
        CONFIGS / "fb15k.yaml",
        FB15K,
        targets={"mrr": 0.835},
        aims={"mrr": 0.84},
        interval=10,
        published=_ON_FB15K,
        notes=(
            "The known end is one more negative and the learning rate falls linearly to 0, extensions PBG lacks, and "
            "N3 is stronger. On the valid split, after 10 epochs of 400 numbers: 0.770 without the known end, 0.795 "
            "with it, 0.799 with 2,000 negatives at twice the time, 0.771 with an N3 of 1e-2."
        ),
    ),
    Experiment(
        "fb15k_237",
        "FB15k-237",
        "links",
        CONFIGS / "fb15k_237.yaml",
        FB15K_237,
        targets={"mrr": 0.345},
        interval=5,
        published=(
            _ranking("LibKGE, TransE", 0.313, 0.221, 0.497),
            _ranking("LibKGE, DistMult", 0.343, 0.250, 0.531),
            _ranking("LibKGE, ComplEx", 0.348, 0.253, 0.536),
            _ranking("kbc, ComplEx-N3, rank 100", 0.35, 0.26, 0.54),
            _ranking("kbc, ComplEx-N3, rank 2000", 0.37, 0.27, 0.56),
        ),
        notes=(
            "28 test edges have an entity that no training edge has; they are ranked like all others. On the valid "
            "split 8 epochs of 200 numbers and 500 negatives give 0.327, 15 of 400 and 1,000 give 0.348."
        ),
    ),
    Experiment(
        "wn18rr",
        "WN18RR",
        "links",
        CONFIGS / "wn18rr.yaml",
        WN18RR,
        targets={"mrr": 0.45},
        interval=5,
        published=(
            _ranking("LibKGE, TransE", 0.228, 0.053, 0.520),
            _ranking("LibKGE, DistMult", 0.452, 0.413, 0.530),
            _ranking("LibKGE, ComplEx", 0.475, 0.438, 0.547),
        ),
        notes=(
            "Chosen on the valid split: at a rate of 0.1 an N3 that keeps Hits@10 lets the known end win (0.21 after "
            "20 epochs), at 0.7 it does not."
        ),
    ),
    Experiment(
        "codex_s",
        "CoDEx-S",
        "links",
        CONFIGS / "codex_s.yaml",
        CODEX_S,
        targets={"mrr": 0.45},
        interval=10,
        published=(
            _ranking("CoDEx paper, TransE", 0.354, 0.219, 0.634),
            _ranking("CoDEx paper, ComplEx", 0.465, 0.372, 0.646),
        ),
        notes=(
            "Chosen on the valid split. With 500 negatives, 200 numbers and an N3 of 0.02: 0.456 at a rate of 0.3, "
            "0.462 at 0.6; with 1,000 negatives 0.465, with all entities as negatives 0.469; these in 400 numbers "
            "0.475, and 0.478 at an N3 of 0.01."
        ),
    ),
    Experiment(
        "codex_m",
        "CoDEx-M",
        "links",
        CONFIGS / "codex_m.yaml",
        CODEX_M,
        targets={"mrr": 0.32},
        interval=5,
        published=(
            _ranking("CoDEx paper, TransE", 0.303, 0.223, 0.454),
            _ranking("CoDEx paper, ComplEx", 0.337, 0.262, 0.476),
        ),
        notes=(
            "Chosen on the valid split: 0.266 with an N3 of 0.01 and a rate of 0.3 (10 epochs of 200 numbers, 500 "
            "negatives), 0.279 with 0.07 and 0.7 (8 epochs), 0.309 with 15 epochs of 400 numbers and 1,000 negatives, "
            "0.325 with 20 and 2,000."
        ),
    ),
    Experiment(
        "umls",
        "UMLS",
        "links",
        CONFIGS / "umls.yaml",
        UMLS,
        targets={"mrr": 0.94},
        interval=20,
        published=(_ranking("ConvE's README, ConvE", 0.94, 0.92, 0.99),),
        notes="135 entities, so small that the figure means little; it shows that the same recipe does not fail there.",
    ),
    Experiment(
        "icews14",
        "ICEWS14, dates left out",
        "dated links",
        CONFIGS / "icews14.yaml",
        ICEWS14,
        targets={"dated_mrr": 0.439},
        aims={"dated_mrr": 0.458},
        interval=5,
        published=(
            Published("TransE", {"dated_mrr": 0.280, "dated_hits1": 0.094, "dated_hits10": 0.637}),
            Published("DistMult", {"dated_mrr": 0.439, "dated_hits1": 0.323, "dated_hits10": 0.672}),
            Published("SimplE", {"dated_mrr": 0.458, "dated_hits1": 0.341, "dated_hits10": 0.687}),
        ),
        notes=(
            "A static model of dated facts. The time-aware filter, which the published rows use, leaves out other true "
            "facts of the same date only; the plain one those of any date. The published rows are static models too; "
            "the target is DistMult's figure, the aim SimplE's. N3 of 0.01 was chosen against 0.03 on the valid split."
        ),
    ),
    Experiment(
        "blogcatalog",
        "BlogCatalog, labels from embeddings",
        "labels",
        CONFIGS / "blogcatalog.yaml",
        BLOGCATALOG,
        targets={"micro_f1_10%": 28.2, "micro_f1_50%": 33.2, "micro_f1_90%": 36.8},
        aims={"micro_f1_10%": 36.2, "micro_f1_50%": 40.9, "micro_f1_90%": 42.2},
        interval=2,
        published=(
            _micro("DeepWalk", 36.2, 40.9, 42.2),
            _micro("LINE", 28.2, 33.2, 36.8),
            _micro("node2vec", 36.4, 41.1, 42.1),
        ),
        notes=(
            "Dimension 128, as the published rows. Training never sees a label. The target is LINE, which learns from "
            "edges as this does; the aim is DeepWalk, whose walks also reach neighbours' neighbours. Of the settings "
            "tried (on other splits of the labels: 3 to 40 epochs, constant or falling rate, 50 to 1000 negatives of "
            "either kind, dot or cos, softmax or logistic, bias, source and target vectors apart, N3), more negatives "
            "and a falling rate helped most, long training at a constant rate hurt."
        ),
    ),
    _init("wn18rr", WN18RR),
    _init("codex_s", CODEX_S),
    _init("umls", UMLS),
)
BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
