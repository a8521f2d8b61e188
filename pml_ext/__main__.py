"""Run the command line ``pml-ext`` as ``python -m pml_ext``."""

from .cli import main

if __name__ == "__main__":
    main()
