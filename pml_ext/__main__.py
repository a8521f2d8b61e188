"""Run the command line ``pml-ext`` as ``python -m pml_ext``."""

from pml_ext_train.cli import main

if __name__ == "__main__":
    main()
