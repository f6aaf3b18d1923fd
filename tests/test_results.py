"""benchmark/results.py and stats.py: our pages as they are, and with one thing changed."""

import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from benchmark import figures, results, stats, store

QUICK = {"run": "door-demo_bear_warmup-500_quick-start_float32_0"}
FORKS = {"run": "door-human_bear_forks_tf32_0-2"}
RESULTS, Q = "benchmark/RESULTS.md.j2", "benchmark/results/q.md.j2"
SCORES, WEIGHTS = "benchmark/results/scores.md.j2", "benchmark/results/weights.md.j2"


@pytest.fixture(scope="module")
def t():
    return store.load()


def test_pages_and_pictures_are_what_the_tables_give_and_no_result_is_typed():
    assert results.main(results.Args(check=True)) == []


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A project without pages."""
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "TEMPLATES", tmp_path / "templates")
    (tmp_path / "templates").mkdir()
    return tmp_path


@pytest.mark.parametrize("text, line", [
    ("# Page\n\nQ is 277.\n", 3), ("# Page\n", 3), ("# Page\n\nQ is 276.\n\nMore.\n", 5), ("", 1),
])  # fmt: skip
def test_any_other_digit_or_line_of_a_page_is_seen(root, text, line):
    right = "# Page\n\nQ is 276.\n"
    (root / "PAGE.md").write_text(text)
    assert results.wrong_page(root / "PAGE.md", right) == [
        f"PAGE.md:{line}: not what templates/PAGE.md.j2 gives"
    ]
    (root / "PAGE.md").write_text(right)
    assert results.wrong_page(root / "PAGE.md", right) == []


@pytest.mark.parametrize("text, found", [
    ("Q is 41.5.", ["41.5"]), ("4.3e8, 1,234.5", ["4.3e8", "1,234.5"]),
    ("10⁻³ or 1e-5", ["10⁻³", "1e-5"]),
    ("{{ paper('0.845') }} {% do check(x < 0.5) %} `0.5` [a](b-0.5.md) §5.3, 2.13.0, 4 of 5", []),
    ("```\n0.5\n```\nand 0.5", ["0.5"]),
])  # fmt: skip
def test_typed_decimals_and_powers_of_ten_are_found(root, text, found):
    template = root / "templates" / "PAGE.md.j2"
    template.write_text("\n" + text)
    lines = results.typed(template)
    assert [line.split()[1] for line in lines] == found
    assert all(line.startswith("templates/PAGE.md.j2:") for line in lines)


def changed(tmp_path, table, column, row, factor):
    """All tables, with other numbers in some cells of one."""
    for file in store.FOLDER.glob("*.*"):
        shutil.copy(file, tmp_path)
    rows = pd.read_csv(tmp_path / f"{table}.csv")
    chosen = (rows[list(row)] == list(row.values())).all(axis=1)
    assert chosen.any()
    rows.loc[chosen, column] *= factor
    rows.to_csv(tmp_path / f"{table}.csv", index=False)
    return store.load(tmp_path)


@pytest.mark.parametrize("page, table, column, row", [
    (WEIGHTS, "history", "target_q", FORKS | {"agent": 1, "step": 92_500}),
    (WEIGHTS, "history", "q_share", FORKS | {"agent": 0, "step": 50_000}),
    (SCORES, "policies", "score", {"run": "pen-expert_bear+sn_warmup-10000_float32_0"}),
    (SCORES, "policies", "score_std", {"run": "relocate-expert_bear+sn_warmup-10000_float32_0"}),
    (SCORES, "bc", "score", {"task": "pen-expert", "step": 100_000}),
    (WEIGHTS, "diagnoses", "auroc_shuffled", {"run": "walker2d-expert_uwac-analytic_float32_0"}),
    (Q, "returns", "q_std", {"run": "hammer-expert_uwac-no-sn_warmup-10000_float32_0"}),
    (Q, "runs", "max_reward", {"task": "pen-expert"}),
    (WEIGHTS, "lunarlander", "auroc_variance", {"removed": "top", "step": 8000}),
    ("benchmark/results/cost.md.j2", "speed", "ms", {"version": "UWAC mc"}),
    ("README.md.j2", "returns", "q", QUICK),
    ("README.md.j2", "speed", "ms", {"version": "UWAC mc"}),
])  # fmt: skip
def test_a_page_follows_its_tables(t, tmp_path, page, table, column, row):
    render = lambda t: results.environment(t).get_template(page).render()
    assert render(changed(tmp_path, table, column, row, 1.2)) != render(t)


def test_words_that_no_longer_hold_are_an_error(tmp_path):
    row = {"run": "door-human_uwac-no-sn_float32_0", "step": 100_000}
    t = changed(tmp_path, "history", "target_q", row, 1e5)
    with pytest.raises(ValueError, match=r"templates/.*\.j2:\d+: the tables no longer say"):
        results.pages(t)


def test_a_picture_of_other_pixels_is_seen(t, root):
    draw = lambda factor: figures.final_q(SimpleNamespace(**vars(t) | {
        "history": t.history.assign(target_q=factor * t.history["target_q"])}))  # fmt: skip
    file = root / "a.png"
    for kept, right in ((draw(1), True), (draw(1.5), False), (figures.published(), False)):
        kept.savefig(file)
        assert (results.wrong_picture(file, draw(1)) == []) == right
    with Image.open(file) as image:
        Image.new("RGBA", image.size, "white").save(file)
    assert results.wrong_picture(file, figures.published())[0].startswith("a.png: not what")


@pytest.mark.parametrize("arguments, problem", [
    (("target_q", "none"), "none: no study; there are door-human, forks"),
    (("nothing", "forks"), "nothing: no metric"),
    (("target_q", "forks", "BAER"), "BAER: no run has this name"),
    (("target_q", "forks", "UWAC", 30), "target_q of forks, UWAC: nothing was measured then"),
])  # fmt: skip
def test_what_get_does_not_find_is_an_error(t, arguments, problem):
    words = results.Words(t)
    with pytest.raises(ValueError, match=problem):
        words.get(*arguments)
    assert words.get("target_q", "forks", "UWAC", at=30, empty=True).empty


def test_cells_by_hand(t):
    """By Student's t of two degrees of freedom, 4.303; of episodes by 1.960 standard errors."""
    words = results.Words(t)
    series = lambda *values: pd.Series(values, dtype=float)
    assert words.cell(series(1, 2, 3)) == "2.0 [-0.5, 4.5] (3)"
    assert words.cell(series(1, 2)) == "1.5 (2)" and words.cell(series()) == "–"
    assert words.cell(series(5), series(10), digits=0) == "5 [-15, 25]* (1)"
    assert words.cell(series(2, 2, 2)) == "2.0 (3)"
    assert words.gap(series(1, 2, 3), series(2, 3, 4)) == "-1.0 [-3.3, 1.3] (3)"
    assert words.gap(series(1, 2, 3), series(4)) == "-3.0 (1)"  # of the first seed alone
    assert words.gap(series(1, 2, 3), pd.Series([4.0], index=[9])) == "-2.0 (1)"


