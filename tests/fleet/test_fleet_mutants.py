"""The fence is proven by what happens without it: each guard is taken out in a copy, and a test there goes red."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mutants.run import ROOT, Edit, Mutant, Verdict, judge, mutants

FENCE = [mutant for mutant in mutants() if mutant.fence]
UNCHANGED = Mutant("unchanged", (), tuple(sorted({test for mutant in FENCE for test in mutant.tests})))


def test_with_the_fence_in_place_its_tests_pass_in_a_copy() -> None:
    assert judge(UNCHANGED) is Verdict.SURVIVED


@pytest.mark.contract("S-10")
@pytest.mark.parametrize("mutant", FENCE, ids=lambda mutant: mutant.name)
def test_without_the_check_of_the_lease_a_test_goes_red(mutant: Mutant) -> None:
    assert judge(mutant) is Verdict.KILLED


def test_the_fence_is_taken_out_of_save_hand_over_and_finish() -> None:
    assert [mutant.name.split()[1] for mutant in FENCE] == ["save", "hand-over", "finish"]


def test_a_mutant_whose_text_is_not_there_once_is_no_kill() -> None:
    for old in ("no such text", "lease"):
        edit = Edit("src/interlock/stores/leases.py", old, "")
        assert judge(replace(UNCHANGED, edits=(edit,))) is Verdict.NOT_FOUND


def test_each_text_of_the_list_is_there_once() -> None:
    edits = [(mutant.name, edit) for mutant in mutants() for edit in mutant.edits]
    assert [name for name, edit in edits if (ROOT / edit.file).read_text("utf-8").count(edit.old) != 1] == []


def test_tests_that_are_not_there_kill_nothing() -> None:
    assert judge(replace(UNCHANGED, tests=("tests/no_such_file.py",))) is Verdict.NOT_RUN
