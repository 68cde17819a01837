"""Commands on releases: roll-back, collection, migration, replay."""
