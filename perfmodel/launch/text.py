"""Texts of launch files, read and written: argument lists of a shell, YAML and TOML.

Argument lists: a command line, a list of arguments, or a script; comments and line ends apart,
every word that begins with ``--`` is an option, and what follows up to the next one its values.
Variables that the script itself sets to plain values are put in their places; what a shell would
compute stays as written, and matters only where a value is asked for.

Files whose keys stand in sections: keys are dotted paths. Programs of that kind also take the same
keys as ``a.b=c`` on their command line: such words are read alike.
"""

from __future__ import annotations

import io
import math
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from perfmodel.base.errors import FormatError
from perfmodel.base.files import Entry, Located, shortened
from perfmodel.launch.settings import Settings, Words

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?)\n\s*\2[ \t]*(?=\n|$)", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})")
_BRANCH = re.compile(r"^\s*(?:if|case)\s", re.MULTILINE)
_SEVERAL = re.compile(r"\s--|^--[^\s=]+\s")  # options within quotes
_PAIRS = re.compile(r"\s[\w.]+=")  # keys with values within quotes
_OPTION = re.compile(r"--?[A-Za-z]")
LONGEST_VALUE = 200  # characters of a variable's value that is put in its place


def format_command(words: Sequence[str], keys: Mapping[str, object], tail: str = "") -> str:
    """Return a command with its options, one on each line.

    Parameters
    ----------
    words : sequence of str
        What is run.
    keys : mapping
        Option without dashes -> its value; True for a switch.
    tail : str
        What stands last, as it is.
    """
    lines = [" ".join(words)]
    for key, value in keys.items():
        if value is True:
            lines.append(f"--{key}")
        else:
            values = value if isinstance(value, list | tuple) else [value]
            lines.append(" ".join([f"--{key}", *(shlex.quote(str(item)) for item in values)]))
    if tail:
        lines.append(tail)
    return " \\\n    ".join(lines) + "\n"


def format_comment(lines: Sequence[str]) -> str:
    """Return lines as comments of a shell, of YAML or of TOML."""
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


_NOTED = re.compile(r"^# perfmodel: (.*)$", re.MULTILINE)


def note_line(facts: Mapping[str, str]) -> str:
    """Return the line of a first comment that says what no key of a file can, as `noted` reads."""
    return "perfmodel: " + ", ".join(f"{name} {value}" for name, value in facts.items())


def noted(text: str) -> dict[str, str]:
    """Return what a file of our own says in its first comment: ``framework`` and ``model``."""
    found = _NOTED.search(text)
    pairs = (part.partition(" ") for part in found[1].split(", ")) if found else ()
    return {name: value.strip() for name, _, value in pairs}


def heredocs(text: str) -> list[tuple[str, int]]:
    """Return the documents that a script holds, each with the line before its first."""
    return [(found[3], text.count("\n", 0, found.start(3))) for found in _HEREDOC.finditer(text)]


def parse_arguments(text: str, path: str) -> Settings:
    """Return the options of a command line or a script.

    Raises
    ------
    FormatError
        The quotes do not close.
    """
    without = _HEREDOC.sub(lambda found: "\n" * found[0].count("\n"), text)
    entries: dict[str, Entry] = {}
    option = ""
    for word, line in shell_words(without, path):
        if _OPTION.match(word):
            option, equals, value = word.lstrip("-").partition("=")
            option = option.replace("_", "-")
            entries[option] = Entry(Words([value] if equals else []), line)
        elif word in (")", ";", "&&", "|", "\\"):
            option = ""
        elif option:
            before = entries[option]
            entries[option] = Entry(Words((*before.value, word)), before.line)
    settings = Settings(path, entries, "--")
    if _BRANCH.search(without):
        settings.remark("conditions are not evaluated: the arguments of all branches count")
    return settings


