"""Networks against published counts, names and a numpy reference; BatchNorm policies by hand."""

from itertools import product
from math import prod, sqrt

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from pushsum import config, models
from pushsum.batchnorm import average_model, frozen_statistics
from pushsum.experiment import Experiment
from pushsum.models import basic_block, bottleneck, build, load_pretrained

POLICIES = ("averaged", "recomputed", "test-batch")


def count(model):
    return sum(p.numel() for p in model.parameters())


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def one_line(error):
    return "\n" not in str(error.value)


# --------------------------------------------------------------------------- architectures


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "parameters"),
    [
        ("resnet18", (3, 32, 32), 10, {}, 11_173_962),
        ("resnet18", (3, 32, 32), 10, {"norm": "group"}, 11_173_962),
        ("resnet18", (3, 224, 224), 1000, {"stem": "imagenet"}, 11_689_512),
        ("resnet50", (3, 224, 224), 1000, {"stem": "imagenet"}, 25_557_032),
        # 7x7 x 3 x 64 becomes 3x3 x 3 x 64, and 1000 classes 100, of 2049 numbers each
        ("resnet50", (3, 32, 32), 100, {}, 25_557_032 - 40 * 3 * 64 - 900 * 2049),
        ("resnet-small", (3, 32, 32), 10, {}, 78_042),
        ("resnet-small", (3, 32, 32), 10, {"width": 8}, 19_954),
        ("resnet-small", (3, 32, 32), 10, {"blocks": (2, 2, 2, 2)}, 701_466),
        ("cnn", (3, 32, 32), 10, {}, 16 * 28 + 32 * 145 + 64 * 2049 + 10 * 65),
        ("cnn", (1, 8, 8), 10, {"width": 4, "hidden": ()}, 4 * 10 + 8 * 37 + 10 * 33),
        ("mlp", (1, 8, 8), 10, {}, 64 * 65 + 10 * 65),
        ("mlp", (7,), 3, {"hidden": (5, 4)}, 5 * 8 + 4 * 6 + 3 * 5),
        ("mlp", (1, 8, 8), 10, {"hidden": []}, 650),
    ],
)
def test_parameter_counts(name, shape, classes, options, parameters):
    assert count(build(name, shape, classes, **options)) == parameters


def norm_names(prefix):
    return [
        f"{prefix}.{n}"
        for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    ]


def torchvision_names(blocks, convolutions):
    """The state of torchvision's ResNets: `convolutions` per block, 2 for basic ones."""
    names = ["conv1.weight", *norm_names("bn1")]
    for layer, number in enumerate(blocks, 1):
        for b in range(number):
            at = f"layer{layer}.{b}"
            for c in range(1, convolutions + 1):
                names += [f"{at}.conv{c}.weight", *norm_names(f"{at}.bn{c}")]
            if b == 0 and (layer > 1 or convolutions == 3):
                names += [f"{at}.downsample.0.weight", *norm_names(f"{at}.downsample.1")]
    return [*names, "fc.weight", "fc.bias"]


def test_the_names_are_those_of_torchvision():
    names = torchvision_names((2, 2, 2, 2), convolutions=2)
    assert len(names) == 122  # 62 parameters, 60 buffers
    for stem in ("cifar", "imagenet"):
        state = build("resnet18", (3, 32, 32), 10, stem=stem).state_dict()
        assert list(state) == names
    assert state["conv1.weight"].shape == (64, 3, 7, 7)
    assert state["layer2.0.downsample.0.weight"].shape == (128, 64, 1, 1)
    deep = build("resnet50", (3, 32, 32), 10, width=2)
    assert list(deep.state_dict()) == torchvision_names((3, 4, 6, 3), convolutions=3)
    grouped = build("resnet18", (3, 32, 32), 10, width=2, norm="group")
    assert list(grouped.state_dict()) == [
        n for n in names if "running" not in n and "num_" not in n
    ]


@pytest.mark.parametrize(
    ("name", "stem", "features"),
    [
        ("resnet18", "cifar", (16, 4, 4)),
        ("resnet18", "imagenet", (16, 1, 1)),
        ("resnet50", "cifar", (64, 4, 4)),
        ("resnet50", "imagenet", (64, 1, 1)),
        ("resnet-small", "cifar", (8, 8, 8)),
        ("resnet-small", "imagenet", (8, 2, 2)),
    ],
)
def test_what_comes_out_of_the_last_stage_for_32_by_32_pixels(name, stem, features):
    model = build(name, (3, 32, 32), 10, width=2, stem=stem)
    seen = []
    model.avgpool.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert seen == [(2, *features)]