def test_a_q_without_a_bound_does_not_count_as_below_it(t):
    words = results.Words(SimpleNamespace(runs=t.runs.assign(bound=np.nan)))
    with pytest.raises(ValueError, match="door-human_bear_forks_tf32_0-2: no bound is known"):
        words.past_bound(results.Words(t).get("target_q", "forks", "BEAR", at=92_500))


def test_a_seed_that_ran_twice_counts_once_and_one_that_was_not_played_is_marked():
    """Seeds 0 and 1 ran in a stack, and 0 alone as well."""
    rows = [("a", 0, 4, 4, 1), ("a", 1, 6, 6, 1), ("b", 0, 8, 8, 1), ("c", 0, np.nan, 9, np.nan)]
    agents = pd.DataFrame(rows, columns=["run", "agent", "sample", "score_sample", "sample_se"])
    runs = pd.DataFrame({"run": ["a", "b", "c"], "seed": [0, 0, 2], "name": "BEAR"})
    agents = agents.assign(step=20).merge(runs, on="run")
    studies = {"all": {"where": "seed >= 0"}}
    words = results.Words(SimpleNamespace(agents=agents, runs=runs, studies=studies))
    assert words.by_seed(words.get("score_sample", "all", at=20)).to_dict() == {0: 6, 1: 6, 2: 9}
    assert words.score("all", "BEAR", at=20) == "7.0 [2.7, 11.3] (3)†"


@pytest.mark.parametrize("form, value, text", [
    (stats.plain, -0.04, "0"), (stats.short, np.nan, "–"), (stats.fraction, 0.00453, "0.005"),
    (stats.of_q, 999_999.4, "999,999"), (stats.of_q, 1.3460406e10, "1.3e10"),
])  # fmt: skip
def test_how_numbers_are_printed_that_our_pages_lack(form, value, text):
    assert form(value) == text


def test_add_writes_the_pages(root, monkeypatch, capsys):
    """As --check says before and after; nothing is written where a template fails."""
    for module in (results.figures, results.drawings):
        monkeypatch.setattr(module, "ours", lambda t: {})
    added = lambda paths, hardware, study: [f"{paths[0]} {hardware} {study}"]
    monkeypatch.setattr(results.store, "add", added)
    (root / "templates" / "PAGE.md.j2").write_text('{{ data("door-human", "bound") | n }}\n')
    (root / "PAGE.md").write_text("7\n")
    assert results.main(results.Args(check=True)) == [
        "PAGE.md:1: not what templates/PAGE.md.j2 gives"
    ]
    assert results.main(results.Args("add", (root / "run",), "a Xeon", "class")) == []
    assert (root / "PAGE.md").read_text() == "1,999\n" and capsys.readouterr().out.endswith(
        "a Xeon class\n"
    )
    assert results.main(results.Args(check=True)) == []
    for text, line in (("\n{{ nothing }}", 2), ("{{ 1", 1), ('{{ data("a", "b") }}', 1)):
        (root / "templates" / "PAGE.md.j2").write_text(text)
        with pytest.raises(ValueError, match=f"templates/PAGE.md.j2:{line}: "):
            results.main(results.Args())
    assert (root / "PAGE.md").read_text() == "1,999\n"
