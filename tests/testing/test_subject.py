"""The component under check, and components by name."""

import functools
import re

import pytest
import torch
from pytorch_metric_learning import losses

import pml_ext
from pml_ext.errors import ConfigError
from pml_ext.testing import check_component, parametrize_with_checks
from pml_ext.testing.subject import kept_generators, set_seed, subject_of
from pml_ext_train.cli.targets import find_components
from tests.testing.planted import ByHand


@pytest.mark.parametrize(
    ("component", "text"),
    [
        (pml_ext.RegularizedLoss, "RegularizedLoss needs loss, regularizer, .* check an instance"),
        (torch.nn.Linear(2, 2), "has no base class of a component"),
    ],
)
def test_unusable_components_raise_with_a_reason(component, text):
    with pytest.raises((ConfigError, TypeError), match=text):
        check_component(component)


def test_targets_are_found_by_any_name():
    for what in ("cbml", "pml_ext_cbml"):
        assert [name for name, _ in find_components(what)] == ["cbml", "hard-pair", "metric-variance", "softmax"]
    names = {"hard-quadruplet", "mahalanobis", "pddm (distance)", "pddm (loss)"}
    assert {name for name, _ in find_components("pddm")} == names
    assert find_components("pml_ext.distances.EuclideanDistance")[0][1] is pml_ext.distances.EuclideanDistance
    assert find_components("local-positive")[0][1].cls is pml_ext.LocalPositiveMiner
    assert ("ByHand", ByHand) in find_components("tests.testing.planted")
    assert len(find_components("pml")) > 30
    with pytest.raises(ConfigError, match="nowhere_at_all: no package, class, entry point or component"):
        find_components("nowhere_at_all")
    with pytest.raises(ConfigError, match="no component in it"):
        find_components("json")


@pytest.mark.parametrize(
    ("component", "size", "classes"),
    [
        (functools.partial(ByHand, 2.0, square=True), 8, 6),
        (functools.partial(losses.ProxyAnchorLoss, num_classes=7), 8, 7),
        (losses.ProxyAnchorLoss(num_classes=3, embedding_size=5), 5, 3),
        (losses.ContrastiveLoss, 8, 6),
    ],
)
def test_classes_partials_and_instances_are_checked(component, size, classes):
    given = {"embedding_size": size, "num_classes": classes}
    subject = subject_of(component, **given)
    assert (subject.size, subject.classes) == (size, classes)
    some = ["check_call_forms", "check_gradients", "check_pickle"]
    results = check_component(component, checks=some, on_fail=None, **given)
    assert {r.status for r in results if r.check != "check_gradients"} == {"passed"}
    ids = [parameter.id for parameter in parametrize_with_checks([component], **given).mark.args[1]]
    assert f"{subject.name}-check_pickle" in ids


def test_a_size_that_nothing_tells_is_named():
    class Hidden(ByHand):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.layer = torch.nn.Linear(3, 2)

        def compute_loss(self, embeddings, labels, *more):
            x = self.layer(embeddings[:, :3] * embeddings[:, [16]])
            return super().compute_loss(x, labels, None, x, labels)

    (result,) = check_component(Hidden(), checks=["check_call_forms"], on_fail=None)
    assert re.search("cannot be called with embeddings of 3 numbers and 6 classes: .*embedding_size=...", result.text)
    (result,) = check_component(Hidden(), checks=["check_call_forms"], embedding_size=17)
    assert result.status == "passed"


def test_generators_are_seeded_and_put_back():
    before = torch.get_rng_state()
    with kept_generators():
        set_seed(3)
        drawn = torch.rand(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn, torch.rand(2, generator=torch.Generator().manual_seed(3)))


class Sized(losses.ProxyAnchorLoss):
    """A loss whose sizes have defaults."""

    def __init__(self, num_classes=10, embedding_size=16):
        super().__init__(num_classes, embedding_size)


class ManyClasses(losses.ProxyAnchorLoss):
    """A loss of a hundred classes."""

    def __init__(self, num_classes=100, embedding_size=4):
        super().__init__(num_classes, embedding_size)


def test_sizes_are_the_defaults_that_a_class_keeps():
    subject = subject_of(Sized)
    assert (subject.size, subject.classes, subject.has_class_rows) == (16, 10, True)
    subject = subject_of(functools.partial(Sized, embedding_size=5))
    assert (subject.size, subject.classes) == (5, 10)
    subject = subject_of(Sized, embedding_size=32)
    assert (subject.size, subject.make().proxies.shape[1]) == (32, 32)
    (result,) = check_component(Sized, checks=["check_call_forms"], on_fail=None)
    assert result.status == "passed"


def test_loss_of_many_classes_gets_large_batches():
    for result in check_component(
        ManyClasses, checks=["check_saved_bytes", "check_no_loop_over_anchors"], on_fail=None
    ):
        assert result.status == "passed", result
