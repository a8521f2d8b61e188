"""The module of planted bugs, under a name that other processes can import."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
