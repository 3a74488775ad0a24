import math
import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from posterity import data, models
from posterity.data import DataSet, Kind, Task, Vocabulary
from posterity.types import PosterityError

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
VGG_CONVOLUTIONS = 14_714_688  # 3 × 3 weights and biases of VGG16's thirteen convolutions


def image_set(shape: tuple[int, ...], classes: int = 10) -> DataSet:
    pair = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    return DataSet("pictures", Task.CLASSIFICATION, Kind.IMAGE, pair, pair, classes=tuple(map(str, range(classes))))


def text_set() -> DataSet:
    words = Vocabulary.fit(["a b c d e f g", "g f e d c b a"])
    pair = words.encode(["a b c", "d e f g a", "b", "c d e f g"]), torch.tensor([0, 1, 0, 1])
    return DataSet("texts", Task.CLASSIFICATION, Kind.TEXT, pair, pair, classes=("n", "p"), vocabulary=words)


SETS = {"transformer": text_set, "lstm": text_set}


def fitting_set(name: str) -> DataSet:
    return SETS[name]() if name in SETS else image_set(CIFAR)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("module", "count"),
    [
        (lambda: models.lenet_300_100(MNIST), 266_610),
        (lambda: models.lenet5_caffe(MNIST), 431_080),
        (lambda: models.lenet5(MNIST), 44_426),
        (lambda: models.lenet5(CIFAR), 62_006),
        (lambda: models.alexnet(CIFAR), 2_472_266),
        (lambda: models.resnet18(CIFAR), 11_173_962),
        (lambda: models.resnet18(CIFAR, stem="imagenet"), 11_181_642),
        (lambda: models.resnet18(CIFAR, 1000, stem="imagenet"), 11_689_512),  # the ImageNet one
        (lambda: models.vgg16(CIFAR), VGG_CONVOLUTIONS + 2 * (512 * 512 + 512) + 5130),
        (lambda: models.vgg16(CIFAR, batch_norm=True), VGG_CONVOLUTIONS + 2 * 4224 + 2 * (512 * 512 + 512) + 5130),
        (lambda: models.vgg_like(CIFAR), VGG_CONVOLUTIONS + 2 * 4224 + (512 * 512 + 512) + 5130),
    ],
)
def test_parameter_counts_are_the_published_ones(module: object, count: int) -> None:
    assert parameters(module()) == count  # type: ignore[operator]


