"""The commands of the methods that run.py compares, by their names in style.py."""

METHODS = {
    "bear": "bear.py",
    "uwac": "uwac.py",
    "uwac-analytic": "uwac.py --variance analytic",
    "bear+sn": "uwac.py --weighting none --dropout 0 --spectral-norm True --variance analytic",
    # Without weights Var[Q] is a metric alone, for which the cheap estimate will do.
    "bear+dropout": "uwac.py --weighting none --spectral-norm False --variance analytic",
    "bear+dropout+sn": "uwac.py --weighting none --spectral-norm True --variance analytic",
    # Not in the paper: do the weights keep Q bounded without the norm that Adroit has?
    "uwac-no-sn": "uwac.py --spectral-norm False --variance analytic",
    # The authors' configuration: docs/fidelity.md.
    "uwac-code": "uwac.py --weighting exp --beta 0.5 --weight-clip 1 --num-mmd-samples 4"
    " --mmd-kernel gaussian --spectral-norm True --q-noise",
    "uwac-std": "uwac.py --weighting std",
    "uwac-ensemble": "benchmark/ensembles.py --members ensemble",
    "uwac-rem": "benchmark/ensembles.py --members rem",
}
