"""What can be delivered for a file of vectors."""

from pml_ext_fit import vector_candidates
from pml_ext_fit.vectors import describe_vectors
from pml_ext_train.recipe import load_recipe

from .test_vectors import file_of


def test_closed_forms_are_recipes_the_simplest_first(tmp_path):
    vectors = describe_vectors(file_of(tmp_path))
    known = vector_candidates.closed_forms(vectors)
    titles = ["vectors, unwhitened", "vectors, whitened", "vectors, whitened within classes"]
    assert [candidate.title for candidate in known] == titles
    recipes = [load_recipe(candidate.recipe, candidate.settings) for candidate in known]
    assert [recipe.model.embedder for recipe in recipes] == ["none", "pca", "within-class"]
    assert {recipe.model.embedding_size for recipe in recipes} == {6}
