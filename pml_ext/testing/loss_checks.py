"""What a loss must keep; each check has the name of what it protects, and a message that says why it matters."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import logging
import pickle
import warnings
from typing import Any

import torch
from pytorch_metric_learning import reducers
from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import Tensor

from .. import registry
from ..benchmark import peak_bytes
from ..losses import CrossBatchMemory
from .probes import CountedOperations, gradient, to_python_forbidden
from .processes import in_two_processes
from .subject import Batch, SkipCheck, Subject, batch_of, fresh, labels_of

_PAIRS = ((4, 4), (4, 2), (2, 6), (6, 4), (3, 5))  # (classes, images a class)


def _needs(subject: Subject, *capabilities: str) -> None:
    if missing := set(capabilities) - subject.capabilities:
        raise SkipCheck(f"it does not say that it has {' and '.join(sorted(missing))}")


def _call(loss: Any, batch: Batch, *more: Any, **named: Any) -> Any:
    if "labels" not in registry.capabilities(loss) and not more:
        return loss(batch.embeddings, **named)
    return loss(batch.embeddings, batch.labels, *more, **named)


def _tuple(batch: Batch, triplets: bool = False) -> tuple[Tensor, ...]:
    """All pairs, or all triplets, of a batch."""
    same = batch.labels[:, None] == batch.labels
    different = ~same
    same.fill_diagonal_(False)
    if triplets:
        return tuple(torch.where(same[:, :, None] & different[:, None]))
    return (*torch.where(same), *torch.where(different))


def _close(found: Tensor, expected: Tensor, text: str, rtol: float = 1e-6, atol: float = 1e-8) -> None:
    if not torch.allclose(found.double(), expected.double(), rtol=rtol, atol=atol):
        raise AssertionError(f"{text}: {found.detach().flatten()[:4].tolist()} instead of "
                             f"{expected.detach().flatten()[:4].tolist()}")  # fmt: skip


def check_call_forms(subject: Subject) -> None:
    """PML's trainers, wrappers and users call a loss by position and by name; all must give the same."""
    batch, loss = batch_of(subject), subject.make()
    torch.manual_seed(0)
    value = _call(loss, batch)
    if not isinstance(value, Tensor) or value.ndim != 0:
        raise AssertionError(f"a loss gives a scalar tensor, which trainers call backward() on; got {value!r}")
    if not value.requires_grad:
        raise AssertionError("the loss has no gradient with respect to the embeddings, so that nothing trains")
    if "labels" in subject.capabilities:
        torch.manual_seed(0)
        _close(loss(batch.embeddings, labels=batch.labels), value, "labels by name give another value")
        torch.manual_seed(0)
        _close(loss(batch.embeddings, batch.labels, None), value, "indices_tuple=None gives another value")


def check_sub_loss_names(subject: Subject) -> None:
    """PML builds one reducer for each of ``sub_loss_names()``; a name that is missing there is never reduced."""
    loss = subject.make()
    if not isinstance(loss, BaseMetricLossFunction):
        raise SkipCheck("a wrapper: it hands reduction to what it wraps")
    batch = batch_of(subject)
    found = _compute(loss, batch)
    expected = set(loss.sub_loss_names()) - {"embedding_reg_loss", "weight_reg_loss"}  # PML adds these by itself
    if set(found) != expected:
        raise AssertionError(f"compute_loss returns {sorted(found)}, but sub_loss_names() says {sorted(expected)}")
    for name, info in found.items():
        if missing := {"losses", "indices", "reduction_type"} - set(info):
            raise AssertionError(f"the dictionary of sub-loss {name!r} lacks {sorted(missing)}; reducers need them")


def _compute(loss: Any, batch: Batch) -> dict[str, Any]:
    # float64 is what both forward() and compute_loss() see, so that they agree
    labels = batch.labels if "labels" in registry.capabilities(loss) else None
    return loss.compute_loss(batch.embeddings, labels, None, batch.embeddings, labels)  # type: ignore[no-any-return]