def test_the_bottleneck_has_its_stride_at_the_3x3_convolution():
    """As torchvision's; with the stride at the first 1x1 pretrained weights lose accuracy."""
    block = build("resnet50", (3, 8, 8), 2, width=2).layer2[0]
    strides = [conv.stride for conv in (block.conv1, block.conv2, block.conv3)]
    assert strides == [(1, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {"width": 4}),
        ("resnet18", {"width": 4, "norm": "group", "stem": "imagenet"}),
        ("resnet50", {"width": 4, "blocks": (1, 2, 1)}),
        ("resnet-small", {}),
        ("resnet-small", {"norm": "group"}),
        ("resnet-small", {"stem": "imagenet"}),
        ("cnn", {}),
        ("mlp", {}),
    ],
)
def test_every_model_passes_every_image_forward_and_back(name, options, shape):
    model = build(name, shape, 5, **options)
    logits = model(torch.randn(3, *shape, generator=seeded(1)))
    assert logits.shape == (3, 5)
    cross_entropy(logits, torch.tensor([0, 4, 2])).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    assert model.fc.weight.grad.abs().max() > 1e-4


@pytest.mark.parametrize(
    ("width", "groups"), [(1, 1), (2, 1), (3, 1), (16, 8), (18, 9), (33, 11), (64, 32), (96, 32)]
)
@pytest.mark.parametrize("name", ["resnet-small", "resnet50"])
def test_groups_hold_at_least_two_channels_and_grow_with_the_stage(name, width, groups):
    model = build(name, (3, 8, 8), 2, width=width, blocks=(1, 1), norm="group")
    norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == {"resnet-small": 6, "resnet50": 9}[name]
    assert {m.num_groups for m in norms} == {groups}


