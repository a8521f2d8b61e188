from .database import (
    CURVE as CURVE,
    TEST as TEST,
    VALIDATION as VALIDATION,
    write_csv as write_csv,
    write_csv_files as write_csv_files,
)
from .recorder import Records as Records
from .run_files import (
    CHOICE as CHOICE,
    DERIVED as DERIVED,
    FILES as FILES,
    LAST as LAST,
    METRICS as METRICS,
    MODEL as MODEL,
    NETWORK as NETWORK,
    RECIPE as RECIPE,
    REPORT as REPORT,
    TRIALS as TRIALS,
    WRITTEN as WRITTEN,
    check_unchanged as check_unchanged,
    is_finished as is_finished,
    no_finished_run as no_finished_run,
    read_finished as read_finished,
    read_metrics as read_metrics,
    remove_run as remove_run,
    tables_of_run as tables_of_run,
    write_checksums as write_checksums,
    write_run_json as write_run_json,
)
from .series import (
    Series as Series,
    loss_series as loss_series,
    metric_by_epoch as metric_by_epoch,
    metric_series as metric_series,
)
from .summary import spread as spread, summarize as summarize
from .trackers import (
    Tracker as Tracker,
    build_tracker as build_tracker,
    import_tracker as import_tracker,
    phases_of as phases_of,
)
