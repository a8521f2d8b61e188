"""One training step of many losses, and what collectives give: in two processes, or imported for one process.

Every case is a loss, its settings and perhaps a miner; a step gives the value, the network's gradients, and those of
the loss's own parameters.
"""

import time

import torch
import torch.distributed as dist
from pytorch_metric_learning import losses, miners, reducers
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import nn

import pml_ext
from pml_ext import (
    CrossBatchMemory,
    DensityRegularizer,
    DistributedBatchSampler,
    DistributedLoss,
    DistributedMiner,
    MPerLabelSampler,
    MultipleLosses,
    RegularizedLoss,
    SelfSupervisedLoss,
    registry,
)
from pml_ext.distributed import processes
from pml_ext.distributed.gather import SharedTiles, tiles_shared
from pml_ext.pairwise import tiles
from pml_ext_train.training.batch_norm import JoinedBatchNorm

EVEN = (8, 8)
UNEVEN = (11, 5)
SIZE = 6
CLASSES = 4


def learned_targets():
    """A regularizer with a parameter for each class."""
    return DensityRegularizer(CLASSES, 0.3, [0.2, 0.5, 0.1, 0.4])


class WithDropout(nn.Module):
    """A learned layer with dropout before a loss."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss
        self.layer = nn.Linear(SIZE, SIZE).double()

    def forward(self, embeddings, labels, indices_tuple=None):
        return self.loss(nn.functional.dropout(self.layer(embeddings), 0.5), labels)


class WithMemory(nn.Module):
    """A network and its loss in one module."""

    def __init__(self):
        super().__init__()
        self.net = network()
        self.memory = CrossBatchMemory(losses.ContrastiveLoss(), SIZE, 24)

    def forward(self, inputs, labels):
        return self.memory(self.net(inputs), labels)


class TwoEncoders(nn.Module):
    """Two networks with dropout and one loss, embedded four rows at a time."""

    def __init__(self, dropout, cached):
        super().__init__()
        torch.manual_seed(4)
        self.queries = nn.Sequential(network(), nn.Dropout(dropout))
        self.references = nn.Sequential(network(), nn.Linear(SIZE, SIZE).double(), nn.Dropout(dropout))
        self.loss = DistributedLoss(losses.NTXentLoss())
        self.step = None
        if cached:
            self.step = pml_ext.CachedGradients(self.queries, self.loss, 4, reference_network=self.references)

    def forward(self, inputs, labels):
        if self.step is not None:
            return self.step({"input": inputs}, labels, inputs + 1, labels)
        queries = torch.cat([self.queries(part) for part in inputs.split(4)])
        references = torch.cat([self.references(part + 1) for part in inputs.split(4)])
        return self.loss(queries, labels, ref_emb=references, ref_labels=labels.clone())


def of_two_encoders(dropout, cached, mine=None, around=lambda model: model):
    """The loss and the gradients of one batch, or of a process's part."""
    model = TwoEncoders(dropout, cached)
    inputs, labels = part_of(mine, UNEVEN, *next(batches()))
    torch.manual_seed(5 + (mine or 0))
    wrapped = around(model)  # is needed until the gradients are there
    value = wrapped(inputs, labels)
    value.backward()
    return [value.detach(), *(p.grad for p in model.parameters())]


def of_views(mine=None):
    """The loss of three views and the gradients of one batch, or of a process's part."""
    inputs, _ = part_of(mine, UNEVEN, *next(batches()))
    model = network()
    embed = model if mine is None else nn.parallel.DistributedDataParallel(model)
    one, two, three = embed(torch.cat([inputs, inputs + 0.1, 0.9 * inputs])).chunk(3)
    values = []
    for symmetric in (True, False):
        loss = DistributedLoss(SelfSupervisedLoss(losses.NTXentLoss(), symmetric))
        values.append(loss(one, ref_emb=[two, three]))
    sum(values).backward()
    return [*(value.detach() for value in values), *(p.grad for p in model.parameters())]


