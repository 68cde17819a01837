"""YAML loader, which a task whose documents are JSON never imports.

The library takes a twentieth of the CPU time of a short task.
"""

from __future__ import annotations

import re

import yaml

_MAX_YAML_VALUES = 250_000
_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
_BOOLEAN = "tag:yaml.org,2002:bool"
_FLOAT = "tag:yaml.org,2002:float"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-9]+)+(?:\.[0-9_]*)?$")


class Loader(yaml.SafeLoader):
    """YAML loader that refuses a repeated key and documents without bound.

    YAML itself takes the last of two equal keys silently; here that is an error with its line. Aliases let a few lines
    stand for a document without bound, or for one that contains itself: values are counted as often as they appear,
    before they are built.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._values = 0
        self._sizes: dict[int, int] = {}
        self._written: set[int] = set()  # mappings whose keys were checked

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Count the values of a node."""
        mark, before = self.peek_event().start_mark, self._values  # type: ignore[no-untyped-call]
        self._values += 1
        node = None
        if self._values <= _MAX_YAML_VALUES:
            is_alias = self.check_event(yaml.AliasEvent)
            node = super().compose_node(parent, index)
            if not is_alias:
                self._sizes[id(node)] = self._values - before
            elif id(node) not in self._sizes:
                raise yaml.composer.ComposerError(None, None, "an alias stands for what it is a part of", mark)
            else:
                self._values = before + self._sizes[id(node)]
        if self._values > _MAX_YAML_VALUES:
            many = f"more than {_MAX_YAML_VALUES} values, aliases included; a large config is written as JSON"
            raise yaml.composer.ComposerError(None, None, many, mark)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse keys that appear twice or are no words; merge ``<<``.

        A key is a word also where YAML 1.1 has a boolean, as for the ``on`` of a notifier. Only the keys that a mapping
        was written with count: once it is merged, as for one that takes it over, it may have a key twice.
        """
        if id(node) not in self._written:
            self._written.add(id(node))
            self._check_keys(node)
        super().flatten_mapping(node)

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
            if key_node.tag == _MERGE:
                continue
            if key_node.tag == _BOOLEAN:
                key_node.tag = _TEXT
            key = self.construct_object(key_node)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} appears twice", key_node.start_mark)
            seen.add(key)


# 1e-3, which every config has, is a number as in YAML 1.2. This also gives the loader resolvers of its own.
Loader.add_implicit_resolver(
    _FLOAT, re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)
# A day is a snapshot's key, not a date object. 1:30 is no number as in YAML 1.2; YAML 1.1 has base 60, so 90.
for _resolvers in Loader.yaml_implicit_resolvers.values():
    _resolvers[:] = [(_TEXT, _BASE_60), *(each for each in _resolvers if each[0] != _TIMESTAMP)]
