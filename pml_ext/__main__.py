"""``python -m pml_ext`` is ``pml-ext``."""

from .cli import main

if __name__ == "__main__":
    main()