def check_reducers(subject: Subject) -> None:
    """A loss hands unreduced values to its reducer; a mean taken inside leaves ``reducer=`` without effect."""
    loss = subject.make()
    if not isinstance(loss, BaseMetricLossFunction):
        raise SkipCheck("a wrapper: it hands reduction to what it wraps")
    batch = batch_of(subject)
    torch.manual_seed(0)
    found = _compute(loss, batch)
    values = {name: info["losses"] for name, info in found.items()}
    if all(not isinstance(value, Tensor) or value.ndim == 0 or len(value) == 1 for value in values.values()):
        raise AssertionError("compute_loss returns a value that is reduced already, so that a reducer (sum, mean of "
                             "what is not zero, threshold) has nothing to do; return one value an element, pair or "
                             "triplet, with its indices")  # fmt: skip
    for name, info in found.items():
        value = info["losses"]
        if isinstance(value, Tensor) and value.ndim == 1 and info["reduction_type"] != "already_reduced":
            lengths = {len(index) for index in _indices(info["indices"])}
            if lengths != {len(value)}:
                raise AssertionError(f"sub-loss {name!r} has {len(value)} values but indices of {sorted(lengths)}; "
                                     "reducers look values up by them")  # fmt: skip
    summed = _with_reducer(subject, reducers.SumReducer())
    torch.manual_seed(0)
    expected = sum(value.sum() for value in values.values() if isinstance(value, Tensor))
    _close(_call(summed, batch), torch.as_tensor(expected), "reducer=SumReducer() is not the sum of the values")


def _indices(indices: Any) -> tuple[Any, ...]:
    return tuple(indices) if isinstance(indices, (tuple, list)) else (indices,)


def _with_reducer(subject: Subject, reducer: Any) -> Any:
    loss = subject.make()
    loss.set_reducer(reducer)
    return loss


def check_labels_are_used(subject: Subject) -> None:
    """A loss that takes labels and gives the same for any is trained on nothing."""
    _needs(subject, "labels")
    batch = batch_of(subject)
    others = batch.labels[torch.randperm(len(batch.labels), generator=torch.Generator().manual_seed(1))]
    torch.manual_seed(0)
    value = subject.make()(batch.embeddings, batch.labels)
    torch.manual_seed(0)
    other = subject.make()(batch.embeddings, others)
    if torch.equal(value, other):
        raise AssertionError(f"labels are ignored: other labels give the same loss, {value.item():.6g}")


