"""The command ``pml-ext spread``."""

from pml_ext_train.cli import AsJson, ImageFolder, RunFolder, print_result


def spread(run: RunFolder, folder: ImageFolder, as_json: AsJson = False) -> None:
    """Measure how evenly a run spreads a folder's images on the sphere: the uniformity of Wang and Isola."""
    import torch

    from pml_ext import load_run

    embeddings = load_run(run, "cpu").embed(folder)
    squared_distances = torch.pdist(embeddings).square()
    value = float((-2 * squared_distances).exp().mean().log())
    print_result(as_json, {"images": len(embeddings), "uniformity": value}, f"uniformity {value:.3f}")
