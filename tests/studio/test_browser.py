"""The page in a real browser, from an empty project to an exported classifier; pictures are taken on the way."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ..servers import CLASSES, Server, save_pictures, until, violations

pytest.importorskip("selenium")
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

Pictures = dict[str, list[Path]]


class Page:
    """The studio as somebody in front of it sees it."""

    def __init__(self, browser: Any, server: Server, screenshots: Path, downloads: Path) -> None:
        self.browser, self.server, self.screenshots, self.downloads = browser, server, screenshots, downloads

    def open(self) -> None:
        self.browser.get(self.server.address)
        self.wait(lambda: self.one("#status").text not in ("", "Opening the project"))

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        self.wait(lambda: self.one(selector).click() or True)

    def tab(self, name: str) -> None:
        self.browser.execute_script("scrollTo(0, 0)")  # tabs scroll away below the header, as for anybody
        self.click(f"#tab-{name}")

    def key(self, key: str) -> None:
        """Press a key, wherever the focus is."""
        ActionChains(self.browser).send_keys(key).perform()

    def give(self, place: str, files: list[Path]) -> None:
        """Choose files as the dialog of the browser would."""
        self.browser.execute_script("HTMLInputElement.prototype.click = () => {}")
        self.click(f"[data-pick={place}]")
        self.one("#file").send_keys("\n".join(map(str, files)))

    def drop(self, selector: str, files: list[Path]) -> None:
        """Drag files over an element and let go."""
        script = """
            const [target, files] = arguments, transfer = new DataTransfer();
            for (const [name, data] of files)
              transfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name));
            for (const kind of ["dragover", "drop"])
              target.dispatchEvent(new DragEvent(kind, { bubbles: true, dataTransfer: transfer }));
        """
        self.browser.execute_script(script, self.one(selector), _for_script(files))

    def drop_folder(self, selector: str, folder: Path) -> None:
        """Drag a folder of the file system over an element and let go, as a file manager does."""
        box = self.one(selector).rect
        data = {"items": [], "files": [str(folder)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            where = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
            self.browser.execute_cdp_cmd("Input.dispatchDragEvent", {"type": kind, **where, "data": data})

    def paste(self, files: list[Path]) -> None:
        """Paste files where the focus is."""
        script = """
            const transfer = new DataTransfer();
            for (const [name, data] of arguments[0])
              transfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name));
            const event = new ClipboardEvent("paste", { bubbles: true, clipboardData: transfer });
            document.activeElement.dispatchEvent(event);
        """
        self.browser.execute_script(script, _for_script(files))

    def places(self) -> dict[str, list[str]]:
        """Names of files by the place where the server has them."""
        found: dict[str, list[str]] = {}
        for image in self.server.state()["images"]:
            found.setdefault(image["place"], []).append(image["name"])
        return found

    def classes(self) -> dict[str, int]:
        cards = self.all("#classes > li")
        return {
            str(card.find_element(By.TAG_NAME, "textarea").get_attribute("value")): len(
                card.find_elements(By.CLASS_NAME, "thumb")
            )
            for card in cards
        }

    def answers(self) -> list[str]:
        """The first class of each image in the test tray, the latest first."""
        return [row.text for row in self.all("#test .bars li:first-child span")]

    def learned(self, count: int) -> None:
        self.wait(lambda: f"Learned from {count} images" in self.one("#status").text)

    def wait(self, condition: Callable[[], Any]) -> None:
        def safely() -> Any:
            try:
                return condition()
            except WebDriverException:  # an element that is not there yet, is covered, or was just drawn anew
                return False

        until(safely)

    def settle(self) -> dict[str, Any]:
        """Wait until everything is learned and the page shows it; the state."""
        found: dict[str, Any] = {}

        def shown() -> bool:
            found.update(self.server.settled())
            return self.one("body").get_attribute("data-version") == found["version"]

        self.wait(shown)
        return found

    def picture(self, name: str) -> None:
        self.browser.execute_script("for (const t of document.querySelectorAll('.toast')) t.remove()")
        loaded = "return [...document.images].every((i) => i.loading === 'lazy' || i.complete)"
        self.wait(lambda: self.browser.execute_script(loaded))
        still = "return document.getAnimations().every((a) => !(a instanceof CSSTransition))"
        self.wait(lambda: self.browser.execute_script(still))  # no button is between two colours
        self.browser.save_screenshot(str(self.screenshots / f"studio-{name}.png"))

    def dark(self, on: bool = True) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def complaints(self, *, outage: bool = False) -> list[str]:
        """What the browser's console held against the page since it was asked last.

        Failed requests do not count after an `outage`, when the server was killed on purpose.
        """
        found = [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]
        return [message for message in found if not (outage and "net::ERR_" in message)]


def _for_script(files: list[Path]) -> list[list[str]]:
    return [[path.name, base64.b64encode(path.read_bytes()).decode()] for path in files]


@pytest.fixture
def page(browser: Any, studio: Server, screenshots: Path, tmp_path: Path) -> Iterator[Page]:
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)})
    found = Page(browser, studio, screenshots, downloads)
    found.dark(False)
    browser.set_window_size(1360, 860)
    found.complaints()  # of earlier pages
    yield found
    browser.get("about:blank")


def an_empty_project_welcomes(page: Page) -> None:
    page.open()
    page.wait(lambda: page.one("#welcome").is_displayed())
    page.picture("empty")


def a_folder_of_folders_makes_the_classes(page: Page, folder: Path) -> None:
    things = folder / "things"
    save_pictures(things, CLASSES[:2], 6)
    page.one("#folder").send_keys(str(things))
    page.wait(lambda: page.classes() == dict.fromkeys(sorted(CLASSES[:2]), 6))


def a_class_is_named_by_hand_and_images_are_dropped_onto_it(page: Page, pictures: Pictures) -> None:
    page.one("#new-name").send_keys(CLASSES[2], Keys.ENTER)
    page.wait(lambda: CLASSES[2] in page.classes())
    page.drop("#classes > li:nth-child(3)", pictures[CLASSES[2]][:6])
    page.learned(18)
    assert not page.one("#welcome").is_displayed()


def the_test_tray_answers_rightly(page: Page, pictures: Pictures) -> None:
    shown = [pictures[name][8] for name in CLASSES[:3]]
    page.give("test", shown)
    page.wait(lambda: sorted(page.answers()) == sorted(CLASSES[:3]))
    page.click("#tray-table")
    page.wait(lambda: list(page.downloads.glob("*.csv")))
    table = next(page.downloads.glob("*.csv")).read_text(encoding="utf-8-sig").splitlines()
    assert len(table) == 4
    assert all(any(path.name in line for line in table) for path in shown)


def another_class_comes_later(page: Page, pictures: Pictures) -> None:
    page.one("#new-name").send_keys(CLASSES[3], Keys.ENTER)
    page.wait(lambda: len(page.classes()) == 4)
    page.give("c4", pictures[CLASSES[3]][:6])
    page.learned(24)
    page.drop("#test", [pictures[CLASSES[3]][8]])
    page.wait(lambda: page.answers()[:1] == [CLASSES[3]])
    page.wait(lambda: len(page.answers()) == 4)


def a_wrong_label_is_pointed_out_and_one_click_corrects_it(page: Page, pictures: Pictures) -> None:
    page.drop("#classes > li:nth-child(1)", [pictures[CLASSES[2]][9]])
    page.learned(25)
    page.settle()
    page.picture("classes")
    page.tab("review")
    page.wait(lambda: len(page.all("#suspects > li")) == 1)
    assert "23 of 25 examples" in page.one("#score").text
    page.picture("review")
    page.click("#suspects > li button:not(.thumb)")
    page.wait(lambda: not page.all("#suspects > li"))
    assert page.settle()["review"]["correct"] == 25


def proposals_are_taken_by_one_key_each(page: Page, pictures: Pictures) -> None:
    page.tab("label")
    pool = [path for name in CLASSES for path in pictures[name][10:13]]
    random.Random(0).shuffle(pool)
    page.give("pool", pool)
    page.wait(lambda: len(page.all("#pool .thumb")) == 12)
    assert len(page.settle()["suggestions"]) == 12
    page.picture("label")
    first = page.one("#asking").get_attribute("data-id")
    likely = page.one("#asking .likely")
    name = likely.find_element(By.TAG_NAME, "span").text
    page.one("body").send_keys(likely.find_element(By.TAG_NAME, "kbd").text)
    page.wait(lambda: len(page.all("#pool .thumb")) == 11)
    state = page.server.state()
    place = next(entry["place"] for entry in state["images"] if entry["id"] == first)
    assert next(entry["name"] for entry in state["classes"] if entry["id"] == place) == name
    page.learned(26)


def the_map_shows_every_image(page: Page) -> None:
    page.tab("map")
    page.wait(lambda: len(page.all("#plane circle")) == 26 + 4 + 11)
    page.picture("map")


def exports_arrive_as_files(page: Page) -> None:
    page.click("[data-deploy]")
    page.wait(lambda: "cnaps predict" in page.one("#deploy-lines").text)
    page.picture("deploy")
    page.click("#deploy-save")
    page.wait(lambda: list(page.downloads.glob("*.task")))
    page.click("#deploy .close")


def killed_without_warning_everything_is_there_again(page: Page) -> None:
    before = page.settle()
    assert page.complaints() == []
    page.server.kill()
    page.wait(lambda: page.one("#offline").is_displayed())
    page.server.start()
    after = page.settle()
    for part in ("name", "classes", "images", "predictions"):
        assert json.dumps(after[part]) == json.dumps(before[part]), part
    assert not page.one("#offline").is_displayed()
    page.tab("teach")
    page.wait(lambda: sorted(page.answers()) == sorted(CLASSES))
    assert page.complaints(outage=True) == []


def nothing_sticks_out_in_the_dark_or_on_a_narrow_window(page: Page) -> None:
    page.dark()
    page.picture("dark")
    page.dark(False)
    page.browser.set_window_size(500, 900)
    for tab in ("teach", "answers", "label", "review", "held", "map"):
        page.tab(tab)
        wide = page.browser.execute_script("return document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, tab
    page.tab("teach")
    page.picture("narrow")
    assert page.complaints() == []


def test_somebody_teaches_corrects_labels_exports_and_finds_it_all_again(
    page: Page, pictures: Pictures, tmp_path: Path
) -> None:
    an_empty_project_welcomes(page)
    a_folder_of_folders_makes_the_classes(page, tmp_path)
    a_class_is_named_by_hand_and_images_are_dropped_onto_it(page, pictures)
    the_test_tray_answers_rightly(page, pictures)
    another_class_comes_later(page, pictures)
    a_wrong_label_is_pointed_out_and_one_click_corrects_it(page, pictures)
    proposals_are_taken_by_one_key_each(page, pictures)
    the_map_shows_every_image(page)
    exports_arrive_as_files(page)
    killed_without_warning_everything_is_there_again(page)
    nothing_sticks_out_in_the_dark_or_on_a_narrow_window(page)


def test_a_point_of_the_map_is_moved_to_another_class_by_keyboard(page: Page, pictures: Pictures) -> None:
    page.server.teach({name: pictures[name][:2] for name in CLASSES[:2]})
    page.open()
    page.tab("map")
    page.settle()
    assert len(page.all("#plane circle")) == 4
    point = page.one("#plane circle.hue-0")
    moved = point.get_attribute("data-key")
    page.browser.execute_script("arguments[0].focus()", point)
    page.wait(lambda: page.one("#peek").is_displayed())
    page.key(Keys.ENTER)
    page.wait(lambda: page.one("#viewer").is_displayed())
    page.key("2")
    page.wait(lambda: {i["id"]: i["place"] for i in page.server.state()["images"]}[moved] == "c2")
    page.click("#undo")
    page.wait(lambda: {i["id"]: i["place"] for i in page.server.state()["images"]}[moved] == "c1")
    assert page.complaints() == []


def test_images_come_in_by_dropped_folders_the_clipboard_and_the_camera(
    page: Page, pictures: Pictures, tmp_path: Path
) -> None:
    page.open()
    save_pictures(tmp_path / "things", CLASSES[:2], 3)
    page.drop_folder("#welcome", tmp_path / "things")
    page.wait(lambda: page.classes() == dict.fromkeys(CLASSES[:2], 3))
    # a folder without folders is a class, and one that is dropped onto a class goes there whole
    page.drop_folder("#new-class", save_pictures(tmp_path, CLASSES[2:3], 3)[CLASSES[2]][0].parent)
    page.wait(lambda: page.classes().get(CLASSES[2]) == 3)
    more = tmp_path / "more"
    save_pictures(more, CLASSES[3:], 4)
    page.drop_folder("#classes > li:nth-child(3)", more)
    page.wait(lambda: page.classes().get(CLASSES[2]) == 7)

    # what is pasted goes where the focus is, else into the test tray
    card = page.settle()["classes"][0]["id"]
    page.paste(pictures[CLASSES[0]][6:7])
    page.wait(lambda: page.answers() == [CLASSES[0]])
    page.browser.execute_script(f"document.querySelector('[data-pick={card}]').focus()")
    page.paste(pictures[page.settle()["classes"][0]["name"]][7:9])
    page.wait(lambda: list(page.classes().values()) == [5, 3, 7])

    # the camera takes pictures one by one, and a series while its button is held
    page.click("#open-camera")
    page.wait(lambda: page.browser.execute_script("return document.querySelector('#video').videoWidth") == 640)
    page.picture("camera")
    page.click("#shoot")
    page.wait(lambda: len(page.places()["test"]) == 2)
    page.click(f"#camera-place option[value={card}]")
    ActionChains(page.browser).click_and_hold(page.one("#shoot")).perform()
    page.wait(lambda: len(page.places()[card]) >= 8)
    ActionChains(page.browser).release().perform()
    page.click("#camera .close")
    live = "return document.querySelector('#video').srcObject.getTracks().some((t) => t.readyState === 'live')"
    page.wait(lambda: not page.browser.execute_script(live))
    assert all(name.startswith("camera-") for name in page.places()[card][5:])
    assert page.complaints() == []


def test_a_project_that_goes_on_from_a_task_says_why_it_has_no_review(
    page: Page, pictures: Pictures, tmp_path: Path
) -> None:
    from cnaps import FewShotClassifier

    files = [(path, name) for name in CLASSES[:3] for path in pictures[name][:3]]
    task = tmp_path / "task.safetensors"
    FewShotClassifier().fit([path for path, _ in files], [name for _, name in files]).save(task)
    page.open()
    page.one("#archive").send_keys(str(task))
    page.wait(lambda: len(page.classes()) == 3)
    page.drop("#test", [pictures[CLASSES[1]][8]])
    page.wait(lambda: page.answers() == [CLASSES[1]])
    page.learned(9)
    page.tab("review")
    assert "learned elsewhere" in page.one("#score").text
    assert not page.one("#second-look").is_displayed()
    page.picture("imported")
    assert page.complaints() == []


def test_broken_files_are_told_and_nothing_else_happens(page: Page, tmp_path: Path, pictures: Pictures) -> None:
    page.open()
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff\xe0 not much of a picture")
    page.drop("#test", [broken, pictures[CLASSES[0]][0]])
    page.wait(lambda: "broken.jpg" in page.one("#toasts").text)
    page.wait(lambda: len(page.all("#test .thumb")) == 1)
    assert "Waits for two classes" in page.one("#test").text
    page.browser.save_screenshot(str(page.screenshots / "studio-broken.png"))


def test_everything_has_a_name_and_the_keyboard_reaches_it(page: Page, pictures: Pictures) -> None:
    page.server.teach({name: pictures[name][:2] for name in CLASSES[:2]})
    page.open()
    page.settle()
    assert len(page.all("#classes .thumb")) == 4
    unnamed = page.browser.execute_script("""
        return [...document.querySelectorAll("button, input, select, a, summary, circle, [role=tab]")]
          .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length))
          .map((e) => e.outerHTML)
    """)
    assert unnamed == []
    seen = set()
    for _ in range(40):
        page.key(Keys.TAB)
        active = page.browser.switch_to.active_element
        seen.add(active.get_attribute("id") or active.get_attribute("class"))
    assert {"name", "undo", "tab-teach", "thumb", "new-name"} <= seen
    page.one("#tab-teach").send_keys(Keys.ARROW_RIGHT)
    assert page.one("#answers").is_displayed()
    page.one("#tab-answers").send_keys(Keys.ARROW_LEFT)
    page.one("#classes .thumb").send_keys("2")  # a focused image goes to the second class
    page.wait(lambda: list(page.classes().values()) == [1, 3])
    page.one("#classes .thumb").send_keys(Keys.DELETE)
    page.wait(lambda: list(page.classes().values()) == [0, 3])
    page.one("body").send_keys(Keys.CONTROL, "z")
    page.wait(lambda: list(page.classes().values()) == [1, 3])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_against_any_view(page: Page, pictures: Pictures, theme: str) -> None:
    page.dark(theme == "dark")
    page.open()
    assert violations(page) == [], "an empty project"
    page.server.teach({name: pictures[name][:4] for name in CLASSES[:3]})
    page.server.add("pool", *pictures[CLASSES[0]][5:8])
    page.server.add("test", *pictures[CLASSES[1]][5:7], *pictures[CLASSES[3]][:1])
    page.server.add("h1", *pictures[CLASSES[0]][9:11], *pictures[CLASSES[1]][9:10])
    page.settle()
    page.tab("answers")
    page.drop("#answers .drop", pictures[CLASSES[2]][9:11])
    page.wait(lambda: len(page.all("#answers-rows tr")) == 2)
    dialogs = (
        ("viewer", "#classes .thumb", "#viewer .close"),
        ("deploy", "[data-deploy]", "#deploy .close"),
        ("camera", "#open-camera", "#camera .close"),
    )
    for tab in ("answers", "label", "review", "held", "map", "teach"):
        page.tab(tab)
        page.wait(lambda: page.browser.execute_script("return !document.getAnimations().length"))
        assert violations(page) == [], tab
    for name, opener, closer in dialogs:
        page.click(opener)
        page.wait(page.one(f"#{name}").is_displayed)
        assert violations(page) == [], name
        page.click(closer)


def projects(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.client.get("/shelf/projects").json()["projects"]
    return found


def test_axe_finds_nothing_against_the_start_page_where_projects_are_renamed(
    browser: Any, screenshots: Path, tmp_path: Path
) -> None:
    server = Server("studio", "--no-browser", environment={"HOME": str(tmp_path)})
    try:
        for name in ("birds at the feeder", "parts"):
            server.client.post("/shelf/projects", json={"name": name}).raise_for_status()
        server.client.post("/shelf/close")
        page = Page(browser, server, screenshots, tmp_path)
        for dark in (False, True):
            page.dark(dark)
            browser.get(server.address)
            page.wait(lambda: len(page.all("#projects > li")) == 2)
            assert violations(page) == []
        page.picture("start")
        entry = next(each for each in page.all("#projects textarea") if each.get_attribute("value") == "parts")
        entry.send_keys(" on the bench", Keys.ENTER)  # the Enter that ends it is no part of the name
        page.wait(lambda: "parts on the bench" in {each["name"] for each in projects(server)})
    finally:
        page.dark(False)
        server.kill()


def test_a_folder_is_classified_counted_and_taken_away(page: Page, pictures: Pictures, tmp_path: Path) -> None:
    page.server.teach({name: pictures[name][:5] for name in CLASSES[:3]})
    page.open()
    page.settle()
    page.tab("answers")
    for name in CLASSES[:3]:
        (tmp_path / "held out" / name).mkdir(parents=True)
        for path in pictures[name][6:10]:
            (tmp_path / "held out" / name / path.name).write_bytes(path.read_bytes())
    page.one("#answers-path").send_keys(str(tmp_path / "held out"))
    page.click("#answers-folder button")
    page.wait(lambda: len(page.all("#answers-rows tr")) == 12)
    page.wait(lambda: "of 12 images" in page.one("#answers-accuracy").text)
    for button, pattern in (("table", "*.csv"), ("report", "*.html"), ("sorted", "*.zip")):
        page.click(f"#answers-{button}")
        page.wait(partial(lambda wanted: list(page.downloads.glob(wanted)), pattern))
    page.picture("answers")
    # dropped ones take their place
    page.drop("#answers .drop", pictures[CLASSES[0]][6:9])
    page.wait(lambda: len(page.all("#answers-rows tr")) == 3)
    assert page.complaints() == []


def test_images_held_out_are_answered_counted_and_never_learned_from(
    page: Page, pictures: Pictures, tmp_path: Path
) -> None:
    page.server.teach({name: pictures[name][:5] for name in CLASSES[:3]})
    page.open()
    page.settle()
    page.tab("held")
    for name in CLASSES[:3]:
        (tmp_path / "held out" / name).mkdir(parents=True)
        for path in pictures[name][6:8]:
            (tmp_path / "held out" / name / path.name).write_bytes(path.read_bytes())
    page.one("#held-folder").send_keys(str(tmp_path / "held out"))
    page.wait(lambda: "6 of 6 images answered rightly" in page.one("#held-score").text)
    page.drop("#held-classes > li:nth-child(2)", [pictures[CLASSES[0]][9]])  # which it is not
    page.wait(lambda: "6 of 7 images answered rightly" in page.one("#held-score").text)
    assert len(page.all("#held-worst > li")) == len(page.all("#held-confusion .wrong")) == 1
    page.learned(15)
    page.picture("held")
    page.click("#hold-out")
    page.wait(lambda: "of 10 images" in page.one("#held-score").text)
    page.learned(12)
    page.click("#undo")
    page.learned(15)
    assert page.complaints() == []


def test_several_images_are_chosen_and_moved_or_removed_together(page: Page, pictures: Pictures) -> None:
    page.server.teach({name: pictures[name][:5] for name in CLASSES[:2]})
    page.open()
    page.settle()
    first = "#classes > li:nth-child(1)"
    ActionChains(page.browser).key_down(Keys.CONTROL).click(page.one(f"{first} .thumb")).key_up(
        Keys.CONTROL
    ).perform()
    last = page.one(f"{first} ul li:nth-child(3) .thumb")
    ActionChains(page.browser).key_down(Keys.SHIFT).click(last).key_up(Keys.SHIFT).perform()
    page.wait(lambda: page.one("#selection b").text == "3 images chosen")
    page.click("#selection option[value=c2]")
    page.wait(lambda: list(page.classes().values()) == [2, 8])
    assert not page.one("#selection").is_displayed()
    page.click(f"{first} [data-all]")
    page.wait(lambda: page.one("#selection b").text == "2 images chosen")
    page.click("#selection [data-remove]")
    page.wait(lambda: list(page.classes().values()) == [0, 8])
    page.click("#undo")
    page.wait(lambda: list(page.classes().values()) == [2, 8])
    assert page.complaints() == []


def test_what_became_of_files_is_said_and_a_right_label_is_remembered(page: Page, pictures: Pictures) -> None:
    page.server.teach({name: pictures[name][:5] for name in CLASSES[:2]})
    page.open()
    page.settle()
    page.drop("#classes > li:nth-child(2)", pictures[CLASSES[0]][:1])
    page.wait(lambda: f"moved from {CLASSES[0]} to {CLASSES[1]}" in page.one("#toasts").text)
    page.settle()
    page.tab("review")
    page.wait(lambda: len(page.all("#suspects > li")) == 1)
    page.click("#suspects .ghost")
    page.wait(lambda: not page.all("#suspects > li"))
    page.open()
    page.settle()
    assert not page.all("#suspects > li")
    # an unlabelled image gets a class of its own without leaving the view
    page.tab("label")
    page.drop("#pool", pictures[CLASSES[2]][:1])
    page.wait(lambda: "added to the unlabelled images" in page.one("#toasts").text)
    page.wait(lambda: page.one("#asking form input").send_keys(CLASSES[2], Keys.ENTER) or True)
    page.wait(lambda: page.classes().get(CLASSES[2]) == 1)
    assert page.complaints() == []
