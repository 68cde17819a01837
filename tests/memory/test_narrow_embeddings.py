"""The forecast of embeddings in bfloat16."""

from __future__ import annotations

from pbg_tasks.config import ModelConfig
from pbg_tasks.memory.training import TrainingSize, training_forecast


def test_embeddings_in_bfloat16_take_half_the_memory():
    def size(precision):
        config = ModelConfig.model_validate(
            {
                "entities": {"n": {"num_partitions": 4}},
                "relations": [{"name": "r", "lhs": "n", "rhs": "n"}],
                "dimension": 100,
                "eval_fraction": 0,
                "embedding_precision": precision,
            }
        )
        held = {"config": config, "counts": {"n": [70_000] * 4}, "held": {"n": 3}}
        return TrainingSize(**held, relation_count=1, edges=1_000, ahead=0, workers=1, engine="native")

    wide, narrow = (training_forecast(size(each)).to_json()["lines"] for each in ("f32", "bf16"))
    assert wide["embeddings in memory"] == 3 * 70_000 * (400 + 4)
    assert narrow["embeddings in memory"] == 3 * 70_000 * (200 + 4)
    assert narrow["files being written"] == wide["files being written"] + 70_000 * 400
