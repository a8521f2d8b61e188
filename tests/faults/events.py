"""Scalars of TensorBoard's event files, read in the order in which they were written."""

import tempfile
from pathlib import Path


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values of each tag that TensorBoard shows for a folder.

    TensorBoard reads the files of a folder in the order of their names. A name ends with the second, the process and a
    counter without leading zeros: of two files that one process writes within a second, the tenth is read before the
    ninth, and what it purges comes back. Runs that are resumed in the process that began them do this. Their files are
    read through links whose counters are padded.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tempfile.TemporaryDirectory(prefix="events-") as links:
        for file in folder.glob("events.out.tfevents.*"):
            name, _, counter = file.name.rpartition(".")
            (Path(links) / f"{name}.{int(counter):06d}").symlink_to(file.resolve())
        events = EventAccumulator(links, {"scalars": 0, "tensors": 0})
        events.Reload()
        return {tag: [(at.step, at.value) for at in events.Scalars(tag)] for tag in sorted(events.Tags()["scalars"])}