GRADED_TREE = pml_ext.Hierarchy(["a/b", "a/c", "d/e", "d/f"], graded=True)
SETS = pml_ext.SharedLabel(sets=[[0, 1], [1, 2], [3], [0]])
LOSSES = {
    "contrastive": losses.ContrastiveLoss,
    "proxy-anchor": lambda: losses.ProxyAnchorLoss(CLASSES, SIZE),
    "multi-similarity, miner": losses.MultiSimilarityLoss,
    "triplets, miner": losses.TripletMarginLoss,
    "random triplets": lambda: losses.TripletMarginLoss(triplets_per_anchor=3),
    "density": lambda: RegularizedLoss(losses.ContrastiveLoss(), learned_targets(), 0.3),
    "dropout": lambda: WithDropout(losses.ProxyAnchorLoss(CLASSES, SIZE)),
    "memory": lambda: CrossBatchMemory(losses.MultiSimilarityLoss(), SIZE, 40),
    "memory, regularized, two losses": lambda: CrossBatchMemory(
        RegularizedLoss(MultipleLosses([losses.ContrastiveLoss(), pml_ext.CBMLLoss()]), learned_targets()),
        SIZE,
        24,
        miner=miners.MultiSimilarityMiner(),
    ),
    "in tiles": lambda: pml_ext.CBMLLoss(tile_size=3),
    "in tiles, memory": lambda: CrossBatchMemory(pml_ext.TiledNTXentLoss(tile_size=5), SIZE, 40),
    "in tiles, regularized": lambda: RegularizedLoss(
        pml_ext.TiledSupConLoss(tile_size=3), learned_targets(), weight=0.3
    ),
    "in tiles, learned": lambda: pml_ext.TiledMultiSimilarityLoss(
        tile_size=2, distance=pml_ext.PDDMDistance(SIZE), reducer=reducers.ThresholdReducer(low=0.5)
    ),
    "in tiles, miner": lambda: pml_ext.TiledTripletMarginLoss(tile_size=2),
    "related": lambda: pml_ext.CBMLLoss(tile_size=3, relation=GRADED_TREE),
    "related, PML's": lambda: pml_ext.WithRelation(losses.ContrastiveLoss(), SETS),
    "related, memory": lambda: CrossBatchMemory(
        pml_ext.TiledSupConLoss(tile_size=5, relation=pml_ext.NegativesOnly(0)), SIZE, 40
    ),
}
MINERS = {
    "multi-similarity, miner": miners.MultiSimilarityMiner,
    "triplets, miner": miners.BatchHardMiner,
    "in tiles, miner": miners.BatchHardMiner,
}


def names():
    """The names of all cases: the registered losses that can be built with what a batch has, and those above."""
    ours = {component.name for component in registry.components("loss") if not component.name.startswith("pml/")}
    return [*sorted(ours - {"regularized"}), *LOSSES]


def build(name):
    """The loss of a case and its miner or None, built anew, with the same parameters every time."""
    torch.manual_seed(12)
    if name in LOSSES:
        loss = LOSSES[name]()
    else:
        loss = registry.build(name, "loss", {"embedding_size": SIZE, "num_classes": CLASSES})
    return loss.double(), MINERS[name]() if name in MINERS else None


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, SIZE)).double()


def batches():
    """Three joined batches: inputs and labels."""
    generator = torch.Generator().manual_seed(11)
    for _ in range(3):
        labels = torch.randint(0, CLASSES, (16,), generator=generator)
        yield torch.randn(16, 5, generator=generator, dtype=torch.float64), labels


def part_of(mine, parts, *tensors):
    """Rows of a process, or all rows without one."""
    rows = slice(None) if mine is None else slice(sum(parts[:mine]), sum(parts[: mine + 1]))
    return [each[rows] for each in tensors]


