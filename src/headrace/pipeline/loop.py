"""The loop: play or read, verify, credit, learn, publish, next.

This page is the whole of training; every verb is a plain call to a part that can be read and
tested alone. Synchronous training is this loop with a lag of zero: slots are taken at
admission and given back after training, and each token carries the policy version that wrote
it, so asynchrony changes where the verbs run, not what they say.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.algorithms.credit import assemble, credit
from headrace.pipeline.run import Learned, Played, Run
from headrace.pipeline.supply import groups_missing
from headrace.protocols import LearnerReport, UpdateReport
from headrace.types import Floats, Sample, Trajectory

__all__ = ["train"]


async def train(run: Run) -> str:
    """Train until the recipe's steps are done or its tasks are mastered; says which."""
    await run.begin()
    if run.step == 0:
        await run.evaluate_if_due()
    while run.outcome is None:
        run.begin_step()
        if run.study is None:
            played = await play(run)
            learned = learn(run, played.effective)
            run.record(played, learned)
            run.conclude(played)
        else:
            run.record_studied(run.study.step())
        await run.evaluate_if_due()
        run.checkpoint_if_due()
    return run.outcome


async def play(run: Run) -> Played:
    """Have groups played and judged, by now or ahead of time; refill those that teach nothing."""
    await run.supply.ahead(run.step)
    everything, effective = list[Trajectory](), list[Trajectory]()
    while missing := groups_missing(run.recipe, everything, effective):
        wave = run.rewarded(await run.supply.wave(run.step, missing))
        run.settle(wave)
        everything += wave.attempts
        effective += wave.trained
    baited = await run.supply.honeypots(run.step)  # measured, never trained on
    return Played(everything, effective, baited)


def learn(run: Run, attempts: list[Trajectory]) -> Learned:
    """Turn verdicts into weights, weights into updates, and publish what came of it."""
    earned = credit(
        [] if run.recipe.method == "play" else attempts,
        run.recipe.algorithm,
        max_new_tokens=run.recipe.play.max_new_tokens,
        reference=reference(run, attempts),
        teacher=teacher(run, attempts),
        values=None if run.critic is None else run.critic.values(attempts),
        kl_coefficient=run.kl.coefficient,
        entropy_coefficient=run.entropy.coefficient,
    )
    trained_on = run.policy.version
    reports, updates = list[LearnerReport](), list[UpdateReport]()
    for batch in anchored(run, earned.batches):
        reports.append(run.learner.forward_backward(batch, run.recipe.algorithm.loss()))
        updates.append(run.learner.optim_step())
    fitted = None if run.critic is None else run.critic.fit(earned.lessons)
    if updates:
        run.learner.publish()
    run.supply.release(attempts, trained_on)
    run.steer(attempts, earned)
    return Learned(earned, trained_on, reports, updates, fitted)


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


def teacher(run: Run, attempts: list[Trajectory]) -> dict[str, Floats] | None:
    """Log-probabilities under the teacher, by trajectory id, where there is one."""
    if run.teacher is None:
        return None
    logps = run.teacher.logprobs([assemble(t) for t in attempts])
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