def numpy_convolution(x, w, stride):
    """(b, c, h, w) * (o, c, k, k) with padding k // 2, from the definition."""
    k = w.shape[2]
    x = np.pad(x, ((0, 0), (0, 0), (k // 2, k // 2), (k // 2, k // 2)))
    rows, columns = ((s - k) // stride + 1 for s in x.shape[2:])
    out = np.zeros((len(x), len(w), rows, columns))
    for i in range(rows):
        for j in range(columns):
            patch = x[:, :, i * stride : i * stride + k, j * stride : j * stride + k]
            out[:, :, i, j] = np.einsum("bckl,ockl->bo", patch, w)
    return out


def numpy_norm(x, scale, shift):
    mean, var = (f(x, axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.var))
    x = (x - mean) / np.sqrt(var + 1e-5)
    return x * scale[:, None, None] + shift[:, None, None]


def numpy_block(p, x, strides):
    """A residual block with a shortcut convolution, from the parameters by name."""

    def unit(x, conv, norm, stride):
        x = numpy_convolution(x, p[f"{conv}.weight"], stride)
        return numpy_norm(x, p[f"{norm}.weight"], p[f"{norm}.bias"])

    y = x
    for k, stride in enumerate(strides, 1):
        y = unit(y, f"conv{k}", f"bn{k}", stride)
        if k < len(strides):
            y = np.maximum(y, 0)
    return np.maximum(y + unit(x, "downsample.0", "downsample.1", prod(strides)), 0)


@pytest.mark.parametrize(
    ("block", "strides"),
    [
        (basic_block, (1, 1)),
        (basic_block, (2, 1)),
        (bottleneck, (1, 1, 1)),
        (bottleneck, (1, 2, 1)),
    ],
)
def test_a_block_and_its_gradient_equal_the_formula(block, strides):
    rng = np.random.default_rng(3)
    module = block(inputs=2, width=3, stride=max(strides), norm=nn.BatchNorm2d).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.from_numpy(rng.standard_normal(tuple(parameter.shape))))
    p = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
    x = rng.standard_normal((2, 2, 5, 5))
    expected = numpy_block(p, x, strides)
    out = module(torch.from_numpy(x))
    np.testing.assert_allclose(out.detach().numpy(), expected, atol=1e-10)

    cotangent = rng.standard_normal(expected.shape)
    (out * torch.from_numpy(cotangent)).sum().backward()
    h = 1e-6
    for name, parameter in module.named_parameters():
        direction = rng.standard_normal(p[name].shape)
        ends = [
            numpy_block(p | {name: p[name] + side * h * direction}, x, strides) for side in (1, -1)
        ]
        slope = ((ends[0] - ends[1]) * cotangent).sum() / (2 * h)
        ours = (parameter.grad.numpy() * direction).sum()
        assert ours == pytest.approx(slope, rel=1e-5, abs=1e-5), name


@pytest.mark.parametrize("kernel", [1, 3, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_convolution_that_leaves_one_pixel_is_one(kernel, stride):
    """In its value and in the gradients of both factors, also of several nodes at once."""
    torch.manual_seed(0)
    layer = models.Convolution(3, 5, kernel, stride).double()
    weights = torch.randn(2, *layer.weight.shape, dtype=torch.float64, requires_grad=True)
    for shape in product(range(1, 5), repeat=2):
        x = torch.randn(2, 4, 3, *shape, dtype=torch.float64, requires_grad=True)
        ours = torch.func.vmap(lambda w, x: torch.func.functional_call(layer, {"weight": w}, (x,)))
        plain = lambda w, x: torch.nn.functional.conv2d(x, w, None, stride, kernel // 2)
        wanted = torch.stack([plain(w, part) for w, part in zip(weights, x, strict=True)])
        found = ours(weights, x)
        torch.testing.assert_close(found, wanted)
        send = torch.randn_like(wanted)
        gradients = [torch.autograd.grad(y, (weights, x), send) for y in (found, wanted)]
        torch.testing.assert_close(*gradients)


def test_the_identity_shortcut_adds_the_input():
    block = basic_block(inputs=2, width=2, stride=1, norm=nn.BatchNorm2d)
    assert block.downsample is None
    nn.init.zeros_(block.bn2.weight)
    x = torch.randn(3, 2, 4, 4, generator=seeded(0))
    kept = x.clone()
    assert torch.equal(block(x), x.relu())
    assert torch.equal(x, kept)


def test_the_cnn_and_the_mlp_equal_their_formula():
    x = torch.randn(2, 1, 9, 6, generator=seeded(0), dtype=torch.float64)
    cnn = build("cnn", (1, 9, 6), 3, width=2, hidden=(4,)).double()
    p = {name: parameter.detach().numpy() for name, parameter in cnn.named_parameters()}
    y = x.numpy()
    for k in ("conv1", "conv2"):
        y = np.maximum(numpy_convolution(y, p[f"{k}.weight"], 1) + p[f"{k}.bias"][:, None, None], 0)
        h, w = y.shape[2] // 2, y.shape[3] // 2
        y = y[:, :, : 2 * h, : 2 * w].reshape(2, -1, h, 2, w, 2).max((3, 5))
    y = np.maximum(y.reshape(2, -1) @ p["hidden1.weight"].T + p["hidden1.bias"], 0)
    y = y @ p["fc.weight"].T + p["fc.bias"]
    np.testing.assert_allclose(cnn(x).detach().numpy(), y, atol=1e-12)

    mlp = build("mlp", (1, 9, 6), 3, hidden=()).double()
    expected = x.reshape(2, 54) @ mlp.fc.weight.T + mlp.fc.bias
    torch.testing.assert_close(mlp(x), expected)


# --------------------------------------------------------------------------- initialization


@pytest.mark.parametrize(
    ("name", "options"), [("resnet-small", {}), ("resnet-small", {"norm": "group"}), ("cnn", {})]
)
def test_parameters_are_a_pure_function_of_the_generator(name, options):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(name, (3, 8, 8), 10, **options, generator=seeded(7)).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = build(name, (3, 8, 8), 10, **options, generator=seeded(7)).state_dict()
    other = build(name, (3, 8, 8), 10, **options, generator=seeded(8)).state_dict()
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])
    assert not torch.equal(first["fc.bias"], other["fc.bias"])


def test_without_a_generator_the_seed_is_0():
    default, zero = (build("mlp", (4,), 2, generator=g) for g in (None, seeded(0)))
    assert all(
        torch.equal(a, b) for a, b in zip(default.parameters(), zero.parameters(), strict=True)
    )


def test_a_generator_that_goes_on_gives_every_node_another_start():
    generator = seeded(0)
    first, second = (build("mlp", (4,), 2, generator=generator) for _ in range(2))
    assert not torch.equal(first.fc.weight, second.fc.weight)


def test_the_starting_distributions():
    model = build("resnet18", (3, 32, 32), 10)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 4:  # He: variance 2 / fan out
            outputs, _, k, _ = parameter.shape
            expected = sqrt(2 / (outputs * k * k))
            tolerance = 5 / sqrt(2 * parameter.numel())  # five standard errors
            assert parameter.std().item() == pytest.approx(expected, rel=tolerance), name
            assert abs(parameter.mean().item()) < 5 * expected / sqrt(parameter.numel()), name
        elif name.startswith("fc"):
            assert parameter.abs().max() <= 1 / sqrt(512)
        else:  # norms: the last one of a branch is not zeroed
            assert (parameter == (1.0 if name.endswith("weight") else 0.0)).all(), name
    for name, buffer in model.named_buffers():
        assert (buffer == (1.0 if name.endswith("var") else 0.0)).all(), name
    assert build("cnn", (3, 8, 8), 2).conv1.bias.abs().max() == 0
    assert model.training


def test_fresh_last_layers_start_as_far_apart_as_the_published_ones():
    """Six nodes, 512 -> 10: the published runs start at a mean squared distance of 2.77."""
    heads = [build("mlp", (512,), 10, hidden=(), generator=seeded(s)) for s in range(6)]
    x = torch.stack([torch.cat([p.detach().flatten() for p in h.parameters()]) for h in heads])
    distance = (x - x.mean(0)).square().sum(1).mean().item()
    assert distance == pytest.approx(2.77, rel=0.03)  # expected: 5/6 * 5130 / (3 * 512)


# --------------------------------------------------------------------------- at the door


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("resnet8", (3, 8, 8), {}, r"unknown model 'resnet8' \(did you mean resnet18\?\)"),
        ("MLP2", (3, 8, 8), {}, "unknown model 'MLP2'.*choose from resnet18, .*, mlp"),
        ("zzz", (3, 8, 8), {}, "unknown model 'zzz': choose"),
        (None, (3, 8, 8), {}, "unknown model None: choose"),
        ("mlp", (4,), {"norm": "batch"}, "norm = 'batch': the model mlp has no such option; .*hid"),
        ("mlp", (4,), {"width": 4}, "width = 4: the model mlp has no such option"),
        ("cnn", (3, 8, 8), {"stem": "cifar"}, "stem = 'cifar': the model cnn has no .*width, hid"),
        ("cnn", (3, 8, 8), {"blocks": (1,)}, "blocks"),
        ("resnet18", (3, 8, 8), {"hidden": (4,)}, r"hidden = \(4,\): the model resnet18"),
        ("resnet18", (3, 8, 8), {"norm": "bach"}, r"unknown norm 'bach' \(did you mean batch\?\)"),
        ("resnet18", (3, 8, 8), {"stem": "imagnet"}, "did you mean imagenet"),
        ("resnet18", (3, 8, 8), {"width": 0}, r"width = \(0,\): integers >= 1 are expec"),
        ("resnet18", (3, 8, 8), {"width": True}, "True,.: integers >= 1"),
        ("resnet18", (3, 8, 8), {"width": 1.5}, "1.5,.: integers >= 1"),
        ("resnet18", (3, 8, 8), {"blocks": ()}, r"blocks = \(\): one to 4 stages"),
        ("resnet18", (3, 8, 8), {"blocks": (1,) * 5}, "one to 4 stages"),
        ("resnet18", (3, 8, 8), {"blocks": (1, 0)}, r"blocks = \(1, 0\): integers >= 1"),
        ("resnet18", (3, 8, 8), {"blocks": 2}, "blocks = 2: integers >= 1"),
        ("mlp", (4,), {"hidden": (4, -1)}, r"hidden = \(4, -1\): integers >= 1"),
        ("mlp", (4,), {"hidden": (10**6,) * 3}, "mlp with .* is too large"),
        ("mlp", (10**6,) * 9, {}, "mlp with .* is too large"),
        ("mlp", 8, {}, "shape = 8: integers"),
        ("resnet18", (64,), {}, r"shape = \(64,\): resnet18 takes images, \(channels, height, w"),
        ("resnet18", (3, 0, 8), {}, r"shape = \(3, 0, 8\): integers"),
        ("cnn", (3, 3, 8), {}, r"shape = \(3, 3, 8\): the cnn halves .* needs 4x4 pixels"),
    ],
)
def test_bad_models_are_refused_by_name(name, shape, options, message):
    with pytest.raises(ValueError, match=message) as error:
        build(name, shape, 10, **options)
    assert one_line(error)


@pytest.mark.parametrize("classes", [0, True, "10", 2.0])
def test_a_bad_number_of_classes_is_refused(classes):
    with pytest.raises(ValueError, match=r"classes = .*: integers >= 1"):
        build("mlp", (4,), classes)


# --------------------------------------------------------------------------- many nodes at once


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet-small", {}),
        ("resnet-small", {"norm": "group", "width": 8}),
        ("resnet-small", {"stem": "imagenet", "blocks": (2, 1)}),
        ("resnet50", {"width": 2, "blocks": (1, 1)}),
        ("cnn", {}),
        ("mlp", {}),
    ],
)
def test_vmap_over_stacked_state_equals_a_loop_over_nodes(name, options):
    n, shape = 3, (3, 16, 16)
    model = build(name, shape, 10, **options)
    nodes = [build(name, shape, 10, **options, generator=seeded(s)) for s in range(n)]
    x, labels = torch.randn(n, 4, *shape, generator=seeded(9)), torch.arange(12).view(n, 4) % 10
    parameters = {
        k: torch.stack([m.get_parameter(k).detach() for m in nodes])
        for k, _ in model.named_parameters()
    }
    buffers = {k: torch.stack([m.get_buffer(k) for m in nodes]) for k, _ in model.named_buffers()}

    def loss(p, b, x, labels):
        return cross_entropy(functional_call(model, (p, b), (x,)), labels)

    gradients = vmap(grad(loss))(parameters, buffers, x, labels)
    for i, node in enumerate(nodes):
        cross_entropy(node(x[i]), labels[i]).backward()
        for k, parameter in node.named_parameters():
            scale = max(1.0, parameter.grad.abs().max().item())
            torch.testing.assert_close(
                gradients[k][i], parameter.grad, rtol=0, atol=1e-5 * scale, msg=k
            )
        for k, buffer in node.named_buffers():  # the stacked ones were updated in place
            torch.testing.assert_close(buffers[k][i], buffer, rtol=1e-5, atol=1e-6, msg=k)
    assert all((b == 1).all() for k, b in buffers.items() if k.endswith("num_batches_tracked"))
    assert all((b == 0).all() for k, b in model.named_buffers() if k.endswith("mean"))


