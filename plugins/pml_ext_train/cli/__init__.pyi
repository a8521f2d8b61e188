from .main import main as main
from .options import (
    AsJson as AsJson,
    ComparedBy as ComparedBy,
    DataFolder as DataFolder,
    Device as Device,
    Exclude as Exclude,
    ImageFolder as ImageFolder,
    OnDevice as OnDevice,
    Overrides as Overrides,
    RayAddress as RayAddress,
    RunFolder as RunFolder,
    StoreFolder as StoreFolder,
    Workers as Workers,
    overrides_of_exclude as overrides_of_exclude,
)
from .output import (
    Progress as Progress,
    mean_and_std as mean_and_std,
    print_json as print_json,
    print_result as print_result,
    print_table as print_table,
    process_number as process_number,
    say as say,
    stderr as stderr,
    stdout as stdout,
)
from .results import print_results as print_results
