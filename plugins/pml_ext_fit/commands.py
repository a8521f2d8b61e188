"""``pml-ext fit``: choose what to train on your own images or vectors, and train it."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pml_ext_train.cli import (
    AsJson,
    DataFolder,
    Exclude,
    OnDevice,
    Overrides,
    Progress,
    overrides_of_exclude,
    process_number,
)

from .fit_options import FitOptions


def fit(
    data_path: Annotated[
        Path,
        Argument(
            metavar="DATA",
            help="Your own images, a folder with a sub-folder per class or a .csv or .parquet table, or your own "
            "embeddings, a .npz, .parquet or .safetensors file with embeddings and labels.",
        ),
    ],
    data: DataFolder = None,
    out: Annotated[Path | None, Option("--out", "-o", help="The run's folder (default runs/NAME-SEED-TIME).")] = None,
    seed: Annotated[int, Option(min=0, help="The seed of the split, the trials and the training.")] = 0,
    device: OnDevice = "auto",
    overrides: Overrides = None,
    exclude: Exclude = None,
    fine_tune: Annotated[
        bool,
        Option(
            "--fine-tune",
            help="Then train the whole network of images as well; much slower.",
        ),
    ] = False,
    closed_form: Annotated[
        bool,
        Option(
            "--closed-form",
            help="Train nothing: deliver the best of unwhitened and whitened features; a minute for 1,000 images.",
        ),
    ] = False,
    trunk: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="The pretrained trunk (backbone) of images in place of EfficientNet-Lite0: timm/NAME, "
            "torchvision/NAME, hf/NAME, the folder of a model, NAME=FILE, or a file of weights with its "
            "architecture.",
        ),
    ] = None,
    no_labels: Annotated[
        bool,
        Option(
            "--no-labels",
            help="Fit and search without labels, even if there are sub-folders. This is the default for flat folders "
            "and for vectors without labels.",
        ),
    ] = False,
    labels: Annotated[
        Path | None,
        Option(
            metavar="TABLE",
            help="Classes of a folder's images, a .csv or .parquet table with the columns path and class: fits a head "
            "to features that are kept, and indexes the folder again.",
        ),
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Continue the run in --out, or its trials.")] = False,
    quick: Annotated[
        bool,
        Option("--quick", help="Skip the tests before training and on training images, and most figures."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Choose what to train on your own data, train and test it, and write a report.

    The command chooses a split and batches. With the extra photos, it compares frozen features, whitened features and
    the last blocks of a pretrained network on held-out classes. It prints what it chose, and why. To train a recipe of
    your choice on the same data, type: pml-ext train RECIPE --set data.name=folder:FOLDER

    Examples:
        pml-ext fit photographs
        pml-ext fit vectors.npz --out runs/vectors
    """
    from pml_ext.distributed import choose_device, keep_freed_memory
    from pml_ext_train.cli import print_results
    from pml_ext_train.launch import QUICK, restarted

    from .workflows import fit_data

    keep_freed_memory(choose_device(device))
    options = FitOptions(
        overrides=[*(overrides or ()), *([] if labels else overrides_of_exclude(exclude))],
        general=list(QUICK) if quick else [],
        out=out,
        resume=resume or restarted(),
        seed=seed,
        device=device,
        data=data,
        fine_tune=fine_tune,
        closed_form=closed_form,
        exclude=exclude,
    )
    with Progress() as bar:
        results = fit_data(data_path, options, bar, trunk, labels, no_labels)
    if process_number() == 0:
        print_results(results, None, as_json, quick or labels is not None)
