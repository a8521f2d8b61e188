"""Gradient caching: micro-batches train like the whole batch, whatever form the inputs have."""

import copy
import math
import types
from collections import OrderedDict, UserDict, namedtuple

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss, NTXentLoss, ProxyAnchorLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from torch import nn

from pml_ext import CachedGradients, CBMLLoss, CrossBatchMemory, TiledMultiSimilarityLoss, registry
from pml_ext.errors import TrainingWarning
from pml_ext.losses.splitting import number_of_rows, rows_of
from pml_ext_train.cli.benchmark import peak_bytes


def network():
    """In float64: in float32 five steps of Adam make of a hinge that flips what no tolerance takes."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Dropout2d(0.2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(8 * 64, 16),
        nn.Dropout(0.1),
    ).double()


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(48, 1, 8, 8, generator=generator, dtype=torch.float64), torch.arange(48) // 4


def train(net, step):
    torch.manual_seed(2)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    values = []
    for number in range(5):
        optimizer.zero_grad()
        value = step(*batch(number))
        value.backward()
        optimizer.step()
        values.append(value.detach())
    return [torch.stack(values), torch.rand(3), *(p.detach() for p in net.parameters())]


LOSSES = {
    "contrastive": (ContrastiveLoss, None),
    "cbml": (CBMLLoss, None),
    "mined": (TiledMultiSimilarityLoss, MultiSimilarityMiner()),
    "memory": (lambda: CrossBatchMemory(CBMLLoss(), 16, 96), None),
}


@pytest.mark.parametrize("micro_batch", [8, 20])
@pytest.mark.parametrize("name", LOSSES)
def test_five_steps_are_those_of_the_whole_batch(name, micro_batch):
    """The network's micro-batches draw dropout one after the other, and the same again in the backward pass."""
    make, miner = LOSSES[name]
    whole = network()
    cut = network()
    loss = make()
    step = CachedGradients(cut, make(), micro_batch, miner=miner)

    def plain(images, labels):
        embeddings = torch.cat([whole(part) for part in images.tensor_split(math.ceil(48 / micro_batch))])
        return loss(embeddings, labels, **{} if miner is None else {"indices_tuple": miner(embeddings, labels)})

    torch.testing.assert_close(train(cut, step), train(whole, plain), rtol=1e-9, atol=1e-11)


def test_micro_batches_lower_the_peak_memory():
    """0.14 of the whole batch's, 256 images of 28 x 28 in micro-batches of 32."""
    first = nn.Conv2d(1, 16, 3, padding=1)
    second = nn.Conv2d(16, 32, 3, padding=1)
    kept = nn.ReLU(), nn.Dropout(0.2)
    net = nn.Sequential(first, *kept, nn.MaxPool2d(2), second, *kept, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.randn(256, 1, 28, 28, requires_grad=True)
    labels = torch.arange(256) // 4
    cut = CachedGradients(net, CBMLLoss(), 32)

    def whole(x, y):
        return CBMLLoss()(net(x), y)

    assert peak_bytes(cut, images, labels) < 0.2 * peak_bytes(whole, images, labels)


@pytest.mark.parametrize("micro_batch", [16, 47])  # of 48 rows: no part has a single one, which batch norm refuses
def test_batch_norm_counts_a_batch_once_and_warns(micro_batch):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8)).double()
    step = CachedGradients(net, CBMLLoss(), micro_batch)
    with pytest.warns(TrainingWarning, match=f"statistics come from micro-batches of {micro_batch}; freeze it"):
        step(*batch()).backward()
    assert net[2].num_batches_tracked == math.ceil(48 / micro_batch)
    before = net[2].running_mean.clone()
    net.eval()
    step(*batch()).backward()
    torch.testing.assert_close(net[2].running_mean, before)


def test_inputs_in_place_of_embeddings_are_refused():
    with pytest.raises(TypeError, match=r"loss of CachedGradients must be an object .* got 'cbml'"):
        CachedGradients(network(), "cbml", 8)
    assert registry.capabilities(CachedGradients(network(), CBMLLoss(), 8)) == frozenset()


