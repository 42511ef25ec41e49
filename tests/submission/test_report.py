"""The report: its data, its text in the terminal, and its page in a real browser."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from arc_trm.vote import Tally, outputs_of
from data_prep.files import InputError
from data_prep.grid import Grid
from data_prep.tasks import Task
from submission.attempts import Attempts, Submission
from submission.report import (
    Answer,
    Inline,
    Material,
    answers,
    main,
    render_page,
    report_remarks,
    run_rows,
    show_attempts,
    verdict,
)
from submission.submission_file import write_submission
from tests.arc_trm.plain_vote import votes_for
from tests.data_prep.material import as_json, grid, pair, task
from tests.submission.browser import Browser, chromium

EVIL = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
INPUT, TRUTH = ["01", "23", "45"], ["345", "678"]
NEAR, FAR, OTHER = ["345", "679"], ["34", "67"], ["000", "111"]


def made_task(task_id: str, tests: int = 1) -> Task:
    return task(task_id, [pair(INPUT, TRUTH), pair(TRUTH, INPUT)], [pair(INPUT, TRUTH)] * tests)


TASKS = [made_task("alpha"), made_task("beta"), made_task("gamma", tests=2), made_task(EVIL)]
# For every output the predicted grids, one vote each; and the attempts, which need not come from them.
VOTES = [[TRUTH, TRUTH, TRUTH, NEAR], [NEAR, NEAR, TRUTH], [TRUTH, TRUTH, NEAR], [NEAR, NEAR, FAR, FAR, TRUTH], []]
ATTEMPTS = [(TRUTH, NEAR), (NEAR, TRUTH), (TRUTH, NEAR), (NEAR, FAR), (OTHER, INPUT)]


def submission() -> Submission:
    attempts = iter([Attempts(grid(first), grid(second)) for first, second in ATTEMPTS])
    return {one.task_id: tuple(next(attempts) for _ in one.tests) for one in TASKS}


def tally() -> Tally:
    """Halting probability 0.25 for the first vote for an output, a bit more for each further one."""
    counted = Tally(outputs_of(TASKS))
    votes = ((output, i, grid(rows)) for output, grids in enumerate(VOTES) for i, rows in enumerate(grids))
    counted.add(votes_for([(output, shown, 0.25 + 0.05 * i) for output, i, shown in votes]))
    return counted


def found(material: Material) -> list[Answer]:
    return [answer for one in material.tasks for answer in answers(material, one)]


FULL = Material(TASKS, submission(), tally().ranked())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that the command reads, and the page that it writes."""
    made = tmp_path_factory.mktemp("report")
    (made / "challenges.json").write_bytes(orjson.dumps({one.task_id: as_json(one, hide=True) for one in TASKS}))
    solutions = {one.task_id: [test.output.tolist() for test in one.tests if test.output is not None] for one in TASKS}
    (made / "solutions.json").write_bytes(orjson.dumps(solutions))
    write_submission(made / "submission.json", submission())
    predicted = {"alpha": [2], "beta": [2], "gamma": [2, 2], EVIL: [0]}
    summary = {"votes": 15, "seconds": {"adaptation": 90.0, "prediction": 30.0}, "scores": {"left": "out"}}
    provenance = {"checkpoint": "c0ffee", "leak": False, "trained_on": ["alpha"], "predicted_attempts": predicted}
    (made / "submission.summary.json").write_bytes(orjson.dumps(provenance | summary))
    tally().save(made / "votes.npz")
    assert main(arguments(made)) == 0
    return made


def arguments(folder: Path) -> list[str]:
    files = {"challenges": "challenges.json", "solutions": "solutions.json", "candidates": "votes.npz"}
    named = [word for name, file in files.items() for word in (f"--{name}", str(folder / file))]
    return [str(folder / "submission.json"), *named, "--out", str(folder / "report.html")]


# What is known of an output -----------------------------------------------------------------------------


def test_outcomes_follow_the_truth_through_attempts_and_candidates() -> None:
    assert [answer.outcome for answer in found(FULL)] == ["first", "second", "first", "ranked", "missed"]
    assert [verdict(answers(FULL, one)) for one in TASKS] == ["solved", "solved", "partly", "unsolved"]


