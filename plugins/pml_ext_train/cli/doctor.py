"""``pml-ext doctor``."""

import dataclasses
import warnings

from typer import Exit

from pml_ext.errors import PluginWarning

from .options import AsJson
from .output import print_json, print_table, stdout


def doctor(as_json: AsJson = False) -> None:
    """Show versions, devices, extras and plugins, and test them.

    Paste the output when you report a problem. Exit code 1 if a folder is not writable, a plugin is broken or a part
    of the self test fails.

    Examples:
        pml-ext doctor
        pml-ext doctor --json
    """
    from .diagnosis import diagnosis
    from .installation import EXTRAS, diagnose

    found = diagnose()
    with warnings.catch_warnings(action="ignore", category=PluginWarning):  # the table shows the same problems
        plugins = diagnosis()
    works = found.ok and all(plugin.status != "broken" for plugin in plugins)
    if as_json:
        keys = ("name", "version", "status", "error")
        records = [{key: getattr(plugin, key) for key in keys} for plugin in plugins]
        print_json({**dataclasses.asdict(found), "plugins": records})
    else:
        print_table(["package", "version"], found.versions.items())
        devices = [("device", text) for text in found.devices or ["cpu alone"]]
        print_table(["threads and devices", ""], [*found.threads.items(), *devices])
        extras = [(name, text, ", ".join(found.missing[name]) or "installed") for name, text in EXTRAS.items()]
        print_table(["extra", "adds", "missing"], extras)
        rows = [(plugin.name, plugin.version, plugin.status, plugin.error) for plugin in plugins]
        print_table(["plugin", "version", "status", "why"], rows)
        print_table(["folder", ""], found.folders.items())
        tests = [(check.name, check.text or "passed", f"{check.seconds:.2f}") for check in found.checks]
        print_table(["self test", "", "s"], tests, right=[2])
        if works:
            stdout().print("everything works")
    if not works:
        raise Exit(1)
