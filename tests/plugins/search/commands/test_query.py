"""``pml-ext query``: files of answers, and what it imports."""

import json
import subprocess
import sys


def test_a_query_imports_what_it_uses_alone(indexed, folder):
    """Each of these takes a fifth of a second or more."""
    run, gallery = indexed
    code = (
        "import sys; from pml_ext_train.cli.app import app_for\n"
        f"app_for(['query'])(['query', {str(run.folder)!r}, {str(folder / gallery.embedded.paths[0])!r}, '--json'], "
        "standalone_mode=False)\n"
        "names = ['torchvision', 'pytorch_metric_learning', 'sklearn', 'scipy', 'matplotlib', 'pandas']\n"
        "print([name for name in names if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert len(json.loads(done.stdout)[0]["paths"]) == 8
