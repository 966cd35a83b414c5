"""The page to leaf through samples: over HTTP, and clicked through in Chromium."""

from __future__ import annotations

import http.client
import io
import json
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import urlencode

import numpy as np
import pytest
from bad_images import turned
from making import damaged_jpeg, encoded, jpeg, picture, write_shard
from PIL import Image, ImageDraw
from selenium import webdriver
from selenium.common import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.errors import ConfigError
from gpuloader.recipe import load_preset
from gpuloader.tools.serve import PER_PAGE, Api, make_server
from gpuloader.tools.show import Gallery

pytestmark = pytest.mark.slow(kept=10, of="page")

MARKUP = "<img src=x onerror=alert(1)>"
BAD, DAMAGED = 30, 31
SEED = 2**60 + 1
PRESET = load_preset("imagenet_randaugment", {"RandomResizedCrop": {"size": 64}})


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """60 samples of 3 classes with names; two are bad, and the third has a key that is HTML."""
    folder = tmp_path_factory.mktemp("shards")
    images = [jpeg(60, 80 + number, number) for number in range(60)]
    images[BAD], images[DAMAGED] = b"no image", damaged_jpeg()
    keys = [MARKUP if number == 2 else f"{number:04d}" for number in range(60)]
    rows = [{"__key__": keys[n], "jpg": image, "cls": b"%d" % (n % 3)} for n, image in enumerate(images)]
    write_shard(folder / "a.tar", rows)
    (folder / "classes.json").write_text(json.dumps(["cat", "<b>dog</b>", "eel"]))
    return Gallery(folder, device_id=None)


@contextmanager
def served(gallery: Gallery) -> Iterator[int]:
    with make_server(gallery, "mine.yaml", PRESET, seed=SEED, port=0) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def port(gallery: Gallery) -> Iterator[int]:
    with served(gallery) as port:
        yield port


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def ask_json(port: int, path: str, **query: object) -> dict[str, Any]:
    status, headers, content = ask(port, f"/api/{path}?{urlencode(query)}")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    return json.loads(content)


def ask_picture(port: int, path: str, **query: object) -> Image.Image:
    status, headers, content = ask(port, f"/api/{path}?{urlencode(query)}")
    assert (status, headers["Content-Type"]) == (200, "image/png"), content
    return Image.open(io.BytesIO(content))


# --- over HTTP


