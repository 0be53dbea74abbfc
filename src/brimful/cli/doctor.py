"""`brimful doctor`: its options."""

from dataclasses import asdict, replace
from typing import Annotated

from brimful.cli import views
from brimful.cli.options import CARD, COMMON, Card, Common, Where, Words, flag
from brimful.errors import UsageError

HOST_POLICY = "doctor --host-policy -- python train.py --batch-size 64"


def doctor(
    *,
    calibrate: Annotated[bool, flag()] = False,
    host_policy: Annotated[bool, flag()] = False,
    bundle: Annotated[bool, flag()] = False,
    card: Card = CARD,
    device: Where = "auto",
    common: Common = COMMON,
    words: Words = (),
) -> int:
    """What disturbs measurements on this machine?

    Parameters
    ----------
    calibrate
        Measure the CUDA card of this machine: its context, what cuDNN adds, its rates. Later
        predictions for that card use them.
    host_policy
        Run your command for a few steps, and show batch sizes, loader workers, pinned memory and
        batches made ahead: what is requested, what the script does, what this machine has room
        for, and why. The options below belong to that run.
    bundle
        List, then write, an archive of your latest call for a report of what went wrong: brimful's
        record and the end of the script's errors, without its output, data, secrets.
    """
    if bundle and (calibrate or host_policy):
        raise UsageError("--bundle stands alone", "it is about a call that was made before")
    others = replace(common, json=False, home=None if bundle else common.home)
    nothing = (card, device, others, words) == (CARD, "auto", COMMON, ())
    if not (words and not calibrate if host_policy else nothing):
        raise UsageError(
            "--host-policy and a command belong together",
            "brimful doctor runs your command for a few steps to see what it asks of this machine; "
            "without both it looks at the machine alone",
            f"for instance:\nbrimful {HOST_POLICY}",
        )
    if bundle:
        return views.show_bundle(common.home, common.json)
    if not host_policy:
        return views.show_doctor(common.json, calibrate)
    from brimful.verbs.audit import audit as verb

    with views.progress() as watcher:
        chosen = {**asdict(card), **common.chosen(watcher), "device": device}
        record = verb(words, host_policy=True, **chosen)
    return views.show_audit(record, common.json, common.details)
