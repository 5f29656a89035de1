"""Notebooks are Python files with cells; they run from top to bottom, and their claims hold."""

import runpy
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.py"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(notebook, tmp_path, monkeypatch, capsys):
    assert notebook.read_text().startswith("# %% [markdown]\n# # ")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(notebook))  # it asserts what it says
    assert capsys.readouterr().out