def test_the_data_is_told(port: int) -> None:
    data = ask_json(port, "data")
    assert data["samples"] == 60
    assert data["classes"] == [
        {"label": label, "name": name, "samples": 20} for label, name in enumerate(["cat", "<b>dog</b>", "eel"])
    ]
    assert data["presets"][0] == "mine.yaml"
    assert "dino" in data["presets"]
    assert (data["seed"], data["device"]) == (str(2**60 + 1), "cpu")  # a string: JavaScript's numbers end at 2**53


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, range(60)),
        ({"label": 1}, range(1, 60, 3)),
        ({"key": "005"}, (5, *range(50, 60))),
        ({"key": "005", "label": 0}, range(51, 60, 3)),
        ({"key": "<img"}, (2,)),
    ],
)
def test_samples_come_in_pages_and_can_be_filtered(
    port: int, query: dict[str, object], expected: Sequence[int]
) -> None:
    first = ask_json(port, "samples", **query)
    assert (first["samples"], first["pages"]) == (len(expected), max(1, -(-len(expected) // PER_PAGE)))
    pages = [ask_json(port, "samples", **query, page=page)["shown"] for page in range(first["pages"])]
    assert [len(page) for page in pages[:-1]] == [PER_PAGE] * (len(pages) - 1)
    assert [sample["id"] for page in pages for sample in page] == list(expected)
    assert ask_json(port, "samples", **query, page=1000)["shown"] == []


@pytest.mark.parametrize("preset", ["mine.yaml", "dino", "deit"])
def test_a_version_and_what_is_drawn_for_it_are_the_librarys(port: int, gallery: Gallery, preset: str) -> None:
    compose = Compose.load(PRESET if preset == "mine.yaml" else preset)
    query = {"id": 5, "preset": preset, "epoch": 3, "seed": 2**63 + 5}
    told = ask_json(port, "sample", **query)
    views = gallery.explain(compose, 5, 2**63 + 5, 3)
    assert [view["steps"] for view in told["views"]] == [
        [{"transform": s.transform, "operation": s.operation, "parameters": dict(s.parameters)} for s in view.steps]
        for view in views
    ]
    assert [tuple(view["window"]) for view in told["views"]] == [view.window for view in views]
    assert (told["key"], told["class_name"], told["height"], told["width"]) == ("0005", "eel", 60, 85)
    assert told["mix_left_out"] == (preset == "deit")
    for number, version in enumerate(gallery.versions(compose, 5, 2**63 + 5, 3)):
        assert (np.asarray(ask_picture(port, "version", **query, view=number)) == np.asarray(version)).all()


@pytest.mark.parametrize(("side", "size"), [(40, (40, 28)), (1024, (85, 60))])
def test_an_original_is_as_small_as_asked_for(port: int, side: int, size: tuple[int, int]) -> None:
    assert ask_picture(port, "original", id=5, side=side).size == size


def test_a_turned_picture_is_upright_beside_a_recipe_that_turns_it(tmp_path: Path) -> None:
    image = encoded(picture(60, 80), "JPEG", exif=turned(6))
    gallery = Gallery(write_shard(tmp_path / "a.tar", [{"__key__": "a", "jpg": image, "cls": b"0"}]), device_id=None)
    api = Api(gallery, "mine.yaml", load_preset(PRESET, {"orientation": "apply"}), SEED)
    for preset, size in (("mine.yaml", (60, 80)), ("dino", (80, 60))):
        query = {"id": "0", "preset": preset}
        assert api.original(query).size == size
        assert (api.sample(query)["width"], api.sample(query)["height"]) == size


HALVED = Compose([T.Resize((48, 64))], dtype="uint8")


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """A picture of 96 x 128 with a box, and one with a bad box."""
    rows = [
        {"__key__": key, "jpg": jpeg(96, 128), "json": json.dumps({"annotations": [{"bbox": box}]}).encode()}
        for key, box in (("good", [20, 40, 60, 30]), ("bad", [1]))
    ]
    return Gallery(write_shard(tmp_path_factory.mktemp("boxed") / "a.tar", rows), device_id=None)


def test_targets_are_drawn_if_asked_for_on_small_pictures_enlarged(boxed: Gallery, gallery: Gallery) -> None:
    api = Api(boxed, "halved", HALVED, 0)
    [made] = boxed.versions(HALVED, 0, 0, 0)
    assert (np.asarray(api.version({"id": "0"})) == np.asarray(made)).all()
    for expected, drawn in (
        (made.resize((256, 192), Image.Resampling.NEAREST), api.version({"id": "0", "targets": "1"})),
        (
            boxed.versions(boxed.whole(0, 1024), 0, 0, 0)[0].resize((256, 192), Image.Resampling.NEAREST),
            api.original({"id": "0", "targets": "1"}),
        ),
    ):
        line = drawn.getpixel((40, 80))
        ImageDraw.Draw(expected).rectangle((40, 80, 159, 139), outline=line, width=2)
        assert (np.asarray(drawn) == np.asarray(expected)).all()
    assert (api.data({})["targets"], Api(gallery, "mine", PRESET, 0).data({})["targets"]) == (True, False)
    assert api.sample({"id": "0"})["targets_left_out"] == {}
    assert "allowed are 4 numbers" in api.sample({"id": "1"})["bad"]


@pytest.mark.parametrize(
    ("sample", "cause"), [(BAD, "no image format that DALI reads"), (DAMAGED, "DALI's decoder fails on it")]
)
def test_a_bad_image_is_told_with_its_cause(port: int, sample: int, cause: str) -> None:
    assert ask_json(port, "sample", id=sample)["bad"].startswith(cause)
    for path in ("original", "version"):
        status, _, content = ask(port, f"/api/{path}?id={sample}")
        assert status == 422
        assert json.loads(content)["error"].startswith(f"bad image: {cause}")


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/sample?id=60", 400, "id='60': allowed is an integer from 0 to 59"),
        ("/api/sample?id=٣", 400, "id="),
        ("/api/sample?id=1&seed=" + "9" * 5000, 400, "seed="),
        ("/api/sample?id=1&preset=/etc/passwd", 400, "preset='/etc/passwd': allowed are mine.yaml, "),
        ("/show.html", 404, "there is no page /show.html; the page is at /"),
    ],
)
def test_a_wrong_question_is_an_error_in_json(port: int, path: str, status: int, message: str) -> None:
    found, headers, content = ask(port, path.replace("٣", "%D9%A3"))
    assert (found, headers["Content-Type"]) == (status, "application/json")
    assert json.loads(content)["error"].startswith(message)


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "localhost", "[::1]:80", "127.0.0.1:1"])
def test_the_page_is_served_to_this_machine(port: int, host: str) -> None:
    assert ask(port, "/", Host=host.format(port=port))[0] == 200


