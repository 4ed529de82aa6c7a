"""Judging with models: by a rubric, by comparison, by a reward model's number.

`fencing` shows an attempt so that nothing in it can speak to the judge, `rules` says what is no
attempt at all, `replies` reads verdicts, `scribes` and `endpoint` reach the models. A judge is
the last resort where nothing can be computed: it is as good as its model. May be known by task
packs, the audit and the command line.
"""

from headrace.verify.judge.endpoint import Endpoint, EndpointScorer, EndpointSpec
from headrace.verify.judge.pairwise import PairwiseJudge
from headrace.verify.judge.reward import Linear, Logistic, RewardModel
from headrace.verify.judge.rubric import Item, JudgeOptions, RubricJudge
from headrace.verify.judge.scribes import Declined, Refused, Scorer, Scribe, Unreachable
from headrace.verify.judge.specimens import comparisons, rewards, rubrics
from headrace.verify.kinds import Kind

__all__ = [
    "JUDGE",
    "REWARD_MODEL",
    "RUBRIC",
    "Declined",
    "Endpoint",
    "EndpointScorer",
    "EndpointSpec",
    "Item",
    "JudgeOptions",
    "Linear",
    "Logistic",
    "PairwiseJudge",
    "Refused",
    "RewardModel",
    "RubricJudge",
    "Scorer",
    "Scribe",
    "Unreachable",
]

_ALL_JUDGES = (
    "As good as its model, which may err, drift behind its name, or be talked into things in ways "
    "no escaping prevents; its specimens try the escaping with a gullible stand-in, not your "
    "model. An answer made of ASCII marks alone, such as `;`, counts as no answer. Of attempts "
    "beyond max_characters the middle is not shown. A text that talks the model out of the form of "
    "its reply is left without a score: look at `hack` among what is unjudged."
)

JUDGE = Kind(
    id="judge",
    version=comparisons().verifier.ref.version,
    title="A model compares the attempt with a baseline, twice, their places swapped",
    limits=f"{_ALL_JUDGES} No score where the places decide, or 0.5 by option.",
    surfaces=PairwiseJudge.surfaces,
    specimens=comparisons,
)

RUBRIC = Kind(
    id="rubric",
    version=rubrics().verifier.ref.version,
    title="A model grades the attempt item by item of a rubric, required items being gates",
    limits=f"{_ALL_JUDGES} Up to 50 items, one question for all of them.",
    surfaces=RubricJudge.surfaces,
    specimens=rubrics,
)

REWARD_MODEL = Kind(
    id="reward-model",
    version=rewards().verifier.ref.version,
    title="A reward model's number, through a declared monotone map into 0..1",
    limits=f"{_ALL_JUDGES} What the number means is the model's own; the map is yours.",
    surfaces=RewardModel.surfaces,
    specimens=rewards,
)
