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
#         ENV_ID=door-demo bash benchmark/gpu.sh runs/rehearsal
#
# It needs requirements.txt, pytest and, for graphs, tensordict 0.15.3; and no network where the
# data are in D4RL's cache folder, or named by DATA.
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
            python $program "$1.py" "${@:2}" --env-id door-demo \
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
