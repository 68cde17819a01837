from __future__ import annotations

import pytest

from tests.part_memory import main


def test_part_of_evaluation_keeps_within_forecast(tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(entities=2000, parts=2, scratch=tmp_path)
    assert not ended.value.code
