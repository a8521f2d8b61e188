from .database import write_csv as write_csv
from .run_files import is_finished as is_finished, read_metrics as read_metrics, tables_of_run as tables_of_run
from .run_folder import (
    CHOICE as CHOICE,
    RECIPE as RECIPE,
    TRIALS as TRIALS,
    check_unchanged as check_unchanged,
    remove_run as remove_run,
)
from .series import metric_by_epoch as metric_by_epoch
from .summary import spread as spread
from .trackers import Tracker as Tracker, import_tracker as import_tracker, phases_of as phases_of
