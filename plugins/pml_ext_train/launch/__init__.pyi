from .launch import (
    QUICK as QUICK,
    execute as execute,
    locked as locked,
    train as train,
    train_and_validate as train_and_validate,
)
from .plan import (
    LOCK as LOCK,
    Plan as Plan,
    check_folder as check_folder,
    default_folder as default_folder,
    restarted as restarted,
)
