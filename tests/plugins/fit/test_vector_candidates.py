"""What can be delivered for a file of vectors."""

import pytest

from pml_ext_fit import vector_candidates
from pml_ext_fit.vectors import describe_vectors
from pml_ext_train.recipe import load_recipe

from .test_vectors import file_of


@pytest.mark.parametrize(("classes", "heads"), [(4, ["trained head"]), (30, [])])
def test_a_head_is_a_candidate_where_its_classes_are_tested(tmp_path, classes, heads):
    vectors = describe_vectors(file_of(tmp_path, classes=classes))
    assert vectors.shares_classes == bool(heads)
    assert [candidate.title for candidate in vector_candidates.trained(vectors)] == heads


def test_closed_forms_are_recipes_the_simplest_first(tmp_path):
    vectors = describe_vectors(file_of(tmp_path))
    known = vector_candidates.closed_forms(vectors)
    titles = ["vectors as they are", "vectors, whitened", "vectors, whitened within classes"]
    assert [candidate.title for candidate in known] == titles
    recipes = [load_recipe(candidate.recipe, candidate.settings) for candidate in known]
    assert [recipe.model.embedder for recipe in recipes] == ["none", "pca", "within-class"]
    assert {recipe.model.embedding_size for recipe in recipes} == {6}
