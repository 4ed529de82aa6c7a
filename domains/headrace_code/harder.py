"""The templates of the upper tiers of `code/functions`; see `templates`."""

from __future__ import annotations

import math
from itertools import groupby
from random import Random
from typing import Any

from headrace_code.drawn import ints, number, sentence, sorted_ints, text, two, word, words
from headrace_code.template import Template, made

__all__ = ["HARDER"]


def _base(n: int, base: int) -> str:
    digits = ""
    while True:
        n, digit = divmod(n, base)
        digits = "0123456789abcdef"[digit] + digits
        if n == 0:
            return digits


def _balanced(text: str, pairs: str) -> bool:
    for _ in range(len(text)):
        for place in range(0, len(pairs), 2):
            text = text.replace(pairs[place : place + 2], "")
    return not text


def _groups(words: list[str]) -> dict[int, list[str]]:
    return {
        size: list(group) for size, group in groupby(sorted(words, key=lambda w: (len(w), w)), len)
    }


def _rising(numbers: list[int], gap: int) -> int:
    best: list[int] = []
    for place, n in enumerate(numbers):
        shorter = [best[i] for i in range(place) if numbers[i] + gap <= n]
        best.append(1 + max(shorter, default=0))
    return max(best, default=0)


def _coins(amount: int, coins: tuple[int, ...]) -> int:
    reached, count = {0}, 0
    while amount not in reached and count <= amount:
        count += 1
        reached = {r + c for r in reached for c in coins if r + c <= amount}
    return count if amount in reached else -1


