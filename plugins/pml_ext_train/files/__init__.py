"""Files: atomic writing, locks, checksums, and reading of JSON and TOML."""

from .atomic import (
    DamagedError as DamagedError,
    check_writable as check_writable,
    final_path as final_path,
    locked_folder as locked_folder,
    read_json as read_json,
    read_toml as read_toml,
    reading as reading,
    toml_value as toml_value,
    write_atomically as write_atomically,
    write_json as write_json,
    write_text as write_text,
    writing as writing,
)
from .checksums import (
    SUMS as SUMS,
    is_unchanged as is_unchanged,
    read_sums as read_sums,
    recover as recover,
    replace_file as replace_file,
    sha256_of as sha256_of,
    write_sums as write_sums,
)
from .moving import (
    first_part as first_part,
    first_parts as first_parts,
    free_name as free_name,
    free_names as free_names,
    free_part as free_part,
    rename_file as rename_file,
)
from .stat import (
    MISSING as MISSING,
    PAGED_ENDINGS as PAGED_ENDINGS,
    FileStat as FileStat,
    as_spelled as as_spelled,
    composed as composed,
    doubt_about as doubt_about,
    file_and_page as file_and_page,
    file_stat as file_stat,
    is_inside as is_inside,
    path_bytes as path_bytes,
    same_names as same_names,
    utf8_of as utf8_of,
)
