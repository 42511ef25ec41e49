"""Loss curves that training had when it was last looked at: `python -m tests.arc_trm.golden_losses` writes them anew.

Run it only after a change that is meant to change numbers, and say so in the commit. Other CPUs and other builds of
torch round otherwise. In float64 only the initial weights and rotary angles, which are made in float32, can show that:
a few 1e-7. In float32 a last digit grows from step to step, because sign-SGD and the halting threshold turn it into a
whole step; the tolerance is what still shows a real change, such as a learning rate 1 % off.
"""

import json
from pathlib import Path

from tests.arc_trm.training import TINY, losses, tiny_trainer, with_settings

FILE = Path(__file__).with_name("golden_losses.json")
STEPS = 20
# Name: (configuration, canvas sides, float64)
RUNS = {
    "float64": (TINY, (5,), True),
    "float64, canvas sizes": (TINY, (3, 5), True),
    "float64, q-learning, AdamW": (
        with_settings(
            TINY, halting={"rule": "q_learning", "continue_loss": True}, train={"optimiser": "adamw", "ema": 0.0}
        ),
        (5,),
        True,
    ),
    "float64, token mixer": (with_settings(TINY, model={"mixer": "mlp"}), (5,), True),
    "float32": (TINY, (5,), False),
}
TOLERANCES = {name: 1e-5 if double else 1e-3 for name, (_, _, double) in RUNS.items()}


def curve(name: str) -> list[float]:
    """The losses of a run, step by step."""
    config, sides, double = RUNS[name]
    return losses(tiny_trainer(config, sides, double), STEPS)


if __name__ == "__main__":
    curves = {name: [float(f"{loss:.9g}") for loss in curve(name)] for name in RUNS}
    FILE.write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {FILE}: {len(curves)} curves of {STEPS} steps")