# --------------------------------------------------------------------------- pretrained weights

NARROW = {"width": 2, "stem": "imagenet"}


def pretrained_state(classes=7, **options):
    model = build("resnet18", (3, 32, 32), classes, **(NARROW | options), generator=seeded(5))
    model(torch.randn(4, 3, 64, 64, generator=seeded(6)))  # statistics that are not 0 and 1
    return {name: t.clone() for name, t in model.state_dict().items()}


def fresh_model(classes=7, **options):
    return build("resnet18", (3, 32, 32), classes, **(NARROW | options), generator=seeded(11))


def written(tmp_path, state):
    path = tmp_path / "weights.safetensors"
    save_file(state, path)
    return path


def test_pretrained_weights_make_the_round_trip(tmp_path):
    state, model = pretrained_state(), fresh_model()
    assert load_pretrained(model, written(tmp_path, state)) == ()
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())


def test_a_last_layer_that_is_to_be_fresh_is_not_loaded(tmp_path):
    path, model = written(tmp_path, pretrained_state()), fresh_model()
    head = model.fc.weight.clone(), model.fc.bias.clone()
    assert load_pretrained(model, path, fresh_last_layer=True) == ("fc.weight", "fc.bias")
    assert torch.equal(model.fc.weight, head[0])
    assert torch.equal(model.fc.bias, head[1])
    words = ["model.name=resnet18", "model.width=2", "model.stem=imagenet", "batch=8",
             "model.fresh_last_layer=true", f"model.pretrained={path}"]  # fmt: skip
    save_file(build("resnet18", (1, 8, 8), 10, **NARROW).state_dict(), path)
    built = Experiment(config.read(None, words))
    weights = built.layout.views(built.start())["fc.weight"]
    assert not any(torch.equal(weights[0], weights[k]) for k in range(1, 6))


