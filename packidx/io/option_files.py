"""Files that state options: YAML 1.2 or JSON, each section of which is what its struct says."""

from __future__ import annotations

import io
import re
from typing import Any, TypeVar

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from packidx.errors import OptionError
from packidx.io import storage
from packidx.io.files import load_json

_MAX_BYTES = 1 << 20
S = TypeVar("S")


def load_yaml(data: bytes | str) -> Any:
    """Return the value of a YAML document of plain data. Raise a ValueError if it is not valid or
    names a key twice; the message has the line."""
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    if re.search(r"^%YAML(?! +1\.2\s)", text, re.MULTILINE):
        raise ValueError("leave %YAML out: files are read as YAML 1.2")
    try:
        return YAML(typ="safe", pure=True).load(data)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise ValueError(f"{line}{error.problem}") from None
    except (YAMLError, LookupError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def load_document(name: str, data: bytes | str) -> Any:
    """Return the value of a file: JSON if its name ends in ``.json``, else YAML; a ValueError if it
    is not valid or names a key twice."""
    return load_json(data) if name.endswith(".json") else load_yaml(data)


def dump_yaml(value: Any) -> str:
    """Return `value` as a YAML document, keys in their order, one line per text."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.width = False, 1 << 20
    yaml.sort_base_mapping_type_on_output = False
    text = io.StringIO()
    yaml.dump(value, text)
    return text.getvalue()


def read_options(path: str, what: str) -> str:
    """The text of the file at `path`, which may be a URL.

    Args:
        what: the file is, for errors.

    Raises:
        OptionError: it cannot be read.
    """
    try:
        data = storage.read_range(path, 0, _MAX_BYTES + 1)
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > _MAX_BYTES:
        raise OptionError(f"{path} is over {_MAX_BYTES >> 20} MiB: it is not a {what}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OptionError(f"{path} is not UTF-8 text, so it is not a {what}") from None


def options_of(text: str, where: str, what: str) -> dict[str, Any]:
    """The members of the document `text`, as `read_members` has them: JSON if `where`, which errors
    call it, ends so, else YAML. An OptionError if it is no `what`."""
    form = "JSON" if where.endswith(".json") else "YAML"
    try:
        value = load_document(where, text)
    except ValueError as error:
        raise OptionError(f"{where} is not valid {form}: {error}") from None
    if not isinstance(value, dict):
        raise OptionError(f"{where} is not a {what}")
    return read_members(where, value)


def read_members(where: str, given: Any) -> dict[str, Any]:
    """The members of a section, by their names with ``_``; what is null is left out. An OptionError
    if it is no section, or names one thing twice."""
    if not isinstance(given, dict):
        raise OptionError(f"{where} is {given!r:.100}: write its keys under it, each on a line")
    named = {str(key).replace("-", "_"): value for key, value in given.items()}
    if len(named) < len(given):
        raise OptionError(f"{where} gives a key twice, with - and _: keep one")
    return {name: value for name, value in named.items() if value is not None}


def read_section(where: str, given: Any, kind: type[S], strict: bool = True) -> S:
    """A section as the struct or the dataclass that says what it may hold, or an OptionError; if
    `strict`, no number may stand in quotes."""
    try:
        return msgspec.convert(read_members(where, given), kind, strict=strict)
    except msgspec.ValidationError as error:
        raise OptionError(f"{where}: {error}".replace(" - at `$.", " - at `")) from None