def shell_words(text: str, path: str, *, assignments: bool = False) -> Iterator[tuple[str, int]]:
    """Yield the words of a script with their lines, variables put in where that is simple.

    Parameters
    ----------
    text, path : str
    assignments : bool
        Yield ``a=b`` as well; otherwise they only set variables.
    """
    known: dict[str, str] = {}
    for word, line in _split(text, path):
        assigned = _ASSIGNMENT.fullmatch(word)
        if assigned and not word.startswith("-"):
            name, value = assigned.groups()
            if assignments:
                parts = value.split() if _PAIRS.search(value) else []
                value = value if parts else _filled(value, known)
                yield from ((_filled(part, known), line) for part in parts)
                if not parts:
                    yield f"{name}={value}", line
            if "--" not in value and not value.startswith("("):
                value = _filled(value, known)
                if len(value) <= LONGEST_VALUE:
                    known.setdefault(name, value)
                continue
            word = value.removeprefix("(")
        if word.count(")") > word.count("("):  # the end of a list
            word = word.removesuffix(")")
        for part in word.split() if _SEVERAL.search(word) else [word]:
            yield _filled(part, known), line


def _filled(word: str, known: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name, braced, default = found.groups()
        return known.get(name or braced, found[0] if default is None else default)

    return _VARIABLE.sub(value, word)


def _split(text: str, path: str) -> Iterator[tuple[str, int]]:
    """Yield the words that quotes and blanks make, with their lines."""
    source = text.replace("\\\n", " \n")  # as many characters, and as many lines
    stream = io.StringIO(source)
    lexer = shlex.shlex(stream, posix=True)
    lexer.whitespace_split = True
    try:
        while (word := lexer.get_token()) is not None:
            end = stream.tell()
            # A line end after the word is counted already.
            yield word, lexer.lineno - (source[end - 1 : end] == "\n")
    except ValueError as error:
        raise FormatError(
            f"{path}:{lexer.lineno}: quotes or a backslash without an end ({error}); "
            "a command line, a script or a list of arguments is needed"
        ) from None


DEEPEST = 30  # sections
LONGEST_LIST = 10_000  # items
MOST_KEYS = 20_000
LONGEST_FILLED = 1_000  # characters of a value with what it refers to
INTERPOLATIONS = 5  # of a reference to a reference
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_LAUNCHER = re.compile(
    r"(?:--|\b)(nnodes|num[-_]nodes|nodes|nproc[-_]per[-_]node|num[-_]gpus|gpus[-_]per[-_]node|"
    r"ntasks[-_]per[-_]node|NGPU)(?: |=|: )[\"']?(?:\$\{\w+:-?)?(\d{1,8})\b",
    re.IGNORECASE,
)
_NODES = ("nnodes", "num-nodes", "nodes")
_EACH = ("nproc-per-node", "num-gpus", "gpus-per-node", "ngpu", "ntasks-per-node")
_BARE = re.compile(r"[A-Za-z_][\w./-]*")


def format_yaml(keys: Mapping[str, Any]) -> str:
    """Return dotted keys as YAML, those of a section together; "null" is YAML's null."""
    lines = []
    for name, value in nested(keys).items():
        lines += _yaml_lines(name, value, 0)
    return "\n".join(lines) + "\n"


def _yaml_lines(name: str, value: Any, depth: int) -> list[str]:
    indent = "  " * depth
    if isinstance(value, dict):
        inner = [line for key in value for line in _yaml_lines(key, value[key], depth + 1)]
        return [f"{indent}{name}:", *inner]
    return [f"{indent}{name}: {_yaml_value(value)}"]


def _yaml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_yaml_value(item) for item in value) + "]"
    if isinstance(value, str) and value != "null":
        plain = _BARE.fullmatch(value) and value.lower() not in _YAML_WORDS
        return value if plain else "'" + value.replace("'", "''") + "'"
    return str(value)


_YAML_WORDS = ("true", "false", "yes", "no", "on", "off", "none", "y", "n")


