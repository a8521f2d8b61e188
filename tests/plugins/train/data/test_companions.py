"""Files that belong to a photograph of the same stem."""

from pml_ext_train.data import Companions, companions_in, list_folder

NAMES = ["IMG_1.JPG", "IMG_1.PNG", "IMG_1.CR3", "IMG_1.JPG.xmp", "IMG_2.heic", "IMG_2.MOV", "IMG_3.cr2", "film.mp4"]


def test_companions_belong_to_photographs_of_their_stem():
    both = ["IMG_1.JPG", "IMG_1.PNG"]
    assert companions_in(NAMES) == {
        "IMG_1.JPG": {"IMG_1.CR3": both, "IMG_1.JPG.xmp": ["IMG_1.JPG"]},
        "IMG_1.PNG": {"IMG_1.CR3": both},
        "IMG_2.heic": {"IMG_2.MOV": ["IMG_2.heic"]},
    }
    assert companions_in(["IMG_1.jpg", "IMG_1.txt"]) == {}


def test_companions_are_not_listed_but_other_files_are(tmp_path):
    (tmp_path / "below").mkdir()
    for name in NAMES:
        (tmp_path / "below" / name).touch()
    (tmp_path / "IMG_2.heic").touch()
    (tmp_path / "IMG_2.raw").mkdir()  # a folder is no companion
    (tmp_path / "IMG_2.raw" / "in a folder.jpg").touch()
    listing = list_folder(tmp_path)
    images = ["IMG_2.heic", "IMG_2.raw/in a folder.jpg"]
    assert listing.names == [*images, "below/IMG_1.JPG", "below/IMG_1.PNG", "below/IMG_2.heic"]
    assert [*listing.others] == ["below/IMG_3.cr2", "below/film.mp4"]
    companions = Companions()
    assert companions.of(tmp_path / "IMG_2.heic") == {}
    assert [*companions.of(tmp_path / "below" / "IMG_2.heic")] == ["IMG_2.MOV"]