class Returns(nn.Module):
    """A network whose outputs are a function of a linear layer's."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs
        self.layer = nn.Linear(3, 2).double()

    def forward(self, x):
        return self.outputs(self.layer(x))


class TextNetwork(nn.Module):
    """Texts to embeddings, by the codes of their letters."""

    def __init__(self):
        super().__init__()
        self.letters = nn.EmbeddingBag(128, 6).double()
        self.dropout = nn.Dropout(0.4)

    def forward(self, texts):
        codes = [torch.tensor([ord(letter) for letter in text]) for text in texts]
        rows = torch.cat([self.letters(each[None]) for each in codes])
        return self.dropout(rows)


class TokenNetwork(nn.Module):
    """Tokens and a mask, as transformers call them, to a dictionary as a ``ModelOutput`` is one."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 6).double()
        self.dropout = nn.Dropout(0.4)

    def forward(self, input_ids, attention_mask=None, scale=1.0):
        states = self.dropout(self.tokens(input_ids)) * attention_mask[..., None]
        return OrderedDict(last_hidden_state=states, pooler_output=scale * states.sum(1), logits=None)


class FeatureNetwork(TokenNetwork):
    """The same for one dictionary, as sentence-transformers calls its modules."""

    def forward(self, features):
        outputs = super().forward(**features)
        return {
            **features,
            "token_embeddings": outputs["last_hidden_state"],
            "sentence_embedding": outputs["pooler_output"],
        }


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 6).double()
        self.dropout = nn.Dropout(0.4)

    def forward(self, x, y):
        return self.dropout(self.layer(x * y)), None


class ArrayNetwork(TwoInputs):
    def forward(self, x):
        assert isinstance(x, np.ndarray)
        return super().forward(torch.as_tensor(x), 1)[0]


ROWS = 10
GENERATOR = torch.Generator().manual_seed(3)
POINTS = torch.randn(ROWS, 3, generator=GENERATOR, dtype=torch.float64)
TOKENS = {
    "input_ids": torch.randint(0, 50, (ROWS, 5), generator=GENERATOR),
    "attention_mask": torch.randint(0, 2, (ROWS, 5), generator=GENERATOR),
    "scale": 2.0,
}
TEXTS = [f"text {number} " + "x" * number for number in range(ROWS)]
CLASSES = torch.arange(ROWS) % 3
INPUTS = {  # network, inputs, and the inputs of some rows
    "texts": (TextNetwork, TEXTS, lambda a, b: (TEXTS[a:b],)),
    "array": (ArrayNetwork, POINTS.numpy(), lambda a, b: (POINTS[a:b].numpy(),)),
    "tuple": (TwoInputs, (POINTS, POINTS.exp()), lambda a, b: (POINTS[a:b], POINTS[a:b].exp())),
    "features": (FeatureNetwork, TOKENS, lambda a, b: (tokens(a, b),)),
}


def tokens(first, last):
    return {name: value if name == "scale" else value[first:last] for name, value in TOKENS.items()}


def embedded_in_parts(net, inputs):
    """The embeddings of a network without gradient caching, which draws dropout for the same parts."""
    tensors = []
    for first, last in ((0, 3), (3, 6), (6, ROWS)):
        part = inputs(first, last)
        outputs = net(**part) if isinstance(part, dict) else net(*part)
        if isinstance(outputs, tuple):
            outputs = outputs[0]
        if isinstance(outputs, dict):
            outputs = outputs.get("pooler_output", outputs.get("sentence_embedding"))
        tensors.append(outputs)
    return torch.cat(tensors)


def outcome(value, *nets):
    value.backward()
    return [value.detach(), *(p.grad for net in nets for p in net.parameters())]


@pytest.mark.parametrize("name", INPUTS)
def test_forms_of_inputs_equal_the_uncached_network(name):
    make, inputs, part = INPUTS[name]
    torch.manual_seed(0)
    plain = make()
    cached = copy.deepcopy(plain)
    torch.manual_seed(1)
    expected = outcome(CBMLLoss()(embedded_in_parts(plain, part), CLASSES), plain)
    torch.manual_seed(1)
    found = outcome(CachedGradients(cached, CBMLLoss(), 4)(inputs, CLASSES), cached)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("loss", [ContrastiveLoss, NTXentLoss, CBMLLoss])
