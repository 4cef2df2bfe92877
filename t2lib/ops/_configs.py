"""The table of configurations: what the tuner has measured, in place of what a rule says.

`pick_config` in the kernels of an operator is a rule that holds for every chip and shape. `configs.json`
beside this file lists what was faster somewhere: for the arguments of one call of a rule, the sizes to take,
and where and when they were timed. `python -m t2lib.bench --tune` rewrites it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from t2lib.ops._registry import OPERATORS

TABLE = Path(__file__).with_name("configs.json")
Record = dict[str, Any]
P = ParamSpec("P")
Config = TypeVar("Config", bound=Any)


def tabled(operator: str) -> Callable[[Callable[P, Config]], Callable[P, Config]]:
    """Make a rule look into the table first. The rule returns a named tuple of sizes and flags."""

    def decorate(rule: Callable[P, Config]) -> Callable[P, Config]:
        @wraps(rule)
        def pick_config(*arguments: P.args, **keywords: P.kwargs) -> Config:
            config, entries = rule(*arguments, **keywords), _entries(operator)
            found = entries.get(entry(*arguments, **keywords)) if entries else None
            return config if found is None else _replaced(config, found, operator)

        return pick_config

    return decorate


def entry(*arguments: Any, **keywords: Any) -> str:
    """The name under which the table lists a call of a rule: its arguments as they are written."""
    return ", ".join([*map(str, arguments), *(f"{name}={keywords[name]}" for name in sorted(keywords))])


def read(path: Path) -> list[Record]:
    """The records of a table; one ValueError for a file that is none."""
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        records = None
    if not (isinstance(records, list) and all(map(_is_record, records))):
        raise ValueError(
            f"{path} must hold a list of records with operator, entry and config, as --tune writes them."
        )
    return records


def rewrite(path: Path, records: Iterable[Record]) -> None:
    """Put records into the table at `path`, each in place of one of the same operator and entry."""
    table = {(record["operator"], record["entry"]): record for record in read(path)} if path.exists() else {}
    table |= {(record["operator"], record["entry"]): record for record in records}
    # In one step, so that a run that is cut short here leaves a whole file.
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps([table[key] for key in sorted(table)], indent=1) + "\n", encoding="utf-8")
    draft.replace(path)
    _entries.cache_clear()


def _is_record(record: Any) -> bool:
    return (
        isinstance(record, dict)
        and record.get("operator") in OPERATORS
        and isinstance(record.get("entry"), str)
        and isinstance(record.get("config"), dict)
        and all(isinstance(x, bool) or (isinstance(x, int) and x > 0) for x in record["config"].values())
    )


@cache
def _entries(operator: str) -> dict[str, dict[str, int]]:
    return {record["entry"]: record["config"] for record in read(TABLE) if record["operator"] == operator}


def _replaced(config: Config, found: dict[str, int], operator: str) -> Config:
    if found.keys() != config._asdict().keys():
        raise ValueError(
            f"{TABLE} must give {', '.join(config._fields)} for {operator}; got {', '.join(found)}."
        )
    replaced: Config = config._replace(**found)
    return replaced