def step(net, loss, miner, parts, mine=None):
    """Three calls (a memory needs more than one) and the gradients of the last."""
    torch.manual_seed(5 + (mine or 0))
    for batch in batches():
        inputs, labels = part_of(mine, parts, *batch)
        net.zero_grad()
        loss.zero_grad()
        embeddings = net(inputs)
        found = {"indices_tuple": miner(embeddings, labels)} if miner is not None else {}
        value = loss(embeddings, labels, **found)
        value.backward()
    grads = {"network": [p.grad for p in net.parameters()], "own": [p.grad for p in loss.parameters()]}
    return {"value": value.detach(), **grads}


def two_batches():
    """A memory that holds two joined batches."""
    return CrossBatchMemory(losses.MultiSimilarityLoss(), SIZE, 32).double()


def in_one_process(name):
    loss, miner = build(name)
    return step(network(), loss, miner, None)


def of_losses(rank):
    """The results of all cases in this process, and the errors of calls that are refused."""
    results = {}
    errors = {}
    ddp = nn.parallel.DistributedDataParallel
    for name in names():
        for parts in (EVEN, UNEVEN):
            for around in ("nothing", "ddp outside", "ddp inside"):
                loss, miner = build(name)
                if around != "nothing" and not any(p.requires_grad for p in loss.parameters()):
                    continue
                if around == "ddp inside":
                    loss = ddp(loss, find_unused_parameters=True, broadcast_buffers=False)
                loss = DistributedLoss(loss)
                if around == "ddp outside":
                    loss = ddp(loss, find_unused_parameters=True, broadcast_buffers=False)
                miner = DistributedMiner(miner) if miner is not None else None
                results[name, parts, around] = step(ddp(network()), loss, miner, parts, rank)

    def refused(key, call):
        try:
            call()
        except (ValueError, TypeError) as error:
            errors[key] = str(error)

    loss = DistributedLoss(losses.ContrastiveLoss())
    labels = torch.arange(8) % 2
    refused("size", lambda: loss(torch.zeros(8, 4 + rank), labels))
    refused("dtype", lambda: loss(torch.zeros(8, 4, dtype=(torch.float32, torch.float64)[rank]), labels))
    refused("labels", lambda: loss(torch.zeros(8, 4), labels if rank else None))
    local = miners.MultiSimilarityMiner()(torch.eye(8) + rank * torch.ones(8, 8).tril(), labels * (1 - rank))
    refused("tuple", lambda: loss(torch.eye(8), labels, local))

    results["views", rank] = of_views(rank)
    refused("list", lambda: loss(torch.eye(8), labels, ref_emb=[torch.eye(8), torch.eye(8)]))

    # gradient caching of two networks inside DistributedDataParallel
    for dropout in (0.0, 0.5):
        for cached in (False, True):
            results["two encoders", dropout, cached] = of_two_encoders(dropout, cached, rank, ddp)

    # a process without images, half precision, references, and parameters that begin differently
    torch.manual_seed(rank)
    proxies = DistributedLoss(losses.ProxyAnchorLoss(2, 4))
    empty = proxies(torch.randn(8 * rank, 4, requires_grad=True), torch.arange(8 * rank) % 2)
    empty.backward()
    results["empty"] = {"value": empty.detach(), "proxies": proxies.loss.proxies.detach().clone()}
    x = torch.arange(32.0).reshape(8, 4).sin()[4 * rank : 4 * rank + 4].bfloat16()
    half = DistributedLoss(pml_ext.CBMLLoss())(x, labels[:4], None, x.flip(0), labels[:4].flip(0))
    results["half"] = {"value": half}

    # a memory of ours in PML's wrapper, which joins batches of equal sizes
    results["PML's wrapper"] = step(ddp(network()), DistributedLossWrapper(two_batches()), None, EVEN, rank)

    # how many triplets a miner finds
    miner = DistributedMiner(miners.TripletMarginMiner())
    inputs, labels = next(batches())
    rows = slice(11 * rank, 11 + 5 * rank)
    miner(inputs[rows], labels[rows])
    results["counted"] = miner.num_triplets

    # a memory in a model inside DistributedDataParallel, as it wraps a whole module of Lightning
    model = ddp(WithMemory())
    for inputs, labels in batches():
        half = slice(8 * rank, 8 * rank + 8)
        model(inputs[half], labels[half]).backward()
        model.zero_grad()
    memory = model.module.memory
    results["memory"] = {"labels": memory.label_memory.clone(), "filled": memory.filled}
    return {"results": results, "errors": errors}


