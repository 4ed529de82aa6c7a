"""The loop: play, verify, credit, learn, publish, next.

This page is the whole of training; every verb is a plain call to a part that can be read and
tested alone. Synchronous training is this loop with a lag of zero: slots are taken at
admission and given back after training, and each token carries the policy version that wrote
it, so asynchrony changes where the verbs run, not what they say.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.algorithms.credit import assemble, credit
from headrace.environments.single_turn import Group
from headrace.pipeline.run import Learned, Played, Run
from headrace.protocols import LearnerReport, UpdateReport
from headrace.types import Floats, Sample, Trajectory

__all__ = ["train"]


def train(run: Run) -> str:
    """Train until the recipe's steps are done or its tasks are mastered; says which."""
    if run.step == 0:
        run.evaluate_if_due()
    while run.outcome is None:
        run.begin_step()
        played = play(run)
        learned = learn(run, played.effective)
        run.record(played, learned)
        run.conclude(played)
        run.evaluate_if_due()
        run.checkpoint_if_due()
    return run.outcome


def play(run: Run) -> Played:
    """Admit groups, play and judge them, and refill the slots of those that teach nothing."""
    everything, effective = list[Trajectory](), list[Trajectory]()
    while missing := run.groups_missing(everything, effective):
        wave = run.wave_key()
        groups = [admit(run, wave, index) for index in range(missing)]
        attempts = attempt(run, wave, groups)
        run.settle(wave, attempts)
        everything += attempts
        effective += run.effective(attempts)
    honeypot = run.honeypot()  # measured, never trained on
    baited = attempt(run, run.honeypot_wave, [honeypot]) if honeypot else []
    return Played(everything, effective, baited)


def attempt(run: Run, wave: str, groups: list[Group]) -> list[Trajectory]:
    """Play and judge the groups of a wave, unless an earlier life of the run has done it."""
    attempts = run.recorded(wave, groups)
    if attempts is None:
        played = run.player.play(groups, on_progress=run.sampling)
        attempts = run.judges.judge(played, run.judging)
        run.keep(wave, attempts)
    return attempts


def admit(run: Run, wave: str, index: int) -> Group:
    """Draw the next task and take a slot for its group."""
    group = Group(f"{wave}.{index}", run.source.next(), run.recipe.play.group_size)
    run.slots.admit(group.id, run.policy.version)
    return group


def learn(run: Run, attempts: list[Trajectory]) -> Learned:
    """Turn verdicts into weights, weights into updates, and publish what came of it."""
    earned = credit(
        attempts,
        run.recipe.algorithm,
        max_new_tokens=run.recipe.play.max_new_tokens,
        reference=reference(run, attempts),
        kl_coefficient=run.kl.coefficient,
        entropy_coefficient=run.entropy.coefficient,
    )
    reports, updates = list[LearnerReport](), list[UpdateReport]()
    for batch in anchored(run, earned.batches):
        reports.append(run.learner.forward_backward(batch, run.recipe.algorithm.loss()))
        updates.append(run.learner.optim_step())
    run.release(attempts)
    if updates:
        run.learner.publish()
    run.steer(attempts, earned)
    return Learned(earned, reports, updates)


def reference(run: Run, attempts: list[Trajectory]) -> dict[str, Floats] | None:
    """Log-probabilities under the frozen reference, by trajectory id.

    Of every attempt where distance is paid for; where it is only measured, of every fourth.
    """
    if run.policy.reference is None:
        return None
    if run.recipe.algorithm.kl.place == "none":
        attempts = attempts[::4]
    logps = run.learner.logprobs([assemble(t) for t in attempts], which="reference")
    return {t.id: values for t, values in zip(attempts, logps, strict=True)}


def anchored(run: Run, batches: tuple[tuple[Sample, ...], ...]) -> list[tuple[Sample, ...]]:
    """The batches with the learner's own log-probabilities as they are before any update."""
    if run.recipe.algorithm.anchor == "behaviour":
        return list(batches)
    scored = [run.learner.logprobs(batch, which="current") for batch in batches]
    return [
        tuple(replace(s, proximal=p) for s, p in zip(batch, logps, strict=True))
        for batch, logps in zip(batches, scored, strict=True)
    ]