def test_a_last_layer_for_other_classes_stays_fresh(tmp_path):
    state, model = pretrained_state(classes=7), fresh_model(classes=3)
    head = model.fc.weight.clone(), model.fc.bias.clone()
    assert load_pretrained(model, written(tmp_path, state)) == ("fc.weight", "fc.bias")
    assert torch.equal(model.fc.weight, head[0])
    assert torch.equal(model.fc.bias, head[1])
    for name, tensor in model.state_dict().items():
        assert name.startswith("fc.") or torch.equal(tensor, state[name]), name


def test_old_files_without_the_batch_count_and_half_precision_load(tmp_path):
    state = pretrained_state()
    old = {n: t.half() for n, t in state.items() if not n.endswith("num_batches_tracked")}
    model = fresh_model()
    load_pretrained(model, written(tmp_path, old))
    assert torch.equal(model.conv1.weight, state["conv1.weight"].half().float())
    assert model.bn1.num_batches_tracked == 0


def without(state, *names):
    return {n: t for n, t in state.items() if n not in names}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: without(s, "layer1.0.conv1.weight"), "lacks layer1.0.conv1.weight: nothing was"),
        (lambda s: without(s, "fc.bias"), "lacks fc.bias"),
        (
            lambda s: {"conv1.weight": s["conv1.weight"]},
            r"lacks bn1.weight, bn1.bias, bn1.running_mean and \d\d more: nothing was loaded",
        ),
        (
            lambda s: s | {"layer5.0.conv1.weight": torch.zeros(1)},
            "has, and the model has not, layer5.0.conv1.weight",
        ),
        (
            lambda s: s | {"conv1.weight": torch.zeros(2, 3, 3, 3)},
            r"another shape for conv1.weight \(2, 3, 3, 3\) \(the model's is \(2, 3, 7, 7\)\)"
            ".*build the model with the stem",
        ),
        (lambda s: s | {"fc.weight": torch.zeros(9, 99)}, r"another shape for fc.weight \(9, 99\)"),
        (lambda s: s | {"fc.bias": torch.zeros(9)}, r"another shape for .*fc.bias \(9,\)"),
        (
            lambda s: s | {"bn1.bias": torch.zeros(2, dtype=torch.int64)},
            r"another kind of number for bn1.bias \(torch.int64\)",
        ),
        (
            lambda s: s | {"bn1.bias": torch.tensor([0.0, float("nan")])},
            "NaN or infinity in bn1.bias",
        ),
    ],
)
@pytest.mark.parametrize("classes", [7, 3])
def test_files_that_do_not_fit_are_refused_before_anything_is_written(
    spoil, message, classes, tmp_path
):
    path = written(tmp_path, spoil(pretrained_state()))
    model = fresh_model(classes)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with pytest.raises(ValueError, match=rf"weights.safetensors .*{message}") as error:
        load_pretrained(model, path)
    assert one_line(error)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_weights_with_batchnorm_do_not_load_into_groupnorm(tmp_path):
    with pytest.raises(ValueError, match=r"the model has not, bn1.num_batches_tracked, bn1.runni"):
        load_pretrained(fresh_model(norm="group"), written(tmp_path, pretrained_state()))