def test_two_networks_equal_the_uncached_ones(loss, shared):
    """Queries are dictionaries of tokens, references are texts; or both are dictionaries, for one network."""
    torch.manual_seed(0)
    queries = TokenNetwork()
    references = queries if shared else TextNetwork()
    cached = copy.deepcopy([queries, references])
    others = TOKENS if shared else TEXTS

    torch.manual_seed(1)
    x = embedded_in_parts(queries, tokens)
    y = embedded_in_parts(references, tokens if shared else INPUTS["texts"][2])
    expected = outcome(loss()(x, CLASSES, ref_emb=y, ref_labels=CLASSES.clone()), queries, references)

    torch.manual_seed(1)
    step = CachedGradients(cached[0], loss(), 4, reference_network=None if shared else cached[1])
    found = outcome(step(TOKENS, CLASSES, others, ref_labels=CLASSES), *cached)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_miner_sees_the_references():
    step = CachedGradients(nn.Linear(3, 2).double(), ContrastiveLoss(), 4, MultiSimilarityMiner())
    value = step(POINTS, CLASSES, POINTS, CLASSES)
    x = step.network.network(POINTS)
    mined = MultiSimilarityMiner()(x, CLASSES, x, CLASSES.clone())
    torch.testing.assert_close(value, ContrastiveLoss()(x, CLASSES, mined, x, CLASSES.clone()), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("outputs", "output"),
    [
        (lambda x: {"embeddings": x, "other": x}, "embeddings"),
        (lambda x: (x + 1, x), 1),
        (lambda x: [x, x + 1], 0),
        (lambda x: types.SimpleNamespace(embeds=x, states=x[:, None]), None),
        (lambda x: types.SimpleNamespace(embeds=x, states=x + 1), "embeds"),
        (lambda x: {"embeddings": x, "ids": x.long()}, None),
    ],
)
def test_outputs_are_found_or_named(outputs, output):
    net = Returns(outputs)
    value = CachedGradients(net, ContrastiveLoss(), 4, output=output)(POINTS, CLASSES)
    torch.testing.assert_close(value, ContrastiveLoss()(net.layer(POINTS), CLASSES), rtol=0, atol=1e-12)


@pytest.mark.parametrize("micro_batch", [2, 64])
@pytest.mark.parametrize(
    ("outputs", "settings", "error", "text"),
    [
        (
            lambda x: (x, x),
            {},
            TypeError,
            r"a tuple of length 2 from Returns with 0 \[\d+, 2\], 1 \[\d+, 2\]; name one by output=",
        ),
        (lambda x: {"x": x[:, None]}, {}, TypeError, r"got a dict from Returns with 'x' \[\d+, 1, 2\]"),
        (lambda x: "text", {}, TypeError, "got a str from Returns with no tensor"),
        (lambda x: {"x": x}, {"output": "y"}, TypeError, r"output='y' is no tensor in what Returns .*: 'x' \[\d+, 2\]"),
        (
            lambda x: x.mean(0, keepdim=True),
            {},
            ValueError,
            r"Returns must return one embedding for each row of its inputs, \d+; got .*1, 2",
        ),
    ],
)
def test_outputs_need_one_tensor_of_all_rows(outputs, settings, error, text, micro_batch):
    step = CachedGradients(Returns(outputs), ContrastiveLoss(), micro_batch, **settings)
    with pytest.raises(error, match=text):
        step(POINTS, CLASSES)


def test_unpack_decides_how_inputs_are_passed():
    net = Returns(lambda x: x)
    net.forward = lambda *given, **named: net.layer(named["x"] if named else given[0]["x"])
    whole = ContrastiveLoss()(net.layer(POINTS), CLASSES)
    for unpack in (False, True):
        value = CachedGradients(net, ContrastiveLoss(), 4, unpack=unpack)({"x": POINTS}, CLASSES)
        torch.testing.assert_close(value, whole)


