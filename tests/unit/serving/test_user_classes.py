"""Schedulers and routers of a user's file: what they see, what is refused, and how their errors are told."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from clustersim.cluster.fault import Fault
from clustersim.errors import IllegalDecisionError, InputError, Problem
from clustersim.plan.parallel import ParallelPlan, SequencePlan
from clustersim.replay.replay import replay
from clustersim.serving.user_class import UserClass
from clustersim.timeline.digest import digest_of
from tests.round_numbers import deployment

HEAD = "from clustersim.serving.view import Choice\n\n\nclass Mine:\n"
ONE_AT_A_TIME = """
    def decide(self, view):
        for s in (*view.running, *view.waiting):
            if not s.in_flight:
                return Choice(tokens={s.request: 1 if s.decodes else min(s.to_compute, view.max_batch_tokens)})
        return Choice()
"""


def user(tmp_path: Path, body: str, method: str = "decide", **options: object) -> UserClass:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + body)
    return UserClass(path=str(path), name="Mine", method=method, options=options, allowed=True)


def answer(tmp_path: Path, expression: str, **kwargs: object) -> object:
    """Run three requests; the scheduler answers with an expression, from its third decision on."""
    first = ONE_AT_A_TIME.replace("def decide", "def usual")
    body = f"""
    def __init__(self):
        self.asked = 0
{first}
    def decide(self, view):
        self.asked += 1
        return self.usual(view) if self.asked < 3 else {expression}
"""
    arrivals = [(0, 4, 5), (0, 4, 3), (0, 4, 3)]
    return replay(deployment(arrivals, scheduler=user(tmp_path, body), **kwargs))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["full", "folded"])
def test_a_users_scheduler_decides_every_step(tmp_path, mode):
    result = replay(deployment([(0, 4, 2), (0, 3, 1)], scheduler=user(tmp_path, ONE_AT_A_TIME), mode=mode))
    steps = result.timeline.steps
    assert steps["prefill_tokens"].tolist() == [4, 0, 3]
    assert steps["decode_tokens"].tolist() == [0, 1, 0]


IN_SOME_ORDER = """
    def __init__(self, order):
        self.order = order

    def decide(self, view):
        ready = [s for s in (*view.running, *view.waiting) if not s.in_flight]
        room = view.max_batch_requests - len(view.running)
        named = [s for s in ready if s.blocks or room > view.waiting.index(s)]
        named.sort(key=lambda s: s.request * self.order)
        return Choice(tokens={s.request: min(s.to_compute, 2) for s in named})
