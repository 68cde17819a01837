"""Commands on the directories that a PBG config names."""