def test_pickles_and_other_files_are_refused(tmp_path):
    path = tmp_path / "weights.pth"
    torch.save(pretrained_state(), path)
    with pytest.raises(
        ValueError, match=r"weights.pth is not a safetensors file .*prepare NAME --from"
    ) as e:
        load_pretrained(fresh_model(), path)
    assert one_line(e)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        load_pretrained(fresh_model(), path)
    with pytest.raises(ValueError, match=r"nowhere cannot be read: .*") as e:
        load_pretrained(fresh_model(), tmp_path / "nowhere")
    assert one_line(e)
    with pytest.raises(ValueError, match=r"cannot be read|is not a safetensors file"):
        load_pretrained(fresh_model(), tmp_path)


# --------------------------------------------------------------------------- BatchNorm policies


def tiny():
    """x -> norm -> linear -> norm: the second norm sees what the first one made of the batch."""
    parts = nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Linear(2, 1), nn.BatchNorm1d(1)
    return nn.Sequential(*parts).double()


def state_of_nodes(model, n, seed=0):
    rng = np.random.default_rng(seed)
    parameters = {
        k: torch.from_numpy(rng.standard_normal(tuple(p.shape)))
        for k, p in model.named_parameters()
    }
    buffers = {
        k: torch.from_numpy(rng.uniform(0.5, 2.0, (n, *b.shape)))
        if b.is_floating_point()
        else torch.arange(n)
        for k, b in model.named_buffers()
    }
    return parameters, buffers


