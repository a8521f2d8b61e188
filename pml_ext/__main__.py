"""The command line ``pml-ext``, also ``python -m pml_ext``: it is in the plugin ``pml_ext_train``."""

import sys


def main() -> None:
    """Run the command line, or say what to install."""
    try:
        from pml_ext_train.cli import main as run
    except ModuleNotFoundError as error:
        if error.name != "pml_ext_train":
            raise
        text = "the command line needs pml_ext_train. Type: pip install --force-reinstall 'pml-ext[train]'"
        print(f"pml-ext: {text}", file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
