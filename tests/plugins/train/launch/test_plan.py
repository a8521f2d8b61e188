"""The runs of a command, planned."""

import tomli_w

from pml_ext_train.launch.plan import plan
from pml_ext_train.recipe import load_recipe


def test_resumed_seeds_keep_the_recipe_name(tmp_path):
    file = tmp_path / "run" / "seed-0" / "recipe.toml"
    file.parent.mkdir(parents=True)
    recipe = load_recipe("cbml/digits", {"schedule.epochs": 16})
    file.write_text(tomli_w.dumps(recipe.as_dict() | {"run": {"recipe": "cbml/digits", "seed": 0}}))
    plans = plan(str(file), tmp_path / "run", seeds=2, resume=True)
    assert [(each.name, each.seed, each.recipe.schedule.epochs) for each in plans] == [
        ("cbml/digits", 0, 16),
        ("cbml/digits", 1, 16),
    ]
    (other,) = plan(str(file), tmp_path / "other")
    assert other.name == str(file)