def by_hand(parameters, x, statistics):
    """The output of `tiny`, each norm with the (mean, variance) that `statistics` makes of its
    input."""
    p = {k: v.numpy() for k, v in parameters.items()}
    for layer in ("0", "3"):
        mean, var = statistics(layer, x)
        x = (x - mean) / np.sqrt(var + 1e-5) * p[f"{layer}.weight"] + p[f"{layer}.bias"]
        if layer == "0":
            x = x @ p["2.weight"].T + p["2.bias"]
    return x


def batches(*sizes, seed=1):
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(3 + 2 * rng.standard_normal((size, 2))) for size in sizes]


def outputs_by_hand(policy, parameters, buffers, x, training):
    if policy == "averaged":

        def statistics(layer, _):
            return [buffers[f"{layer}.running_{s}"].numpy().mean(0) for s in ("mean", "var")]

    elif policy == "test-batch":

        def statistics(_, h):
            return h.mean(0), h.var(0)

    else:
        seen = {"0": [], "3": []}

        def watch(layer, h):
            seen[layer].append((h.mean(0), h.var(0, ddof=1)))
            return h.mean(0), h.var(0)

        for batch in training:
            by_hand(parameters, batch.numpy(), watch)

        def statistics(layer, _):
            return [np.mean(s, axis=0) for s in zip(*seen[layer], strict=True)]

    return by_hand(parameters, x.numpy(), statistics)