def _restricted(subject: Subject, triplets: bool) -> None:
    _needs(subject, "labels", "indices_tuple")
    batch, loss = batch_of(subject), subject.make()
    everything = _tuple(batch, triplets)
    generator = torch.Generator().manual_seed(2)

    def some(indices: tuple[Tensor, ...], share: float) -> tuple[Tensor, ...]:
        kept = (
            torch.randperm(len(indices[0]), generator=generator)[: max(1, int(share * len(indices[0])))].sort().values
        )
        return tuple(index[kept] for index in indices)

    def value(indices: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        found = loss(batch.embeddings, batch.labels, indices)
        return found.detach(), gradient(found, batch.embeddings)

    base = value(everything)

    def narrowed(what: str) -> tuple[Tensor, ...]:
        if what == "triplets":
            return some(everything, 0.3)
        positives, negatives = everything[:2], everything[2:]
        if what == "positive pairs":
            return (*some(positives, 0.3), *negatives)
        return (*positives, *some(negatives, 0.3))

    for what in ["triplets"] if triplets else ["positive pairs", "negative pairs"]:
        found = [value(narrowed(what)) for _ in range(5)]  # a loss may look at the hardest alone, which a draw may keep
        if all(torch.equal(one, base[0]) and torch.allclose(other, base[1]) for one, other in found):
            raise AssertionError(f"the {what} that a miner chose are ignored: a third of them gives the same loss and "
                                 "the same gradient as all")  # fmt: skip


def check_indices_tuple_of_pairs(subject: Subject) -> None:
    """What a miner chose must count: the positive and the negative pairs of a tuple of four."""
    _restricted(subject, triplets=False)


def check_indices_tuple_of_triplets(subject: Subject) -> None:
    """What a miner chose must count: the triplets of a tuple of three."""
    _restricted(subject, triplets=True)


def check_references(subject: Subject) -> None:
    """``ref_emb`` is taken, or refused with an error; a loss that ignores it trains on something else than asked."""
    loss = subject.make()
    if not _takes(loss, "ref_emb"):
        raise SkipCheck("its forward has no ref_emb")
    batch, one, other = (batch_of(subject, seed=seed) for seed in (0, 1, 2))
    values = []
    for references in (one, other):
        torch.manual_seed(0)
        try:
            if "labels" in subject.capabilities:
                found = subject.make()(batch.embeddings, batch.labels, None, references.embeddings, references.labels)
            else:
                found = subject.make()(batch.embeddings, ref_emb=references.embeddings)
            values.append(found.detach())
        except Exception as error:
            if "references" in subject.capabilities:
                raise AssertionError(f"it says that it has references, but refuses them: {error}") from error
            return  # refused, as it says
    if torch.equal(*values):
        raise AssertionError("ref_emb is accepted and ignored: other references give the same loss. Use them, or raise "
                             "an error")  # fmt: skip


def _takes(loss: Any, name: str) -> bool:
    parameters = inspect.signature(loss.forward).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def check_dtypes(subject: Subject) -> None:
    """Half precision in, full precision out: a loss summed in half precision is wrong in the third digit."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        batch = batch_of(subject, dtype=dtype)
        torch.manual_seed(0)
        value = _call(_module(subject, dtype), batch)
        if value.dtype not in (torch.float32, torch.float64):
            raise AssertionError(f"{dtype} embeddings give a loss in {value.dtype}; compute it in float32 or float64")
        if not value.isfinite():
            raise AssertionError(f"{dtype} embeddings give {value.item()}")
        if not subject_is_random(subject):
            exact = _call(_module(subject, torch.float64), Batch(fresh(batch.embeddings.double()), batch.labels))
            tolerance = 1e-4 if dtype in (torch.float64, torch.float32) else 2e-2
            _close(value, exact, f"{dtype} embeddings give another loss than float64", rtol=tolerance, atol=tolerance)
        value.backward()  # type: ignore[no-untyped-call]
        if batch.embeddings.grad is None or not batch.embeddings.grad.isfinite().all():
            raise AssertionError(f"{dtype} embeddings have no finite gradient")


def _module(subject: Subject, dtype: torch.dtype) -> Any:
    return subject.make().to(torch.promote_types(dtype, torch.float32))


def subject_is_random(subject: Subject) -> bool:
    """Whether two seeds give two values."""
    batch = batch_of(subject)
    values = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        values.append(_call(subject.make(), batch))
    return not torch.equal(*values)


def check_autocast(subject: Subject) -> None:
    """Under autocast a loss must not be computed in half precision."""
    batch, (loss, twin) = batch_of(subject, dtype=torch.float32), _twins(subject)
    torch.manual_seed(0)
    expected = _call(loss.float(), batch)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = _call(twin.float(), batch)
    if value.dtype not in (torch.float32, torch.float64):
        raise AssertionError(f"under bfloat16 autocast the loss is {value.dtype}; leave autocast inside of it")
    _close(value, expected, "autocast changes the loss", rtol=1e-4, atol=1e-5)


def _twins(subject: Subject) -> tuple[Any, Any]:
    """Two instances with the same parameters."""
    torch.manual_seed(0)
    one = subject.make()
    torch.manual_seed(0)
    return one, subject.make()


def check_devices(subject: Subject) -> None:
    """A loss follows its batch to the GPU, and gives the same there."""
    if not torch.cuda.is_available():
        raise SkipCheck("no CUDA device")
    batch = batch_of(subject, dtype=torch.float32)
    expected = _call(subject.make().float(), batch)
    found = _call(subject.make().float().cuda(), Batch(fresh(batch.embeddings.cuda()), batch.labels.cuda()))
    _close(found.cpu(), expected, "the GPU gives another loss", rtol=1e-3, atol=1e-4)


def _degenerate(subject: Subject, labels: Tensor, what: str) -> None:
    batch = batch_of(subject, labels)
    value = _call(subject.make(), batch)
    if not isinstance(value, Tensor):
        raise AssertionError(f"a batch {what} gives {value!r}, not a tensor that backpropagates")
    if not value.isfinite():
        raise AssertionError(f"a batch {what} gives {value.item()}")
    value.backward()  # type: ignore[no-untyped-call]
    if batch.embeddings.grad is not None and not batch.embeddings.grad.isfinite().all():
        raise AssertionError(f"a batch {what} gives gradients that are not finite")


def check_batch_without_positives(subject: Subject) -> None:
    """A sampler may give a batch with one image a class; the loss is then finite and backpropagates."""
    _degenerate(subject, torch.arange(min(4, subject.classes)), "without positives")


def check_batch_without_negatives(subject: Subject) -> None:
    """A batch may be one class; the loss is then finite and backpropagates."""
    _degenerate(subject, torch.zeros(4, dtype=torch.long), "without negatives")


def check_ragged_classes(subject: Subject) -> None:
    """Classes of a batch differ in size: a class of one beside one of seven."""
    sizes = [7, 1, 3, 2, 5, 1][: subject.classes]
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    _degenerate(subject, labels, "of ragged classes")


def check_duplicates(subject: Subject) -> None:
    """Duplicates are in every real data set; the distance 0 between them must not give NaN."""
    batch = batch_of(subject)
    with torch.no_grad():
        batch.embeddings[1] = batch.embeddings[0]
        batch.embeddings[-1] = batch.embeddings[0]
    value = _call(subject.make(), batch)
    if not value.isfinite() or not gradient(value, batch.embeddings).isfinite().all():
        raise AssertionError("exact duplicates give a loss or a gradient that is not finite")


def check_gradients(subject: Subject) -> None:
    """The gradient that training follows is that of the loss, by finite differences."""
    batch, loss = batch_of(subject, (3, 3)), subject.make().double()
    if subject_is_random(subject):
        raise SkipCheck("its values are random")
    if subject_has_state(subject):
        raise SkipCheck("its values depend on the calls before")
    if not torch.autograd.gradcheck(lambda x: _call(loss, Batch(x, batch.labels)), (batch.embeddings,), atol=1e-4,
                                    raise_exception=False):  # fmt: skip
        raise AssertionError("the gradient differs from finite differences of the loss")


def subject_has_state(subject: Subject) -> bool:
    """Whether an instance's second call gives something else than its first."""
    batch, loss = batch_of(subject), subject.make()
    values = []
    for _ in range(2):
        torch.manual_seed(0)
        values.append(_call(loss, batch))
    return not torch.equal(*values)


def check_order_does_not_matter(subject: Subject) -> None:
    """The order of a batch means nothing; a loss that is right for sorted labels alone fails with other samplers."""
    if subject_is_random(subject):
        raise SkipCheck("its values are random")
    for shape in _PAIRS:
        batch = batch_of(subject, shape)
        if "labels" not in subject.capabilities:
            raise SkipCheck("it takes no labels")
        value = subject.make()(batch.embeddings, batch.labels)
        for seed in (0, 1):
            order = torch.randperm(len(batch.labels), generator=torch.Generator().manual_seed(seed))
            other = batch.ordered(order)
            found = subject.make()(other.embeddings, other.labels)
            _close(
                found, value, f"the order of the batch changes the loss ({shape[0]} classes x {shape[1]})", rtol=1e-7
            )
            expected = gradient(value, batch.embeddings)[order]
            _close(gradient(found, other.embeddings), expected, "the order of the batch changes the gradient", 1e-6)


def check_names_of_classes(subject: Subject) -> None:
    """Labels are names: 7 and 3 instead of 0 and 1 mean the same to a loss without parameters for classes."""
    _needs(subject, "labels")
    if any(True for _ in subject.make().parameters()) or subject_is_random(subject):
        raise SkipCheck("it has parameters for classes, or random values")
    batch = batch_of(subject)
    expected = subject.make()(batch.embeddings, batch.labels)
    found = subject.make()(batch.embeddings, 100 - 7 * batch.labels)
    _close(found, expected, "other names of the classes change the loss", rtol=1e-7)


def check_determinism(subject: Subject) -> None:
    """With the same seed a run must give the same again."""
    batch, values = batch_of(subject), []
    for _ in range(2):
        torch.manual_seed(0)
        values.append(_call(subject.make(), batch))
    if not torch.equal(*values):
        raise AssertionError("two equal calls after torch.manual_seed(0) give two values")


def check_state_dict(subject: Subject) -> None:
    """A resumed run goes on from the state dict; what is not in it is lost, and the loss jumps."""
    loss, fresh_one = subject.make().float(), subject.make().float()
    torch.manual_seed(0)
    for seed in range(3):
        value = _call(loss, batch_of(subject, dtype=torch.float32, seed=seed))
    parameters = [p for p in loss.parameters() if p.requires_grad]
    if parameters and value.requires_grad:
        grads = torch.autograd.grad(value, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.sub_(0.1 * grad if grad is not None else 0)
    file = io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    fresh_one.load_state_dict(torch.load(file, weights_only=True))
    batch = batch_of(subject, dtype=torch.float32, seed=9)
    values = []
    for each in (loss, fresh_one):
        torch.manual_seed(0)
        values.append(_call(each, batch))
    if not torch.equal(*values):
        raise AssertionError(f"after load_state_dict the next loss is {values[1].item():.8g} instead of "
                             f"{values[0].item():.8g}: something that changes is not in the state dict")  # fmt: skip


def check_pickle(subject: Subject) -> None:
    """Losses are copied and pickled, by data loaders, checkpoints and spawned processes."""
    loss, batch = subject.make(), batch_of(subject)
    try:
        twins = [copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))]
    except Exception as error:
        raise AssertionError(f"it cannot be copied or pickled: {error}") from error
    values = []
    for each in (loss, *twins):
        torch.manual_seed(0)
        values.append(_call(each, batch))
    if not all(torch.equal(value, values[0]) for value in values):
        raise AssertionError("a copy, or a pickled one, gives another value")


