"""Facts about PML's losses, version 2.9, that docs/pml-losses.md tells users, each shown in a few lines."""

import pytest
import torch
from pytorch_metric_learning.distances import SNRDistance
from pytorch_metric_learning.losses import (
    AngularLoss,
    CircleLoss,
    ContrastiveLoss,
    DynamicSoftMarginLoss,
    HistogramLoss,
    LargeMarginSoftmaxLoss,
    LiftedStructureLoss,
    MarginLoss,
    MultiSimilarityLoss,
    NCALoss,
    NormalizedSoftmaxLoss,
    NPairsLoss,
    NTXentLoss,
    PNPLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    SmoothAPLoss,
    SphereFaceLoss,
    ThresholdConsistentMarginLoss,
    TripletMarginLoss,
    TupletMarginLoss,
    VICRegLoss,
)
from pytorch_metric_learning.miners import HDCMiner
from pytorch_metric_learning.reducers import AvgNonZeroReducer, MeanReducer, SumReducer

from pml_ext.cli.benchmark import peak_bytes
from pml_ext.testing import SecondDevice
from pml_ext.testing.calling import CountedOperations, SavedBytes


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_smooth_ap_is_right_for_sorted_labels_alone():
    x = torch.randn(16, 8)
    labels = torch.arange(4).repeat_interleave(4)
    order = torch.randperm(16)
    assert not torch.isclose(SmoothAPLoss()(x, labels), SmoothAPLoss()(x[order], labels[order]))
    assert SmoothAPLoss()(x, labels) == SmoothAPLoss()(x, labels[order])  # other labels, the same loss
    with pytest.raises(ValueError, match="same number of elements"):  # classes that differ in size
        SmoothAPLoss()(x[:7], torch.tensor([0, 0, 0, 1, 1, 1, 1]))
    with pytest.raises(RuntimeError, match="non-negative"):  # names of classes are counted as they are
        SmoothAPLoss()(x, labels - 4)

    loss = SmoothAPLoss()
    assert set(loss.compute_loss(x, labels, None, x, labels)) != set(loss.sub_loss_names())