def everything(model):
    """All that a module is: tensors with their addresses, flags and numbers of every layer."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return (
        [(n, t.data_ptr(), t.requires_grad, t.tolist()) for n, t in tensors],
        [
            (n, m.training, getattr(m, "momentum", None), getattr(m, "track_running_stats", None))
            for n, m in model.named_modules()
        ],
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("nodes", [1, 4])
def test_a_policy_equals_the_hand_computation_and_leaves_the_module_alone(policy, nodes):
    model = tiny()
    model[0].eval()  # modes of its own, which must survive
    parameters, buffers = state_of_nodes(model, nodes)
    before = everything(model), {k: b.clone() for k, b in buffers.items()}
    training, test = batches(7, 3, 5), batches(6, 4, seed=2)
    tested = average_model(model, parameters, buffers, policy, iter(training))
    for x in (*test, *reversed(test)):  # calling it does not change it
        expected = outputs_by_hand(policy, parameters, buffers, x, training)
        np.testing.assert_allclose(tested(x).numpy(), expected, rtol=1e-12, atol=1e-12)
    assert everything(model) == before[0]
    assert all(torch.equal(b, before[1][k]) for k, b in buffers.items())
    assert not any(m.training for m in tested.modules())


def test_the_policies_differ_where_the_data_do():
    model = tiny()
    parameters, buffers = state_of_nodes(model, 3)
    (x,) = batches(6)
    outputs = [
        average_model(model, parameters, buffers, policy, batches(8, seed=5))(x)
        for policy in POLICIES
    ]
    for i in range(3):
        assert (outputs[i] - outputs[i - 1]).abs().max() > 1e-2


def test_averaged_variances_leave_out_the_spread_of_the_means():
    """Two nodes at -1 and 1 with variance 1/4: all data have variance 5/4, the average says 1/4."""
    model = nn.Sequential(nn.BatchNorm1d(1))
    buffers = {
        "0.running_mean": torch.tensor([[-1.0], [1.0]]),
        "0.running_var": torch.tensor([[0.25], [0.25]]),
        "0.num_batches_tracked": torch.tensor([3, 5]),
    }
    tested = average_model(model, dict(model.named_parameters()), buffers, "averaged")
    assert tested[0].running_mean.tolist() == [0.0]
    assert tested[0].running_var.tolist() == [0.25]
    assert tested[0].num_batches_tracked == 3


def test_parameters_are_shared_not_copied():
    model = build("resnet-small", (1, 8, 8), 3)
    parameters = {k: p.detach().clone() for k, p in model.named_parameters()}
    buffers = {k: b[None] for k, b in model.named_buffers()}
    tested = average_model(model, parameters, buffers, "averaged")
    for name, p in tested.named_parameters():
        assert p.data_ptr() == parameters[name].data_ptr()
        assert not p.requires_grad


def test_one_node_averaged_is_that_nodes_own_model():
    model = build("resnet-small", (1, 8, 8), 3)
    x = torch.randn(5, 1, 8, 8, generator=seeded(1))
    model(x)
    parameters = dict(model.named_parameters())
    buffers = {k: b[None].clone() for k, b in model.named_buffers()}
    tested = average_model(model, parameters, buffers, "averaged")
    assert model.training
    torch.testing.assert_close(tested(x), model.eval()(x), rtol=0, atol=0)


def test_test_batch_statistics_are_those_of_training_mode():
    """As published: the forward pass of a module in training mode."""
    model = build("resnet18", (3, 8, 8), 3, width=2)
    x = torch.randn(5, 3, 8, 8, generator=seeded(1))
    buffers = {k: b.expand(6, *b.shape) for k, b in model.named_buffers()}
    tested = average_model(model, dict(model.named_parameters()), buffers, "test-batch")
    torch.testing.assert_close(tested(x), model(x).detach(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "options"), [("mlp", {}), ("cnn", {}), ("resnet-small", {"norm": "group"})]
)
def test_without_batchnorm_all_policies_agree(name, options):
    model = build(name, (1, 8, 8), 3, **options)
    x = torch.randn(5, 1, 8, 8, generator=seeded(1))
    for policy in POLICIES:  # no training data needed either
        tested = average_model(model, dict(model.named_parameters()), {}, policy)
        torch.testing.assert_close(tested(x), model(x).detach(), rtol=0, atol=0)


def test_other_buffers_are_averaged_under_every_policy():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.zeros(2))
            self.norm = nn.BatchNorm1d(2, track_running_stats=False)

        def forward(self, x):
            return self.norm(x) + self.shift

    model = Shifted()
    x = torch.tensor([[0.0, 0.0], [2.0, 4.0]])
    shifts = {"shift": torch.tensor([[1.0, 2.0], [3.0, 6.0]])}
    for policy in POLICIES:  # a norm that keeps no statistics always takes those of the batch
        tested = average_model(model, dict(model.named_parameters()), shifts, policy)
        torch.testing.assert_close(tested(x).detach(), torch.tensor([[1.0, 3.0], [3.0, 5.0]]))


def test_a_failure_while_recomputing_leaves_the_module_alone():
    model = tiny()
    parameters, buffers = state_of_nodes(model, 2)
    before = everything(model)
    with pytest.raises(RuntimeError):
        average_model(model, parameters, buffers, "recomputed", [*batches(4), torch.zeros(3, 5)])
    assert everything(model) == before


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("mean", "policy = 'mean': choose averaged, recomputed, test-batch"),
        ("recomputed", "policy = 'recomputed' needs training_batches: there were none"),
    ],
)
def test_policies_that_cannot_be_followed_are_refused(policy, message):
    model = tiny()
    parameters, buffers = state_of_nodes(model, 2)
    with pytest.raises(ValueError, match=message) as error:
        average_model(model, parameters, buffers, policy)
    assert one_line(error)


def test_every_name_builds():
    assert models.NAMES == ("resnet18", "resnet50", "resnet-small", "cnn", "mlp")
    assert all(isinstance(build(name, (3, 8, 8), 2), nn.Module) for name in models.NAMES)


def test_frozen_batchnorm_keeps_the_statistics_of_all_training_data():
    model = build("resnet-small", (3, 8, 8), 2, width=4, norm="frozen")
    x = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(3)) * 2 + 1
    buffers = frozen_statistics(model, x.split(16))
    batches = model.conv1(x).detach().unflatten(0, (4, 16))
    torch.testing.assert_close(buffers["bn1.running_mean"], batches.mean((0, 1, 3, 4)))
    variance = batches.transpose(1, 2).flatten(2).var(2).mean(0)
    torch.testing.assert_close(buffers["bn1.running_var"], variance)
    assert float(model.bn1.running_mean.abs().max()) == 0  # the model is as it was

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    rows = {name: b[None] for name, b in buffers.items()}
    tested = [
        average_model(model, parameters, rows, policy, [x])(x)
        for policy in ("averaged", "recomputed", "test-batch")
    ]
    torch.testing.assert_close(tested[1], tested[0], rtol=0, atol=0)
    torch.testing.assert_close(tested[2], tested[0], rtol=0, atol=0)
    before = {name: b.clone() for name, b in model.named_buffers()}
    model.train()(x).sum().backward()
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    assert model.bn1.weight.grad is not None


def test_batch_counts_of_another_type_are_no_reason_to_refuse_a_file(tmp_path):
    model = build("resnet-small", (3, 8, 8), 2, width=4)
    state = {
        name: value.float() if name.endswith("num_batches_tracked") else value
        for name, value in model.state_dict().items()
    }
    save_file(state, tmp_path / "w.safetensors")
    assert load_pretrained(model, tmp_path / "w.safetensors") == ()
