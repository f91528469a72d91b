#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# What more than two GPUs are wanted for: tests of all ranks at once, then the
# figures that grow with them.
#
#     benchmarks/on_all_gpus.sh OUT [RANKS]
#
# RANKS: one a GPU where none is given. PYTHON runs all, warpmpi having been
# built before, in place. MPI4PY_SOURCE names mpi4py's sources, else pip fetches
# them. Each step has a limit, and a log in OUT; what failed is listed at the
# end. QUICK=1 tries the script itself, as on the simulated driver.
set -u
here=$(cd "$(dirname "$0")" && pwd)
tree=$(dirname "$here")
out=$(mkdir -p "${1:?usage: $0 OUT [RANKS]}" && cd "$1" && pwd)
python=${PYTHON:-python3}
export PYTHONPATH="$tree${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
ranks=${2:-$("$python" -c 'import warpmpi as wm; print(wm.get_cuda_device_count())')}
if [ -n "${QUICK:-}" ]; then
    seconds=5 every=200 sizes=(--quick) quick=(--quick)
else
    seconds=25 every=4 quick=()
    sizes=(--sizes 8 4096 65536 1048576 4194304 67108864 268435456)
fi
# The simulated driver is what the tests take by themselves.
real=(--gpu)
[ -n "${WARPMPI_CUDA_DRIVER:-}" ] && real=()
counts=()
for n in 1 2 4 8 16 32; do ((n <= 4 * ranks)) && counts+=("$n"); done
failed=()

step() { # NAME LIMIT COMMAND...
    local name=$1 limit=$2 start=$SECONDS status=0
    shift 2
    timeout -k 10 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null || status=$?
    # A benchmark goes on, and says so.
    grep -q ': failed: ' "$out/$name.log" && status=1
    ((status)) && failed+=("$name ($status)")
    printf '%s: %d s\n' "$name" $((SECONDS - start))
    tail -n 3 "$out/$name.log"
}

at_random() { # NAME COUNT'S OPTION
    step "$1" 90 "$python" "$tree/build_tools/mpirun.py" -n "$ranks" "$tree/tests/$1.py" \
        --seed 4 "$2" 1000000 --seconds "$seconds" --max-bytes 4000000 --patience 60
}

cd "$tree" || exit
at_random random_kernels --collectives
at_random random_collectives --collectives
at_random random_messages --messages
step coll 200 "$python" benchmarks/bench_coll.py --ranks "$ranks" --launches 1 \
    --impl nccl warpmpi --op Allreduce Alltoall Allgather Bcast Reduce Gather Scatter \
    Reduce_scatter_block "${sizes[@]}" --out "$out/all-coll"
step scale 180 "$python" benchmarks/bench_scale.py --ranks "${counts[@]}" --launches 1 \
    "${quick[@]}" --out "$out/all-scale"
step halo 150 "$python" benchmarks/bench_halo.py --ranks "$ranks" --launches 1 \
    --impl warpmpi warpmpi-plan packed bare --quick --out "$out/all-halo"
step rma 120 "$python" benchmarks/bench_rma.py --ranks "$ranks" --launches 1 \
    --impl warpmpi warpmpi-shared bare --quick --out "$out/all-rma"
step jacobi 120 "$python" benchmarks/bench_jacobi.py --ranks "$ranks" --launches 1 \
    --impl one-gpu warpmpi "${quick[@]}" --out "$out/all-jacobi"
step mpi4py 120 "$python" tests/mpi4py_suite.py --ranks "$ranks" --limit 100 \
    --backend "${BACKEND:-cupy}" --modules cco_buf cco_vec \
    ${MPI4PY_SOURCE:+--source "$MPI4PY_SOURCE"}
step tests 240 env -u WARPMPI_CUDA_DRIVER WARPMPI_TEST_EVERY="$every" "$python" tests/run.py \
    "${real[@]}" mpi --ranks "$ranks" --limit 230 -- -q
if [ ${#failed[@]} -gt 0 ]; then
    printf 'FAILED: %s (%d s)\n' "${failed[*]}" "$SECONDS"
    exit 1
fi
printf 'all passed in %d s\n' "$SECONDS"
