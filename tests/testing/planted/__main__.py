"""Print the fast checks that find each bug, with a reference if none does without, and the shares."""

import collections
import sys

from . import PLANTED, REFERENCE, failing, loop
from .correct import near_negatives

references = {"loss": loop, "miner": near_negatives}
counted = {share: collections.Counter() for share in ("planted", "found", "found with a reference")}
for name in sys.argv[1:] or PLANTED:
    bug = PLANTED[name]
    without = failing(bug.cls, fast=True)
    found = without
    if not found and bug.kind in references:
        found = failing(bug.cls, checks=[REFERENCE], reference=references[bug.kind])
    print(f"| {bug.kind} | `{name}` | {bug.words} | {', '.join(found) or '-'} |", flush=True)
    for share, hit in zip(counted, (True, without, found), strict=True):
        counted[share][bug.kind] += bool(hit)
for share, kinds in counted.items():
    print(f"{share}: {', '.join(f'{kind} {kinds[kind]}' for kind in counted['planted'])}")