@pytest.mark.parametrize(
    "host", ["example.com:{port}", "", "localhost.example.com", "127.0.0.1.nip.io:{port}", "localhost:x"]
)
def test_a_name_that_leads_here_from_elsewhere_is_refused(port: int, host: str) -> None:
    status, _, content = ask(port, "/api/original?id=0", Host=host.format(port=port))
    assert (status, "127.0.0.1" in json.loads(content)["error"]) == (403, True)


def test_no_other_site_can_show_the_pictures_or_run_in_the_page(port: int) -> None:
    for path in ("/", "/api/original?id=0", "/nothing"):
        headers = ask(port, path)[1]
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'sha256-")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers


def test_it_listens_on_this_machine_alone_and_a_port_that_is_taken_is_a_message(gallery: Gallery) -> None:
    with make_server(gallery, "mine", PRESET, 0, 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        for port in (server.server_port, 70_000):
            with pytest.raises(ConfigError, match=f"port {port} cannot be used .* or 0 for any"):
                make_server(gallery, "mine", PRESET, 0, port)


def test_one_that_leaves_in_the_middle_leaves_no_traceback(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing resets
            client.sendall(b"GET /api/version?id=5 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert ask_json(port, "data")["samples"] == 60
    assert capfd.readouterr().err == ""


# --- in a browser


@contextmanager
def open_browser(profile: Path) -> Iterator[WebDriver]:
    """Chromium without a screen, which keeps its profile in that folder."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    plain = "headless no-sandbox no-first-run window-size=1360,900"
    without = "gpu quic dev-shm-usage background-networking component-update sync"
    for option in (*plain.split(), *(f"disable-{name}" for name in without.split()), f"user-data-dir={profile}"):
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as found:
        yield found


needs_browser = pytest.mark.needs_program("chromium", "chromedriver")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    with open_browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


Found = TypeVar("Found")


class Page:
    """The page as its reader has it."""

    def __init__(self, browser: WebDriver, port: int) -> None:
        self.browser = browser
        browser.get("about:blank")
        browser.get(f"http://127.0.0.1:{port}/")

    def wait(self, condition: Callable[[], Found]) -> Found:
        return WebDriverWait(self.browser, 300, 0.05, [StaleElementReferenceException]).until(lambda _: condition())

    def one(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def press(self, *keys: str) -> None:
        self.one("body").send_keys(*keys)

    @property
    def title(self) -> str:
        return self.one("#title").text

    @property
    def place(self) -> str:
        return self.one("#place").text

    @property
    def keys(self) -> list[str]:
        return [each.text for each in self.all("#grid .key")]

    @property
    def steps(self) -> list[list[str]]:
        return [[cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in self.all("#steps tr")]

    def type(self, selector: str, text: str) -> None:
        self.one(selector).send_keys(Keys.CONTROL, "a", Keys.NULL, text or Keys.DELETE, Keys.TAB)

    def picture(self, selector: str) -> np.ndarray:
        """What an image of the page shows, in its own pixels."""
        script = """const image = document.querySelector(arguments[0]), canvas = document.createElement("canvas");
            if (!image || !image.complete || !image.naturalWidth) return null;  // without a source also "complete"
            [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            return [canvas.height, canvas.width, [...context.getImageData(0, 0, canvas.width, canvas.height).data]];"""
        # One script asks and reads: the page may put another image in its place between two.
        height, width, values = self.wait(lambda: self.browser.execute_script(script, selector))
        return np.array(values, np.uint8).reshape(height, width, 4)[..., :3]


@pytest.fixture
def page(browser: WebDriver, port: int) -> Iterator[Page]:
    browser.get_log("browser")
    page = Page(browser, port)
    page.wait(lambda: page.title == "0000")
    yield page
    refused = [entry for entry in browser.get_log("browser") if entry["source"] != "network"]
    assert refused == []  # no error of the script, nothing that the policy forbids


def expected_steps(gallery: Gallery, compose: Compose, sample: int, epoch: int) -> list[list[str]]:
    return [
        [
            step.transform,
            step.operation or "nothing",
            ", ".join(f"{name} {str(value).removesuffix('.0')}" for name, value in step.parameters.items()),
        ]
        for step in gallery.explain(compose, sample, SEED, epoch)[0].steps
    ]


@needs_browser
def test_pages_are_leafed_by_buttons_and_keys(page: Page) -> None:
    assert page.place == "60 samples, page 1 of 3"
    assert page.keys[:2] == ["0000", "0001"]
    page.one("#on").click()
    page.wait(lambda: page.title == "0024")
    assert page.keys[0] == "0024"
    page.press(Keys.ARROW_RIGHT)
    page.wait(lambda: page.title == "0025")
    page.press(Keys.ARROW_LEFT)
    page.wait(lambda: page.title == "0024")
    page.press(Keys.ARROW_LEFT)  # over the page's edge, to the last one of the page before
    page.wait(lambda: page.title == "0023")
    assert page.place == "60 samples, page 1 of 3"
    page.one("#on").click()
    page.wait(lambda: page.title == "0024")
    page.all("#grid .tile")[3].click()
    page.wait(lambda: page.title == "0027")
    assert page.one("[aria-current=true] .key").text == "0027"


@needs_browser
def test_pixels_parameters_and_window_are_the_librarys(page: Page, gallery: Gallery) -> None:
    compose = Compose.load(PRESET)
    page.all("#grid .tile")[4].click()
    page.wait(lambda: page.title == "0004")
    for epoch in (0, 3):
        page.type("#epoch", str(epoch))
        page.wait(lambda epoch=epoch: page.steps == expected_steps(gallery, compose, 4, epoch))
        [version] = gallery.versions(compose, 4, SEED, epoch)
        assert (page.picture("#after img") == np.asarray(version)).all()
        top, left, bottom, right = gallery.explain(compose, 4, SEED, epoch)[0].window
        window = page.one("rect.chosen")
        found = [float(window.get_attribute(name)) for name in ("y", "x", "height", "width")]
        assert found == [top, left, bottom - top, right - left]
    assert (page.picture("#before img") == np.asarray(gallery.versions(gallery.whole(4, 1024), 4, 0, 0)[0])).all()


@needs_browser
def test_a_key_that_is_html_stays_text(page: Page) -> None:
    page.all("#grid .tile")[2].click()
    page.wait(lambda: page.title == MARKUP)
    assert page.keys[2] == MARKUP
    assert page.all("h2 img") == []
    assert "eel" in page.one("#where").text


@needs_browser
def test_a_bad_image_shows_its_cause(page: Page) -> None:
    page.one("#key").send_keys(f"{DAMAGED:04d}")
    page.wait(lambda: page.title == f"{DAMAGED:04d}")
    page.wait(lambda: page.one("#grid .wrong").text == "bad image")
    assert page.one("body").text.count("DALI's decoder fails on it") == 1
    assert page.steps == []
    assert not page.one("#stage").is_displayed()
    page.type("#key", f"{DAMAGED + 1:04d}")
    page.wait(lambda: page.one("#stage").is_displayed())
    assert "bad image" not in page.one("body").text


@needs_browser
def test_targets_can_be_left_out_on_the_page(browser: WebDriver, boxed: Gallery, page: Page) -> None:
    assert not page.one("#targets").is_displayed()
    with served(boxed) as port:
        its_page = Page(browser, port)
        its_page.wait(lambda: its_page.title == "good")
        its_page.type("#key", "good")
        [version] = boxed.versions(Compose.load(PRESET), 0, SEED, 0)
        assert its_page.picture("#after img").shape == (256, 256, 3)
        its_page.one("#targets").click()
        its_page.wait(lambda: its_page.picture("#after img").shape == (64, 64, 3))
        assert (its_page.picture("#after img") == np.asarray(version)).all()
        browser.get("about:blank")
