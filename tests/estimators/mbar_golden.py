"""Makes mbar_golden.json, the numbers that pymbar 4.0.3 gives, which test_mbar.py compares with. In an environment of its own:

pip install "numpy<2" scipy numexpr && pip install pymbar==4.0.3 --no-deps
python tests/estimators/mbar_golden.py > tests/estimators/mbar_golden.json
"""

import json

import numpy as np
from pymbar import MBAR


def case(seed: int, counts: list[int], offsets: list[float]) -> dict:
    """Draws of harmonic states of different widths and places, and their reduced energies in all states."""
    rng = np.random.default_rng(seed)
    places, widths = np.linspace(0, 2, len(counts)), np.linspace(1.0, 0.5, len(counts))
    x = np.concatenate([rng.normal(place, width, n) for place, width, n in zip(places, widths, counts, strict=True)])
    x = np.round(x, 6)
    energy = np.round(0.5 * ((x - places[:, None]) / widths[:, None]) ** 2 + np.array(offsets)[:, None], 10)
    solution = MBAR(energy, np.array(counts), solver_protocol="robust", relative_tolerance=1e-14)
    free = solution.compute_free_energy_differences()
    mean = solution.compute_expectations(x)
    return {
        "counts": counts,
        "x": x.tolist(),
        "reduced_energy": energy.tolist(),
        "free_energy": free["Delta_f"][0].tolist(),
        "error": free["dDelta_f"].tolist(),
        "weights_of_last": solution.weights()[:, -1].tolist(),
        "expectation": mean["mu"].tolist(),
    }


if __name__ == "__main__":
    cases = [case(0, [12, 9, 15], [0.0, 0.3, -5.0]), case(1, [20, 0, 10, 14], [0.0, 1.0, 2.0, 40.0])]
    print(json.dumps(cases))