@pytest.mark.parametrize("micro_batch", [2, 64])
@pytest.mark.parametrize(
    ("given", "size", "text"),
    [
        ({"reference_inputs": POINTS}, 2, "reference_inputs need ref_labels; .* type ref_labels=labels"),
        ({"reference_inputs": POINTS[:7], "ref_labels": CLASSES}, 2, "10 labels need 10 rows of inputs; got 7"),
        (
            {"reference_inputs": POINTS, "ref_labels": CLASSES, "ref_emb": POINTS},
            2,
            "reference_inputs and ref_emb are both given",
        ),
        (
            {"reference_inputs": POINTS, "ref_labels": CLASSES},
            4,
            "ref_emb must have the embedding size of embeddings, 2; got .*4",
        ),
    ],
)
def test_references_that_do_not_fit(given, size, text, micro_batch):
    networks = nn.Linear(3, 2).double(), nn.Linear(3, size).double()
    step = CachedGradients(networks[0], ContrastiveLoss(), micro_batch, reference_network=networks[1])
    with pytest.raises(ValueError, match=text):
        step(POINTS, CLASSES, **given)


@pytest.mark.parametrize("loss", [CrossBatchMemory(CBMLLoss(), 2, 16), ProxyAnchorLoss(3, 2)])
def test_a_loss_without_references_is_told(loss):
    step = CachedGradients(nn.Linear(3, 2).double(), loss, 4)
    with pytest.raises(TypeError, match=f"{type(loss).__name__} takes no references; leave out reference_inputs"):
        step(POINTS, CLASSES, POINTS, CLASSES)


def test_data_parallel_goes_around_the_step(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        network = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
        with pytest.raises(TypeError, match=r"type DistributedDataParallel\(CachedGradients\(network.module"):
            CachedGradients(network, ContrastiveLoss(), 2)(torch.ones(4, 3), torch.arange(4) // 2)
    finally:
        torch.distributed.destroy_process_group()


Pair = namedtuple("Pair", "left right")
X = torch.arange(12).reshape(6, 2)


@pytest.mark.parametrize(
    ("inputs", "part"),
    [
        (X, X[2:4]),
        (X.numpy(), X[2:4].numpy()),
        (list("abcdef"), ["c", "d"]),
        ((X, list("abcdef"), None), (X[2:4], ["c", "d"], None)),
        (Pair(X, X + 1), Pair(X[2:4], X[2:4] + 1)),
        ({"x": X, "deep": {"y": X.numpy()}, "scale": 2.0, "of": torch.tensor(3)}, None),
        (UserDict(x=X, text="all"), {"x": X[2:4], "text": "all"}),
    ],
)
def test_rows_keep_their_form_when_split(inputs, part):
    assert number_of_rows(inputs) == number_of_rows(inputs, 6) == 6
    found = rows_of(inputs, 2, 4)
    if part is None:
        part = {"x": X[2:4], "deep": {"y": X[2:4].numpy()}, "scale": 2.0, "of": torch.tensor(3)}
    assert type(found) is type(part)
    assert repr(found) == repr(part)


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        (torch.tensor(1.0), TypeError, r"must be a tensor or array .*; got a tensor of shape \(\)"),
        ("text", TypeError, "got a str"),
        (None, TypeError, "got a NoneType"),
        ({}, TypeError, "got a dict"),
        ({"scale": 1.0}, TypeError, "got a dict"),
        (iter("abc"), TypeError, "got a str_ascii_iterator"),
        ({"x": X, "deep": [X], "odd": {1, 2}}, TypeError, r"got a set in \['odd'\]"),
        ({"x": X, "mask": X[:4]}, ValueError, r"got rows: \['x'\] 6, \['mask'\] 4"),
        ((X, {"y": X[:1]}), ValueError, r"got rows: \[0\] 6, \[1\]\['y'\] 1"),
        ([X, X], TypeError, "a list of 2 tensors of 6 rows each may be 2 rows or 2 inputs; type tuple"),
        ([np.ones(6), np.ones(6)], TypeError, "may be 2 rows or 2 inputs"),
    ],
)
def test_inputs_that_cannot_be_split(inputs, error, text):
    with pytest.raises(error, match=text):
        number_of_rows(inputs)


def test_labels_say_what_a_list_is():
    assert number_of_rows([X, X], 2) == 2
    with pytest.raises(ValueError, match=r"6 labels need 6 rows of inputs; got 2; .* type tuple\(...\)"):
        number_of_rows([X, X], 6)