def test_the_stems_leave_what_the_paper_says() -> None:
    x = torch.zeros(1, *CIFAR)
    for stem, layers, side in (("cifar", 3, 32), ("imagenet", 4, 8)):
        net = models.resnet18(CIFAR, stem=stem).eval()  # type: ignore[arg-type]
        assert net[:layers](x).shape == (1, 64, side, side)
        assert net[:-3](x).shape == (1, 512, side // 8, side // 8)


@pytest.mark.parametrize("name", models.names())
def test_make_sizes_the_network_and_batch_order_does_not_matter(name: str) -> None:
    dataset = fitting_set(name)
    net = models.make(name, dataset).eval()
    with torch.no_grad():
        outputs = net(dataset.test[0])
        assert outputs.shape == (4, dataset.outputs)
        torch.testing.assert_close(net(dataset.test[0].flip(0)).flip(0), outputs, atol=1e-5, rtol=1e-4)
        assert models.make(name, dataset, outputs=7)(dataset.test[0]).shape == (4, 7)
    assert (outputs[0] - outputs[1]).abs().max() > 1e-4  # the input matters


@pytest.mark.parametrize("name", ["mlp", "lenet5", "lenet5_caffe", "alexnet", "transformer"])
def test_vmap_over_stacked_networks_equals_a_loop(name: str) -> None:
    dataset = fitting_set(name)
    nets = [models.make(name, dataset).eval() for _ in range(3)]
    params, buffers = stack_module_state(nets)
    x = dataset.test[0]
    with torch.no_grad():
        together = vmap(lambda p, b: functional_call(nets[0], (p, b), (x,)))(params, buffers)
        torch.testing.assert_close(together, torch.stack([net(x) for net in nets]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", models.names())
def test_every_parameter_can_be_drawn_anew(name: str) -> None:
    net = models.make(name, fitting_set(name))
    before = {key: p.detach().clone() for key, p in net.named_parameters()}

    def reset(module: nn.Module) -> None:
        owns = list(module.parameters(recurse=False))
        assert not owns or hasattr(module, "reset_parameters")
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()

    net.apply(reset)
    for key, p in net.named_parameters():
        if p.dim() > 1:  # norms and zero biases come back as they were
            assert not torch.equal(p, before[key]), key
            assert p.std().item() == pytest.approx(before[key].std().item(), rel=0.25)


def test_vgg_starts_with_the_variance_of_he() -> None:
    torch.manual_seed(0)
    net = models.vgg16(CIFAR)
    conv = next(
        layer for layer in net if isinstance(layer, nn.Conv2d) and layer.in_channels < layer.out_channels == 512
    )
    assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / (9 * conv.out_channels)), rel=0.01)
    x = torch.randn(8, *CIFAR)

    def signal() -> float:
        """How much the features still differ from image to image."""
        with torch.no_grad():
            return nn.Sequential(*list(net)[:-5])(x).std(0).mean().item()

    he = signal()
    for layer in net:
        if isinstance(layer, nn.Conv2d):
            layer.reset_parameters()  # torch's own draws a sixth of the variance: thirteen times over
    assert 1e-3 < he < 10 and signal() < 1e-2 * he


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_padding_never_changes_an_output(name: str) -> None:
    dataset = text_set()
    net = models.make(name, dataset).eval()
    tokens = torch.tensor([[2, 3, 4]])
    with torch.no_grad():
        torch.testing.assert_close(net(tokens), net(torch.tensor([[2, 3, 4, 0, 0, 0, 0]])))
        assert not torch.allclose(net(tokens), net(torch.tensor([[4, 3, 2]])))  # order matters
        assert torch.isfinite(net(torch.zeros(1, 7, dtype=torch.int64))).all()  # a text of unheard silence


def test_attention_is_torchs() -> None:
    torch.manual_seed(0)
    ours = models.text.Attention(8, 2)
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
        theirs.out_proj.load_state_dict(ours.out.state_dict())
        x, real = torch.randn(3, 5, 8), torch.arange(5)[None, :] < torch.tensor([[5], [3], [1]])
        expected, _ = theirs(x, x, x, key_padding_mask=~real)
        torch.testing.assert_close(ours(x, real), expected)


def test_a_block_of_the_encoder_is_torchs() -> None:
    torch.manual_seed(0)
    ours = models.text.EncoderBlock(8, 2, dropout=0.0)
    theirs = nn.TransformerEncoderLayer(8, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)
    attention = ours.attention
    for part in ("weight", "bias"):
        three = [getattr(layer, part) for layer in (attention.query, attention.key, attention.value)]
        getattr(theirs.self_attn, f"in_proj_{part}").data = torch.cat(three).detach()
    pairs = (
        (theirs.self_attn.out_proj, attention.out),
        (theirs.linear1, ours.dense[0]),
        (theirs.linear2, ours.dense[2]),
    )
    for torchs, own in (*pairs, (theirs.norm1, ours.norm1), (theirs.norm2, ours.norm2)):
        torchs.load_state_dict(own.state_dict())
    x, real = torch.randn(3, 5, 8), torch.arange(5)[None, :] < torch.tensor([[5], [3], [1]])
    torch.testing.assert_close(ours(x, real), theirs(x, src_key_padding_mask=~real))


def test_positions_are_sines_and_cosines() -> None:
    positions = models.text.sinusoids(10, 8)
    assert positions[0].tolist() == [0, 1] * 4
    assert positions[3, 2].item() == pytest.approx(math.sin(3 / 10_000 ** (2 / 8)))
    assert positions[7, 5].item() == pytest.approx(math.cos(7 / 10_000 ** (4 / 8)))


def test_mlp_has_the_asked_layers() -> None:
    net = models.mlp(3, 2, (7, 5), nn.Tanh)
    assert [type(layer).__name__ for layer in net] == ["Flatten", "Linear", "Tanh", "Linear", "Tanh", "Linear"]
    assert [tuple(p.shape) for p in net.parameters() if p.dim() == 2] == [(7, 3), (5, 7), (2, 5)]
    assert [type(layer) for layer in models.mlp(3, 2, ())] == [nn.Flatten, nn.Linear]


@pytest.mark.parametrize("name", ["digits", "two-moons", "sine"])
def test_the_default_learns_its_set(name: str) -> None:
    dataset = data.load(name)
    torch.manual_seed(0)
    net = models.make(models.default_for(dataset), dataset)
    x, y = dataset.training()
    loss = nn.functional.cross_entropy if dataset.task == Task.CLASSIFICATION else nn.functional.mse_loss
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        outputs = net(dataset.test[0] if dataset.task == Task.CLASSIFICATION else x)
    if dataset.task == Task.CLASSIFICATION:
        assert (outputs.argmax(1) == dataset.test[1]).float().mean() > 0.95
    else:  # the noise is (0.1 / target std)² of the standardised variance
        assert dataset.target_standardiser is not None
        assert nn.functional.mse_loss(outputs, y) < 1.5 * (0.1 / dataset.target_standardiser.std.item()) ** 2


def test_defaults_by_kind() -> None:
    assert models.default_for(image_set(CIFAR)) == models.default_for(image_set(MNIST)) == "lenet5"
    assert models.default_for(image_set((1, 8, 8))) == "mlp"
    assert models.default_for(text_set()) == "transformer"


def test_a_narrow_vgg_has_all_its_convolutions() -> None:
    narrow = models.vgg_like((3, 32, 32), width=0.005)  # 0.32 filters are one, and not a pooling
    assert [type(layer) for layer in narrow] == [type(layer) for layer in models.vgg_like((3, 32, 32))]
    with pytest.raises(PosterityError, match="width"):
        models.vgg_like((3, 32, 32), width=-1.0)


def test_normalisation_comes_before_the_activation() -> None:
    kinds = [type(layer) for layer in models.vgg16(CIFAR, batch_norm=True)]
    assert kinds[:7] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU] * 2 + [nn.MaxPool2d]
    assert nn.BatchNorm2d not in [type(layer) for layer in models.vgg16(CIFAR)]