"""


@pytest.mark.parametrize("pp", [1, 2])
def test_the_order_in_which_a_choice_names_sequences_decides_nothing(tmp_path, pp):
    arrivals = [(at * 30, 3 + at % 4, 2 + at % 3) for at in range(12)]
    found = [
        replay(
            deployment(arrivals, plan=ParallelPlan(pp=pp), layers=pp, max_batch_requests=4,
                       scheduler=user(tmp_path, IN_SOME_ORDER, order=order))
        )
        for order in (1, -1)
    ]  # fmt: skip
    facts, others = ({name: column.tolist() for name, column in one.timeline.facts.items()} for one in found)
    assert facts == others
    assert digest_of(found[0].timeline) == digest_of(found[1].timeline)


@pytest.mark.parametrize(
    ("expression", "message"),
    [  # in the third decision request 0 runs and decodes (4 + 1 tokens known), 1 and 2 wait
        ("Choice(tokens={0: 2})", "PH-2: 2 tokens of request 0 are computed in a decode step, which carries one"),
        ("Choice(tokens={7: 1})", "RUN-4: request 7 is not here"),
        (
            "Choice(tokens={1: 5})",
            "KV-1: 5 tokens of request 1 are asked for, but only 4 are known and not computed; ask for at most 4 "
            "(clustersim rules KV-1 explains)",
        ),
        ("Choice(tokens={1: 0})", "KV-3: 0 tokens of request 1 are computed; expected a whole number from 1"),
        ("Choice(tokens={0: 1} if self.asked < 4 else {0: True})", "KV-3: True tokens of request 0 are computed"),
        ("Choice(tokens={0: 1} if self.asked < 4 else {0: 0})", "KV-3: 0 tokens of request 0 are computed"),
        ("Choice(tokens={0: 1, 1: 4, 2: 4})", "KV-6: 9 tokens in one step, more than max_batch_tokens (8)"),
        ("Choice(preempt=(1,))", "KV-7: request 1 is preempted, but is not running"),
        ("Choice(preempt=(0, 0))", "KV-7: request 0 is preempted twice"),
        ("Choice(tokens={0: 1}, preempt=(0,))", "KV-2: request 0 is preempted and computed in one decision"),
        ("Choice(tokens={0: 10**5000})", "PH-2: <int that can't be shown> tokens of request 0"),
    ],
)
def test_an_illegal_decision_is_refused_with_its_rule(tmp_path, expression, message):
    with pytest.raises(IllegalDecisionError) as caught:
        answer(tmp_path, expression, max_batch_tokens=8)
    assert str(caught.value).startswith("mine.py:Mine at 0.0")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("None", "decided None; expected Choice"),
        ("3", "decided 3; expected Choice"),
        ("Choice(preempt=5)", "decided Choice(tokens={}, preempt=5, again=False); expected Choice"),
        ("Choice(preempt=([1],))", "decided Choice(tokens={}, preempt=([1],), again=False); expected Choice"),
        ("Choice(tokens={True: 3})", "decided Choice(tokens={True: 3}, preempt=(), again=False); expected Choice"),
        ("Choice(preempt=(False,))", "decided Choice(tokens={}, preempt=(False,), again=False); expected Choice"),
        ("Choice(again=1)", "decided Choice(tokens={}, preempt=(), again=1); expected Choice"),
    ],
)
def test_an_answer_of_another_type_is_a_mistake_of_the_file(tmp_path, expression, message):
    with pytest.raises(InputError) as caught:
        answer(tmp_path, expression, max_batch_tokens=8)
    (problem,) = caught.value.problems
    assert problem.file.endswith("mine.py")
    assert problem.message.startswith("Mine.decide at 0.0")
    assert message in problem.message


def test_a_route_that_is_no_number_is_a_mistake_of_the_file(tmp_path):
    router = user(tmp_path, "    def route(self, view):\n        return 'x'\n", method="route")
    with pytest.raises(InputError, match=r"mine\.py: Mine\.route at .* ms: sends request 0 to 'x'; expected"):
        replay(deployment([(0, 5, 2)], plan=ParallelPlan(dp=2), router=router))


def test_more_sequences_than_fit_are_refused(tmp_path):
    with pytest.raises(IllegalDecisionError, match=r"KV-6: 2 sequences running, more than max_batch_requests \(1\)"):
        answer(tmp_path, "Choice(tokens={1: 4})", max_batch_requests=1)


def test_blocks_that_the_pool_lacks_are_refused(tmp_path):
    with pytest.raises(IllegalDecisionError, match="KV-6: 4 tokens of request 1 need 1 more block, and 0 are free"):
        answer(tmp_path, "Choice(tokens={1: 4})", kv_blocks=2)


def test_blocks_that_one_rank_of_sp_lacks_are_refused_though_another_has_them(tmp_path):
    body = """
    def decide(self, view):
        waiting = {s.request: s.to_compute for s in view.waiting}
        return Choice(tokens=waiting or {s.request: 1 for s in view.running}, again=True)
