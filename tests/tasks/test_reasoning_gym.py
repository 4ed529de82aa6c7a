from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from importlib.metadata import version
from itertools import pairwise

import pytest

import headrace_reasoning_gym
from headrace.data import TaskSource
from headrace.errors import VerifierError
from headrace.protocols import Domain, Pack
from headrace.recipe import CurriculumSpec, DomainSpec, TaskSpec
from headrace.types import Json, Task, split_of
from headrace.verify.child import Child, ChildDied, ChildSpent, ChildTimeout
from headrace_reasoning_gym import (
    EXCLUDED,
    WORKER,
    GeneratorDomain,
    OwnScorer,
    ReasoningGymPack,
    final_answer,
    pack,
)
from headrace_reasoning_gym.table import table
from tasks_support import wait_gone

ALL = sorted(table().generators)
WITHOUT_REFERENCE = {"boxnet", "rush_hour"}
"""The library knows no solution of these; the pack solves them itself."""


@pytest.fixture(scope="module")
def first() -> Iterator[ReasoningGymPack]:
    opened = ReasoningGymPack()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def second() -> Iterator[ReasoningGymPack]:
    opened = ReasoningGymPack()
    yield opened
    opened.close()


def domain_of(opened: ReasoningGymPack, generator: str) -> GeneratorDomain:
    return opened.open(f"rg/{generator}")


# --- the table ---------------------------------------------------------------------------------


def test_the_table_is_what_the_library_registers(first: ReasoningGymPack) -> None:
    del first
    child = Child(WORKER)
    described = child.call({"op": "describe"}, deadline=60)
    child.close()
    assert table().version == version("reasoning-gym")
    assert set(table().generators) == set(described) - set(EXCLUDED)
    assert len(ALL) == 104
    for name, generator in table().generators.items():
        known = {level for level in generator.levels if level is not None}
        refused = {int(level) for level in generator.refused if level != "default"}
        assert sorted(known | refused) == list(range(described[name])), name
        assert not known & refused
        assert all(generator.refused.values())
        levels = [level for level in generator.levels if level is not None]
        assert levels == sorted(levels)
        assert levels or generator.levels == (None,)


def test_the_pack_and_its_domains_are_what_they_claim() -> None:
    assert isinstance(pack, Pack)
    assert len(pack.names()) == 104
    domain = pack.open("rg/chain_sum")
    assert isinstance(domain, Domain)
    assert (domain.name, domain.tiers) == (
        "rg/chain_sum",
        len(table().generators["chain_sum"].levels),
    )
    assert domain.verifier.ref.id == "rg/chain_sum"
    assert table().version in domain.verifier.ref.version
    for name in EXCLUDED:
        with pytest.raises(KeyError):
            pack.open(f"rg/{name}")


# --- every generator ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(first: ReasoningGymPack) -> dict[str, Task]:
    """One task of the easiest tier of every generator, made in order."""
    return {name: domain_of(first, name).task(0, 0) for name in ALL}


@pytest.fixture(scope="module")
def made_again(second: ReasoningGymPack) -> dict[str, Task]:
    """The same by another process, which meets the generators the other way round."""
    return {name: domain_of(second, name).task(0, 0) for name in reversed(ALL)}


def test_tasks_do_not_depend_on_the_process_nor_on_what_it_made_before(
    made: dict[str, Task], made_again: dict[str, Task]
) -> None:
    assert {name for name in ALL if made[name] != made_again[name]} == set()


def test_a_generator_that_draws_from_the_global_random_is_reproducible_too(
    first: ReasoningGymPack, second: ReasoningGymPack
) -> None:
    forward = [domain_of(first, "list_functions").task(0, index) for index in range(24)]
    domain_of(second, "list_functions").task(0, 99)
    backward = [domain_of(second, "list_functions").task(0, index) for index in range(24)[::-1]]
    assert backward[::-1] == forward


