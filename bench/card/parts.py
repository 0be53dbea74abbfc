"""The parts of `make card`, in their order."""

from typing import NamedTuple


class Part(NamedTuple):
    title: str
    call: str  # module:function
    limit_s: float  # of the twelve minutes; what earlier parts left over comes to it


PARTS = {
    "calibrate": Part("What the card takes and gives", "bench.card.first:calibrate", 30),
    "first_use": Part("Before the first use of the card", "bench.card.first:first_use", 30),
    "memory": Part("Memory of trainings", "bench.card.measured:memory", 60),
    "times": Part("Time of a step", "bench.card.measured:times", 80),
    "edges": Part("The largest batch within a budget", "bench.card.measured:edges", 90),
    "verbs": Part("As a user", "bench.card.verbs:verbs", 110),
    "captcha": Part("Captchas, to a goal", "bench.card.recipes:captcha", 70),
    "captcha_profile": Part("A step of captchas", "bench.card.first:captcha_profile", 30),
    "chat": Part("The chat model, to a goal", "bench.card.recipes:chat", 100),
    "molecules": Part("Molecules, to the end", "bench.card.recipes:molecules", 80),
    "predictions": Part("Predictions", "bench.card.predicted:predictions", 40),
}