IMAGES = torch.randn(7, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
PARTS = (slice(0, 5), slice(5, 7))  # of the images
EPOCHS = 2


def batch_norm(**settings):
    """A batch norm whose scale and shift change something."""
    layer = JoinedBatchNorm(3, **settings).double()
    if layer.affine:
        nn.init.constant_(layer.weight, 1.5)
        nn.init.constant_(layer.bias, 0.25)
    return layer


def normalized(layer, images, part=slice(None)):
    """Outputs, the gradients of images and of the layer in the last of two calls, and the layer's buffers."""
    for _ in range(EPOCHS):
        layer.zero_grad()
        x = images[part].clone().requires_grad_()
        y = layer(x)
        (y * images.flip(2).exp()[part]).sum().backward()
    gradients = [parameter.grad for parameter in layer.parameters()]
    return {"y": y.detach(), "x": x.grad, "own": gradients, "buffers": list(layer.buffers())}


def of_batch_norm(mine):
    found = {}
    for name, settings in SETTINGS.items():
        found[name] = normalized(batch_norm(**settings), IMAGES, PARTS[mine])
    found["half"] = normalized(batch_norm().float(), IMAGES.bfloat16(), PARTS[mine])
    return found


SETTINGS = {"plain": {}, "averaging": {"momentum": None}, "bare": {"affine": False, "track_running_stats": False}}


def of_processes(mine):
    return {
        "number": processes.num_processes(),
        "rank": processes.rank(),
        "from rank 0": processes.from_rank_0({"rank": mine}),
        "from ranks": processes.from_ranks(f"of {mine}"),
        "gathered": processes.gather_objects(10 * mine),
        "greatest": processes.max_over_ranks(5 - 3 * mine),
        "device": str(processes.collective_device(torch.device("meta"))),
    }


def of_order(mine):
    """Times at which a process came, went on, and was in a block that rank 0 runs first; each is late once."""
    if mine == 1:
        time.sleep(0.2)
    times = {"came": time.monotonic()}
    processes.wait_for_all_ranks()
    times["went on"] = time.monotonic()
    with processes.rank_0_first():
        times["entered"] = time.monotonic()
        if mine == 0:
            time.sleep(0.2)
        times["left"] = time.monotonic()
    return times


def of_gather(mine):
    x = torch.ones(3 - 2 * mine, 2, requires_grad=True)
    sharing = SharedTiles()
    found = {"part": [sharing.part(count) for count in (1, 2, 5)]}
    with tiles_shared(x, None):
        found["shared"] = tiles.sharing() is not None
    with tiles_shared(x if mine else x.detach(), None):
        found["unlike"] = tiles.sharing() is not None
    return found


def of_sampling(mine):
    """Batches of both processes together, and this process's parts; samplers have a seed for each process."""
    one = DistributedBatchSampler(MPerLabelSampler([0, 1] * 10, 8, m=2, seed=0), 8, num_processes=1, rank=0)
    parts = DistributedBatchSampler(MPerLabelSampler([0, 1] * 10, 8, m=2, seed=mine), 8)
    return {"one": list(one), "parts": list(parts)}


def of_collectives(mine):
    """What collectives, batch norm and samplers give."""
    found = {"processes": of_processes(mine), "gather": of_gather(mine), "batch norm": of_batch_norm(mine)}
    return found | {"sampling": of_sampling(mine), "order": of_order(mine)}


def main(folder):
    with processes.process_group("cpu"):
        rank = dist.get_rank()
        torch.save({**of_losses(rank), "collectives": of_collectives(rank)}, f"{folder}/rank-{rank}.pt")
        dist.barrier()