def test_candidates_come_with_the_place_of_the_truth() -> None:
    answer = found(FULL)[0]
    assert answer.candidates is not None
    assert [(c.grid.tolist(), c.votes) for c in answer.candidates] == [
        (grid(TRUTH).tolist(), 3),
        (grid(NEAR).tolist(), 1),
    ]
    assert (answer.votes, answer.rank) == (4, 1)
    nothing = found(FULL)[4]
    assert (nothing.candidates, nothing.rank, nothing.votes) == ([], None, 0)


def test_the_summary_tells_fallbacks_and_troubles() -> None:
    summary = {"predicted_attempts": {"alpha": [1], "gamma": [2, 0], "beta": [2]}, "troubles": ["a hung process"]}
    material = Material(TASKS, submission(), summary=summary)
    assert [answer.predicted for answer in found(material)] == [1, 2, 2, 0, 2]
    assert report_remarks(material) == ["trouble while solving: a hung process"]
    assert run_rows(material) == []


def test_what_the_checkpoint_knew_is_said_and_scored_apart() -> None:
    summary = {"known": ["alpha", "gamma"], "trained_on": ["beta"]}
    lines = report_remarks(Material(TASKS, submission(), summary=summary))
    assert lines[-1] == "solved: 2 of 3 outputs where the demonstrations were trained on, 1 of 2 elsewhere"
    for known in ([], [one.task_id for one in TASKS]):
        lines = report_remarks(Material(TASKS, submission(), summary={"known": known}))
        assert not any(line.startswith("solved: ") for line in lines)


def test_how_well_the_demonstrations_were_learned_stands_with_them() -> None:
    summary = {"demonstrations": {"beta": {"loss": 0.25, "exact_accuracy": "<b>"}}}
    [said] = re.findall(
        "<p class=detail>when adapted: .*?</p>", render_page(Material(TASKS, submission(), summary=summary), "x")
    )
    assert said == "<p class=detail>when adapted: loss 0.25, exact accuracy &lt;b&gt;</p>"


@pytest.mark.parametrize(("truth", "rank"), [(FAR, 1), (NEAR, 2), (TRUTH, 3), (OTHER, None)])
def test_the_rank_of_the_truth_is_by_votes_then_halting(truth: list[str], rank: int | None) -> None:
    # NEAR and FAR have two votes each, FAR's from surer views; TRUTH has one.
    tasks = [replace(one, tests=tuple(replace(test, output=grid(truth)) for test in one.tests)) for one in TASKS]
    assert found(Material(tasks, submission(), tally().ranked()))[3].rank == rank


def test_an_attempt_that_nobody_voted_for_was_put_together() -> None:
    attempts = submission() | {"beta": (Attempts(grid(["000", "678"]), grid(NEAR)),)}
    note = "put together from 3 of 3 votes"
    assert render_page(Material(TASKS, attempts, tally().ranked()), "").count(note) == 1
    assert "put together" not in render_page(FULL, "")


def test_only_what_is_there_is_shown() -> None:
    hidden = [replace(one, tests=tuple(replace(test, output=None) for test in one.tests)) for one in TASKS]
    material = Material(hidden, submission())
    assert {answer.outcome for answer in found(material)} == {"unknown"}
    page = render_page(material, "mine")
    assert "there is no score" in page
    for missing in ("Truth", "differ", "The run", "Leading", "CONTAMINATED", "fallback"):
        assert missing not in page


def test_a_summary_becomes_rows() -> None:
    summary = {"votes": 7, "agreement": 0.61234, "none": None, "left_out": [1], "checkpoint": "c0ffee"}
    summary["seconds"] = {"set-up": 30.0, "adaptation": 90.0}
    assert run_rows(Material(TASKS, submission(), summary=summary)) == [
        ("set-up", "30.0s (25%)"),
        ("adaptation", "1m30s (75%)"),
        ("votes", "7"),
        ("agreement", "0.6123"),
    ]


# Files --------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_wrote(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(folder)) == 0
    said = capsys.readouterr().out
    assert re.fullmatch(r"wrote .*/report\.html: 4 tasks, 5 outputs, 3 of 5 solved, 0\.\d MB\n", said)