def format_toml(keys: Mapping[str, Any]) -> str:
    """Return dotted keys as TOML: all but the last word of a key name its table."""
    tables: dict[str, dict[str, Any]] = {}
    for path, value in keys.items():
        table, _, name = path.rpartition(".")
        tables.setdefault(table, {})[name] = value
    lines = []
    for table, content in tables.items():
        lines += ["", f"[{table}]", *(f"{key} = {_toml_value(x)}" for key, x in content.items())]
    return "\n".join(lines[1:]) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as objects within each other."""
    root: dict[str, Any] = {}
    for path, value in keys.items():
        *sections, name = path.split(".")
        inner = root
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return root


def parse_yaml(text: str, path: str, root: str = "") -> Settings:
    """Return the keys of a YAML file, or of ``a.b=c`` words.

    Parameters
    ----------
    text : str
    path : str
        What errors call the file.
    root : str
        Section in which everything may stand.

    Raises
    ------
    FormatError
        It is no YAML, or has repeated keys, too many keys or sections nested too deep.
    """
    if not re.search(r"^\s*[A-Za-z_][\w.]*\s*:(\s|$)", text, re.MULTILINE):
        return Settings(path, overrides(text, path))
    entries = Located(path)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise FormatError(f"{path}: should hold keys with values")
        _flatten(node, "", loader, entries, 0)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        reason = getattr(error, "problem", None) or "not readable"
        raise FormatError(f"{path}{line}: no valid YAML: {shortened(reason)}") from None
    except RecursionError:
        raise FormatError(f"{path}: nested too deeply") from None
    inside = f"{root}." if root else ""
    found = {key.removeprefix(inside): entry for key, entry in entries.items()}
    return Settings(path, _interpolated(found))


def _interpolated(entries: dict[str, Entry]) -> dict[str, Entry]:
    """Return entries with what their ``${…}`` stand for, where the file itself says it.

    Variables of the environment have the default that stands beside them, ``${NAME:default}``
    (Primus) or ``${oc.env:NAME,default}`` (OmegaConf); others are keys of the file, ``${a.b}``
    from its root or ``${.b}`` beside it, or products of them (NeMo), ``${multiply:4, ${.b}}``.
    What stays open is an error only where it is asked for.
    """

    def value(found: re.Match[str], key: str) -> str:
        name, colon, default = found[1].partition(":")
        if name == "oc.env":
            _, colon, default = default.partition(",")
        if name in ("multiply", "mul"):  # NeMo's
            factors = [part.strip() for part in default.split(",")]
            plain = all(part.isascii() and part.isdigit() and len(part) < 10 for part in factors)
            return str(math.prod(map(int, factors))) if plain else found[0]
        if colon:
            return default.strip()
        if name.startswith("."):
            name = key.rpartition(".")[0] + name
        other = entries.get(name)
        return found[0] if other is None or isinstance(other.value, list) else str(other.value)

    filled = dict(entries)
    for key, entry in entries.items():
        text = entry.value
        if not isinstance(text, str) or "${" not in text:
            continue
        for _ in range(INTERPOLATIONS):
            plain = _REFERENCE.sub(lambda found, key=key: value(found, key), text)  # type: ignore[misc]
            if plain == text or len(plain) > LONGEST_FILLED:
                break
            text = plain
        filled[key] = entry._replace(value=_scalar(text))
    return filled


def _scalar(text: str) -> Any:
    """Return what a word would be as a value of YAML."""
    try:
        found = yaml.safe_load(text) if text.strip() else None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        return text
    return found if found is None or isinstance(found, str | int | float | bool) else text


def _flatten(
    node: yaml.MappingNode,
    prefix: str,
    loader: yaml.SafeLoader,
    entries: Located,
    depth: int,
) -> None:
    path = entries.path
    if depth > DEEPEST:
        raise FormatError(f"{path}:{node.start_mark.line + 1}: nested too deeply")
    merged: dict[str, Entry] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.tag == "tag:yaml.org,2002:merge":
            parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for part in parts:
                if not isinstance(part, yaml.MappingNode):
                    raise FormatError(f"{path}:{line}: '<<' should merge keys with values")
                inner = Located(path)
                _flatten(part, prefix, loader, inner, depth + 1)
                merged = inner | merged
            continue
        if not isinstance(key, yaml.ScalarNode):
            raise FormatError(f"{path}:{line}: a key is itself a list or has keys")
        name = prefix + str(key.value)
        if isinstance(value, yaml.MappingNode):
            _flatten(value, name + ".", loader, entries, depth + 1)
            continue
        if name not in entries and len(entries) >= MOST_KEYS:
            raise FormatError(f"{path}:{line}: more than {MOST_KEYS} keys, aliases written out")
        entries.put(name, _value(value, loader), line)
    for name, entry in merged.items():
        entries.setdefault(name, entry)


def _value(node: yaml.Node, loader: yaml.SafeLoader, longest: int = LONGEST_LIST) -> Any:
    """Return a scalar, or a list of scalars and lists, of `longest` items in all; others are empty.

    Lists in lists share what is left, or aliases could multiply to more than fits.
    """
    if isinstance(node, yaml.SequenceNode):
        items = node.value[:longest]
        each = longest // max(len(items), 1) - 1
        kinds = (yaml.ScalarNode, yaml.SequenceNode) if each > 0 else (yaml.ScalarNode,)
        return [_value(x, loader, each) if isinstance(x, kinds) else "" for x in items]
    try:
        return loader.construct_object(node)
    except (ValueError, OverflowError, yaml.YAMLError):  # dates that are none, endless numbers
        return str(node.value)


def parse_toml(text: str, path: str) -> Settings:
    """Return the keys of a TOML file.

    Raises
    ------
    FormatError
        It is no TOML.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise FormatError(f"{path}: no valid TOML: {shortened(reason)}") from None
    entries: dict[str, Entry] = {}

    def flatten(table: Mapping[str, Any], prefix: str, depth: int) -> None:
        if depth > DEEPEST:
            raise FormatError(f"{path}: nested too deeply")
        for key, value in table.items():
            if isinstance(value, Mapping):
                flatten(value, f"{prefix}{key}.", depth + 1)
            else:
                entries[prefix + key] = Entry(value, _toml_line(lines, prefix[:-1], key))

    lines = text.splitlines()
    flatten(document, "", 0)
    return Settings(path, entries)


