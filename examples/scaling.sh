#!/usr/bin/env bash
# How requests, rows and time change with the policy, the memory budget and the number of machines: one run per cell,
# one line per run.
#
#     cargo build --release && examples/scaling.sh                      # the small synthetic graph
#     GREENGNN=target/release/greengnn EPOCHS=10 examples/scaling.sh MY-PARTS
#
# Needs jq. Runs are kept under $OUT (by default a temporary folder, removed at the end) with their reports.
set -euo pipefail

greengnn=${GREENGNN:-${CARGO_TARGET_DIR:-target}/release/greengnn}
epochs=${EPOCHS:-3}
policies=${POLICIES:-"on-demand window bulk"}
budgets=${BUDGETS:-"5% 25% 100%"}
machines=${MACHINES:-"1 2 4"}

if [ -n "${OUT:-}" ]; then
    out=$OUT
    mkdir -p "$out"
else
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi

parts=${1:-}
if [ -z "$parts" ]; then
    parts=$out/parts
    "$greengnn" synth small --out "$out/graph" >&2
    "$greengnn" partition "$out/graph" --parts 4 --out "$parts" >&2
fi

cell() { # POLICY BUDGET MACHINES
    local run=$out/$1-${2%\%}-$3
    "$greengnn" train "$parts" --policy "$1" --budget "$2" --machines "$3" --epochs "$epochs" --out "$run" --json 2>"$run.log" |
        jq -r --arg budget "$2" '
            def per_epoch(f): [.epochs[] | f] | add / length;
            [.policy, $budget, .machines, .held_rows_peak,
             (per_epoch(.feature_requests) | round), (per_epoch(.feature_rows) | round),
             (per_epoch(.wall_s) * 1000 | round), (per_epoch(.stall_s) * 1000 | round),
             (per_epoch(.cpu_s) * 1000 | round),
             (if any(.epochs[]; .energy_j == null) then "unknown"
              else "\(per_epoch(.energy_j) * 100 | round / 100) \(.epochs[0].energy_quality)" end),
             .weights_sha256[:12]] | @tsv' || { cat "$run.log" >&2; return 1; }
}

# The figures of an epoch are means over the run; the same weights in every line are the point of it.
{
    printf 'policy\tbudget\tmachines\theld rows\trequests\trows\tepoch ms\tstall ms\tCPU ms\tjoules\tweights\n'
    for count in $machines; do
        for policy in $policies; do
            if [ "$policy" = on-demand ] || [ "$policy" = full ]; then
                cell "$policy" 0% "$count"
            else
                for budget in $budgets; do cell "$policy" "$budget" "$count"; done
            fi
        done
    done
} | column -t -s "$(printf '\t')"