def test_smooth_ap_loops_and_its_gradient_differs():
    counts = []
    for classes in (12, 24):
        with CountedOperations() as counted:
            SmoothAPLoss()(torch.randn(4 * classes, 8), torch.arange(classes).repeat_interleave(4))
        counts.append(counted.count)
    assert counts[1] > 1.7 * counts[0]
    x = torch.randn(9, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(3).repeat_interleave(3)
    assert not torch.autograd.gradcheck(lambda e: SmoothAPLoss()(e, labels), (x,), raise_exception=False)


def test_threshold_consistent_margin_ignores_references():
    x = torch.randn(8, 4)
    labels = torch.arange(8) % 2
    one = torch.randn(8, 4)
    other = torch.randn(8, 4)
    loss = ThresholdConsistentMarginLoss()
    assert loss(x, labels, None, one, labels) == loss(x, labels, None, other, labels)


def test_angular_and_n_pairs_ignore_mined_negatives():
    x = torch.randn(8, 4)
    labels = torch.arange(8) % 4
    same = (labels[:, None] == labels).fill_diagonal_(False)
    a, p = torch.where(same)
    b, n = torch.where(labels[:, None] != labels)
    for loss in (AngularLoss(), NPairsLoss()):
        assert loss(x, labels, (a, p, b, n)) == loss(x, labels, (a, p, b[:3], n[:3]))


def test_proxy_anchor_has_classes_as_indices():
    x = torch.randn(8, 4)
    labels = torch.arange(8) // 2
    terms = ProxyAnchorLoss(4, 4).compute_loss(x, labels, None, x, labels)
    assert len(terms["neg_loss"]["losses"]) == 4  # one per class
    assert terms["neg_loss"]["indices"].tolist() == [0, 1, 2, 3]  # rows of two classes


def test_lifted_structure_confuses_references_with_rows():
    x, references = torch.randn(2, 24, 8).double()
    labels = torch.arange(24) % 6
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    loss = LiftedStructureLoss()
    one = loss(x, labels, None, references, labels.clone())
    assert not torch.isclose(one, loss(x, labels, None, references[order], labels[order]))


def test_swap_confuses_references_with_rows():
    x, references = torch.randn(2, 24, 8).double()
    labels = torch.arange(24) % 6
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    loss = TripletMarginLoss(swap=True)
    one = loss(x, labels, None, references, labels.clone())
    assert not torch.isclose(one, loss(x, labels, None, references[order], labels[order]))
    plain = TripletMarginLoss()
    one = plain(x, labels, None, references, labels.clone())
    assert torch.isclose(one, plain(x, labels, None, references[order], labels[order]))


def test_vicreg_has_a_term_that_is_reduced():
    x, other = torch.randn(2, 8, 4)
    terms = VICRegLoss().compute_loss(x, None, None, other, None)
    assert terms["covariance_loss"]["reduction_type"] == "already_reduced"
    assert terms["invariance_loss"]["reduction_type"] == "element"


def test_tensors_outside_the_state_dict():
    tensors = [(AngularLoss(), "alpha"), (MarginLoss(), "beta"), (LargeMarginSoftmaxLoss(4, 4), "n_range")]
    tensors += [(SphereFaceLoss(4, 4), "n_range"), (ProxyNCALoss(4, 4), "proxy_labels")]
    for loss, name in tensors:
        assert getattr(loss, name).numel()
        assert name not in loss.state_dict()


def test_histograms_fail_for_duplicates():
    def fails(loss, seed):
        x = torch.randn(240, 8, generator=torch.Generator().manual_seed(seed))
        try:
            loss(torch.cat([x, x]), torch.arange(480) % 60)  # every image twice
        except RuntimeError as error:
            return "out of bounds" in str(error)
        return False

    assert any(fails(HistogramLoss(), seed) for seed in range(20))
    assert any(fails(DynamicSoftMarginLoss(), seed) for seed in range(20))


def test_tuplet_margin_is_infinite_for_duplicates():
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    x = torch.cat([x, x]).requires_grad_()
    TupletMarginLoss()(x, torch.arange(16) % 4).backward()
    assert not x.grad.isfinite().all()


def test_nca_is_nan_without_positives():
    assert NCALoss()(torch.randn(4, 8), torch.arange(4)).isnan()


def test_vicreg_is_nan_for_one_image():
    x, other = torch.randn(2, 1, 4)
    assert VICRegLoss()(x, ref_emb=other).isnan()


def test_dynamic_soft_margin_keeps_state_outside():
    x = torch.randn(16, 8)
    labels = torch.arange(16) % 4
    trained = DynamicSoftMarginLoss()
    loaded = DynamicSoftMarginLoss()
    for _ in range(3):
        trained(torch.randn(16, 8), labels)
    loaded.load_state_dict(trained.state_dict())
    assert trained(x, labels) != loaded(x, labels)

    plain = DynamicSoftMarginLoss()
    tested = DynamicSoftMarginLoss().eval()
    plain(x, labels)
    tested(x, labels)
    tested(torch.randn(16, 8), labels)
    assert plain(x, labels) != tested(x, labels)

    loss = DynamicSoftMarginLoss()
    x = x.requires_grad_()
    loss(x, labels).backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss(x, labels).backward()


def test_half_precision_is_summed_or_refused():
    x = torch.randn(16, 8)
    labels = torch.arange(16) % 4
    assert MultiSimilarityLoss()(x.bfloat16(), labels).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert MultiSimilarityLoss()(x, labels).dtype == torch.bfloat16
    with pytest.raises(NotImplementedError, match="cdist"):
        ContrastiveLoss()(x.bfloat16(), labels)


def test_triplet_margin_takes_cubic_memory():
    peaks = []
    for count in (128, 256):
        x = torch.randn(count, 16, requires_grad=True)
        labels = torch.arange(count) // 4
        peaks.append(peak_bytes(TripletMarginLoss(), x, labels))
    assert peaks[1] > 6 * peaks[0]


def test_ntxent_keeps_cubic_memory():
    x = torch.randn(192, 8, requires_grad=True)
    labels = torch.arange(192) // 4
    with SavedBytes(x, labels) as saved:
        kept = NTXentLoss()(x, labels)  # holds what the backward pass needs
    assert kept.requires_grad
    assert saved.total > 1000 * 4 * 192**2


def test_losses_that_wait_for_the_device():
    for loss in (HistogramLoss(), MultiSimilarityLoss()):
        with SecondDevice() as second:
            x = torch.randn(16, 8).to(second.device)
            labels = (torch.arange(16) % 4).to(second.device)
            loss.compute_loss(x, labels, None, x, labels)
        assert second.waits


def test_losses_without_torch_func():
    x = torch.randn(8, 4)
    labels = torch.arange(8) % 4

    def refused(loss):
        def value(weights, embeddings):
            return torch.func.functional_call(loss, weights, (embeddings, labels))

        try:
            torch.func.grad(value, argnums=(0, 1))(dict(loss.named_parameters()), x)
        except RuntimeError as error:
            return str(error)

    assert "`.data`" in refused(NormalizedSoftmaxLoss(4, 4))
    assert "data pointer" in refused(NPairsLoss())


def test_large_margin_softmax_is_nan_in_forward_mode():
    x = torch.randn(8, 4)
    labels = torch.arange(8) % 4
    loss = LargeMarginSoftmaxLoss(4, 4)
    assert torch.func.jvp(lambda e: loss(e, labels), (x,), (torch.ones_like(x),))[1].isnan()
    assert torch.autograd.grad(loss(x.requires_grad_(), labels), x)[0].isfinite().all()


def test_a_reducer_without_effect():
    x = torch.randn(16, 8)
    labels = torch.arange(16) % 4
    assert PNPLoss(reducer=SumReducer())(x, labels) == PNPLoss(reducer=MeanReducer())(x, labels)


def test_losses_that_differ_by_design():
    x = torch.randn(16, 8, dtype=torch.float64)
    labels = torch.arange(16) % 4
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    assert not torch.isclose(NPairsLoss()(x, labels), NPairsLoss()(x[order], labels[order]))
    x.requires_grad_()
    assert not torch.autograd.gradcheck(lambda e: CircleLoss()(e, labels), (x,), raise_exception=False)


def test_other_components_of_pml():
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    order = torch.randperm(7, generator=torch.Generator().manual_seed(1))
    mined = []
    for index in (torch.arange(7), order):
        a, p, b, n = HDCMiner()(x[index], labels[index])
        pulled = zip(index[a].tolist(), index[p].tolist(), strict=True)
        pushed = zip(index[b].tolist(), index[n].tolist(), strict=True)
        mined.append({*pulled, *pushed})
    assert mined[0] ^ mined[1] == {(5, 6), (6, 5)}  # of one pair, the one direction or the other

    matrix = SNRDistance()(x)
    assert not torch.allclose(matrix, matrix.T)

    values = {"losses": torch.tensor([1.0, torch.nan]), "indices": torch.arange(2), "reduction_type": "element"}
    assert AvgNonZeroReducer()({"loss": values}, torch.zeros(2, 3), torch.arange(2)) == 1


def test_swap_and_a_large_softmax_scale():
    x, references = torch.randn(2, 24, 8, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.arange(24) % 6
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    for swap in (False, True):
        loss = TripletMarginLoss(swap=swap)
        one = loss(x, labels, None, references, labels.clone())  # the same object would mean the batch
        assert torch.isclose(one, loss(x, labels, None, references[order], labels[order])) == (not swap)

    def finite(seed):
        torch.manual_seed(seed)
        loss = ProxyNCALoss(6, 8, softmax_scale=50)
        loss(torch.randn(24, 8), labels).backward()
        return loss.proxies.grad.isfinite().all()

    assert not all(map(finite, range(8)))
