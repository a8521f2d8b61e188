"""How long ``fit`` takes, estimated before it begins."""

from pml_ext_train.data import DataSplits

from .candidates import features_of_images, last_blocks
from .folds import Folds
from .framing import framings_to_compare
from .images import OwnImages
from .timing import TRAINING, PerImage, TimeLeft, in_minutes, seconds_of_training, seconds_per_image
from .trials import Workplace
from .trunk import Trunk

FRAMING, FEATURES, TRIAL, DEPTH, TESTS = "framing", "features", "trial", "depth", "tests"  # the other steps
REPORT = 15.0  # seconds of the figures and the metrics of a few thousand images


def expected(
    images: OwnImages,
    trunk: Trunk,
    splits: DataSplits,
    folds: Folds,
    sample: int,
    place: Workplace,
    trains: bool,
) -> TimeLeft | None:
    """Estimate the seconds of each step from 32 images and one batch; None if no image can be read.

    Framings are compared on ``sample`` images. ``trains``: last blocks are tried.
    """
    each = seconds_per_image(
        features_of_images(images, trunk.framing, trunk=trunk), place.overrides, place.device, place.data
    )
    if each is None:
        return None
    training = images.training_images
    seconds = {
        FRAMING: _seconds_of_framings(images, trunk, each, sample, place),
        FEATURES: training * (each.reading + each.passing),
        TESTS: (training + images.tested_images) * each.reading + images.tested_images * each.passing + REPORT,
    }
    if not trains:
        return TimeLeft(seconds)
    share = len(folds.parts[0].fitted) / len(splits.train)
    one_image = splits.train.subset([0])
    trainings: dict[str, float] = {}
    steps = 0.0
    for step, first in ((TRIAL, None), (DEPTH, trunk.deeper)):
        if step == DEPTH and first is None:
            continue
        candidate = last_blocks(images, trunk.framing, trunk, first)
        run = place.run_of(candidate, splits, splits.train, one_image, {})
        whole = seconds_of_training(run) or 0.0
        short = place.recipe_of(candidate, candidate.trial_settings(images.training_classes, share)).sampler
        whole_epoch = run.stages[0].iterations
        of_trial = (short.iterations or whole_epoch) / whole_epoch
        trainings[candidate.title] = whole
        seconds[step] = whole * of_trial
        steps += run.stages.iterations_until(run.epochs) * of_trial
        if step == DEPTH:  # the activations before an earlier block
            seconds[step] += training * each.passing
    return TimeLeft(seconds, trainings, round(steps))


def _seconds_of_framings(images: OwnImages, trunk: Trunk, each: PerImage, sample: int, place: Workplace) -> float:
    compared = framings_to_compare(trunk.framing, trunk.smaller, place.set_keys, images.chosen_size, images.aspect)
    smallest, *larger = compared.sides
    sides = [smallest] * len(compared.squash) + larger
    if len(sides) == 1:
        return 0.0
    passes = sum((side / (images.chosen_size or trunk.framing.side)) ** 2 for side in sides)
    return sample * (each.reading + passes * each.passing)


def described(left: TimeLeft) -> str:
    """A line about the total time."""
    longest = in_minutes(left.seconds())
    shortest = in_minutes(left.seconds(TRAINING, DEPTH))
    if longest == shortest:
        return f"about {longest} in all"
    return f"about {shortest} to {longest} in all, depending on what is trained; trials take {left.steps} steps a fold"
