"""Names of files that are not taken."""

from pml_ext_search.free_name import free_name


def test_a_name_that_is_taken_gets_a_number(tmp_path):
    photo = tmp_path / "a.b.jpg"
    assert free_name(photo) == photo
    photo.touch()
    (tmp_path / "a.b-2.jpg").symlink_to("gone")  # a name is taken though nothing is behind it
    assert free_name(photo) == tmp_path / "a.b-3.jpg"