def test_the_reference_answer_earns_full_marks_and_silence_nothing(
    made: dict[str, Task], second: ReasoningGymPack
) -> None:
    failures: dict[str, object] = {}
    for name in reversed(ALL):
        task, verifier = made[name], domain_of(second, name).verifier
        reference = task.answer["answer"]
        if reference is None:
            assert name in WITHOUT_REFERENCE
        else:
            verdict = verifier.judge(task, f"Well. <answer>{reference}</answer>")
            if not verdict.solved:
                failures[name] = verdict
        for silence in ("", "<answer></answer>", "   "):
            verdict = verifier.judge(task, silence)
            if verdict.score != 0.0:
                failures[f"{name} {silence!r}"] = verdict
    assert failures == {}


def test_a_task_is_the_question_with_the_format_and_hides_its_answer(
    made: dict[str, Task],
) -> None:
    for name, task in made.items():
        text = task.messages[0].text
        assert text.startswith(task.problem.rstrip())
        assert text.endswith("Give your final answer between <answer> and </answer>.")
        assert task.domain == f"rg/{name}"
        assert task.split == split_of(task.domain, task.problem)
        assert {"generator", "tier", "index", "answer"} <= set(task.answer)
        json.dumps(task.answer, allow_nan=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_tier_of_every_generator_is_made_alike_in_two_processes_and_judged_right(
    first: ReasoningGymPack, second: ReasoningGymPack
) -> None:
    cells = [
        (name, tier, index)
        for name in ALL
        for tier in range(domain_of(first, name).tiers)
        for index in (1, 2)
    ]
    forward = {cell: domain_of(first, cell[0]).task(cell[1], cell[2]) for cell in cells}
    different: list[object] = []
    misjudged: list[object] = []
    for name, tier, index in reversed(cells):
        domain, task = domain_of(second, name), forward[name, tier, index]
        if domain.task(tier, index) != task:
            different.append((name, tier, index))
        reference = task.answer["answer"]
        if reference is not None and not domain.verifier.judge(task, reference).solved:
            misjudged.append((name, tier, index))
        if domain.verifier.judge(task, "").score != 0.0:
            misjudged.append((name, tier, index, "silence"))
    assert (different, misjudged) == ([], [])


# --- generators without a reference answer, solved here ------------------------------------------


def board_moves(board: str) -> Iterator[tuple[str, str]]:
    """Every move of one car on a 6 x 6 board: (move, board after)."""
    for car in sorted(set(board) - {"o", "x"}):
        cells = [at for at, letter in enumerate(board) if letter == car]
        step = cells[1] - cells[0]
        for sign in (1, -1):
            front = cells[-1] if sign == 1 else cells[0]
            after = front + sign * step
            inside = 0 <= after < 36 and (step == 6 or after // 6 == front // 6)
            if inside and board[after] == "o":
                letters = list(board)
                letters[cells[0] if sign == 1 else cells[-1]] = "o"
                letters[after] = car
                yield f"{car}{'+' if sign == 1 else '-'}1", "".join(letters)


def drive_out(board: str) -> str:
    """Moves that bring car A to the right edge, by breadth-first search."""
    queue, before = deque([board]), {board: ("", "")}
    while queue:
        here = queue.popleft()
        if here[17] == "A":
            moves: list[str] = []
            while here != board:
                move, here = before[here]
                moves.append(move)
            return " ".join(reversed(moves))
        for move, after in board_moves(here):
            if after not in before:
                before[after] = (move, here)
                queue.append(after)
    raise AssertionError("no way out")


def test_a_driven_out_car_solves_rush_hour(first: ReasoningGymPack) -> None:
    domain = domain_of(first, "rush_hour")
    task = domain.task(0, 0)
    rows = re.findall(r"^[A-Z.x]{6}$", task.problem, re.MULTILINE)
    assert len(rows) == 6
    moves = drive_out("".join(rows).replace(".", "o"))
    assert domain.verifier.judge(task, f"<answer>{moves}</answer>").solved
    assert domain.reference(task) == f"<answer>{moves}</answer>"
    assert not domain.verifier.judge(task, f"<answer>{moves.rpartition(' ')[0]}</answer>").solved


def test_moving_every_box_to_its_target_solves_boxnet(first: ReasoningGymPack) -> None:
    domain = domain_of(first, "boxnet")
    task = domain.task(0, 0)
    agents = re.findall(
        r"(Agent\[[\d., ]+\]): I am in .*?I can do \[(.*?)\]$", task.problem, re.MULTILINE
    )
    assert len(agents) == 1, "the first task has one square, where every box meets its target"
    agent, offered = agents[0]
    plan = [{agent: move} for move in re.findall(r"move\(box_\w+, target_\w+\)", offered)]
    assert len(plan) == 5
    assert domain.verifier.judge(task, f"<answer>{json.dumps(plan)}</answer>").solved
    partly = domain.verifier.judge(task, f"<answer>{json.dumps(plan[:4])}</answer>")
    assert partly.score == 0.0
    raw = {part.name: part.value for part in partly.parts}["raw"]
    assert 0.5 < raw < 0.9


@pytest.mark.parametrize("generator", ["boxnet", "rush_hour"])
def test_where_the_library_knows_no_solution_the_pack_finds_one(
    generator: str, first: ReasoningGymPack
) -> None:
    domain = domain_of(first, generator)
    for tier in range(domain.tiers):
        task = domain.task(tier, 1)
        reference = domain.reference(task)
        assert reference is not None
        assert domain.verifier.judge(task, reference).solved


def test_a_program_that_draws_lots_is_never_posed(
    first: ReasoningGymPack, second: ReasoningGymPack
) -> None:
    asked = (1, 562618918541557566)  # its first seed has a program that calls random
    assert domain_of(first, "codeio").task(*asked) == domain_of(second, "codeio").task(*asked)


# --- answers that attack the scorer --------------------------------------------------------------


@pytest.mark.parametrize(
    "generator",
    ["countdown", "polynomial_multiplication", "puzzle24", "simple_integration"],
)
def test_an_exploding_answer_ends_in_time_and_pays_nothing(
    generator: str, first: ReasoningGymPack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headrace_reasoning_gym, "SCORE_CPU", 1.0)
    domain = domain_of(first, generator)
    task = domain.task(0, 0)
    before = first.child_of(generator).pid
    start = time.monotonic()
    verdict = domain.verifier.judge(task, "<answer>9**9**9**9</answer>")
    assert time.monotonic() - start < 30
    assert verdict.score == 0.0
    if "CPU seconds" in verdict.evidence:
        assert before is not None
        assert wait_gone(before, 5)
    monkeypatch.undo()
    assert domain.verifier.judge(task, task.answer["answer"]).solved


def test_a_text_that_breaks_a_scorer_is_a_wrong_answer(first: ReasoningGymPack) -> None:
    domain = domain_of(first, "boxnet")
    task = domain.task(0, 0)
    plan = [{"Agent[0.5, 0.5]": "move(box_red, square[-0.5, 0.5])"}, {"nobody": "move(a, b)"}]
    verdict = domain.verifier.judge(task, json.dumps(plan))
    assert verdict.score == 0.0
    assert "its scorer fails on it" in verdict.evidence


def test_a_text_that_takes_all_the_time_is_wrong_only_if_silence_takes_less() -> None:
    fine = {"raw": 0.1, "note": ""}
    judged = OwnScorer("rg/x", Scripted([ChildSpent("slow"), fine])).judge(some_task(), "9**9")
    assert judged.score == 0.0
    assert "slow" in judged.evidence
    starved = Scripted([ChildSpent("slow"), ChildSpent("slow")])
    verdict = OwnScorer("rg/x", starved).judge(some_task(), "1")
    assert (verdict.score, verdict.fault) == (None, "verifier")


@pytest.mark.parametrize(
    "generator",
    ["countdown", "n_queens", "polynomial_multiplication", "string_insertion"],
)
def test_code_in_an_answer_is_not_run(generator: str, first: ReasoningGymPack) -> None:
    domain = domain_of(first, generator)
    task = domain.task(0, 0)
    before = first.child_of(generator).pid
    for code in ("__import__('os')._exit(0)", "exec('import os; os._exit(0)')", "[exit()]"):
        verdict = domain.verifier.judge(task, f"<answer>{code}</answer>")
        assert verdict.score == 0.0
    assert first.child_of(generator).pid == before


def test_a_child_killed_between_and_during_calls_costs_no_verdict(
    first: ReasoningGymPack,
) -> None:
    domain = domain_of(first, "chain_sum")
    task = domain.task(0, 0)
    answer = task.answer["answer"]
    for delay in (0.0, 0.0, 0.05):
        pid = first.child_of("chain_sum").pid
        assert pid is not None
        killer = threading.Timer(delay, os.kill, (pid, signal.SIGKILL))
        killer.start()
        assert domain.verifier.judge(task, answer).solved
        killer.join()


def test_closing_the_pack_leaves_no_process() -> None:
    opened = ReasoningGymPack()
    domain_of(opened, "chain_sum").task(0, 0)
    (pid,) = [child.pid for child in opened.children if child.pid is not None]
    opened.close()
    assert wait_gone(pid, 5)


# --- what the verifier makes of the scorer's replies ---------------------------------------------


class Scripted(Child):
    """Replies as told, without a process."""

    def __init__(self, reply: Json) -> None:
        super().__init__("never_started")
        self.reply = reply
        self.asked: list[Json] = []

    def call(self, request: Json, *, deadline: float, cpu: float | None = None) -> Json:
        self.asked.append(request)
        if isinstance(self.reply, list):
            reply = self.reply[min(len(self.asked), len(self.reply)) - 1]
        else:
            reply = self.reply
        if isinstance(reply, Exception):
            raise reply
        return reply


def some_task() -> Task:
    return Task(
        domain="rg/x",
        problem="?",
        tier=0,
        split="train",
        messages=(),
        verifier=OwnScorer("rg/x", Scripted(None)).ref,
        answer={"generator": "x", "level": 0, "seed": 1, "index": 0, "answer": "1"},
    )


@pytest.mark.parametrize(
    ("raw", "score"),
    [(1.0, 1.0), (0.9995, 1.0), (1.7, 1.0), (0.99, 0.0), (0.5, 0.0), (0.0, 0.0), (-0.3, 0.0)],
)
def test_full_marks_are_passed_on_and_credit_in_parts_is_not(raw: float, score: float) -> None:
    scorer = OwnScorer("rg/x", Scripted({"raw": raw, "note": ""}))
    verdict = scorer.judge(some_task(), "<answer>1</answer>")
    assert verdict.score == score
    parts = {part.name: (part.value, part.weight) for part in verdict.parts}
    assert parts == {"answer": (score, 1.0), "extracted": (1.0, 0.0), "raw": (raw, 0.0)}


def test_a_verdict_shows_what_was_expected_said_and_paid() -> None:
    scripted = Scripted({"raw": 0.5, "note": "odd"})
    verdict = OwnScorer("rg/x", scripted).judge(some_task(), "<answer>2</answer>")
    assert json.loads(verdict.evidence) == {
        "expected": "1",
        "said": "2",
        "paid": 0.5,
        "note": "odd",
    }


def test_what_could_not_be_scored_is_unscored_and_the_verifiers_fault() -> None:
    scripted = Scripted({"raw": None, "note": "ValueError: the score is nan"})
    verdict = OwnScorer("rg/x", scripted).judge(some_task(), "1")
    assert (verdict.score, verdict.fault) == (None, "verifier")
    assert "nan" in verdict.evidence


def test_an_answer_of_absurd_length_is_wrong_without_being_sent() -> None:
    scripted = Scripted({"raw": 1.0, "note": ""})
    verdict = OwnScorer("rg/x", scripted).judge(some_task(), "1" * 20_001)
    assert verdict.score == 0.0
    assert scripted.asked == []
    assert OwnScorer("rg/x", scripted).judge(some_task(), "1" * 20_000).score == 1.0


def test_a_task_that_cannot_be_made_says_which_and_what_to_do() -> None:
    scripted = Scripted({"error": "AssertionError: x"})
    with pytest.raises(VerifierError, match=r"no sound entry in 20.*Error: x \(rg/chain_sum") as e:
        GeneratorDomain("chain_sum", scripted).task(0, 7)
    assert e.value.where == "rg/chain_sum, tier 0, index 7"
    assert "last_tier" in e.value.hint
    assert [request["attempt"] for request in scripted.asked] == list(range(20))


def test_an_unsound_or_slow_attempt_gives_way_to_the_next_seed() -> None:
    made = {"question": "?", "answer": "1", "seed": 5, "seconds": 0.0}
    scripted = Scripted([{"error": "unsound"}, ChildSpent("slow"), made])
    assert GeneratorDomain("chain_sum", scripted).task(0, 7).answer["seed"] == 5


def test_a_starved_or_twice_killed_child_is_an_error_and_no_other_task() -> None:
    for replies in ([ChildTimeout("no answer")], [ChildDied("killed"), ChildDied("killed")]):
        with pytest.raises(VerifierError, match="no task could be made"):
            GeneratorDomain("chain_sum", Scripted(replies)).task(0, 7)
        verdict = OwnScorer("rg/x", Scripted(replies)).judge(some_task(), "1")
        assert (verdict.score, verdict.fault) == (None, "verifier")


def test_an_entry_that_comes_out_differently_is_never_scored(first: ReasoningGymPack) -> None:
    domain = domain_of(first, "chain_sum")
    task = domain.task(0, 0)
    other = Task(
        domain=task.domain,
        problem=task.problem + " ",
        tier=0,
        split=task.split,
        messages=task.messages,
        verifier=task.verifier,
        answer=task.answer,
    )
    verdict = domain.verifier.judge(other, task.answer["answer"])
    assert (verdict.score, verdict.fault) == (None, "verifier")
    assert "could not be made again" in verdict.evidence


@pytest.mark.parametrize(
    ("text", "answer", "extracted"),
    [
        ("plain ", "plain", False),
        ("<answer> 4\n</answer>", "4", True),
        ("<answer>3</answer> no: <answer>4</answer>.", "4", True),
        ("<answer>3</answer> and <answer>unfinished", "3", True),
        ("<answer>3</answer></answer>", "3", True),
        ("</answer><answer>", "</answer><answer>", False),
        ("<answer><answer>3</answer>", "3", True),
        ("", "", False),
    ],
)
def test_the_last_complete_pair_of_tags_holds_the_answer(
    text: str, answer: str, extracted: bool
) -> None:
    assert final_answer(text) == (answer, extracted)


# --- in a source -----------------------------------------------------------------------------


def test_a_source_over_generators_draws_trainable_and_heldout_tasks(
    first: ReasoningGymPack,
) -> None:
    names = ["chain_sum", "spell_backward", "gcd"]
    spec = TaskSpec(
        domains=tuple(DomainSpec(name=f"rg/{name}") for name in names),
        curriculum=CurriculumSpec(enabled=False),
    )
    domains: dict[str, Domain] = {f"rg/{name}": domain_of(first, name) for name in names}
    tasks = TaskSource(spec, domains, seed=3)
    heldout = tasks.heldout(12)
    drawn = [tasks.next() for _ in range(30)]
    assert len({task.id for task in heldout}) == 12
    assert not {t.problem for t in heldout} & {t.problem for t in drawn}
    assert {task.domain for task in drawn} == set(domains)
    again = TaskSource(spec, domains, seed=3)
    assert [again.next() for _ in range(30)] == drawn
    assert all(a.id != b.id for a, b in pairwise(drawn))
