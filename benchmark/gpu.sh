#!/usr/bin/env bash
# All that wants a GPU, in order of worth, each part stopped in time; and rehearsed without one.
#
#     TESTS=120 AGREE=180 SPEED=600 TRAIN=3600 bash benchmark/gpu.sh [FOLDER]
#
# The numbers are seconds; 0 leaves a part out. FOLDER (runs/gpu) gets a log of each part, parts.txt
# (how each ended), agree.json, speed.json and train/. The same command again goes on with training
# from its last checkpoints. PRECISION=medium sets --matmul-precision. Rehearsal on a CPU, in about
# ten minutes:
#
#     SPEED=300 MEASURE=hopper-medium ROUNDS=1 STEPS=20 SEEDS=2 \
#         ENV_ID=door-demo DATA=data/door-demo.hdf5 bash benchmark/gpu.sh runs/rehearsal
#
# It needs no network: carry door-human's file (DATA) and, beside PyTorch >= 2.11 for CUDA and its
# NumPy, these wheels (Python 3.12, manylinux; MB), 76 MB in all:
#   gymnasium 1.4.0 (0.5), gymnasium-robotics 1.4.2 (26.2), mujoco 3.2.6 (6.5), h5py 3.16.0 (5.4),
#   pandas 3.1.1 (12.0), matplotlib 3.11.2 (9.9), seaborn 0.13.2 (0.3), python-dateutil 4.0.0 (0.1):
#   these four for speed.py; tensorboard 2.21.0 (5.5), pyopengl 3.1.10 (3.2),
#   pydantic-core 2.50.4 (2.3), pydantic 2.14.3 (0.5), tensordict 0.15.3 (0.9),
#   pettingzoo 1.27.0 (0.7), pytest 9.2.0 (0.4; with pluggy, iniconfig, pygments), imageio 2.38.1
#   (0.3), glfw 2.11.0 (0.2), zipp (etils'),
#   tyro 1.0.17, etils 1.15.0 (0.2 each), absl-py 2.5.1, jinja2 3.1.6, platformdirs 4.14.7,
#   tqdm 4.70.1, requests 2.34.2, pooch 1.9.0 (0.1 each), typeguard 4.6.0 (tyro's),
#   docstring-parser 0.18.0, annotated-types 0.8.0, typing-inspection 0.4.5, cloudpickle 3.1.2,
#   pyvers 0.2.3, farama-notifications 0.0.6;
# and what requests, matplotlib and tensorboard need, where it is not there: grpcio, pillow, ...
set -uo pipefail
cd "$(dirname "$0")/.."
folder=${1:-runs/gpu}
mkdir -p "$folder/train"
env_id=${ENV_ID:-door-human}
data=${DATA:+--dataset-path $DATA}
precision=${PRECISION:-high}
graph=benchmark/gpu.py  # runs a script with its updates as a CUDA graph
python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || graph=
echo "graph: ${graph:-none, for want of a GPU}"

part() {  # NAME SECONDS COMMAND...
    local name=$1 seconds=$2 code
    shift 2
    [ "$seconds" = 0 ] && return 1
    timeout "$seconds" "$@" > >(tee "$folder/$name.log") 2>&1
    code=$?  # 124: stopped in time
    echo "$name: exit $code after $SECONDS s" | tee -a "$folder/parts.txt"
    return $code
}

agree() {  # runs with a graph and without, from the same seed, give the same numbers
    rm -rf "$folder/agree"
    for words in bear "uwac --variance analytic" "uwac --variance mc"; do
        set -- $words
        for kind in eager graph; do
            local program=
            [ $kind = graph ] && program=$graph
            python $program "$1.py" "${@:2}" --env-id door-demo --dataset-path data/door-demo.hdf5 \
                --run-dir "$folder/agree/$1${3:+-$3}-$kind" --matmul-precision highest \
                --batch-size 64 --warmup-steps 10 --total-steps 40 --eval-every 20 \
                --eval-episodes 1 --eval-candidates 10 || return
        done
    done
    python benchmark/gpu.py compare "$folder/agree"
}

train() {  # both at once, on the same GPU
    for words in bear "uwac --variance analytic"; do
        set -- $words
        local run=$folder/train/$1 where=--run-dir
        [ -d "$run" ] && where=--resume
        python $use_graph "$1.py" --env-id "$env_id" $data --num-seeds "${SEEDS:-5}" "${@:2}" \
            --matmul-precision "$precision" --total-steps "${STEPS:-500000}" $where "$run" &
    done
    wait
}

export -f agree train
export folder graph env_id data precision
part tests "${TESTS:-120}" python -m pytest tests/test_gpu.py
part agree "${AGREE:-180}" bash -c agree && use_graph=$graph
export use_graph=${use_graph:-}
for flag in "" ${graph:+--cuda-graph}; do
    part "speed$flag" "${SPEED:-600}" python benchmark/speed.py --groups ${MEASURE:-num_seeds} \
        --rounds "${ROUNDS:-5}" --matmul-precision "$precision" --folder "$folder" $flag
done
part train "${TRAIN:-3600}" bash -c train
