"""Which peer is the best, what the tables say, and that the charts are drawn."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from harness import charts, tables
from harness.measure import Outcome, Result
from harness.processes import Cores, share_cores
from harness.report import Report, outcomes_of
from harness.scenarios import FULL, Scenario, all_scenarios, growth, memory, scaling
from run import chooser

OWN, SLOW, FAST = "wsgi-router", "sglang-router 0.3.2", "smg 1.13.0"


def result(**more: Any) -> Result:
    times = {"p50": 1.0, "p99": 2.0}
    return {
        "errors": {"count": 0},
        "text_bytes": 9,
        "ttft_ms": times,
        "itl_ms": times,
        "e2e_ms": times,
        "cpu_s": 1.0,
        "wall_s": 2.0,
        "client_cpu_s": 0.1,
        "rss_mib": {"before": 100.0, "peak": 110.0, "after": 105.0},
        "pss_mib": {"before": 80.0, "after": 90.0},
        **more,
    }


def outcome(scenario: Scenario, **runs: Result) -> Outcome:
    names = {"own": OWN, "slow": SLOW, "fast": FAST}
    return Outcome(scenario, {names[key]: [one] for key, one in runs.items()})


@pytest.fixture
def compared() -> Outcome:
    return outcome(
        all_scenarios(FULL)[0],
        own=result(tokens_per_cpu_s=300),
        slow=result(tokens_per_cpu_s=100, ttft_ms={"p50": 0.5, "p99": 0.7}),
        fast=result(tokens_per_cpu_s=200),
    )


def test_the_best_peer_is_the_best_in_each_figure_of_its_own(compared: Outcome) -> None:
    assert compared.best_peer() == FAST
    assert compared.best_peer("ttft_ms", "p50", lowest=True) == SLOW
    (line,) = tables.against_best([compared])[2:]
    assert line == f"| streams-20 | tokens a CPU-second | {OWN} | 300 | {FAST} | 200 | **1.50** |"
    (line,) = tables.added_times([compared])[2:]
    assert "| 1.0 | 0.5 (sglang-router) | 2.0 | 0.7 (sglang-router) |" in line


def test_a_void_peer_is_not_the_best(compared: Outcome) -> None:
    compared.runs[FAST][0]["errors"] = {"count": 1, "kinds": {"status 429": 1}}
    assert compared.best_peer() == SLOW


def test_what_the_worker_takes_itself_is_not_added() -> None:
    (scenario,) = [one for one in all_scenarios(FULL) if one.name == "headline"]
    late = result(tokens_per_cpu_s=1, ttft_ms={"p50": 134.0, "p99": 150.0})
    (line,) = tables.added_times([outcome(scenario, own=late, slow=late)])[2:]
    assert line.startswith(f"| headline | {OWN} | 4.0 | 4.0 (sglang-router) | 20.0 |")


def test_growth_is_told_against_20_streams() -> None:
    costs = {1: 40.0, 20: 20.0, 5000: 25.0}
    made = [
        outcome(scenario, own=result(cpu_us_per_token=1.0, cpu_us_per_token_less_idle=costs[streams]))
        for scenario in growth(FULL)
        if (streams := int(scenario.options["streams"])) in costs
    ]
    lines = tables.growth(made)[2:]
    assert [line.split(" | ")[2:4] for line in lines] == [
        ["40.0", "2.00"],
        ["20.0", "1.00"],
        ["25.0", "1.25"],
    ]


def test_memory_of_a_stream_and_the_share_of_the_least_peer() -> None:
    made = outcome(memory(FULL)[0], own=result(), slow=result(pss_mib={"before": 1.0, "after": 180.0}))
    assert tables.memory([made])[2].endswith("| 80.0 | 90.0 | 51.2 | 0.50 |")


def test_processes_are_told_against_one() -> None:
    scenario = scaling(FULL)[0]
    made = Outcome(scenario, {"one": [result(requests_per_s=10)], "two": [result(requests_per_s=19)]})
    assert [line.split(" | ")[3] for line in tables.processes([made])[2:]] == ["1.00", "1.90"]
    made.runs["one"][0]["errors"] = {"count": 1, "kinds": {"status 503": 1}}
    assert [line.split(" | ")[1:4] for line in tables.processes([made])[2:]] == [["two", "19", ""]]


def test_a_report_comes_back_from_its_json_and_draws_charts(compared: Outcome, tmp_path: Path) -> None:
    report = Report("t", "c", {"cores": 2}, [compared], {"paced": {"started": 3}}, {})
    (back,) = outcomes_of(json.loads(json.dumps(report.as_json())))
    assert back == compared
    drawn = charts.draw([back], tmp_path)
    assert set(drawn) == {"ratio.svg", "ttft.svg", "itl.svg"}
    for name in drawn:
        picture = ElementTree.parse(tmp_path / name)
        assert not [tag for tag in picture.iter() if tag.tag.endswith("script")]
        assert FAST in "".join(picture.getroot().itertext())
    text = Report("t", "c", {}, [back], {}, drawn).markdown()
    assert "](charts/ratio.svg)" in text


def test_scenarios_are_chosen_by_name_or_by_the_beginning_of_it() -> None:
    every = all_scenarios(FULL)
    names = [scenario.name for scenario in every]

    def chosen(*wanted: str) -> list[str]:
        choose = chooser(list(wanted), names)
        return [scenario.name for scenario in every if choose(scenario)]

    assert chosen("streams-20") == ["streams-20"]
    assert chosen("first-token") == ["first-token", "first-token-kept"]
    assert len(chosen("growth")) == 6
    assert "streams-2000" in chosen()
    assert "streams-5000" not in chosen()
    with pytest.raises(SystemExit, match="nonsense"):
        chosen("nonsense")


def test_cores_are_shared_where_there_are_four() -> None:
    assert share_cores({0, 1}) == Cores()
    assert share_cores({4, 2, 7, 9, 3}) == Cores(frozenset({2}), frozenset({3}), frozenset({4, 7, 9}))