def test_dropout_only_where_asked() -> None:
    for make in (models.alexnet, models.vgg16):
        assert not any(isinstance(m, nn.Dropout) for m in make(CIFAR).modules())
        assert next(m.p for m in make(CIFAR, dropout=0.3).modules() if isinstance(m, nn.Dropout)) == 0.3


def test_bad_names_and_shapes_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PosterityError, match="did you mean 'resnet18'"):
        models.make("resnet-81", image_set(CIFAR))
    with pytest.raises(PosterityError, match="there are mlp, "):
        models.make("zzz", image_set(CIFAR))
    assert parameters(models.make("lenet-300-100", image_set(MNIST))) == 266_610
    for name, dataset, says in (
        ("lenet5", image_set((1, 8, 8)), r"at least 16 pixels, got \(1, 8, 8\)"),
        ("alexnet", image_set((3, 40, 40)), "32 × 32 pixels, got 40 × 40"),
        ("vgg16", image_set((3, 64, 64)), "32 to 63 pixels"),
        ("mlp", text_set(), "holds text: use lstm or transformer"),
        ("lenet5", text_set(), "holds text"),
        ("lstm", image_set(CIFAR), "needs a vocabulary"),
        ("resnet18", data.load("two-moons"), r"needs images \[C, H, W\]"),
    ):
        with pytest.raises(PosterityError, match=says):
            models.make(name, dataset)
    with pytest.raises(PosterityError, match="stem must be one of cifar, imagenet"):
        models.resnet18(CIFAR, stem="none")  # type: ignore[arg-type]
    with pytest.raises(PosterityError, match="multiple of twice the heads"):
        models.Transformer(10, 5, 2, width=6, heads=4)


def test_a_network_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("own_model_module")
    monkeypatch.setitem(sys.modules, "own_model_module", module)
    module.plain = lambda: nn.Linear(1, 1)  # type: ignore[attr-defined]
    module.sized = lambda dataset, width=3: nn.Linear(dataset.outputs, width)  # type: ignore[attr-defined]
    module.wrong = lambda: 3  # type: ignore[attr-defined]
    module.many = lambda width, depth: nn.Linear(width, depth)  # type: ignore[attr-defined]
    assert models.make("own_model_module:plain", text_set()).weight.shape == (1, 1)
    assert models.make("own_model_module:sized", text_set()).weight.shape == (3, 2)
    with pytest.raises(PosterityError, match=r"must return an nn\.Module, got int"):
        models.make("own_model_module:wrong", text_set())
    with pytest.raises(PosterityError, match="is called with the data set alone, but needs width, depth"):
        models.make("own_model_module:many", text_set())
