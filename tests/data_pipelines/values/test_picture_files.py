"""Pictures of all modes become grey or RGB of 8 bits; one that cannot be read is named."""

import io

import numpy as np
import pytest
from PIL import Image, ImageCms

from data_pipelines.values import picture_files

RNG = np.random.default_rng(0)
COLOURS = Image.fromarray(RNG.integers(0, 256, (6, 5, 3), np.uint8))
DEEP = RNG.integers(0, 65_536, (6, 5)).astype(np.uint16)


def rules(channels=3, pixel_range=None, background=(255, 255, 255)):
    return picture_files.Rules(channels, background, pixel_range)


def content(image, kind="png", **options):
    image.save(file := io.BytesIO(), format=kind, **options)
    return file.getvalue()


def shades(file, **changes):
    return np.asarray(picture_files.of_bytes(file, "a.png", rules(**changes)).image)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_of_8_bits_are_what_pillow_makes_of_them(mode, channels):
    picture = COLOURS.convert(mode)
    expected = picture.convert("L" if channels == 1 else "RGB")
    made = shades(content(picture, "tiff"), channels=channels)
    np.testing.assert_array_equal(made, np.asarray(expected))


@pytest.mark.parametrize("kind", ["png", "tiff", "ppm", "jpeg2000"])
def test_16_bits_become_8_by_their_257th_part(kind):
    made = shades(content(Image.fromarray(DEEP), kind), channels=1)
    np.testing.assert_array_equal(made, np.rint(DEEP / 257))
    np.testing.assert_array_equal(
        shades(content(Image.fromarray(DEEP), kind), channels=1, pixel_range=(1000, 2000)),
        np.rint(np.clip((DEEP - 1000.0) / 1000, 0, 1) * 255),
    )


def test_lab_is_read_as_its_colours():
    srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    calm = Image.new("RGB", (4, 4), (120, 100, 80))
    other = ImageCms.profileToProfile(calm, srgb, lab, outputMode="LAB")
    np.testing.assert_allclose(shades(content(other, "tiff")), np.asarray(calm), atol=3)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_of_32_bits_need_a_range(dtype):
    file = content(Image.fromarray((DEEP // 7).astype(dtype)), "tiff")
    low, high = (DEEP // 7).min(), (DEEP // 7).max()
    with pytest.raises(ValueError, match=rf"--pixel_range .*such as {low},{high}.* a.png"):
        shades(file)
    made = shades(file, channels=1, pixel_range=(0, 9362))
    np.testing.assert_allclose(made, DEEP / 257, atol=1)
    broken = np.array(DEEP, np.float32)
    broken[2, 2] = np.nan
    with pytest.raises(picture_files.DamagedError, match=r"a.png has pixels that are nan"):
        shades(content(Image.fromarray(broken), "tiff"), pixel_range=(0, 1))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P"])
def test_transparent_pixels_show_the_background(mode):
    picture = COLOURS.convert("L").convert("RGB") if mode == "LA" else COLOURS
    picture = picture.convert(mode)
    options = {"transparency": picture.getpixel((0, 0))} if mode == "P" else {}
    if mode != "P":
        picture.putalpha(Image.fromarray(np.uint8([[0] + [255] * 4] * 6)))
    made = shades(
        content(picture, "tiff" if mode == "PA" else "png", **options), background=(9, 8, 7)
    )
    assert made[0, 0].tolist() == [9, 8, 7]
    np.testing.assert_array_equal(made[:, 3:], np.asarray(picture.convert("RGB"))[:, 3:])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_stands_as_its_exif_says(orientation):
    stored = np.zeros((16, 32, 3), np.uint8)
    stored[:8, :16], stored[8:, 16:] = (250, 0, 0), (0, 0, 250)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = content(Image.fromarray(stored), "jpeg", exif=exif, quality=100, subsampling=0)
    right = {
        **{1: stored, 2: stored[:, ::-1], 3: stored[::-1, ::-1], 4: stored[::-1]},
        **{5: stored.transpose(1, 0, 2), 6: np.rot90(stored, -1)},
        **{7: np.rot90(stored[:, ::-1], -1), 8: np.rot90(stored)},
    }
    np.testing.assert_allclose(shades(file), right[orientation], atol=3)


def test_the_first_of_several_frames_is_read():
    frames = [Image.new("L", (4, 4), shade) for shade in (10, 200, 90)]
    file = content(frames[0], "gif", save_all=True, append_images=frames[1:])
    picture = picture_files.of_bytes(file, "a.gif", rules())
    assert picture.frames == 3 and (np.asarray(picture.image) == 10).all()


def test_a_damaged_file_is_named_in_one_line():
    """Files are cut, and bytes of them are changed; all others are pictures."""
    whole = [content(COLOURS, kind) for kind in ("png", "jpeg", "gif", "webp", "tiff", "bmp")]
    whole += [content(COLOURS, "jpeg2000"), content(COLOURS, "ico", sizes=[(16, 16)])]
    rng, faults = np.random.default_rng(0), 0
    for file in whole:
        for attempt in range(40):
            bad = bytearray(file)
            for place in rng.integers(0, min(len(bad), 200), 4):
                bad[place] = rng.integers(256)
            bad = bad if attempt % 2 else bad[: rng.integers(len(bad))]
            try:
                assert picture_files.of_bytes(bytes(bad), "a.png", rules()).image.mode == "RGB"
            except ValueError as fault:
                faults += 1
                assert "a.png" in str(fault) and "\n" not in str(fault)
    assert faults > 100


def test_a_picture_of_too_many_pixels_is_refused_with_its_sizes(monkeypatch):
    monkeypatch.setattr(picture_files, "MOST_PIXELS", 29)
    with pytest.raises(ValueError, match="a.png .* 5 x 6 pixels, more than 29"):
        shades(content(COLOURS))
    assert Image.MAX_IMAGE_PIXELS


def test_no_program_is_run_for_a_picture():
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n%%EOF\n"
    with pytest.raises(ValueError, match=r"a\.png .*PostScript"):
        picture_files.of_bytes(postscript, "a.png", rules())