"""
    inputs = deployment(
        [(0, 12, 1), (0, 7, 8), (0, 7, 8)],  # three blocks of the first rank, which are free soon; all of the second
        plan=ParallelPlan(sp=SequencePlan(degree=2, decode="dp")),
        kv_blocks=4,
        scheduler=user(tmp_path, body),
    )
    with pytest.raises(IllegalDecisionError, match="KV-6: 1 token of request 1 needs 1 more block, and 0 are free"):
        replay(inputs)


@pytest.mark.parametrize("generated", [0, 1, 2])
def test_a_sequence_in_flight_is_refused(tmp_path, generated):
    body = f"""
    def decide(self, view):
        s = (*view.running, *view.waiting)[0]
        return Choice(tokens={{}} if s.in_flight and s.generated < {generated} else {{s.request: 1}})
"""
    plan = ParallelPlan(pp=2)
    with pytest.raises(IllegalDecisionError, match="PH-3: request 0 is computed while a step carries it"):
        replay(deployment([(0, 4, 5)], scheduler=user(tmp_path, body), plan=plan, layers=2))


@pytest.mark.parametrize(
    ("body", "options", "message"),
    [
        ("    def decide(self, view):\n        return 1 / 0\n", {}, r"mine.py:6: Mine.decide raised ZeroDivisionError"),
        ("    other = 1\n", {}, "class Mine has no method decide"),
        (ONE_AT_A_TIME, {"limit": 3}, "Mine can't be made"),
        ("    def decide(self view):\n", {}, "mine.py:5: "),
    ],
)
def test_a_broken_file_is_told_by_its_line(tmp_path, body, options, message):
    with pytest.raises(InputError, match=message):
        replay(deployment([(0, 4, 2)], scheduler=user(tmp_path, body, **options)))


RAISES = [
    ("ValueError('x')", "raised ValueError: x"),
    ("SystemExit(0)", "raised SystemExit: 0"),
    ("BaseException('y')", "raised BaseException: y"),
    ("InputError([])", "raised clustersim.errors.InputError"),
]


@pytest.mark.parametrize(("error", "message"), RAISES)
@pytest.mark.parametrize("method", ["decide", "route"])
def test_whatever_a_users_code_raises_is_told_by_its_line(tmp_path, method, error, message):
    body = f"    def {method}(self, view):\n        from clustersim.errors import InputError\n\n        raise {error}\n"
    mine = user(tmp_path, body, method=method)
    asked = {"router": mine} if method == "route" else {"scheduler": mine}
    given = deployment([(0, 4, 2)], plan=ParallelPlan(dp=2), **asked)
    with pytest.raises(InputError) as caught:
        replay(given)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == (mine.path, 8)
    assert problem.message == f"Mine.{method} {message}"


@pytest.mark.parametrize("error", ["SystemExit(0)", "ValueError(1)"])
def test_a_file_that_ends_the_program_is_refused(tmp_path, error):
    (tmp_path / "mine.py").write_text(f"raise {error}\n")
    with pytest.raises(InputError, match=r"mine.py:1: can't be run: (SystemExit|ValueError)"):
        UserClass(path=str(tmp_path / "mine.py"), name="Mine", method="decide", allowed=True).made()


def test_an_input_error_survives_a_copy():
    error = InputError([Problem(message="is no file", file="a.yaml", line=3)])
    for copied in (pickle.loads(pickle.dumps(error)), type(error)(*error.args)):  # the second is what SimPy does
        assert copied.problems == error.problems
        assert str(copied) == "a.yaml:3: is no file"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("        return Choice()\n", ("at 0.000000 ms", "request 0, waiting: 4 tokens to compute")),
        (
            "        s = [*view.waiting, None][0]\n        return Choice(tokens={s.request: 4}) if s else Choice()\n",
            ("request 0, running: 1 tokens to compute, a decode",),
        ),
    ],
)
def test_a_scheduler_that_stands_still_is_the_users(tmp_path, body, message):
    mine = user(tmp_path, "    def decide(self, view):\n" + body)
    for mode in ("full", "folded"):
        with pytest.raises(InputError) as caught:
            replay(deployment([(0, 4, 2)], scheduler=mine, mode=mode))
        (problem,) = caught.value.problems
        assert problem.file == mine.path
        for part in ("Mine.decide chose nothing", "but 1 request is unfinished", *message):
            assert part in problem.message


def test_who_stands_still_is_told_by_when_it_was_asked_though_what_a_failure_made_void_ends_later(tmp_path):
    body = """
    def decide(self, view):
        if any(one.preemptions for one in view.waiting):
            return Choice()
        tokens = {one.request: one.to_compute for one in (*view.running, *view.waiting)}
        return Choice(tokens=tokens, again=not view.waiting)
