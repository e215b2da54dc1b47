"""YAML and JSON in which no key stands twice: the usual readers keep the last one in silence.

YAML is read as what files of options are made of: text, numbers, true and false, null, lists and
mappings. A date, 1:59:59 or -.inf is text; a tag for something else is an error.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

MAX_ALIASED = 1_000_000
"""Values, and characters in them, that all aliases of a YAML document may stand for."""


def load_yaml(data: bytes | str) -> Any:
    """The value of a YAML document.

    Raises:
        ValueError: it is not valid, nested too deeply, has a mapping that names a key twice, or
            aliases that stand for more than `MAX_ALIASED`.
    """
    try:
        return yaml.load(data, _Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def load_json(data: bytes | str) -> Any:
    """The value of a JSON document.

    Raises:
        ValueError: it is not valid, nested too deeply, or has an object that names a key twice.
    """
    text = data if isinstance(data, str) else data.decode("utf-8-sig")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for key, member in pairs:
            if key in value:
                raise ValueError(_twice(key, _lines_of(key, text)))
            value[key] = member
        return value

    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


_TAG = "tag:yaml.org,2002:"
_AS_USUAL = ("bool", "null", "merge")  # what is not one of these, nor a number, is text
_TEXT = re.compile(r"[\x00\ud800-\udfff]")
"""What no text of a file has: it would be part of no path and no name."""


class _Loader(yaml.SafeLoader):
    """YAML that refuses what it would otherwise overwrite, or write out without end."""

    yaml_implicit_resolvers = {
        first: [each for each in resolvers if each[0].removeprefix(_TAG) in _AS_USUAL]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None
        or tag.removeprefix(_TAG) in ("str", "int", "float", "bool", "null", "seq", "map")
    }

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._size = self._aliased = 0
        self._sizes: dict[Any, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        is_alias, before = self.check_event(yaml.AliasEvent), self._size
        node = super().compose_node(parent, index)
        if is_alias:  # of what it is itself a part of, there is no end
            self._aliased += self._sizes.get(node, MAX_ALIASED + 1)
            self._size += self._sizes.get(node, 0)
        else:
            self._size += 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
            self._sizes[node] = self._size - before
        if self._aliased > MAX_ALIASED:
            raise yaml.YAMLError(f"its aliases (*NAME) stand for over {MAX_ALIASED:,} values")
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception:  # of a tag that the text does not fit, anything
            said = f"{node.value!r:.80} is no {node.tag.removeprefix(_TAG)}"
            raise yaml.MarkedYAMLError(problem=said, problem_mark=node.start_mark) from None
        if isinstance(value, str) and (wrong := _TEXT.search(value)):
            said = f"{value!r:.80} has the character {wrong[0]!r}, which no text has"
            raise yaml.MarkedYAMLError(problem=said, problem_mark=node.start_mark)
        return value

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise yaml.YAMLError(_twice(key.value, [lines[key.value], line]))
            lines[key.value] = line
        return node


_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?$")
_Loader.add_implicit_resolver(f"{_TAG}int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))


def _twice(key: str, lines: list[int]) -> str:
    if len(lines) != 2:
        return f"the key {key!r} stands twice in one object: keep one, or rename it"
    first, second = lines
    return f"line {second} has the key {key!r} a second time, the first is on line {first}"


def _lines_of(key: str, text: str) -> list[int]:
    """The lines on which `key` is a key, as far as a text search can tell."""
    quoted = re.escape(json.dumps(key, ensure_ascii=False))
    return [text.count("\n", 0, match.start()) + 1 for match in re.finditer(quoted + r"\s*:", text)]
