"""Data sets in memory: loading, scaling, augmentation, a user's own arrays."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from pushsum import data
from pushsum.data.dataset import statistics

# --------------------------------------------------------------------------- digits


def test_digits_are_shipped_and_never_change():
    digits = data.load("digits")
    assert digits.train_x.dtype == torch.uint8
    assert digits.train_y.dtype == torch.int64
    assert digits.test_y.bincount().tolist() == [36] * 10
    assert digits.train_y.bincount().tolist() == [142, 146, 141, 147, 145, 146, 145, 143, 138, 144]
    levels = {round(v * 255 / 16) for v in range(17)}
    assert set(digits.train_x.unique().tolist()) == levels
    content = b"".join(
        t.numpy().astype(np.uint8).tobytes()
        for t in (digits.train_x, digits.train_y, digits.test_x, digits.test_y)
    )
    assert hashlib.sha256(content).hexdigest() == DIGITS


DIGITS = "e869fd8bed18c9e9a4e58625badc54713b633293e80b8c0f979ab03b77b3eb0c"


def test_digits_are_small_and_say_whose_they_are():
    folder = Path(data.__file__).parent
    assert (folder / "digits.npz").stat().st_size < 150_000
    notice = (folder / "digits.LICENCE.md").read_text()
    assert "Alpaydin" in notice
    assert "Attribution 4.0" in notice


def test_digits_need_no_root_and_no_preparing(tmp_path):
    nowhere = tmp_path / "nowhere"
    (entry,) = (e for e in data.catalogue(nowhere) if e.name == "digits")
    assert entry.ready
    assert entry.size == "1437 + 360 x 1x8x8"
    assert data.prepare("digits", nowhere) == entry.where
    assert len(data.load("digits", nowhere).train_x) == entry.train
    assert not nowhere.exists()


# --------------------------------------------------------------------------- scaling


def test_scaled_images_have_mean_zero_and_deviation_one():
    digits = data.load("digits")
    scaled = digits.scaled(digits.train_x)
    assert scaled.dtype == torch.float32
    assert abs(float(scaled.mean())) < 1e-5
    assert float(scaled.std()) == pytest.approx(1, abs=1e-4)
    expected = (digits.train_x.float() / 255 - digits.mean) / digits.std
    assert torch.equal(scaled, expected)


def test_scaling_is_per_channel_and_takes_any_leading_axes():
    images = np.random.default_rng(0).integers(0, 256, (50, 3, 4, 5), dtype=np.uint8)
    images[:, 1] = 7
    mean, std = statistics(images)
    assert mean == pytest.approx(images.mean((0, 2, 3)) / 255, abs=1e-6)
    assert std[[0, 2]] == pytest.approx(images.std((0, 2, 3))[[0, 2]] / 255, abs=1e-6)
    assert std[1] == 1  # a constant channel becomes zeros, not NaN
    x = torch.from_numpy(images)
    label = torch.zeros(50, dtype=torch.int64)
    d = data.Dataset("x", x, label, x, label, 1, torch.from_numpy(mean), torch.from_numpy(std))
    assert torch.equal(d.scaled(x.view(5, 10, 3, 4, 5)).view_as(x), d.scaled(x))
    assert torch.equal(d.scaled(x)[:, 1], torch.zeros(50, 4, 5))
    as_it_is = torch.rand(4, 7)
    assert d.scaled(as_it_is) is as_it_is
    with pytest.raises(ValueError, match=r"x is torch\.int64: samples are torch\.uint8 images or"):
        d.scaled(label)


# --------------------------------------------------------------------------- augmentation


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_every_augmented_image_is_a_shift_or_its_mirror():
    x = torch.rand(40, 2, 5, 6) + 1
    out = data.augment(x, generator(), crop=2)
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))
    seen = set()
    for before, after in zip(padded, out, strict=True):
        matches = [
            (i, j, mirrored)
            for i in range(5)
            for j in range(5)
            for mirrored in (False, True)
            if torch.equal(after.flip(-1) if mirrored else after, before[:, i : i + 5, j : j + 6])
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    assert {i for i, _, _ in seen} == {j for _, j, _ in seen} == set(range(5))
    assert {mirrored for _, _, mirrored in seen} == {False, True}


def test_augmentation_is_a_function_of_the_generator_alone():
    x = torch.rand(3, 4, 1, 8, 8)
    before = x.clone()
    stacked = data.augment(x, generator(1))
    assert stacked.shape == x.shape
    assert torch.equal(stacked.flatten(0, 1), data.augment(x.flatten(0, 1), generator(1)))
    assert not torch.equal(stacked, data.augment(x, generator(2)))
    assert torch.equal(x, before)


def test_crops_and_flips_can_be_left_out():
    x = torch.rand(64, 1, 3, 3)
    assert data.augment(x, generator(), crop=0, flip=False).equal(x)
    flipped = data.augment(x, generator(), crop=0)
    as_before = (flipped == x).flatten(1).all(1)
    as_mirrored = (flipped == x.flip(-1)).flatten(1).all(1)
    assert (as_before ^ as_mirrored).all()
    assert 16 < int(as_before.sum()) < 48


def test_what_cannot_be_augmented():
    with pytest.raises(ValueError, match=r"x is torch\.uint8 of shape \(2, 1, 4, 4\): images are"):
        data.augment(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), generator())
    with pytest.raises(ValueError, match=r"shape \(2, 4\): .*leave other samples alone"):
        data.augment(torch.zeros(2, 4), generator())
    with pytest.raises(ValueError, match="crop = -1: a number of pixels is an integer >= 0"):
        data.augment(torch.zeros(2, 1, 4, 4), generator(), crop=-1)


# --------------------------------------------------------------------------- a user's own arrays


@pytest.fixture
def own(tmp_path):
    def write(**arrays):
        arrays = {"y_train": np.array([0, 2, 1]), "y_test": np.array([3, 0]), **arrays}
        np.savez(tmp_path / "own.npz", **{k: v for k, v in arrays.items() if v is not None})
        return str(tmp_path / "own.npz")

    return write


def test_floats_of_any_shape_are_used_as_they_are(own):
    x = np.random.default_rng(0).normal(size=(5, 7))
    d = data.load(own(x_train=x[:3], x_test=x[3:]))
    assert (d.name, d.classes) == ("own", 4)
    assert d.train_y.tolist() == [0, 2, 1]
    assert torch.equal(d.scaled(d.test_x), torch.from_numpy(x[3:]).float())


@pytest.mark.parametrize("layout", ["m c h w", "m h w c", "m h w"])
def test_images_in_the_usual_layouts(own, layout):
    channels = 1 if layout == "m h w" else 3
    x = np.random.default_rng(0).integers(0, 256, (5, channels, 6, 8), dtype=np.uint8)
    given = {"m c h w": x, "m h w c": np.moveaxis(x, 1, -1), "m h w": x[:, 0]}[layout]
    d = data.load(own(x_train=given[:3], x_test=given[3:]))
    assert (d.train_x.numpy() == x[:3]).all()
    assert (d.test_x.numpy() == x[3:]).all()
    assert d.mean.shape == (channels,)
    assert d.scaled(d.train_x).shape == (3, channels, 6, 8)


def test_float_images_may_have_their_channels_last(own):
    x = np.random.default_rng(0).normal(size=(5, 3, 6, 8)).astype(np.float32)
    given = np.moveaxis(x, 1, -1)
    d = data.load(own(x_train=given[:3], x_test=given[3:]))
    assert (d.train_x.numpy() == x[:3]).all()


GOOD = np.zeros((3, 4), np.float32)
HUGE = np.array([0, 1, 2**63], dtype=np.uint64)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": GOOD}, r"own\.npz lacks x_test: write it with numpy"),
        ({"x_train": GOOD, "x_test": GOOD}, "y_test must be 3 integers"),
        (
            {"x_train": GOOD, "x_test": GOOD[:0], "y_test": np.zeros(0, int)},
            r"own\.npz: x_test is empty$",
        ),
        (
            {"x_train": GOOD, "x_test": GOOD[:2], "y_train": np.zeros(3)},
            "targets of one type and shape",
        ),
        (
            {"x_train": GOOD, "x_test": GOOD[:2], "y_train": np.array([0, -2, -1])},
            r"own\.npz: there are 4 labels, from -2 to 3: number them 0 to 3, by numpy.searchs",
        ),
        (
            {"x_train": GOOD.astype(np.uint8), "x_test": GOOD[:2]},
            r"x_train is uint8 of shape \(3, 4\): .*: write x\.astype\('float32'\) / 255$",
        ),
        (
            {"x_train": GOOD, "x_test": GOOD[:2], "y_train": np.array([0, 300_000, 600_000])},
            "there are 4 labels, from 0 to 600000: number them 0 to 3, by numpy.searchsor",
        ),
        (
            {"x_train": GOOD, "x_test": GOOD[:2], "y_train": HUGE},
            "there are 4 labels, from 0",
        ),
        ({"x_train": GOOD, "x_test": GOOD[:2, :3]}, "samples of one type and shape"),
        ({"x_train": GOOD, "x_test": np.zeros((2, 4, 4), np.uint8)}, "of one type and shape"),
        ({"x_train": GOOD.astype(int), "x_test": GOOD[:2]}, r"x_train is int64 .*astype\('float32"),
        ({"x_train": np.full((3, 4), np.nan), "x_test": GOOD[:2]}, r"x_train\[0\] is not finite"),
        ({"x_train": np.full((3, 4), 1e300), "x_test": GOOD[:2]}, r"x_train\[0\] .*too large"),
        ({"x_train": GOOD[:, 0], "x_test": GOOD[:2, 0]}, r"of shape \(3,\): samples are"),
        ({"x_train": np.array(3.0), "x_test": GOOD[:2]}, r"x_train is float64 of shape \(\)"),
        ({"x_train": np.array([{}, 1, 2]), "x_test": GOOD[:2]}, "Object arrays cannot be loaded"),
    ],
)
def test_arrays_that_are_refused(own, arrays, message):
    with pytest.raises(ValueError, match=message):
        data.load(own(**arrays))


def test_files_that_are_refused(own, tmp_path):
    with pytest.raises(ValueError, match=r"missing\.npz: there is no such file"):
        data.load(str(tmp_path / "missing.npz"))
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ValueError, match=r"text\.npz is not a readable \.npz file: .*not a zip"):
        data.load(str(tmp_path / "text.npz"))
    path = Path(own(x_train=GOOD, x_test=GOOD[:2]))
    whole = path.read_bytes()
    for damaged in (whole[:-300], whole[:100] + b"\xff" + whole[101:], b"PK" + bytes(300)):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"own\.npz is not a readable \.npz file"):
            data.load(str(path))


# --------------------------------------------------------------------------- names and places


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CIFAR11", "unknown data set 'CIFAR11' .did you mean cifar10"),
        ("", "unknown data set '': choose from digits, cifar10, "),
        ("../x", "unknown data set '../x'"),
    ],
)
def test_unknown_names(name, message, tmp_path):
    with pytest.raises(ValueError, match=message + ".*quickdraw, or the path of your own file.npz"):
        data.load(name, tmp_path)
    with pytest.raises(ValueError, match=message + ".*quickdraw$"):
        data.prepare(name, tmp_path)
    with pytest.raises(
        ValueError, match=r"^a\.npz needs no preparing: give it as data\.name=a\.npz$"
    ):
        data.prepare("a.npz", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_not_prepared_names_the_command_in_one_line(tmp_path):
    with pytest.raises(
        ValueError, match=r"cifar10 is not prepared in .*: run `pushsum data prepare"
    ):
        data.load("cifar10", tmp_path)
    assert [e.name for e in data.catalogue(tmp_path) if e.ready] == ["digits"]


def test_the_root_is_the_argument_then_xdg_then_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert data.default_root() == tmp_path / ".cache/pushsum"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/are/ignored")
    assert data.default_root() == tmp_path / ".cache/pushsum"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert data.catalogue()[1].where == tmp_path / "x/pushsum/cifar10.npz"
    assert data.catalogue(tmp_path / "y")[1].where == tmp_path / "y/cifar10.npz"