"""
    given = deployment([(0, 4, 90)], scheduler=user(tmp_path, body))
    faults = (Fault(at_ns=100_000, until_ns=110_000, devices=(0,)),)
    for mode in ("full", "folded"):
        with pytest.raises(InputError) as caught:
            replay(replace(given, faults=faults, mode=mode))
        assert "chose nothing at 0.110000 ms" in caught.value.problems[0].message


def test_a_users_router_sees_the_same_in_both_replays(tmp_path):
    body = """
    def __init__(self):
        self.seen = []

    def route(self, view):
        self.seen.append([(r.waiting, r.running, r.outstanding_tokens, r.waiting_tokens, r.free_blocks)
                          for r in view.replicas])
        return view.replicas[sum(map(sum, self.seen[-1])) % len(view.replicas)].replica
"""
    arrivals = [(at, 5, 30) for at in (0, 0, 7_000, 40_000, 90_000, 110_000, 200_000)]
    digests, chosen = set(), set()
    for mode in ("full", "folded"):
        router = user(tmp_path, body, method="route")
        result = replay(deployment(arrivals, mode=mode, plan=ParallelPlan(dp=2), router=router))
        digests.add(result.timeline.digest)
        chosen.add(tuple(result.replica.tolist()))
    assert len(digests) == len(chosen) == 1
    assert set(*chosen) == {0, 1}


def test_a_router_that_names_no_replica_is_refused(tmp_path):
    router = user(tmp_path, "    def route(self, view):\n        return 2\n", method="route")
    with pytest.raises(IllegalDecisionError, match="DP-2: request 0 goes to replica 2; expected one of 0, 1"):
        replay(deployment([(0, 5, 2)], plan=ParallelPlan(dp=2), router=router))


EVIL = """
    class Evil(int):
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 5
"""


ODD = """
    class Odd(int):
        def raises(self, *others):
            raise RuntimeError

        __add__ = __radd__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __int__ = __index__ = raises
        __sub__ = __rsub__ = __bool__ = __hash__ = raises
"""
LIAR = """
    class Liar:
        __class__ = int
"""


def test_a_number_that_lies_about_itself_is_taken_at_its_value(tmp_path):
    body = f"{EVIL}\n    def route(self, view):\n        return self.Evil(77)\n"
    with pytest.raises(IllegalDecisionError, match=r"DP-2: request 0 goes to replica 77; expected one of 0, 1"):
        replay(deployment([(0, 4, 1)], plan=ParallelPlan(dp=2), router=user(tmp_path, body, "route")))
    body = f"{EVIL}\n    def decide(self, view):\n        return Choice(tokens={{self.Evil(77): 1}})\n"
    with pytest.raises(IllegalDecisionError, match="RUN-4: request 77 is not here"):
        replay(deployment([(0, 4, 1)], scheduler=user(tmp_path, body)))
    chosen = user(tmp_path, f"{LIAR}\n    def route(self, view):\n        return self.Liar()\n", "route")
    with pytest.raises(InputError, match=r"sends request 0 to <.*Liar object at .*; expected the number of a replica"):
        replay(deployment([(0, 4, 1)], plan=ParallelPlan(dp=2), router=chosen))
    for number in ("1", "np.int64(1)", "np.array(1)"):
        body = f"    def route(self, view):\n        import numpy as np\n\n        return {number}\n"
        chosen = user(tmp_path, body, "route")
        assert replay(deployment([(0, 4, 1)], plan=ParallelPlan(dp=2), router=chosen)).replica.tolist() == [1]


def test_tokens_that_count_as_they_like_are_taken_at_their_value(tmp_path):
    body = """
    def decide(self, view):
        import numpy as np

        here = [s for s in (*view.running, *view.waiting) if not s.in_flight]
        tokens = {KEY(s.request): NUMBER(1 if s.decodes else s.to_compute) for s in here}
        return Choice(tokens=tokens) if view.now_ns else Choice(tokens=tokens, preempt=np.array([], int))