def _toml_line(lines: Sequence[str], table: str, key: str) -> int:
    """Return the line of a key in the usual form, under its table's heading; 0 if elsewhere."""
    current = ""
    for number, line in enumerate(lines, 1):
        plain = line.strip()
        if plain.startswith("[") and "=" not in plain:
            current = plain.split("#")[0].strip().strip("[]").strip()
        elif current == table and plain.partition("=")[0].strip().strip("\"'") == key:
            return number
    return 0


def overrides(text: str, path: str) -> dict[str, Entry]:
    """Return the ``a.b=c`` words of a command line.

    Raises
    ------
    FormatError
        The quotes do not close.
    """
    entries: dict[str, Entry] = {}
    for word, line in shell_words(text, path, assignments=True):
        found = _OVERRIDE.fullmatch(word)
        if found:
            entries[found[1]] = Entry(_listed(found[2]), line)
    return entries


def _listed(value: str) -> Any:
    """Return a bracketed list as one, a number as one, and anything else as it is."""
    plain = value.strip()
    if plain.startswith("[") and plain.endswith("]") and "[" not in plain[1:]:
        return [_listed(item.strip().strip("\"'")) for item in plain[1:-1].split(",") if item]
    if re.fullmatch(r"-?\d{1,18}", plain, re.ASCII):
        return int(plain)
    return value


def launcher(text: str) -> tuple[int, int]:
    """Return devices, and devices of a node, as a launcher in a file's text is told.

    torchrun, deepspeed, Slurm, Lightning, or variables of their names; the command may stand in a
    comment: such files do not say it themselves. Without a word of nodes it is one. 0 where
    neither is said.
    """
    found = {name.lower().replace("_", "-"): int(x) for name, x in _LAUNCHER.findall(text)}
    each = next((found[name] for name in _EACH if name in found), 0)
    alone = 0 if re.search(r"nodes", text, re.IGNORECASE) else 1
    nodes = next((found[name] for name in _NODES if name in found), alone)
    return (nodes * each, each) if nodes and each else (0, 0)