def _edits(a: str, b: str, cost: int) -> int:
    if not a or not b:
        return len(a) + len(b)
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(last + cost * (x != y), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def _merged(spans: list[list[int]], gap: int) -> list[list[int]]:
    out: list[list[int]] = []
    for low, high in sorted(spans):
        if out and low <= out[-1][1] + gap:
            out[-1][1] = max(out[-1][1], high)
        else:
            out.append([low, high])
    return out


def _spans(rng: Random, _: Any) -> tuple[Any, ...]:
    lows = [rng.randint(0, 30) for _ in range(rng.randint(1, 6))]
    return ([[low, low + rng.randint(0, 6)] for low in lows],)


def _ways(rows: int, columns: int) -> int:
    return math.comb(rows + columns - 2, rows - 1) if rows > 0 and columns > 0 else 0


def _window(numbers: list[int], k: int) -> int | None:
    sums = [sum(numbers[i : i + k]) for i in range(len(numbers) - k + 1)]
    return max(sums) if sums else None


def _grid(rng: Random, _: Any) -> tuple[Any, ...]:
    width = rng.randint(1, 4)
    return ([[rng.randint(0, 9) for _ in range(width)] for _ in range(rng.randint(1, 4))],)


def _turned(grid: list[list[int]], times: int) -> list[list[int]]:
    for _ in range(times):
        grid = [list(row) for row in zip(*grid[::-1], strict=True)]
    return grid


HARDER: tuple[Template, ...] = (
    made(
        3,
        "primes_up_to list_primes small_primes",
        "n",
        (
            "returns the list of all prime numbers from {low} up to and including {n}",
            "lists the primes p with {low} <= p <= {n} in increasing order",
        ),
        lambda n, low: [p for p in range(max(2, low), n + 1) if all(p % d for d in range(2, p))],
        body="found = []\nfor p in range(2, {n} + 1):\n"
        "    if p >= {low} and not any(p % d == 0 for d in range(2, int(p ** 0.5) + 1)):\n"
        "        found.append(p)\nreturn found",
        near="[p for p in range({low}, {n} + 1) if p == 2 or p % 2]",
        draw=number(1, 90),
        edges=((0,), (2,), (30,), (49,)),
        low=(2, 5, 10, 20),
    ),
    made(
        3,
        "common_divisor gcd_of_two shared_factor",
        "a b",
        (
            "returns the greatest common divisor of the positive integers {a} and {b}, "
            "multiplied by {k}",
            "finds the largest integer that divides both {a} and {b} (positive integers) and "
            "returns {k} times it",
        ),
        lambda a, b, k: k * math.gcd(a, b),
        body="while {b}:\n    {a}, {b} = {b}, {a} % {b}\nreturn {k} * {a}",
        near="{k} * min({a}, {b})",
        draw=two(1, 200),
        edges=((12, 18), (7, 13), (100, 75)),
        k=(1, 2, 3, 5),
    ),
    made(
        3,
        "run_lengths encode_runs compress_runs",
        "text",
        (
            "returns the runs of equal characters of {text} as a list of tuples of character and "
            "length, leaving out runs shorter than {k}",
            "splits {text} into runs of equal characters and returns a list of (character, "
            "length) tuples for those of length {k} or more",
        ),
        lambda text, k: [(c, n) for c, g in groupby(text) if (n := len(list(g))) >= k],
        body="runs = []\nfor c in {text}:\n    if runs and runs[-1][0] == c:\n"
        "        runs[-1] = (c, runs[-1][1] + 1)\n    else:\n        runs.append((c, 1))\n"
        "return [run for run in runs if run[1] >= {k}]",
        near="[(c, {text}.count(c)) for c in sorted(set({text})) if {text}.count(c) >= {k}]",
        draw=text("aab", most=12),
        edges=(("",), ("aabbbca",), ("aaaabaaa",)),
        k=(1, 2, 3),
    ),
    made(
        3,
        "to_base write_in_base digits_in_base",
        "n",
        (
            "returns the non-negative integer {n} written in base {base}, as a string with the "
            "digits 0-9 and a-f",
            "converts {n} (a non-negative integer) to a string in base {base}, with lowercase "
            "letters for digits above 9",
        ),
        lambda n, base: _base(n, base),
        body="digits = '0123456789abcdef'\nif {n} < {base}:\n    return digits[{n}]\n"
        "text = ''\nwhile {n}:\n    text = digits[{n} % {base}] + text\n    {n} //= {base}\n"
        "return text",
        near="text = ''\nwhile {n}:\n    text += str({n} % {base})\n    {n} //= {base}\n"
        "return text",
        draw=number(0, 5000),
        edges=((0,), (255,), (10,)),
        base=(2, 3, 7, 8, 12, 16),
    ),
    made(
        3,
        "is_balanced brackets_match well_nested",
        "text",
        (
            "returns True if the brackets in {text}, which has only characters of {pairs!r}, are "
            "properly opened, closed and nested, else False",
            "says whether every bracket in {text} (made of {pairs!r} only) is closed by its "
            "partner in the right order",
        ),
        lambda text, pairs: _balanced(text, pairs),
        body="partner = dict(zip({pairs!r}[1::2], {pairs!r}[::2]))\nopen_ones = []\n"
        "for c in {text}:\n    if c in partner:\n"
        "        if not open_ones or open_ones.pop() != partner[c]:\n            return False\n"
        "    else:\n        open_ones.append(c)\nreturn not open_ones",
        near="all({text}.count(a) == {text}.count(b) "
        "for a, b in zip({pairs!r}[::2], {pairs!r}[1::2]))",
        draw=lambda rng, c: (
            "".join(rng.choice(c["pairs"]) for _ in range(2 * rng.randint(1, 3))),
        ),
        edges=(("",), ("()",), (")(",), ("(())()",), ("(()",)),
        pairs=("()[]", "(){}", "()<>"),
    ),
    made(
        3,
        "merge_sorted join_sorted weave_lists",
        "first second",
        (
            "merges two sorted lists of integers {first} and {second} into one sorted list that "
            "has no number divisible by {k}",
            "returns one sorted list of all numbers of the sorted lists {first} and {second} "
            "that are not multiples of {k}",
        ),
        lambda first, second, k: sorted(n for n in first + second if n % k),
        body="merged = []\n{first}, {second} = list({first}), list({second})\n"
        "while {first} or {second}:\n"
        "    source = {first} if not {second} or ({first} and {first}[0] <= {second}[0]) "
        "else {second}\n"
        "    n = source.pop(0)\n    if n % {k}:\n        merged.append(n)\nreturn merged",
        near="sorted(set(n for n in {first} + {second} if n % {k}))",
        draw=lambda rng, _: (sorted_ints(rng), sorted_ints(rng)),
        edges=(([], []), ([1, 1, 5], [1, 7]), ([], [2, 3])),
        k=(2, 3, 5, 7),
    ),
    made(
        3,
        "group_by_length by_size sort_into_lengths",
        "words",
        (
            "returns a dictionary from length to the alphabetically sorted list of the strings "
            "in {words} with that length, without strings shorter than {k}",
            "groups the strings of {words} that have {k} or more characters by their length, each "
            "group sorted, and returns a dictionary",
        ),
        lambda words, k: {n: g for n, g in _groups(words).items() if n >= k},
        body="groups = {{}}\nfor w in sorted({words}):\n    if len(w) >= {k}:\n"
        "        groups.setdefault(len(w), []).append(w)\nreturn groups",
        near="groups = {{}}\nfor w in {words}:\n    groups.setdefault(len(w), []).append(w)\n"
        "return groups",
        draw=words(2, 8),
        edges=(([],), (["b", "a", "tree", "sun", "ice"],)),
        k=(1, 2, 3, 4),
    ),
    made(
        3,
        "most_common_words frequent_words top_words",
        "text",
        (
            "returns the {k} most frequent words of {text} (separated by spaces), most frequent "
            "first and equally frequent ones in alphabetical order",
            "counts the space-separated words of {text} and returns a list of the {k} words with "
            "the highest counts; ties are in alphabetical order",
        ),
        lambda text, k: sorted(set(text.split()), key=lambda w: (-text.split().count(w), w))[:k],
        body="counts = {{}}\nfor w in {text}.split():\n    counts[w] = counts.get(w, 0) + 1\n"
        "ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))\n"
        "return [w for w, _ in ordered[:{k}]]",
        near="sorted(set({text}.split()))[:{k}]",
        draw=sentence(3, 14),
        edges=(("b a b c a b",), ("",), ("z z a",)),
        k=(1, 2, 3),
    ),
    made(
        4,
        "longest_rising rising_length longest_climb",
        "numbers",
        (
            "returns the length of the longest subsequence of {numbers} (not necessarily "
            "adjacent, in order) in which each number is at least {gap} larger than the one "
            "before",
            "finds how many items of {numbers} can be kept at most, in their order, so that each "
            "exceeds the one kept before it by {gap} or more",
        ),
        lambda numbers, gap: _rising(numbers, gap),
        body="best = []\nfor i in range(len({numbers})):\n    length = 1\n    for j in range(i):\n"
        "        if {numbers}[i] - {numbers}[j] >= {gap}:\n"
        "            length = max(length, best[j] + 1)\n    best.append(length)\n"
        "return max(best) if best else 0",
        near="best = run = 1 if {numbers} else 0\nfor a, b in zip({numbers}, {numbers}[1:]):\n"
        "    run = run + 1 if b - a >= {gap} else 1\n    best = max(best, run)\nreturn best",
        draw=ints(least=3, most=12),
        edges=(([],), ([5],), ([1, 9, 2, 10, 3, 20],), ([3, 2, 1],)),
        gap=(1, 2, 3),
    ),
    made(
        4,
        "fewest_coins coin_count make_change",
        "amount",
        (
            "returns the smallest number of coins of the values {coins} that add up to {amount}, "
            "or -1 if that is impossible",
            "has any number of coins of each of the values {coins} and returns how few can make "
            "exactly {amount} (-1 if none can)",
        ),
        lambda amount, coins: _coins(amount, coins),
        body="best = [0] + [None] * {amount}\nfor total in range(1, {amount} + 1):\n"
        "    ways = [best[total - c] for c in {coins} if c <= total]\n"
        "    ways = [w for w in ways if w is not None]\n"
        "    best[total] = min(ways) + 1 if ways else None\n"
        "return -1 if best[{amount}] is None else best[{amount}]",
        near="count = 0\nfor c in sorted({coins}, reverse=True):\n    count += {amount} // c\n"
        "    {amount} %= c\nreturn -1 if {amount} else count",
        draw=number(0, 60),
        edges=((0,), (1,), (6,), (12,), (15,), (30,)),
        coins=((1, 3, 4), (1, 5, 6, 9), (2, 5, 6), (3, 5, 10), (1, 7, 10)),
    ),
    made(
        4,
        "edit_distance change_cost transform_cost",
        "a b",
        (
            "returns the least total cost of turning the string {a} into {b}, where inserting or "
            "deleting a character costs 1 and replacing one costs {cost}",
            "computes the cheapest way to edit {a} into {b}: an insertion or deletion costs 1, a "
            "replacement {cost}",
        ),
        lambda a, b, cost: _edits(a, b, cost),
        body="table = {{}}\nfor i in range(len({a}) + 1):\n    for j in range(len({b}) + 1):\n"
        "        if i == 0 or j == 0:\n            table[i, j] = i + j\n            continue\n"
        "        same = 0 if {a}[i - 1] == {b}[j - 1] else {cost}\n"
        "        table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1,\n"
        "                          table[i - 1, j - 1] + same)\nreturn table[len({a}), len({b})]",
        near="abs(len({a}) - len({b})) + {cost} * sum(x != y for x, y in zip({a}, {b}))",
        draw=lambda rng, _: (word(rng), word(rng)),
        edges=(("", ""), ("abc", "bcd"), ("level", "eleven"), ("", "ab")),
        cost=(1, 2),
    ),
    made(
        4,
        "merge_spans join_intervals unite_ranges",
        "spans",
        (
            "returns the intervals of {spans} (lists [low, high] in any order) sorted, with those "
            "merged that overlap or are at most {gap} apart",
            "merges all intervals [low, high] in {spans} whose distance is {gap} or less (touching "
            "and overlapping ones too) and returns the result in increasing order",
        ),
        lambda spans, gap: _merged(spans, gap),
        body="ordered = sorted({spans})\nresult = []\nwhile ordered:\n"
        "    low, high = ordered.pop(0)\n    while ordered and ordered[0][0] - high <= {gap}:\n"
        "        high = max(high, ordered.pop(0)[1])\n    result.append([low, high])\n"
        "return result",
        near="result = []\nfor low, high in {spans}:\n"
        "    if result and low - result[-1][1] <= {gap}:\n        result[-1][1] = high\n"
        "    else:\n        result.append([low, high])\nreturn result",
        draw=_spans,
        edges=(([],), ([[5, 9], [1, 2], [2, 4]],), ([[1, 10], [2, 3], [14, 15]],)),
        gap=(0, 1, 2),
    ),
    made(
        4,
        "count_paths lattice_paths ways_through",
        "rows columns",
        (
            "returns the number of ways through a grid of {rows} by {columns} cells from one "
            "corner to the opposite one in steps right or down, modulo {m}",
            "counts the paths from the top left to the bottom right cell of a grid with {rows} "
            "rows and {columns} columns that only go right or down, modulo {m}",
        ),
        lambda rows, columns, m: _ways(rows, columns) % m,
        body="row = [1] * {columns}\nfor _ in range({rows} - 1):\n"
        "    for i in range(1, {columns}):\n        row[i] += row[i - 1]\n"
        "return row[-1] % {m}",
        near="{rows} * {columns} % {m}",
        draw=two(1, 10),
        edges=((1, 1), (3, 3), (2, 9), (10, 10)),
        m=(1000, 97, 1009),
    ),
    made(
        4,
        "best_window largest_window_sum richest_stretch",
        "numbers",
        (
            "returns the largest sum of {k} adjacent numbers in {numbers}, or None if there are "
            "fewer than {k}",
            "looks at every stretch of {k} neighbouring items of {numbers} and returns the "
            "greatest sum of one; None if the list is too short",
        ),
        lambda numbers, k: _window(numbers, k),
        body="if len({numbers}) < {k}:\n    return None\n"
        "best = now = sum({numbers}[:{k}])\nfor i in range({k}, len({numbers})):\n"
        "    now += {numbers}[i] - {numbers}[i - {k}]\n    best = max(best, now)\nreturn best",
        near="sum(sorted({numbers})[-{k}:]) if len({numbers}) >= {k} else None",
        draw=ints(least=3, most=12),
        edges=(([],), ([5, -1, 5, 2, 9, -9],), ([-3, -2, -8, -1],)),
        k=(2, 3, 4),
    ),
    made(
        4,
        "turn_grid rotate_matrix spin_table",
        "grid",
        (
            "returns the list of rows {grid} turned clockwise by {times} quarter turns",
            "rotates the rectangular list of lists {grid} clockwise by 90 degrees, {times} times "
            "in all, and returns it as a list of lists",
        ),
        lambda grid, times: _turned(grid, times),
        body="for _ in range({times}):\n    rows, columns = len({grid}), len({grid}[0])\n"
        "    {grid} = [[{grid}[rows - 1 - r][c] for r in range(rows)] for c in range(columns)]\n"
        "return {grid}",
        near="for _ in range({times}):\n    {grid} = [list(row) for row in zip(*{grid})]\n"
        "return {grid}",
        draw=_grid,
        edges=(([[1]],), ([[1, 2], [3, 4]],), ([[1, 2, 3]],), ([[1, 2, 3], [4, 5, 6]],)),
        times=(1, 2, 3),
    ),
)
