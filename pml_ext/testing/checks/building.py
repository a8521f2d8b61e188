"""A component as its user builds and finds it: constructor and listed line."""

from ... import registry
from ..calling import error_summary
from ..subject import SkipCheck, Subject, applies_to, require


@applies_to(*registry.KINDS)
def check_constructor(subject: Subject) -> None:
    """The constructor must not raise."""
    try:
        subject.build()
    except (Exception, SystemExit) as error:
        raise AssertionError(f"its constructor raises {error_summary(error)}") from error


@applies_to(*registry.KINDS)
def check_docstring(subject: Subject) -> None:
    """A registered component needs a docstring or ``summary=``, which ``pml-ext list`` shows."""
    if subject.registered is None:
        raise SkipCheck("it is not registered")
    if subject.registered.summary or subject.registered.plugin == registry.PML:
        return
    text = vars(subject.registered.cls).get("__doc__")
    require(
        isinstance(text, str) and text.strip(),
        'it has no docstring, which `pml-ext list` shows; write one, or Component(summary="...")',
    )
