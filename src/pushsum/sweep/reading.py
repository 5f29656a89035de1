"""Recipes, files and words of the command line -> the cells of a sweep."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from importlib.resources import files as packaged
from pathlib import Path
from typing import Any

from pushsum.config import mapping, parse, set_value
from pushsum.names import one_line
from pushsum.reading import yaml_value
from pushsum.sweep.cell import Cell, Tune, word
from pushsum.sweep.tuning import with_trials

MOST_CELLS = 10_000  #: of a sweep, trials included
HELD_OUT = 0.1  #: the part of the training data to choose by, unless `data.validation` says another


def recipes() -> list[str]:
    """The recipes that come with the package."""
    folder = packaged("pushsum") / "recipes"
    return sorted(
        p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml")
    )


def read(
    source: str | None,
    overrides: Sequence[str] = (),
    trust: bool = False,
    tune: str | None = None,
) -> list[Cell]:
    """The cells of a recipe (by name or path) with overrides; `key=a,b,c` adds to the grid.

    What the overrides name as `FILE.py:name` may be run; what the recipe names only with `trust`.
    `tune`, also `key=a,b,c`, is what each cell chooses for itself; see `Tune`.
    """
    content, typed = _content(source), list[Any]()
    plan = content.pop("sweep", None) or {}
    if isinstance(plan, str):  # a recipe's; a file of somebody else names no other files
        if plan not in recipes():
            raise ValueError(f"sweep: {one_line(plan)} is not a recipe ({', '.join(recipes())})")
        plan = _content(plan).get("sweep") or {}
    cells, grid, tuned = _plan(source, plan)
    if tune is not None:
        tuned = Tune(*_values("--tune", tune))
        typed += tuned.values
    if tuned is not None:  # what a recipe's cells have is replaced
        grid.pop(tuned.key, None)
        cells = [{key: cell[key] for key in cell if key != tuned.key} for cell in cells]
    for override in overrides:
        key, values = _values("override", override)
        if tuned is not None and key == tuned.key:
            raise ValueError(f"override {override!r}: {key} is tuned: leave one of the two out")
        typed += values
        if any(key in cell for cell in cells):  # what the cells differ in is chosen, not changed
            wanted = {str(value).lower() for value in values}
            cells = [c for c in cells if key in c and str(c[key]).lower() in wanted]
            if not cells:
                raise ValueError(f"override {override!r}: no cell of the recipe has that value")
        else:
            grid[key] = list(values)
    found = list(with_trials(_cells(content, cells, grid, trust or typed, tuned)))
    if tuned is not None and any(cell.config.data.validation == 0 for cell in found):
        raise ValueError("data.validation = 0: tuning needs samples to choose by: leave it out")
    return found


def _values(what: str, text: str) -> tuple[str, tuple[Any, ...]]:
    """`key=a,b,c` -> the key and its values."""
    key, equals, values = text.partition("=")
    if not equals:
        raise ValueError(f"{what} {text!r}: write key=value, or key=a,b,c for a grid")
    try:
        return key, tuple(yaml_value(value) for value in alternatives(values))
    except ValueError as error:
        raise ValueError(f"{what} {text!r}: {error}") from None


def _plan(
    source: str | None, plan: Any
) -> tuple[list[dict[str, Any]], dict[str, list[Any]], Tune | None]:
    """The cells, the grid and what is tuned of a section `sweep`."""
    if not isinstance(plan, dict) or plan.keys() - {"cells", "grid", "tune"}:
        raise ValueError(f"{source}: the section sweep holds `cells`, `grid` and `tune` only")
    cells, grid = plan.get("cells") or [{}], plan.get("grid") or {}
    if not (isinstance(cells, list) and all(_keyed(cell) for cell in cells)):
        raise ValueError(f"{source}: sweep.cells is a list such as [{{algorithm.name: SGP}}]")
    if not (_keyed(grid) and all(isinstance(values, list) for values in grid.values())):
        raise ValueError(f"{source}: sweep.grid holds a list for every key, such as seed: [0, 1]")
    tune = plan.get("tune") or {}
    lists = _keyed(tune) and all(isinstance(values, list) and values for values in tune.values())
    if not lists or len(tune) > 1:
        raise ValueError(
            f"{source}: sweep.tune holds a list for one key, such as algorithm.lr: [0.01, 0.1]"
        )
    chosen = [Tune(key, tuple(values)) for key, values in tune.items()]
    return list(cells), dict(grid), chosen[0] if chosen else None


def _keyed(section: Any) -> bool:
    return isinstance(section, dict) and all(isinstance(key, str) for key in section)


def _content(source: str | None) -> dict[str, Any]:
    """The mapping that a recipe's name or a file stands for."""
    if source is None:
        return {}
    if source in recipes():
        return mapping(packaged("pushsum") / "recipes" / f"{source}.yaml")
    if Path(source).is_file():
        return mapping(Path(source))
    raise ValueError(f"{source}: neither a file nor a recipe ({', '.join(recipes())})")


def _cells(
    content: dict[str, Any],
    cells: Sequence[Mapping[str, Any]],
    grid: Mapping[str, Sequence[Any]],
    trust: bool | Sequence[Any],
    tune: Tune | None,
) -> Iterator[Cell]:
    count = len(cells) * math.prod(map(len, grid.values()))
    trials = 0 if tune is None else count // len(grid.get("seed") or [0]) * len(tune.values)
    if count + trials > MOST_CELLS:
        runs = f"{count:,} cells" + f" and {trials:,} trials" * (trials > 0)
        raise ValueError(f"the sweep has {runs}, more than {MOST_CELLS:,}: split it")
    names = set()
    for values in itertools.product(*grid.values()):
        for cell in cells:
            chosen = {**cell, **dict(zip(grid, values, strict=True))}
            whole = deepcopy(content)
            for key, value in chosen.items():
                set_value(whole, key, value)
            if tune is not None:
                set_value(whole, tune.key, tune.values[0])
                held_out = whole.setdefault("data", {})
                if isinstance(held_out, dict):  # what else it may be is refused below
                    held_out.setdefault("validation", HELD_OUT)
            told = [key for key in chosen if key in cell or len(grid[key]) > 1]
            name = "_".join(word(key, chosen[key]) for key in told) or "run"
            if name in names:
                raise ValueError(f"two cells of the sweep are called {name}")
            names.add(name)
            yield Cell(name, parse(whole, trust), tune)


def alternatives(text: str) -> list[str]:
    """`a,b,c` -> the three; a list in brackets and `moreau:k=0.1,v=0.1` are one value.

    >>> alternatives("[8,4],[16]"), alternatives("lazy:c=1,moreau:k=1,v=0.1")
    (['[8,4]', '[16]'], ['lazy:c=1', 'moreau:k=1,v=0.1'])
    >>> alternatives("moreau(k=1, v=0.1),lazy(c=1)")
    ['moreau(k=1, v=0.1)', 'lazy(c=1)']
    """
    parts, depth = [""], 0
    for piece in text.split(","):
        goes_on = ":" in parts[-1] and "=" in piece and ":" not in piece
        if depth > 0 or goes_on:
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
        depth += sum((c in "[{(") - (c in "]})") for c in piece)
    return parts[1:]