def check_compile(subject: Subject) -> None:
    """``torch.compile`` (backend aot_eager) runs it, with the same value."""
    if torch.__version__ < "2.6":
        raise SkipCheck("torch.compile of this version fails inside PML")
    if subject_is_random(subject):
        raise SkipCheck("its values are random")
    loss, batch = subject.make(), batch_of(subject, dtype=torch.float32)
    loss = loss.float()
    expected = _call(copy.deepcopy(loss), batch)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled: Any = torch.compile(loss, backend="aot_eager")
        takes_labels = "labels" in subject.capabilities
        found = compiled(batch.embeddings, batch.labels) if takes_labels else compiled(batch.embeddings)
        _close(found, expected, "the compiled loss gives another value", rtol=1e-4, atol=1e-5)
        found.backward()  # type: ignore[no-untyped-call]


def check_memory_growth(subject: Subject) -> None:
    """Memory that grows with the cube of the batch ends at a few hundred images; quadratic or better is wanted."""
    loss, peaks = subject.make().float(), []
    for batch in _growing(subject, 24):
        peaks.append(peak_bytes(lambda x, y: _call(loss, Batch(x, y)), batch.embeddings, batch.labels))
    if peaks[1] > 5.5 * peaks[0] and peaks[1] > 1 << 20:
        raise AssertionError(f"twice the batch takes {peaks[1] / peaks[0]:.1f} times the memory "
                             f"({peaks[1] >> 10} KiB); form no triplets, or work in tiles")  # fmt: skip