def test_other_tasks_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_bytes(orjson.dumps({"zeta": as_json(made_task("zeta"))}))
    plain = [str(folder / "submission.json"), "--out", str(tmp_path / "x.html"), "--challenges"]
    with pytest.raises(InputError, match=r"none of the 1 tasks of .*other\.json is in it"):
        main([*plain, str(tmp_path / "other.json")])
    Tally(outputs_of([made_task("zeta")])).save(tmp_path / "other.npz")
    with pytest.raises(InputError, match=r"other\.npz: has votes for none of the 4 tasks"):
        main([*plain, str(folder / "challenges.json"), "--candidates", str(tmp_path / "other.npz")])
    assert not (tmp_path / "x.html").exists()


def test_the_title_can_be_chosen(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.html"
    assert main([*arguments(folder), "--title", "A & B", "--out", str(out)]) == 0
    assert "<title>A &amp; B</title>" in out.read_text()


def test_a_page_that_is_not_there_is_a_line_in_a_notebook(folder: Path) -> None:
    assert Inline(folder / "none.html")._repr_html_() == "<p>There is no none.html.</p>"


# Text ---------------------------------------------------------------------------------------------------

TEXT_TASK = task("abc", [pair(["12"], ["3"])], [pair(["1", "2"], TRUTH), pair(["7"], TRUTH)])
TEXT_ANSWERS = (Attempts(grid(NEAR), grid(TRUTH)), Attempts(grid(FAR), grid(NEAR)))


def test_attempts_are_compared_with_the_truth() -> None:
    assert show_attempts([TEXT_TASK], {"abc": TEXT_ANSWERS}).split("\n") == [
        "abc, test 0",
        "attempt 1: 1 of 6 cells differ",
        "attempt 2: right",
        "input    attempt 1    attempt 2    truth",
        "1        3 4 5        3 4 5        3 4 5",
        "2        6 7 9        6 7 8        6 7 8",
        "",
        "abc, test 1",
        "attempt 1: 2 × 2 instead of 2 × 3",
        "attempt 2: 1 of 6 cells differ",
        "input    attempt 1    attempt 2    truth",
        "7        3 4          3 4 5        3 4 5",
        "         6 7          6 7 9        6 7 8",
    ]


def test_votes_are_said_where_they_are_known() -> None:
    tally = Tally(outputs_of([TEXT_TASK]))
    tally.add(votes_for([(0, grid(rows), 0.5) for rows in (NEAR, NEAR, TRUTH)]))
    shown = show_attempts([TEXT_TASK], {"abc": TEXT_ANSWERS}, tally.ranked()).split("\n")
    assert shown[1:3] == ["attempt 1: 67% of 3 votes, 1 of 6 cells differ", "attempt 2: 33% of 3 votes, right"]
    assert shown[8] == "attempt 1: a guess, 2 × 2 instead of 2 × 3"


def test_a_consensus_that_nobody_voted_for_is_said() -> None:
    tally = Tally(outputs_of([TEXT_TASK]))
    tally.add(votes_for([(0, grid(TRUTH), 0.5)]))
    shown = show_attempts([TEXT_TASK], {"abc": TEXT_ANSWERS}, tally.ranked()).split("\n")
    assert shown[1] == "attempt 1: put together from 1 of 1 votes, 1 of 6 cells differ"


def test_the_command_prints_chosen_tasks_or_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    challenges, answers = tmp_path / "c.json", tmp_path / "submission.json"
    challenges.write_bytes(orjson.dumps({name: as_json(TEXT_TASK, hide=True) for name in ("abc", "abd")}))
    write_submission(answers, {"abc": TEXT_ANSWERS, "abd": TEXT_ANSWERS})
    words = [str(answers), "--text", "--challenges", str(challenges)]
    assert main([*words, "abd"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("abd, test 0\ninput    attempt 1    attempt 2\n1        3 4 5        3 4 5\n")
    assert main(words) == 0
    assert capsys.readouterr().out.count("test 1") == 2
    (tmp_path / "s.json").write_bytes(orjson.dumps({name: [grid(TRUTH).tolist()] * 2 for name in ("abc", "abd")}))
    assert main([*words, "abc", "--solutions", str(tmp_path / "s.json")]) == 0
    assert "attempt 2: right" in capsys.readouterr().out
    with pytest.raises(InputError, match="no task abx among its 2 tasks; near it: abd, abc"):
        main([*words, "abx"])


def test_a_page_of_chosen_tasks_has_only_these(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.html"
    assert main([*arguments(folder), "beta", "--out", str(out)]) == 0
    assert re.findall(r"<span class=id>(.*?)</span>", out.read_text()) == ["beta"]


# Page ---------------------------------------------------------------------------------------------------


def test_nothing_in_the_data_can_become_markup() -> None:
    summary = {"known": [EVIL], "trained_on": [EVIL], "troubles": [EVIL], EVIL: EVIL}
    page = render_page(Material(TASKS, submission(), tally().ranked(), summary), EVIL)
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("document.title") > 4


def test_the_page_needs_no_network(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|<(link|img|iframe)\b|@import|url\((?!#cells\))", page)


def test_four_hundred_tasks_stay_light() -> None:
    def draw(seed: int) -> Grid:
        """A rectangle and a line on 20 by 20 cells."""
        cells = np.zeros((20, 20), dtype=np.uint8)
        cells[seed : seed + 5, 3 : 3 + seed] = 1 + seed
        cells[:, seed] = 9
        return cells

    shown = [["".join(map(str, row)) for row in draw(seed).tolist()] for seed in range(2, 8)]
    tasks = [task(f"t{i}", [pair(shown[0], shown[1])] * 3, [pair(shown[2], shown[3])]) for i in range(400)]
    handed_in = {one.task_id: (Attempts(grid(shown[4]), grid(shown[5])),) for one in tasks}
    assert len(render_page(Material(tasks, handed_in), "many")) < 10_000_000


# In a browser -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


def ids(browser: Browser) -> list[str]:
    """The tasks that can be seen."""
    visible = "[...document.querySelectorAll('.card')].filter((card) => card.checkVisibility())"
    names: list[str] = browser.run(f"{visible}.map((card) => card.querySelector('.id').textContent)")
    return names


def texts(browser: Browser, selector: str) -> list[str]:
    shown: list[str] = browser.run(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")
    return shown


def test_the_page_opens_quietly_and_shows_the_scores(browser: Browser, folder: Path) -> None:
    browser.open(folder / "report.html")
    assert ids(browser) == [one.task_id for one in TASKS]
    assert texts(browser, ".tiles .figure") == ["60.00%", "62.50%", "50.00%"]
    assert texts(browser, ".legend b") == ["2", "1", "1", "1"]
    assert any("CONTAMINATED" in line for line in texts(browser, ".notice .alarm"))
    assert "The run" in texts(browser, ".panel h2")
    assert texts(browser, "dl div")[:2] == ["adaptation1m30s (75%)", "prediction30.0s (25%)"]
    assert texts(browser, ".cardfoot")[0] == "75% of votes agreecontaminated"
    assert browser.run("document.title") == "submission.json"
    assert browser.complaints == []


def test_an_outcome_chooses_the_tasks_that_have_it(browser: Browser, folder: Path) -> None:
    browser.open(folder / "report.html")
    for outcome, shown in (("first", ["alpha", "gamma"]), ("ranked", ["gamma"]), ("missed", [EVIL])):
        browser.run(f"document.getElementById('show-{outcome}').click()")
        assert ids(browser) == shown
    browser.run("document.getElementById('show-all').click()")
    assert len(ids(browser)) == 4


def test_a_card_opens_to_one_task_in_full(browser: Browser, folder: Path) -> None:
    browser.open(folder / "report.html")
    card = ".card:nth-of-type(3)"
    assert not browser.run(f"document.querySelector('{card} h3').checkVisibility()")
    browser.run(f"document.querySelector('{card} summary').click()")
    assert browser.run(f"document.querySelector('{card} h3').checkVisibility()")
    assert texts(browser, f"{card} h3") == [
        "Demonstrations",
        "Test 1 of 2: solved by attempt 1",
        "Test 2 of 2: predicted, but not handed in",
    ]
    assert texts(browser, f"{card} figure .note") == [
        "✓ right",
        "✗ 1 of 6 cells differ",
        "✗ 1 of 6 cells differ",
        "✗ 2 × 2 instead of 2 × 3",
    ]
    labels = browser.run("[...document.querySelectorAll('[role=img]')].map((e) => e.getAttribute('aria-label'))")
    assert "Test input: 01/23/45" in labels
    assert "Leading 3 of 3 candidates, 5 votes; the truth is number 3" in texts(browser, f"{card} h4")
    assert texts(browser, f"{card} .candidatefacts p")[:2] == [
        "2 votes (66.7%) attempt 1 ✓ truth",
        "halting probability 27.5%",
    ]
    assert browser.complaints == []


def test_an_evil_id_is_only_a_text(browser: Browser, folder: Path) -> None:
    browser.open(folder / "report.html")
    assert texts(browser, ".card:nth-of-type(4) .cardhead") == [f"{EVIL}✗ not solved"]
    assert texts(browser, ".card:nth-of-type(4) .note")[0] == "a fallback, not predicted; ✗ 6 of 6 cells differ"
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run("document.title") == "submission.json"
    assert browser.complaints == []


def test_the_page_follows_theme_and_paper(browser: Browser, folder: Path) -> None:
    colours = {"dark": "rgb(18, 21, 25)", "light": "rgb(244, 245, 247)"}
    for scheme, colour in colours.items():
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.call("Emulation.setEmulatedMedia", media="", features=features)
        browser.open(folder / "report.html")
        assert browser.run("getComputedStyle(document.body).backgroundColor") == colour
    browser.call("Emulation.setEmulatedMedia", media="print", features=features)
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.call("Emulation.setEmulatedMedia", media="", features=[])
    assert browser.complaints == []


def test_a_phone_shows_everything_in_its_width(browser: Browser, folder: Path) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=True)
    browser.open(folder / "report.html")
    for card in range(3):
        assert browser.run("document.documentElement.scrollWidth") <= 360
        browser.run(f"document.querySelectorAll('.card summary')[{card}].click()")
    browser.call("Emulation.clearDeviceMetricsOverride")
    assert browser.complaints == []


def test_a_screenshot_shows_the_grids(browser: Browser, folder: Path, tmp_path: Path) -> None:
    browser.open(folder / "report.html")
    (tmp_path / "page.png").write_bytes(browser.picture())
    from matplotlib import image

    picture = (image.imread(tmp_path / "page.png")[..., :3] * 255).round().astype(int)
    for colour in ((0, 116, 217), (255, 65, 54), (46, 204, 64), (255, 220, 0)):  # 1 to 4 of ARC's palette
        assert (picture == colour).all(axis=-1).sum() > 100, colour


def test_a_notebook_shows_the_page_in_a_frame(browser: Browser, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notebook.html").write_text(f"<title>mine</title>{Inline(folder / 'report.html')._repr_html_()}")
    browser.open(tmp_path / "notebook.html")
    with browser.frame():
        browser.wait("document.readyState === 'complete'")
        browser.run("document.querySelectorAll('.card summary')[1].click()")
        assert texts(browser, "details[open] h3")[0] == "Demonstrations"
    assert browser.complaints == []


def test_a_script_in_the_page_would_not_run_and_would_be_noticed(
    browser: Browser, folder: Path, tmp_path: Path
) -> None:
    page = (folder / "report.html").read_text()
    (tmp_path / "foreign.html").write_text(page.replace("</body>", "<script>document.title = 'taken'</script></body>"))
    browser.open(tmp_path / "foreign.html")
    assert browser.run("document.title") == "submission.json"
    assert len(browser.complaints) == 1


def test_a_report_does_not_replace_what_it_reads(folder: Path) -> None:
    before = (folder / "solutions.json").read_bytes()
    with pytest.raises(InputError, match=r"solutions\.json: is read by this very command"):
        main([*arguments(folder), "--out", str(folder / "solutions.json")])
    assert (folder / "solutions.json").read_bytes() == before
