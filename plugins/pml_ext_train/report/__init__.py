"""Pages of results with figures and tables."""

from pml_ext.lazy import lazily, require_packages

require_packages(("jinja2", "markupsafe", "matplotlib", "PIL"), "train", "a report")
__getattr__, __dir__ = lazily(__name__, "train", "a report")
