"""The conformance kit: checks of what PML's users rely on, for components of all kinds.

.. code-block:: python

    from pml_ext.testing import parametrize_with_checks

    @parametrize_with_checks([MyLoss(), MyMiner])
    def test_conformance(component, check):
        check(component)

or, outside of pytest, ``check_component(MyLoss())``; on the command line, ``pml-ext check my_package``. Conventions
follow scikit-learn's ``check_estimator``.
"""

from .contracts import Named as Named, requires_no_options as requires_no_options, takes_arguments as takes_arguments
from .runner import CheckResult, check_component, parametrize_with_checks
from .second_device import SecondDevice
from .subject import SkipCheck

__all__ = [
    "CheckResult",
    "Named",
    "SecondDevice",
    "SkipCheck",
    "check_component",
    "parametrize_with_checks",
    "requires_no_options",
    "takes_arguments",
]
