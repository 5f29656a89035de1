"""What would be published: built, installed into an environment of its own, and run there."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest
import yaml

import pushsum

ROOT = Path(__file__).parent.parent
BUILD = "import hatchling.build as backend; print(backend.build_{}({!r}))"
#: Without the checkout that is being tested.
CLEAN = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def output(command: list[object], where: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=where, env=CLEAN, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def built(kind: str, source: Path, into: Path) -> Path:
    """Without a network: the build backend is one of the development tools."""
    return into / output([sys.executable, "-c", BUILD.format(kind, str(into))], source).strip()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    place = tmp_path_factory.mktemp("sources")
    with tarfile.open(built("sdist", ROOT, place)) as archive:
        archive.extractall(place, filter="data")
    return place / f"pushsum-{pushsum.__version__}"


@pytest.fixture(scope="module")
def installed(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel that the source distribution builds.

    What pushsum needs comes from the environment of the tests, whose .pth files, and with them the
    checkout, are not read from there.
    """
    place = tmp_path_factory.mktemp("installed")
    wheel = built("wheel", sources, place)
    venv.create(place / "env", with_pip=False)
    python = place / "env" / "bin" / "python"
    options = ["--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
    output([sys.executable, "-m", "pip", "--python", python, "install", *options, wheel], place)
    (site,) = (place / "env").glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "env"


def packaged(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_every_file_and_its_command_runs(installed: Path, tmp_path: Path):
    (place,) = installed.glob("lib/python*/site-packages/pushsum")
    assert packaged(place) == packaged(ROOT / "src" / "pushsum")
    command = installed / "bin" / "pushsum"
    assert output([command, "--version"], tmp_path) == f"pushsum {pushsum.__version__}\n"
    assert "sweep" in output([command, "--help"], tmp_path)
    where = "import pushsum; print(pushsum.__file__)"
    found = output([installed / "bin" / "python", "-c", where], tmp_path).strip()
    assert Path(found) == place / "__init__.py"


def test_the_source_distribution_has_what_a_clone_has(sources: Path):
    for name in ("CITATION.cff", "CHANGELOG.md", "LICENSE", "README.md", "constraints.txt"):
        assert (sources / name).read_bytes() == (ROOT / name).read_bytes()
    for folder in ("tests", "docs", "examples"):
        assert packaged(sources / folder) == packaged(ROOT / folder)


def test_one_version_everywhere():
    version = pushsum.__version__
    headings = re.findall(r"^## \[(.*?)\] - (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (version, str(cited["date-released"])) == headings[0]
    assert cited["version"] == version
