"""The command ``pml-ext``, also ``python -m pml_ext``; its code is in ``pml_ext_train``."""

import importlib
import sys


def main() -> None:
    """Run the command line, or print what to install."""
    try:
        commands = importlib.import_module("pml_ext_train.cli")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("pml_ext_train"):
            raise
        text = "the command line needs pml_ext_train. Run: pip install --force-reinstall 'pml-ext[train]'"
        print(f"pml-ext: {text}", file=sys.stderr)
        sys.exit(2)
    commands.main()


if __name__ == "__main__":
    main()
