"""Metrics, report and export of a run, and its trained network."""

from pml_ext.lazy import lazily, require_packages

require_packages(("matplotlib", "PIL", "pydantic", "tomli_w"), "train", "results")
__getattr__, __dir__ = lazily(__name__, "train", "results")
