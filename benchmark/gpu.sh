#!/usr/bin/env bash
# All that wants a GPU, in order of worth, each part stopped in time; and rehearsed without one.
#
#     TESTS=120 AGREE=180 SPEED=300 TRAIN=3600 bash benchmark/gpu.sh [FOLDER]
#
# The numbers are seconds; 0 leaves a part out. FOLDER (runs/gpu) gets a log of each part, parts.txt
# (how each ended), agree/, speed.json and train/. The same command again goes on with training
# from its last checkpoints. Rehearsal on a CPU, in about ten minutes:
#
#     MEASURE=hopper-medium ROUNDS=1 STEPS=20 ENV_ID=door-demo bash benchmark/gpu.sh runs/rehearsal
#
# It needs requirements.txt, pytest and, on a GPU, tensordict 0.15.3; and no network where the data
# are in D4RL's cache folder, or named by DATA. D3RLPY names a Python that has d3rlpy.
set -uo pipefail
cd "$(dirname "$0")/.."
export folder=${1:-runs/gpu}
mkdir -p "$folder/train"
export graph=--cuda-graph
python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || graph=
echo "graph: ${graph:-none, for want of a GPU}"

part() {  # NAME SECONDS COMMAND...
    local name=$1 seconds=$2 code
    shift 2
    [ "$seconds" = 0 ] && return 0
    timeout "$seconds" "$@" > >(tee "$folder/$name.log") 2>&1
    code=$?  # 124: stopped in time
    echo "$name: exit $code after $SECONDS s" | tee -a "$folder/parts.txt"
    failed=$((failed + (code != 0)))
    return $code
}

agree() {  # runs with a graph and without, from the same seed, give the same numbers
    rm -rf "$folder/agree"/{bear,uwac-analytic,uwac-mc}-{eager,graph}
    for words in bear "uwac --variance analytic" "uwac --variance mc"; do
        set -- $words
        for kind in eager graph; do
            local option=
            [ $kind = graph ] && option=$graph
            python "$1.py" "${@:2}" $option --env-id door-demo \
                --run-dir "$folder/agree/$1${3:+-$3}-$kind" --matmul-precision highest \
                --batch-size 64 --warmup-steps 10 --total-steps 40 --eval-every 20 \
                --eval-episodes 1 --eval-candidates 10 || return
        done
    done
    python benchmark/gpu.py "$folder/agree"
}

train() {  # the command that the project is known by, with five seeds
    local run=$folder/train/uwac
    if [ -f "$run/checkpoint.pt" ]; then
        python uwac.py --resume "$run"
    else
        python uwac.py --env-id "${ENV_ID:-door-human}" ${DATA:+--dataset-path "$DATA"} $graph \
            --num-seeds "${SEEDS:-5}" --total-steps "${STEPS:-500000}" --run-dir "$run"
    fi
}

failed=0
export -f agree train
part tests "${TESTS:-120}" python -m pytest tests/test_gpu.py
part agree "${AGREE:-180}" bash -c agree || graph=
for option in "" $graph; do
    part "speed$option" "${SPEED:-300}" python benchmark/speed.py \
        --groups ${MEASURE:-num_seeds door-human} --rounds "${ROUNDS:-3}" --folder "$folder" \
        ${D3RLPY:+--d3rlpy "$D3RLPY"} $option
done
part train "${TRAIN:-3600}" bash -c train
exit $((failed > 0))