"""
    ways = (("int", "int"), ("int", "self.Odd"), ("int", "np.int32"), ("np.int64", "np.uint8"))
    bodies = [ODD + body.replace("KEY", key).replace("NUMBER", number) for key, number in ways]
    digests = set()
    for one in bodies:
        given = deployment([(0, 4, 3), (0, 6, 2)], scheduler=user(tmp_path, one))
        digests.add(replay(given).timeline.digest)
    assert len(digests) == 1
    for number, told in (("self.Odd(9)", r"KV-1: 9 tokens"), ("self.Liar()", r"KV-3: <.*Liar object at .* tokens of")):
        body = f"{ODD}{LIAR}\n    def decide(self, view):\n        return Choice(tokens={{0: {number}}})\n"
        with pytest.raises(IllegalDecisionError, match=told):
            replay(deployment([(0, 4, 1)], scheduler=user(tmp_path, body)))


@pytest.mark.parametrize("mode", ["full", "folded"])
def test_a_scheduler_that_preempts_for_good_is_ended(tmp_path, mode, monkeypatch):
    monkeypatch.setattr("clustersim.serving.custom.MOST_VAIN_PREEMPTIONS", 50)
    body = """
    def decide(self, view):
        if view.running:
            first = view.running[0]
            return Choice() if first.in_flight else Choice(preempt=(first.request,))
        return Choice(tokens={view.waiting[0].request: 1})
"""
    with pytest.raises(InputError, match=r"mine.py: Mine.decide preempted request 0 50 times without letting it"):
        replay(deployment([(0, 4, 2)], scheduler=user(tmp_path, body), mode=mode))


ALL_AT_ONCE = """
    def __init__(self, asked, again):
        self.asked, self.again = asked, again

    def decide(self, view):
        self.asked.append(view.now_ns)
        here = (*view.running, *view.waiting[: 2 - len(view.running)])
        return Choice(tokens={s.request: 1 if s.decodes else s.to_compute for s in here}, again=self.again)
"""


def test_a_choice_that_stands_is_asked_for_again_when_something_happens(tmp_path):
    runs = {}
    for mode in ("full", "folded"):
        for again in (False, True):
            asked: list[int] = []
            chosen = user(tmp_path, ALL_AT_ONCE, asked=asked, again=again)
            # Of three, the last one waits for a place; it comes when both others decode.
            arrivals = [(0, 4, 9), (0, 4, 12), (25_000, 4, 2)]
            result = replay(deployment(arrivals, scheduler=chosen, max_batch_requests=2, mode=mode))
            assert mode == "full" or not result.obstacle
            runs[mode, again] = result.timeline.digest, asked
    assert len({digest for digest, _ in runs.values()}) == 1
    steps, told = runs["full", False][1], runs["full", True][1]
    assert (runs["folded", False][1], runs["folded", True][1]) == (steps, told)
    # The prompts, their first decode, the step after the third came, that after the first one ended (with the third's
    # prompt), the third's only decode, and what is left of the second.
    came = next(at for at, instant in enumerate(steps) if instant >= 25_000)
    assert [steps.index(instant) for instant in told] == [0, 1, came, 9, 10, 11]
    assert 1 < came < 8