def _growing(subject: Subject, classes: int) -> list[Batch]:
    """A batch of so many classes x 4, and one of twice as many; of more images a class where classes are parameters."""
    if any(True for _ in subject.make().parameters()):
        shapes = [(subject.classes, 4 * classes // subject.classes), (subject.classes, 8 * classes // subject.classes)]
        return [batch_of(subject, labels_of(shape), torch.float32) for shape in shapes]
    batches = []
    for count in (classes, 2 * classes):
        batch = batch_of(subject, torch.arange(4 * count) % subject.classes, torch.float32)
        batches.append(Batch(batch.embeddings, labels_of((count, 4))))
    return batches


def check_no_loop_over_anchors(subject: Subject) -> None:
    """A Python loop over anchors launches operators for each; on a GPU that is what training waits for."""
    counts = []
    for batch in _growing(subject, 12):
        loss = subject.make().float()
        with CountedOperations() as counted:
            _call(loss, batch)
        counts.append(counted.count)
    if counts[1] > 1.7 * counts[0]:
        raise AssertionError(f"twice the batch takes {counts[1] / counts[0]:.1f} times as many operators "
                             f"({counts[0]}, then {counts[1]}): a loop over images; use whole matrices")  # fmt: skip


def check_no_host_sync(subject: Subject) -> None:
    """``.item()``, ``.tolist()`` and ``.numpy()`` make the host wait for the device in every iteration."""
    loss = subject.make()
    if not isinstance(loss, BaseMetricLossFunction):
        raise SkipCheck("a wrapper: what it wraps is checked by itself")
    batch = batch_of(subject)
    _compute(loss, batch)  # a first call may look at what it got
    with to_python_forbidden() as found:
        _compute(loss, batch)
    if found:
        raise AssertionError(f"compute_loss calls {' and '.join(sorted(set(found)))}; keep what it needs in tensors")


def check_pml_trainer(subject: Subject) -> None:
    """It trains in PML's ``MetricLossOnly``."""
    import tqdm
    from pytorch_metric_learning.trainers import MetricLossOnly

    _needs(subject, "labels")
    batch = batch_of(subject, dtype=torch.float32)
    network = torch.nn.Linear(subject.size, subject.size)
    before = network.weight.detach().clone()
    drawing, logger = tqdm.tqdm, logging.getLogger("PML")
    level = logger.level
    logger.setLevel(logging.ERROR)
    tqdm.tqdm = functools.partial(drawing, disable=True)
    trainer = MetricLossOnly(
        models={"trunk": network, "embedder": torch.nn.Identity()},
        optimizers={"trunk_optimizer": torch.optim.SGD(network.parameters(), lr=0.1)}, batch_size=len(batch.labels),
        loss_funcs={"metric_loss": subject.make().float()},
        dataset=torch.utils.data.TensorDataset(batch.embeddings.detach(), batch.labels), dataloader_num_workers=0,
        iterations_per_epoch=1,
    )  # fmt: skip
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.train(num_epochs=1)
    finally:
        tqdm.tqdm = drawing
        logger.setLevel(level)
    if torch.equal(network.weight, before):
        raise AssertionError("an iteration of PML's MetricLossOnly has changed nothing in the network")


def check_cross_batch_memory(subject: Subject) -> None:
    """In a memory exactly as large as the batch it is the plain loss."""
    _needs(subject, "labels", "indices_tuple", "references")
    batch = batch_of(subject)
    twin = batch.ordered(torch.arange(len(batch.labels)))
    torch.manual_seed(0)
    expected = subject.make().double()(batch.embeddings, batch.labels)
    torch.manual_seed(0)
    found = CrossBatchMemory(subject.make().double(), subject.size, len(batch.labels))(twin.embeddings, twin.labels)
    if subject_is_random(subject):
        return
    _close(found, expected, "in a memory as large as the batch it is another loss", rtol=1e-7)
    _close(gradient(found, twin.embeddings), gradient(expected, batch.embeddings),
           "in a memory as large as the batch it has another gradient")  # fmt: skip


def check_two_processes(subject: Subject) -> None:
    """Two processes with half of the batch each give the value and the gradients of one."""
    _needs(subject, "labels")
    batch, loss = batch_of(subject), subject.make().double()
    order = torch.randperm(len(batch.labels), generator=torch.Generator().manual_seed(4))
    batch = batch.ordered(order)
    try:
        answers = in_two_processes(loss, batch.embeddings, batch.labels)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise SkipCheck(f"it cannot be sent to another process: {error}") from None
    torch.manual_seed(0)
    expected = loss(batch.embeddings, batch.labels)
    expected.backward()
    for answer in answers:
        if "error" in answer:
            if answer["error"].startswith(("ModuleNotFoundError", "AttributeError")):
                raise SkipCheck(f"another process cannot import it: {answer['error']}")
            raise AssertionError(f"in two processes: {answer['error']}")
        _close(answer["value"], expected, "two processes give another loss than one on the joined batch", rtol=1e-9)
        for mine, whole in zip(answer["parameters"], loss.parameters(), strict=True):
            if mine is not None and whole.grad is not None:
                _close(mine, whole.grad, "two processes give its parameters another gradient than one")
    joined = torch.cat([answer["embeddings"] for answer in answers]) / 2
    assert batch.embeddings.grad is not None
    _close(joined, batch.embeddings.grad, "two processes give the embeddings another gradient than one")


LOSS_CHECKS = [
    check_call_forms, check_sub_loss_names, check_reducers, check_labels_are_used, check_indices_tuple_of_pairs,
    check_indices_tuple_of_triplets, check_references, check_dtypes, check_autocast, check_devices,
    check_batch_without_positives, check_batch_without_negatives, check_ragged_classes, check_duplicates,
    check_gradients, check_order_does_not_matter, check_names_of_classes, check_determinism, check_state_dict,
    check_pickle, check_compile, check_memory_growth, check_no_loop_over_anchors, check_no_host_sync,
    check_pml_trainer, check_cross_batch_memory, check_two_processes,
]  # fmt: skip
