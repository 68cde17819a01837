"""Configs of the shapes PBG's own examples have."""

from __future__ import annotations

FB15K = """#!/usr/bin/env python3

# Some licence.


def get_torchbiggraph_config():

    config = dict(
        # I/O data
        entity_path="data/FB15k",
        edge_paths=[
            "data/FB15k/freebase_mtr100_mte100-train_partitioned",
            "data/FB15k/freebase_mtr100_mte100-valid_partitioned",
            "data/FB15k/freebase_mtr100_mte100-test_partitioned",
        ],
        checkpoint_path="model/fb15k",
        # Graph structure
        entities={"all": {"num_partitions": 1}},
        relations=[
            {"name": "all_edges", "lhs": "all", "rhs": "all", "operator": "complex_diagonal"}
        ],
        dynamic_relations=True,
        # Scoring model
        dimension=400,
        global_emb=False,
        comparator="dot",
        # Training
        num_epochs=50,
        batch_size=5000,
        num_batch_negs=500,
        num_uniform_negs=500,
        loss_fn="softmax",
        lr=0.1,
        relation_lr=0.01,
        regularization_coef=1e-3,
        # Evaluation during training
        eval_fraction=0,
    )

    return config
"""

LIVEJOURNAL = '''"""Embed LiveJournal's users."""

from __future__ import annotations

entities_base = "data/livejournal"
DATA: str = f"{entities_base}/edges"


def get_torchbiggraph_config() -> dict:
    """Return the config."""
    return {
        "entity_path": entities_base,
        "edge_paths": [DATA + "/train_partitioned", DATA + "/test" "_partitioned"],
        "checkpoint_path": "model/livejournal",
        "entities": {"user_id": {"num_partitions": 1}},
        "relations": [{"name": "follow", "lhs": "user_id", "rhs": "user_id", "operator": "none"}],
        "dimension": 2**10,
        "global_emb": False,
        "num_epochs": 30,
        "lr": 1e-3,
        "num_uniform_negs": 10 * 100,
        "margin": -(-0.15),
        "bucket_order": "RANDOM",
        "max_norm": None,
    }


if __name__ == "__main__":
    print(get_torchbiggraph_config())
'''

FREEBASE_YAML = """
entity_path: data/freebase
edge_paths: [data/freebase/edges_partitioned]
checkpoint_path: model/freebase
entities:
  all: {num_partitions: 16}
relations:
- name: all_edges
  lhs: all
  rhs: all
  operator: translation
dynamic_relations: true
dimension: 200
global_emb: false
comparator: cos
loss_fn: softmax
lr: 1e-1
num_epochs: 10
eval_fraction: 0.001
init_scale: 0.001
"""
